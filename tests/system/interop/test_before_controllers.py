"""Upgrading control nodes one at a time while jobs run: c1 and c2 share a database, one of each version, and so do the
instances. No job is lost, none runs twice, and none hangs.

MESHD_BEFORE names the previous version; without it these tests are reported as skipped.
"""

import os
import pathlib
import signal

import pytest

from mesh import MESHD, until
from test_controller import ask, ended, job
from test_controller_many import controller, is_whole, keys, owned, runner, runs, server, shows, submit, unit_of  # noqa: F401

BEFORE = pathlib.Path(os.environ.get("MESHD_BEFORE", ""))
pytestmark = pytest.mark.skipif("MESHD_BEFORE" not in os.environ, reason="SKIPPED: MESHD_BEFORE is not set")


@pytest.fixture(params=["upgrades-c1", "upgrades-c2"])
def site(request, mesh, server, keys, tmp_path):  # noqa: F811
    """c1, e1 and the hop of before; c2 and e2 of now, or the other way round."""
    database = server.database()
    old, new = ("1", "2") if request.param == "upgrades-c1" else ("2", "1")
    program = lambda name: BEFORE if name.endswith(old) or name == "hop" else MESHD  # noqa: E731
    mesh.node("hop", listen=True, program=program("hop"))
    for name in ("c1", "c2"):
        mesh.node(name, peers=["hop"], extra=controller(server.url(database), keys, tmp_path), program=program(name))
    for name in ("e1", "e2"):
        mesh.node(name, peers=["hop"], work=[runner("ansible-runner")], program=program(name))
    mesh.start()
    names = {"c1", "c2", "e1", "e2"}
    ready = lambda: {one["name"] for one in ask(mesh["c1"], "instance.list")["instances"] if one["capacity"] > 0} >= names  # noqa: E731
    until("all instances to be ready", ready, 60)
    mesh.old, mesh.new = mesh[f"c{old}"], mesh[f"c{new}"]
    return mesh


def clean(mesh):
    """No unit of a child is left anywhere. What a control node of before had of a child that another one has released is an
    orphan, which housekeeping takes for one after a second look."""

    def left(name):
        units = mesh[name].command("work list").items()
        return [unit for unit, one in units if one["WorkType"] != "controller" and unit[9] != "h"]

    for name in ("c1", "c2", "e1", "e2"):
        until(f"{name} to have no children", lambda n=name: not left(n), 180)


def begun(mesh, tmp_path):
    """Jobs of each control node, on both instances, that wait for their files."""
    jobs = []
    for control in (mesh.old, mesh.new):
        for n in range(4):
            go = tmp_path / f"go-{control.name}-{n}"
            jobs.append((control, *submit(control, ident=go.name, go=str(go)), go))
    for control, _, number, _ in jobs:
        runs(control, number)
    placed = {attempt["node"] for *_, number, _ in jobs for attempt in job(mesh.new, number)["attempts"]}
    assert placed >= {"e1", "e2"}, placed
    return jobs


def finished(mesh, jobs):
    """All of them end once and whole; the attempts' units are gone everywhere."""
    for _, _, _, go in jobs:
        go.touch()
    for control, unit, number, go in jobs:
        one = ended(mesh.new, number)
        assert (one["state"], len(one["attempts"])) == ("successful", 1), one
        is_whole(shows(control, unit), go.name)
    clean(mesh)


def upgrade(node):
    node.stop()
    node.program = MESHD
    node.start()


def test_a_control_node_is_upgraded_while_its_jobs_run(site, tmp_path):
    jobs = begun(site, tmp_path)
    upgrade(site.old)
    finished(site, jobs)


def test_everything_is_upgraded_while_jobs_run(site, tmp_path):
    jobs = begun(site, tmp_path)
    for name in ("e1", "e2", "hop"):
        upgrade(site[name])
    upgrade(site.old)
    finished(site, jobs)


@pytest.mark.parametrize("lost", ["old", "new"])
def test_the_jobs_of_a_lost_control_node_are_taken_over_by_one_of_the_other_version(site, tmp_path, lost):
    """What was sent runs on, and is followed by the other one. The one of before comes back as one of now."""
    lost, heir = (site.old, site.new) if lost == "old" else (site.new, site.old)
    go = tmp_path / "go"
    unit, number = submit(lost, ident="taken", go=str(go))
    runs(heir, number)
    lost.stop(signal.SIGKILL)
    owned(heir, number, heir.name)
    go.touch()
    one = ended(heir, number)
    assert (one["state"], len(one["attempts"])) == ("successful", 1), one
    taken = until("a unit of the job", lambda: unit_of(heir, number), 30)
    is_whole(shows(heir, taken), "taken")
    lost.program = MESHD
    lost.start()
    is_whole(shows(lost, unit), "taken")
    clean(site)
