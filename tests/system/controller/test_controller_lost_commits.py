"""What becomes of jobs that the store has forgotten: PostgreSQL comes back without its last commits, as a standby that had not
got them, while c1 and c2 live on; or an older copy of a file is put back.
"""

import contextlib
import json
import re
import shutil
import signal

import pytest

from mesh import until
from test_controller import ask, nodes, wrote  # noqa: F401
from test_controller import submit as submit_to_control
from test_controller_many import NODES, clean, keys, pytestmark, runs, server, shows, site, streamed, submit  # noqa: F401


#: The child of a job's first attempt.
ID = re.compile(r"c[0-9a-f]{8}n\d+a1r[0-9a-f]{8}")


@pytest.fixture
def lose(site, server):  # noqa: F811
    """Has the store forget what it commits within a `with`."""

    def beats():
        rows = server.sql("SELECT node, beat FROM meshd.lease", site.database).stdout.splitlines()
        return {node: int(beat) for node, beat in (row.split("|") for row in rows)}

    @contextlib.contextmanager
    def lose(seen_by=("c1", "c2")):
        """A node sees it if it has renewed its lease since the copy."""
        older, logged = server.dir / "older", {name: len(site[name].log()) for name in seen_by}
        server.copy(older)
        before = beats()
        yield
        until("leases to be renewed", lambda: (now := beats()) and all(now[name] > before[name] + 1 for name in seen_by))
        server.put_back(older)
        server.start()
        for name, since in logged.items():
            site[name].logged("the store has lost its last commits", since=since)

    return lose


def test_a_job_that_the_store_has_lost_is_entered_again_or_ends(site, lose, tmp_path):  # noqa: F811
    c1 = site["c1"]
    with lose():
        running, number = submit(c1, ident="r", go=str(tmp_path / "never"))
        runs(c1, number)
        for name in ("e1", "e2"):
            ask(c1, "instance.disable", name=name)
        waiting, _ = submit(c1, ident="w")
    until("the one that was not placed to run", lambda: c1.unit(waiting)["StateName"] == "Succeeded", 60)
    assert c1.results(waiting).startswith(wrote("w", 3))
    shows(c1, running, "Failed")
    clean(site, *NODES)


def test_a_unit_of_a_job_that_the_store_has_lost_shows_no_other_jobs_end(site, lose, server, tmp_path):  # noqa: F811
    c1 = site["c1"]
    with lose():
        lost, number = submit(c1, ident="lost", go=str(tmp_path / "never"))
        runs(c1, number)
    # A database logs 32 numbers at a time, and these are within what it has lost.
    server.sql(f"SELECT setval('meshd.job_id_seq', {number}, false)", site.database)
    unit, other = submit(c1, ident="other")
    assert other == number, "the number is not used again"
    output = shows(c1, unit)
    assert output.startswith(wrote("other", 3)), output
    until("the lost one to end", lambda: (one := c1.unit(lost))["State"] >= 2 and one, 30)
    assert c1.results(lost) != output and c1.unit(lost)["StateName"] == "Failed", c1.unit(lost)


@pytest.mark.parametrize(
    ("site", "seen_by"),
    [({}, ("c1", "c2")), ({"heartbeat": "20s", "ownerlostafter": "90s"}, ())],
    ids=["seen", "unseen"],
    indirect=["site"],
)
def test_after_lost_commits_an_output_is_that_of_one_run(site, lose, seen_by, tmp_path):  # noqa: F811
    c1, diary, go = site["c1"], tmp_path / "diary", tmp_path / "go"
    for name in ("e1", "e2"):
        ask(c1, "instance.disable", name=name)
    unit, number = submit(c1, ident="o", lines=50, go=str(go), diary=str(diary), locks=[])
    with lose(seen_by):
        ask(c1, "instance.enable", name="e1")
        until("the output of the first run", lambda: b'"counter": 50' in streamed(c1, "job.output", id=number)[1])
    ask(c1, "instance.enable", name="e1")
    starts = lambda: [line for line in (tmp_path / "diary.runs").read_text().splitlines() if '"unit"' in line]  # noqa: E731
    until("the second run", lambda: len(starts()) == 2, 60)
    go.touch()
    output, wrote = shows(c1, unit), (tmp_path / f"diary.{json.loads(starts()[1])['run']}").read_bytes()
    assert output == wrote, f"{len(output)} bytes, and not the {len(wrote)} that were written"


def test_a_job_of_which_a_unit_says_that_it_may_have_run_does_not_start_then(nodes, tmp_path):  # noqa: F811
    control, e1 = nodes["control"], nodes["e1"]
    store, older, diary = control.datadir / "control" / ".controller", tmp_path / "older", tmp_path / "diary"
    ask(control, "instance.disable", name="e2")
    control.stop()
    shutil.copytree(store, older)
    control.start()
    e1.stop(signal.SIGSTOP)
    unit, number = submit_to_control(control, {"lost_after": "10m"}, ident="s", diary=str(diary), locks=[])
    until("its unit to know its child", lambda: control.unit(unit)["ExtraData"].get("OutputChildren"))
    control.stop(signal.SIGKILL)
    shutil.rmtree(store)
    shutil.copytree(older, store)
    control.start()
    waits = rf"the store has lost job {number}, which had been placed: it may have run; waiting for {ID.pattern} to end on e1"
    until("its unit to wait for its child", lambda: re.fullmatch(waits, control.unit(unit)["Detail"]))
    e1.process.send_signal(signal.SIGCONT)
    other, _ = submit_to_control(control, ident="other")
    until("another one to have run there", lambda: control.unit(other)["StateName"] == "Succeeded", 60)
    until("its unit to end", lambda: control.unit(unit)["StateName"] == "Failed")
    starts = tmp_path / "diary.runs"
    assert not starts.exists(), starts.read_text()
