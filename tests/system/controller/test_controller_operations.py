"""What operators ask of a control node: output and events as streams, reruns, retention, backups."""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import time

import pytest

from client import ControlError
from clocks import Clock
from mesh import MESHCTL, MESHD, RECEPTORCTL, environment, own_runner, until
from test_controller import ask, ended, is_ready, job, runner, submit, wrote


def hybrid(mesh, rundir, **more):
    """Starts a hybrid node by itself."""
    settings = {"nodetype": "hybrid", "discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "rundir": str(rundir), "requiretls": False}
    control = mesh.node("control", work=[runner("ansible-runner")], extra=[{"work-controller": settings | own_runner(runner("own")) | more}])
    mesh.start()
    until("the instance to be ready", lambda: is_ready(control), 60)
    return control


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory):
    """A hybrid node by itself, whose history is short."""
    from conftest import scoped_mesh

    with scoped_mesh(request.node) as mesh:
        yield hybrid(mesh, tmp_path_factory.mktemp("run"), poll="1s", cleanupevery="0s")


@contextlib.contextmanager
def streamed(node, op, **arguments):
    """The line before a stream, and the file to read the rest from."""
    with node.control() as client:
        client.send({"command": "controller", "op": op, **arguments})
        answer = json.loads(client.line())
        assert answer["ok"], answer
        yield answer["result"], client


def output(node, number, **arguments):
    with streamed(node, "job.output", id=number, **arguments) as (_, rest):
        return rest.reader.read()


def test_output_and_events_of_a_running_job_are_followed_to_its_end(alone, tmp_path):
    go = tmp_path / "go"
    _, number = submit(alone, ident="s", lines=5, go=str(go))
    until("it to print", lambda: b'"s 5"' in output(alone, number))
    with streamed(alone, "job.output", id=number) as (line, rest):
        there = rest.reader.read()
        assert (line["from"], line["size"]) == (0, len(there))
        assert b'"s 5"' in there and b'"eof"' not in there, "it ends at what there was"
    with streamed(alone, "job.output", id=number, follow=True, **{"from": 10}) as (_, all_of_it), streamed(alone, "job.events", id=number, follow=True, **{"from": 3}) as (_, events):
        go.touch()
        followed, picked = all_of_it.reader.read(), events.reader.read()
    whole = until("the output", lambda: (text := alone.results(job(alone, number)["unit"])).endswith(b'{"eof": true}\n') and text)
    assert whole.startswith(wrote("s", 5)) and followed == whole[10:]
    assert [json.loads(line)["counter"] for line in picked.splitlines()] == [3, 4, 5]
    assert all(line in whole for line in picked.splitlines())
    with streamed(alone, "job.output", id=number, attempt=1) as (line, rest):
        assert rest.reader.read() == whole and line["size"] == len(whole)
    with streamed(alone, "job.events", id=number, failed=True) as (_, rest):
        assert rest.reader.read() == b""
    with alone.control() as client:
        for arguments, code in [({"id": number, "attempt": 2}, "not_found"), ({"id": 999}, "not_found"), ({"id": number, "from": -1}, "bad_request"), ({"id": number, "x": 1}, "bad_request")]:
            client.send({"command": "controller", "op": "job.output", **arguments})
            assert json.loads(client.line())["error"]["code"] == code, arguments


def payload(node, unit):
    with contextlib.suppress(FileNotFoundError):
        return (node.unit_dir(unit) / "stdin").read_bytes()
    return b""


def children(node):
    return [unit for unit, status in node.command("work list").items() if status["WorkType"] != "controller"]


def refused(node, op, **arguments):
    answer = node.command({"command": "controller", "op": op, **arguments})
    assert not answer["ok"], answer
    return answer["error"]


def test_a_job_runs_again_with_the_same_payload_and_is_deleted(alone):
    unit, first = submit(alone, {"key": "once", "name": "again"}, ident="a", lines=2)
    ended(alone, first)
    again = ask(alone, "job.rerun", id=first)
    assert again["key"] is None and again["name"] == "again" and again["id"] != first, again
    one = ended(alone, again["id"])
    assert one["state"] == "successful" and one["payload_until"] > one["finished"], one
    links = {(alone.unit_dir(name) / "stdin").stat().st_ino for name in (unit, one["unit"])}
    assert len(links) == 1, "the payload is on disk once"
    until("its output", lambda: output(alone, again["id"]).startswith(wrote("a", 2)))
    assert "ended before its recap" in refused(alone, "job.rerun", id=first, failed_hosts=True)["message"]
    # Releasing the unit of the first one takes nothing from the second one.
    until("its children to be released", lambda: children(alone) == [])
    alone.command(f"work release {unit}")
    assert refused(alone, "job.rerun", id=first)["code"] == "not_found"
    assert refused(alone, "job.output", id=first)["code"] == "not_found"
    assert job(alone, first)["state"] == "successful", "its row stays"
    third = ended(alone, ask(alone, "job.rerun", id=again["id"])["id"])
    assert third["state"] == "successful", third
    until("its children to be released", lambda: children(alone) == [])
    assert ask(alone, "job.delete", id=third["id"]) == {"id": third["id"], "deleted": True}
    assert refused(alone, "job.get", id=third["id"])["code"] == "not_found"
    assert third["unit"] not in alone.command("work list")


def test_a_job_says_what_it_was_and_what_it_repeats(alone):
    what = {"playbook": "site.yml", "limit": "web", "tags": "a,b", "skip_tags": None, "module": None, "check": True}
    said = lambda one: {key: one[key] for key in what}  # noqa: E731
    _, first = submit(alone, {"labels": {"test": "what"}}, ident="w", playbook="site.yml", limit="web", cmdline="-t a,b --check -e secret=x")
    one = ended(alone, first)
    assert (one["name"], said(one), one["rerun_of"], one["launched_by"]) == ("site.yml", what, None, f"unix:{os.getuid()}")
    again = ask(alone, "job.rerun", id=first)
    assert (again["name"], said(again), again["rerun_of"]) == ("site.yml", what, first)
    listed = ask(alone, "job.list", label={"test": "what"})["jobs"]
    assert [(one["id"], said(one), one["rerun_of"]) for one in listed] == [(again["id"], what, first), (first, what, None)]
    _, module = submit(alone, ident="m", module="user", module_args="password=hidden")
    shown = ended(alone, module)
    assert (shown["name"], shown["module"], shown["playbook"]) == ("user", "user", None)
    assert "hidden" not in json.dumps(shown), "arguments may be secret"
    ended(alone, again["id"])


def test_a_job_runs_again_on_the_hosts_that_failed(alone):
    stats = {"ok": {"good": 1, "bad": 1}, "failures": {"bad": 1}, "dark": {"gone": 1}}
    _, first = submit(alone, ident="h", stats=stats, status="failed")
    assert ended(alone, first)["host_stats"]["gone"]["dark"] == 1
    again = ended(alone, ask(alone, "job.rerun", id=first, failed_hosts=True)["id"])
    assert (again["hosts"], again["limit"], again["rerun_of"]) == (2, "bad,gone", first), again
    assert b'"limit": "bad,gone"' in until("its output", lambda: output(alone, again["id"]))


def test_a_payload_that_is_not_to_be_kept_goes_with_the_end(alone):
    unit, number = submit(alone, {"rerun": False}, ident="n")
    ended(alone, number)
    until("its payload to be gone", lambda: payload(alone, unit) == b"")
    until("the store to know", lambda: job(alone, number)["payload_until"] is None)
    assert refused(alone, "job.rerun", id=number)["code"] == "not_found"


def test_what_a_lost_unit_held_is_known_to_be_gone(mesh, tmp_path):
    """Somebody deletes directories of units while the node is stopped. A tenth of the retention is between two looks."""
    control = hybrid(mesh, tmp_path, payloadretention="30s")
    unit, over = submit(control, ident="o")
    ended(control, over)
    until("the output", lambda: control.results(unit).endswith(b'{"eof": true}\n'))
    until("its children to be released", lambda: children(control) == [])
    ask(control, "pause")
    held, pending = submit(control, ident="p")
    control.stop()
    for one in (unit, held):
        shutil.rmtree(control.unit_dir(one))
    control.start()
    lost = ended(control, pending)
    assert (lost["state"], lost["explanation"]) == ("failed", "its payload was lost with control"), lost
    one = until("the payload to be known to be gone", lambda: (one := job(control, over))["payload_until"] is None and one)
    assert (one["state"], one["unit"]) == ("successful", None), "its row stays"
    assert refused(control, "job.rerun", id=over)["code"] == "not_found"
    for op in ("job.output", "job.events"):
        assert refused(control, op, id=over)["code"] == "not_found"
    done = subprocess.run([MESHCTL, "--socket", control.socket, "job", "output", str(over)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "not kept" in done.stderr, done
    ask(control, "resume")
    _, number = submit(control, ident="n")
    assert ended(control, number)["state"] == "successful"


def test_policies_are_shown_and_run(alone):
    shown = ask(alone, "policy.run", dry_run=True)
    groups = {one["name"]: one for one in shown["groups"]}
    assert shown["dry_run"] and groups["default"] == {"name": "default", "members": ["control"], "was": ["control"]}
    assert ask(alone, "policy.run")["dry_run"] is False


def test_a_ping_tells_the_store_and_the_nodes(alone):
    answer = ask(alone, "ping")
    assert answer["store"] == {"kind": "sqlite", "up": True, "error": None, "times_away": 0}
    assert [one["node"] for one in answer["nodes"]] == ["control"] and answer["paused"] is False
    _, number = submit(alone, ident="w")
    assert job(alone, number)["launched_by"] == f"unix:{os.getuid()}"
    ended(alone, number)
    with alone.control() as client, pytest.raises(ControlError, match="unknown work type"):
        client.submit("control", "controller-admin", b'{"op": "ping"}')


def audited(node):
    with contextlib.closing(sqlite3.connect(node.datadir / node.name / ".controller" / "store.db")) as store:
        return store.execute("SELECT who, op, target FROM audit ORDER BY id").fetchall()


def test_what_operators_change_is_audited_with_who_did_it(alone, tmp_path):
    _, number = submit(alone, ident="u")
    ended(alone, number)
    before, backup = len(audited(alone)), str(tmp_path / "audit.db")
    asked = [
        ("pause", {}, ""), ("resume", {}, ""), ("cleanup", {}, ""), ("backup", {"path": backup}, backup),
        ("policy.run", {}, ""), ("policy.run", {"dry_run": True}, ""),
        ("instance.add", {"name": "absent"}, "absent"), ("instance.set", {"name": "absent", "managed_by_policy": False}, "absent"),
        ("instance.disable", {"name": "absent"}, "absent"), ("instance.enable", {"name": "absent"}, "absent"),
        ("instance.health", {"name": "absent"}, "absent"), ("instance.health", {"name": "control", "store": False}, "control"),
        ("group.create", {"name": "audited"}, "audited"), ("group.set", {"name": "audited", "max_forks": 9}, "audited"),
        ("group.add", {"name": "audited", "instance": "absent"}, "audited"), ("group.remove", {"name": "audited", "instance": "absent"}, "audited"),
        ("group.delete", {"name": "audited"}, "audited"), ("instance.remove", {"name": "absent"}, "absent"),
        ("job.cancel", {"id": number}, str(number)), ("job.rerun", {"id": number}, str(number)), ("job.delete", {"id": number}, str(number)),
    ]
    for op, arguments, _ in asked:
        ask(alone, op, **arguments)
    # Who only looks, or is refused, leaves no row.
    for op in ("ping", "instance.list", "group.list", "job.list"):
        ask(alone, op)
    assert refused(alone, "group.delete", name="audited")["code"] == "not_found"
    me = f"unix:{os.getuid()}"
    assert audited(alone)[before:] == [(me, op, target) for op, _, target in asked]
    rows = ask(alone, "audit.list", limit=len(asked))["rows"]
    assert [(one["who"], one["op"], one["target"]) for one in rows] == [(me, op, target) for op, _, target in reversed(asked)]
    shown = subprocess.run([MESHCTL, "--socket", alone.socket, "controller", "audit", "--limit", "1"], capture_output=True, text=True, timeout=60)
    assert re.search(rf"^\d+s ago +{me} +job.delete +{number}$", shown.stdout, re.MULTILINE), shown


def test_a_backup_under_load_has_the_jobs(alone, tmp_path):
    jobs = [submit(alone, ident=f"b{n}")[1] for n in range(5)]
    path = tmp_path / "backup.db"
    done = ask(alone, "backup", path=str(path))
    assert done["bytes"] == path.stat().st_size and path.stat().st_mode & 0o777 == 0o600
    assert refused(alone, "backup", path=str(path)) and refused(alone, "backup", path="relative")["code"] == "bad_request"
    known = sqlite3.connect(path).execute("SELECT id FROM job").fetchall()
    assert {number for (number,) in known} >= set(jobs)
    for number in jobs:
        ended(alone, number)


def test_an_older_store_has_its_jobs_and_the_others_end(alone, tmp_path):
    _, known = submit(alone, ident="k")
    ended(alone, known)
    path, go = tmp_path / "backup.db", tmp_path / "go"
    assert restore(tmp_path / "absent.db", alone)[0] == 64
    ask(alone, "backup", path=str(path))
    unit, lost = submit(alone, ident="l", go=str(go))
    until("it to run", lambda: job(alone, lost)["state"] == "running")
    child = job(alone, lost)["attempts"][0]["unit"]
    alone.stop()
    store = alone.datadir / "control" / ".controller" / "store.db"
    assert restore(path, alone) == (0, f"Restored: {store}\n")
    assert sqlite3.connect(store.with_name("store.db.old")).execute("SELECT count(*) FROM job WHERE id = ?", (lost,)).fetchone() == (1,)
    alone.start()
    code, said = restore(path, alone)
    assert code == 1 and re.search(r"store.db is in use by node control, process \d+: stop that first", said), said
    assert job(alone, known)["state"] == "successful"
    one = until("the lost one's unit to end", lambda: (shown := alone.unit(unit))["StateName"] == "Failed" and shown)
    assert f"the store has lost job {lost}" in one["Detail"], one
    until("the audit to say so", lambda: ("mesh:control", "job.lost", str(lost)) in audited(alone))
    assert child not in alone.command("work list"), "it has ended before"
    go.touch()
    _, number = submit(alone, ident="new")
    assert ended(alone, number)["state"] == "successful"


def restore(path, node):
    """The exit code of `meshctl controller restore`, and what it says."""
    done = subprocess.run([MESHCTL, "controller", "restore", path, "--config", node.config], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_restore_needs_a_store_in_a_file(tmp_path):
    config = tmp_path / "meshd.yml"
    for directives, why in [
        ([{"work-controller": {"store": "postgresql://meshd@db/meshd"}}], "pg_restore"),
        ([{"local-only": None}], f"{config}: it has no work-controller"),
    ]:
        config.write_text(json.dumps([{"node": {"id": "a", "datadir": str(tmp_path)}}, *directives]))
        done = subprocess.run([MESHCTL, "controller", "restore", config, "--config", config], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and why in done.stderr, done


def test_a_health_check_may_change_nothing(alone):
    before = ask(alone, "instance.get", name="control")
    done = subprocess.run([MESHCTL, "--socket", alone.socket, "--json", "instance", "health", "control", "--no-store"], capture_output=True, text=True, timeout=60)
    shown = json.loads(done.stdout)
    assert (shown["name"], shown["node_state"], shown["errors"]) == ("control", "ready", []), shown
    assert shown["last_health_check"] > before["last_health_check"] and shown["capacity"] == before["capacity"] > 0
    assert ask(alone, "instance.get", name="control")["last_health_check"] == before["last_health_check"]
    assert refused(alone, "instance.health", name="nobody", store=False)["code"] == "not_found"
    done = subprocess.run([MESHCTL, "--socket", alone.socket, "instance", "health", "control"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    until("it to be checked", lambda: ask(alone, "instance.get", name="control")["last_health_check"] > before["last_health_check"])


def test_what_is_over_is_deleted_and_what_belongs_to_nothing_is_released(mesh, tmp_path):
    control = hybrid(mesh, tmp_path, payloadretention="1s", outputretention="8s", jobretention="12s")
    unit, number = submit(control, ident="r")
    ended(control, number)
    until("its payload to go", lambda: payload(control, unit) == b"")
    assert control.results(unit).startswith(wrote("r", 3))
    until("its output to go, with its unit", lambda: unit not in control.command("work list"))
    assert refused(control, "job.output", id=number)["code"] == "not_found"
    until("its row to go", lambda: ask(control, "job.list")["jobs"] == [])
    child = f"c{ask(control, 'ping')['install']}n77a1r00000000"
    with control.control() as client:
        client.submit("control", "ansible-runner", workUnitID=child)
    until("the child of no job to be released", lambda: child not in control.command("work list"))
    assert ask(control, "cleanup") == {"instances": ["control"]}
    until("nothing to be left", lambda: control.command("work list") == {})


def test_a_clock_that_is_years_ahead_deletes_nothing(mesh, tmp_path):
    # Housekeeping looks ten times as often as the shortest time for which something is kept.
    control = hybrid(mesh, tmp_path, cleanupevery="0s", payloadretention="2s", outputretention="24h", jobretention="24h")
    _, old = submit(control, ident="old")
    ended(control, old)
    until("its payload to be over", lambda: job(control, old)["payload_until"] is None)
    clock, years = Clock(tmp_path), 365 * 86400
    clock.set(5 * years)
    control.variables = clock.variables
    control.restart()
    doubted = lambda: ask(control, "ping")["clock"]["doubted"]  # noqa: E731
    until("the clock to be doubted", lambda: "nothing is deleted for its age" in control.log())
    _, new = submit(control, ident="new")
    ended(control, new)
    assert doubted() and job(control, old)["state"] == "successful" and b'"old 1"' in output(control, old)
    # It is set right while the node runs: everything goes on, by the right time.
    clock.set(0)
    until("the clock to be believed", lambda: not doubted())
    assert job(control, old)["state"] == "successful"
    clock.set(5 * years)
    control.restart()
    until("the clock to be doubted", doubted)
    confirmed = subprocess.run([MESHCTL, "--socket", control.socket, "--json", "controller", "confirm-clock"], capture_output=True, text=True, timeout=60)
    assert confirmed.returncode == 0 and json.loads(confirmed.stdout)["doubted"] is False, confirmed
    until("the history to be over", lambda: old not in [one["id"] for one in ask(control, "job.list")["jobs"]])
    assert "clock.confirm" in [op for _, op, _ in audited(control)], audited(control)


def test_a_check_looks_at_store_credentials_and_work_types(alone, tmp_path):
    secret = tmp_path / "credentials" / "quay.yml"
    secret.parent.mkdir()
    secret.write_text("kind: registry\nhost: quay.io\nusername: u\npassword: canary\n")
    secret.chmod(0o644)
    controller = {"work-controller": {"credentials": str(secret.parent), "verifysignature": False}}
    config = tmp_path / "c.yml"
    config.write_text(json.dumps([{"node": {"id": "control", "datadir": str(alone.datadir)}}, {"local-only": None}, controller]))
    done = subprocess.run([str(MESHD), "check", str(config)], capture_output=True, text=True, env=environment(), timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "canary" not in said, said
    for text in ["verifysignature is false", "credential quay"]:
        assert text in said, said
    assert "store" not in said, "the store of a node that runs can be looked at"
    secret.chmod(0o600)
    controller = {"nodetype": "hybrid", "runner": "true worker", "store": "postgresql://meshd@127.0.0.1:1/meshd?sslmode=disable"}
    look = [str(MESHD), "check", str(config)]
    for runner_settings, is_warned, code in [({}, True, 0), ({"runnerlimits": {"user": "nobody"}}, False, 0), ({"runner": "/nonexistent/program worker"}, True, 1)]:
        config.write_text(json.dumps([{"node": {"id": "other", "datadir": str(tmp_path / "data")}}, {"local-only": None}, {"work-controller": controller | runner_settings}]))
        done = subprocess.run(look, capture_output=True, text=True, env=environment(), timeout=60)
        assert done.returncode == code and "it cannot be reached now" in done.stdout, done
        assert ("run as the daemon's user" in done.stdout) == is_warned, done
        assert ("work-controller: runner: there is no program" in done.stdout) == (code == 1), done
