"""A hybrid control node: it runs jobs itself, by its own runner, beside those that it sends to others."""

import json
import pathlib
import signal

import pytest

from mesh import own_runner, until
from test_controller import ask, ended, runner


@pytest.fixture
def hybrid(mesh, tmp_path):
    """A hybrid control node and one execution node, which takes jobs once it is enabled."""
    settings = {"nodetype": "hybrid", "discovery": "disabled", "heartbeat": "200ms", "rundir": str(tmp_path), "poll": "1s"}
    mesh.node("hybrid", listen=True, extra=[{"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["hybrid"], work=[runner("ansible-runner")])
    mesh.start()
    found = lambda: [one["name"] for one in ask(mesh["hybrid"], "instance.list", found=True)["found"]]  # noqa: E731
    until("e1 to be found", lambda: found() == ["e1"], 60)
    assert [one["name"] for one in instances(mesh["hybrid"])] == ["hybrid"], "it is no instance before somebody takes it"
    until("the hybrid to be checked", lambda: instances(mesh["hybrid"])[0]["node_state"] == "ready", 60)
    return mesh


def instances(node):
    return ask(node, "instance.list")["instances"]


def submit(node, header=None, **kwargs):
    lines = [{"controller": 1, **(header or {})}, {"kwargs": kwargs}, {"eof": True}]
    payload = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with node.control() as client:
        answer = client.submit(node.name, "controller", payload)
    return answer["unitid"], node.unit(answer["unitid"])["ExtraData"]["JobID"]


def test_a_hybrid_runs_jobs_itself_and_goes_on_with_them_after_a_crash(hybrid, tmp_path):
    node, go = hybrid["hybrid"], tmp_path / "go"
    unit, number = submit(node, {"forks": 1}, ident="h", lines=5, go=str(go))
    running = until("it to run", lambda: (one := ask(node, "job.get", id=number))["state"] == "running" and one)
    assert (running["controller_node"], running["execution_node"]) == ("hybrid", "hybrid")
    assert running["attempts"][0]["work_type"] == "controller-runner"
    own = next(one for one in instances(node) if one["name"] == "hybrid")
    assert (own["node_type"], own["consumed_capacity"]) == ("hybrid", running["impact"] + 1), own
    node.stop(signal.SIGKILL)
    go.touch()
    node.start()
    one = ended(node, number)
    assert (one["state"], one["events"], len(one["attempts"])) == ("successful", 5, 1), one
    until("the unit's end", lambda: node.unit(unit)["StateName"] == "Succeeded")
    assert node.results(unit).count(b'"counter"') == 5
    until("the child to be released", lambda: set(node.command("work list")) == {unit})


def niceness(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


def test_a_hybrid_keeps_room_for_itself_and_what_it_runs_gives_way(hybrid, tmp_path):
    """Two processors and 16 GiB are 143 forks on a node that is no control node."""
    node, go = hybrid["hybrid"], tmp_path / "go"
    own = ask(node, "instance.get", name="hybrid")
    assert (own["cpu_capacity"], own["mem_capacity"], own["capacity"], own["usual_jobs"]) == (4, 71, 71, 11), own
    ask(node, "instance.enable", name="e1")
    until("e1 to be checked", lambda: all(one["node_state"] == "ready" for one in instances(node)), 60)
    assert ask(node, "instance.get", name="e1")["usual_jobs"] == 23
    for name, more in [("hybrid", 10), ("e1", 0)]:
        ask(node, "group.create", name=f"only-{name}", policy_instance_list=[name])
        diary = tmp_path / name
        header = {"groups": {"launch": [f"only-{name}"]}}
        number = submit(node, header, ident=name, go=str(go), diary=str(diary), locks=[])[1]
        until("it to run", lambda one=number: ask(node, "job.get", id=one)["state"] == "running")
        runs = pathlib.Path(f"{diary}.runs")
        until("its diary to begin", lambda: runs.exists() and runs.read_text().endswith("\n"))
        run = json.loads(runs.read_text().splitlines()[0])["run"]
        assert niceness(run) == min(19, niceness(hybrid[name].process.pid) + more), name
    go.touch()


def test_a_hybrid_shares_jobs_with_the_nodes_of_its_group(hybrid, tmp_path):
    node, go = hybrid["hybrid"], tmp_path / "go"
    ask(node, "instance.enable", name="e1")
    # About as much as the hybrid has.
    ask(node, "instance.set", name="e1", capacity_adjustment=0.5)
    until("e1 to be checked", lambda: all(one["node_state"] == "ready" for one in instances(node)), 60)
    jobs = [submit(node, ident=f"s{n}", go=str(go))[1] for n in range(6)]
    state = lambda n: ask(node, "job.get", id=n)  # noqa: E731
    until("all to run", lambda: all(state(number)["state"] == "running" for number in jobs), 60)
    assert {state(number)["execution_node"] for number in jobs} == {"hybrid", "e1"}
    go.touch()
    assert {ended(node, number)["state"] for number in jobs} == {"successful"}
