"""A control node that places jobs: two execution nodes behind a hop, with a stand-in for ansible-runner."""

import json
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from client import ControlError
from mesh import HEALTHY, MESHCTL, RECEPTORCTL, command_type, environment, own_runner, until

STAND_IN = pathlib.Path(__file__).parents[1] / "stand_in_runner.py"
RUNNER = f"{STAND_IN} worker"


def runner(name):
    return command_type(name, sys.executable, RUNNER, runtime=True)


@pytest.fixture
def nodes(mesh, tmp_path):
    """control - hop - two execution nodes."""
    mesh.node("hop", listen=True)
    settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "3s", "rundir": str(tmp_path), "poll": "1s"}
    mesh.node("control", peers=["hop"], extra=[{"work-controller": settings | own_runner(runner("own"))}])
    for name in ("e1", "e2"):
        mesh.node(name, peers=["hop"], work=[runner("ansible-runner")])
    mesh.start()
    ready = lambda: sum(one["capacity"] > 0 for one in ask(mesh["control"], "instance.list")["instances"])  # noqa: E731
    until("three instances to be ready", lambda: ready() == 3, HEALTHY)
    return mesh


def ask(node, op, **arguments):
    """The result of an operation. On a busy machine a node may answer before it has opened its store."""

    def answered():
        answer = node.command({"command": "controller", "op": op, **arguments})
        return (answer["ok"] or answer["error"]["code"] != "store_away") and answer

    answer = until("the store to be there", answered)
    assert answer["ok"], answer
    return answer["result"]


def stream(header=None, **kwargs):
    lines = [{"kwargs": kwargs}, {"eof": True}]
    if header is not None:
        lines.insert(0, {"controller": 1, **header})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def submit(node, header=None, **kwargs):
    """Submits a job; returns its unit and number."""
    with node.control() as client:
        answer = client.submit("control", "controller", stream(header, **kwargs))
    assert answer["result"] == "Job Started", answer
    return answer["unitid"], node.unit(answer["unitid"])["ExtraData"]["JobID"]


def job(node, number):
    return ask(node, "job.get", id=number)


def is_ready(node):
    """Whether it can run jobs itself. A node enters itself a moment after its store is there."""
    answer = node.command({"command": "controller", "op": "instance.get", "name": node.name})
    return answer["ok"] and answer["result"]["capacity"] > 0


def ended(node, number, seconds=60):
    return until(f"job {number} to end", lambda: (one := job(node, number))["finished"] and one, seconds)


def wrote(ident, lines, status="successful"):
    """What the stand-in writes, up to its zip."""
    says = [{"status": "starting", "command": ["ansible-playbook"]}, {"status": "running"}]
    says += [{"counter": n, "uuid": f"u{n}", "event": "verbose", "stdout": f"{ident} {n}", "event_data": {}} for n in range(1, lines + 1)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in [*says, {"status": status}])


def test_jobs_spread_over_the_nodes_and_their_output_is_whole(nodes, tmp_path):
    control, go = nodes["control"], tmp_path / "go"
    kinds = {one["name"]: one["node_type"] for one in ask(control, "instance.list")["instances"]}
    assert kinds == {"control": "control", "hop": "hop", "e1": "execution", "e2": "execution"}
    # All are there at once: if each ended before the next one came, the first node would do.
    jobs = [submit(control, ident=f"j{n}", lines=20, go=str(go)) for n in range(20)]
    go.touch()
    used = set()
    for n, (unit, number) in enumerate(jobs):
        one = ended(control, number)
        assert (one["state"], one["rc"], one["events"]) == ("successful", 0, 20), one
        used.add(one["execution_node"])
        until("the unit's end", lambda u=unit: control.unit(u)["StateName"] == "Succeeded")
        output = control.results(unit)
        assert output.startswith(wrote(f"j{n}", 20)) and output.endswith(b'{"eof": true}\n')
    assert used == {"e1", "e2"}
    swept = lambda: [u for u in control.command("work list") if u not in {unit for unit, _ in jobs}]  # noqa: E731
    until("the children to be released", lambda: swept() == [])
    for name in ("e1", "e2"):
        until(f"{name} to have no units", lambda n=name: nodes[n].command("work list") == {})


def test_what_fails_is_told_and_what_is_malformed_leaves_nothing(nodes):
    control = nodes["control"]
    _, number = submit(control, ident="f", status="failed")
    one = ended(control, number)
    assert (one["state"], one["rc"]) == ("failed", 2), one
    # Their rows may still change.
    known = lambda: [one["id"] for one in ask(control, "job.list")["jobs"]]  # noqa: E731
    before = known()
    units = set(control.command("work list"))
    for payload, why in [
        (b'{"kwargs": {}}\n', "the stream ends after 15 bytes"),
        (b"hello\n", "the first line is neither a header"),
        (stream({"nonsense": 1}), "unknown key `nonsense`"),
        (stream({"groups": {"template": ["nowhere"]}}), "there is no group nowhere"),
    ]:
        with control.control() as client, pytest.raises(ControlError, match="controller: ") as refused:
            client.submit("control", "controller", payload)
        assert why in str(refused.value)
    half = {"command": "work", "subcommand": "submit", "node": "control", "worktype": "controller"}
    for is_killed in (False, True):
        client = control.control()
        client.send(half)
        client.line()
        client.socket.sendall(stream()[:10])
        if is_killed:
            control.stop(signal.SIGKILL)
            control.start()
        client.close()
        until("nothing to be left", lambda: set(control.command("work list")) <= units)
    assert known() == before


def test_a_cancel_reaches_the_runner(nodes, tmp_path):
    control = nodes["control"]
    unit, number = submit(control, ident="c", go=str(tmp_path / "never"))
    until("it to run", lambda: job(control, number)["state"] == "running")
    child = job(control, number)["attempts"][0]["unit"]
    with pytest.raises(ControlError, match=f"unit {child} belongs to job {number}: use meshctl job cancel {number}"):
        control.command(f"work cancel {child}")
    meshctl = [str(MESHCTL), "--socket", str(control.socket), "--json", "job", "cancel", str(number)]
    done = subprocess.run(meshctl, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done
    assert ended(control, number)["state"] == "canceled"
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Canceled")
    for name in ("e1", "e2"):
        until(f"{name} to have no units", lambda n=name: nodes[n].command("work list") == {})


def test_a_killed_control_node_goes_on_where_it_was(nodes, tmp_path):
    control, go = nodes["control"], tmp_path / "go"
    jobs = [submit(control, ident=f"r{n}", lines=50, go=str(go)) for n in range(4)]
    for _, number in jobs:
        until("it to run", lambda n=number: job(control, n)["state"] == "running")
    control.stop(signal.SIGKILL)
    go.touch()
    control.start()
    for n, (unit, number) in enumerate(jobs):
        one = ended(control, number)
        assert (one["state"], len(one["attempts"])) == ("successful", 1), one
        until("the unit's end", lambda u=unit: control.unit(u)["StateName"] == "Succeeded")
        output = control.results(unit)
        assert output.startswith(wrote(f"r{n}", 50)) and output.endswith(b'{"eof": true}\n')
        assert output.count(b'"starting"') == 1


def test_a_lost_node_fails_its_jobs_and_an_operator_lets_them_run_again(nodes, tmp_path):
    control, go = nodes["control"], tmp_path / "go"
    _, fails = submit(control, ident="a", go=str(go))
    unit, again = submit(control, {"retry": {"max": 1}}, ident="b", go=str(go))
    until("both to run", lambda: all(job(control, n)["state"] == "running" for n in (fails, again)))
    places = {job(control, n)["execution_node"] for n in (fails, again)}
    for name in places:
        nodes[name].stop(signal.SIGKILL)
    assert ended(control, fails)["state"] == "failed"
    until("it to wait", lambda: "may still run" in (job(control, again)["explanation"] or ""))
    assert job(control, again)["state"] == "pending"
    lost = job(control, again)["execution_node"]
    go.touch()
    for name in places - {lost}:
        nodes[name].start()
    ask(control, "instance.remove", name=lost, dead=True)
    if places == {lost}:
        one = ended(control, again)
        assert (one["state"], one["attempt"]) == ("successful", 2), one
        until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
        assert b"did not come to its end" in control.results(unit)
    else:
        assert ended(control, again)["state"] == "successful"


def meshctl(node, *words, **more):
    command = [str(MESHCTL), "--socket", str(node.socket), *words]
    return subprocess.run(command, capture_output=True, env=environment(), timeout=60, **more)


def test_meshctl_submits_waits_and_shows(nodes, tmp_path):
    control = nodes["control"]
    submitted = json.loads(meshctl(control, "--json", "job", "submit", input=stream(ident="m", lines=2)).stdout)
    number = str(submitted["id"])
    waited = meshctl(control, "--json", "job", "wait", number)
    assert (waited.returncode, json.loads(waited.stdout)["state"]) == (0, "successful"), waited
    until("the output", lambda: meshctl(control, "job", "output", number).stdout.startswith(wrote("m", 2)))
    listed = json.loads(meshctl(control, "--json", "job", "list").stdout)["jobs"]
    assert [one["id"] for one in listed] == [submitted["id"]]
    assert json.loads(meshctl(control, "--json", "job", "show", number).stdout)["unit"] == submitted["unit"]
    refused = meshctl(control, "job", "submit", input=stream({"controller": 2}))
    assert refused.returncode == 101 and b"this node understands version 1 only" in refused.stderr, refused
    refused = meshctl(control, "job", "submit", "--header", '{"controller": 1, "frks": 1}', input=stream())
    assert refused.returncode == 64 and b"unknown key `frks`" in refused.stderr, refused
    missing = meshctl(control, "job", "show", "777")
    assert missing.returncode == 1 and b"there is no job 777" in missing.stderr, missing
    for name in ("e1", "e2"):
        assert meshctl(control, "instance", "disable", name).returncode == 0
    _, waiting = submit(control, ident="w")
    explained = lambda: json.loads(meshctl(control, "--json", "job", "explain", str(waiting)).stdout)  # noqa: E731
    whys = {one["name"]: one["why"] for one in explained()["groups"][0]["instances"]}
    assert (whys["e1"], whys["e2"], explained()["state"]) == ("disabled", "disabled", "pending")
    meshctl(control, "instance", "enable", "e2")
    assert ended(control, waiting)["execution_node"] == "e2"


def test_over_the_mesh_a_job_needs_a_token_and_operations_are_not_served(nodes):
    control, stranger = nodes["control"], nodes["e1"]
    with stranger.control() as client, pytest.raises(ControlError, match="could not verify signature: signature is empty"):
        client.submit("control", "controller", stream())
    assert ask(control, "job.list")["jobs"] == []
    tunnel = stranger.control()
    tunnel.send({"command": "connect", "node": "control", "service": "control"})
    assert "Connecting" in tunnel.line() and "Receptor Control, node control" in tunnel.line()
    unit, number = submit(control, ident="m")
    ended(control, number)
    _, number = submit(control, ident="n", go="never")
    child = until("its child", lambda: (one := job(control, number))["state"] == "running" and one["attempts"][0]["unit"])
    for verb in ("status", "list", "results", "cancel", "release", "force-release"):
        with pytest.raises(ControlError, match="could not verify signature: signature is empty"):
            tunnel.command(f"work {verb} {unit}")
        if verb != "list":
            with pytest.raises(ControlError, match=f"unknown work unit {child}"):
                tunnel.command(f"work {verb} {child}")
    assert job(control, number)["state"] == "running"
    ask(control, "job.cancel", id=number)
    tunnel.send({"command": "controller", "op": "ping"})
    with pytest.raises(ControlError, match="controller over this connection is not allowed"):
        tunnel.line()
    tunnel.close()


def test_the_same_key_is_the_same_job(nodes):
    control = nodes["control"]
    first, number = submit(control, {"key": "ci-1"}, ident="k")
    second, again = submit(control, {"key": "ci-1"}, ident="other")
    assert number == again
    ended(control, number)
    for unit in (first, second):
        until("the unit's end", lambda u=unit: control.unit(u)["StateName"] == "Succeeded")
        assert control.results(unit).startswith(wrote("k", 3))


def test_receptorctl_submits_and_follows_a_job(nodes):
    control = nodes["control"]
    command = [str(RECEPTORCTL), "--socket", str(control.socket), "work", "submit", "controller", "--node", "control", "-p", "-", "-f"]
    done = subprocess.run(command, input=stream(ident="rc", lines=4), capture_output=True, env=environment(), timeout=60)
    assert done.returncode == 0, done
    assert wrote("rc", 4) in done.stdout and b'{"eof": true}' in done.stdout


def test_a_job_is_one_unit_on_its_control_node(nodes):
    control, e1 = nodes["control"], nodes["e1"]
    ask(control, "instance.disable", name="e2")
    e1.stop(signal.SIGSTOP)
    unit, number = submit(control, ident="p")
    until("its attempt", lambda: job(control, number)["attempts"])
    until("its unit to know it", lambda: control.unit(unit)["ExtraData"].get("OutputChildren"))
    directories = [one.name for one in (control.datadir / "control").iterdir()]
    assert unit in directories and not [one for one in directories if re.fullmatch(r"c[0-9a-f]{8}n1a1r.*", one)]
    e1.process.send_signal(signal.SIGCONT)
    until("its end", lambda: control.unit(unit)["StateName"] == "Succeeded", 60)
