"""A control node of ours whose jobs run on nodes of the Go implementation, behind a hop of the Go implementation: with
each of its releases, plain, and signed over mutual TLS.

With each release that the environment names; otherwise these tests are reported as skipped.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys

import pytest

import go
import playbooks
import trust
from conftest import scoped_mesh
from mesh import MESHCTL, command_type, environment, free_port, own_runner, until
from peer import Proxy
from playbooks import FIVE
from test_controller import STAND_IN, ask, ended, job, stream, wrote
from test_controller_real import ready, runner, submit, waits_in

NAMES = ("control", "hop", "go", "ours")
#: Waits for a file, and goes on.
GATE = """
    - name: Tell
      ansible.builtin.debug: {{msg: before the gate}}
    - name: Wait
      ansible.builtin.wait_for: {{path: "{gate}", timeout: 120}}
"""
#: A machine that is busy fails a health check, which is repeated after half a minute.
PATIENCE = 110
pytestmark = pytest.mark.timeout(240)
SHAPES = [
    go.parameter(variable, (variable, secure), label=label)
    for variable in go.VARIABLES
    for secure, label in ((False, "plain-"), (True, "signed-tls-"))
]


@pytest.fixture(scope="module", params=SHAPES)
def nodes(request, tmp_path_factory):
    """Execution nodes `go`, `ours` and `strict`, which takes no parameters, behind a Go hop; the jobs run on `go`."""
    variable, secure = request.param
    receptor, pki = go.program(variable), trust.Pki(tmp_path_factory.mktemp("pki"))
    settings = {"discovery": "enabled", "rundir": str(tmp_path_factory.mktemp("runs")), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "60s"}
    extra = {name: [] for name in (*NAMES, "strict")}
    if secure:
        for name in extra:
            pki.issue(name, [name])
            extra[name] += pki.profiles(name)
        signers, verifiers = pki.signing_keys()
        settings["tlsclient"] = "client"
        extra["control"] += signers
        for name in ("go", "ours", "strict"):
            extra[name] += verifiers
    with scoped_mesh(request.node) as mesh:
        port, tls = free_port(), ({"tls": "server"} if secure else {})
        dial = {"tcp-peer": {"address": f"127.0.0.1:{port}", **({"tls": "client"} if secure else {})}}
        listener = {"tcp-listener": {"bindaddr": "127.0.0.1", "port": port, **tls}}
        work = runner("ansible-runner")
        work["work-command"]["verifysignature"] = secure
        strict = {"work-command": {**work["work-command"], "allowruntimeparams": False}}
        own = {"hop": [listener], "control": [{"work-controller": settings | own_runner(runner("own"))}, dial]}
        own |= {"go": [work, dial], "ours": [work, dial], "strict": [strict, dial]}
        for name in ("hop", "control", "go", "ours", "strict"):
            program = {"program": receptor} if name in ("hop", "go", "strict") else {}
            mesh.add(name, [{"log-level": "info"}, *extra[name], *own[name]], service=tls, **program)
            mesh[name].start()
        mesh.wait_for_routes()
        control = mesh["control"]
        until("the runners' answers", lambda: ready(control) == {"control", "go", "ours"}, PATIENCE)
        ask(control, "instance.disable", name="ours")
        yield mesh


def gated(directory, gate):
    """The stream of a playbook that waits for a file."""
    return playbooks.transmit(playbooks.Playbook(GATE.format(gate=gate), "successful", 0, {"one": [2]}).write(directory))


def cancel(control, number):
    command = [str(MESHCTL), "--socket", str(control.socket), "job", "cancel", str(number)]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60)
    assert done.returncode == 0, done


def nothing_left(node):
    """A Go node answers a release before it is done."""
    until(f"{node.name} to have no units", lambda: node.command("work list") == {}, 60)


@pytest.mark.parametrize("variable", [*go.EACH, "meshd"])
def test_a_node_with_a_key_submits_a_job_and_follows_it(mesh, tmp_path, variable):
    """A Go node asks for the status of its unit without a token."""
    signers, verifiers = trust.Pki(tmp_path).signing_keys()
    settings = {"nodetype": "hybrid", "discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "rundir": str(tmp_path), "requiretls": False}
    worker = lambda name: command_type(name, sys.executable, f"{STAND_IN} worker", runtime=True)  # noqa: E731
    mesh.node("control", listen=True, work=[worker("ansible-runner")], extra=[{"work-controller": settings | own_runner(worker("own"))}, *verifiers])
    mesh.node("far", peers=["control"], extra=signers, program=go.program(variable))
    mesh.start()
    control, far = mesh["control"], mesh["far"]
    until("the runner's answer", lambda: ready(control) == {"control"}, PATIENCE)
    with far.control() as client:
        unit = client.submit("control", "controller", stream(ident="far", lines=4), signwork="true")["unitid"]
    until("the unit's end", lambda: far.unit(unit)["StateName"] == "Succeeded", 60)
    until("its output", lambda: far.results(unit).startswith(wrote("far", 4)))
    far.command(f"work release {unit}")
    until("the job's unit to go", lambda: control.command("work list") == {}, 60)


def test_the_health_check_of_a_go_node(nodes):
    control = nodes["control"]
    listed = lambda: {one["name"]: one for one in ask(control, "instance.list")["instances"]}  # noqa: E731
    refused = "extra params provided but not allowed"
    until("the answer of the strict one", lambda: refused in " ".join(listed().get("strict", {}).get("errors", [])), PATIENCE)
    ours, theirs, strict = (ask(control, "instance.get", name=name) for name in ("ours", "go", "strict"))
    for key in ("cpu", "memory", "cpu_capacity", "mem_capacity", "version", "errors", "node_state", "node_type"):
        assert theirs[key] == ours[key], key
    assert theirs["capacity"] > 0 and theirs["node_state"] == "ready", theirs
    hop = until("the hop to be found", lambda: listed().get("hop"), 60)
    assert hop["node_type"] == "hop", hop
    assert strict["capacity"] == 0 and strict["node_state"] == "unavailable", strict


def test_five_playbooks(nodes, tmp_path):
    """At once; that they leave what ansible-runner leaves without a mesh, test_controller_real.py shows."""
    control, jobs = nodes["control"], {}
    for way, playbook in FIVE.items():
        payload = playbooks.transmit(playbook.write(tmp_path / way))
        header = {"controller": 1, "name": way, **({"timeout": "30s"} if way == "timeout" else {})}
        jobs[way] = submit(control, json.dumps(header).encode() + b"\n" + payload)
    unit, number = jobs["cancelled"]
    waits_in(control, unit)
    cancel(control, number)
    for way, (unit, number) in jobs.items():
        playbook, one = FIVE[way], ended(control, number, 90)
        assert (one["state"], one["rc"], one["execution_node"]) == (playbook.state, playbook.rc, "go"), one
        assert (one["host_stats"], len(one["attempts"])) == (playbook.stats(), 1), one
        until("the unit's end", lambda u=unit: control.unit(u)["State"] > 1)
        output = control.results(unit)
        assert output.endswith(b'{"eof": true}\n'), output[-300:]
        artifacts = playbooks.process(output, tmp_path / f"{way}-out")
        assert len(list((artifacts / "job_events").iterdir())) == one["events"] > 3, one
    nothing_left(nodes["go"])


def test_a_job_of_our_node_passes_the_hop(nodes, tmp_path):
    control = nodes["control"]
    ask(control, "instance.enable", name="ours")
    ask(control, "instance.disable", name="go")
    _, number = submit(control, playbooks.transmit(FIVE["failed"].write(tmp_path / "in")))
    one = ended(control, number)
    ask(control, "instance.enable", name="go")
    ask(control, "instance.disable", name="ours")
    assert (one["state"], one["rc"], one["execution_node"]) == ("failed", 2, "ours"), one
    nothing_left(nodes["ours"])


def test_a_job_outlives_the_kill_of_each_daemon(nodes, tmp_path):
    """One after the other: ours, the one that runs the job, and the hop between them."""
    control, gate = nodes["control"], tmp_path / "gate"
    unit, number = submit(control, gated(tmp_path / "in", gate))
    waits_in(control, unit)
    for who in ("control", "go", "hop"):
        nodes[who].restart(signal.SIGKILL)
        nodes.wait_for_routes()
    gate.touch()
    one = ended(control, number, 90)
    assert (one["state"], one["rc"], len(one["attempts"])) == ("successful", 0, 1), one
    assert one["host_stats"]["one"]["ok"] == 2, one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
    output = control.results(unit)
    assert output.endswith(b'{"eof": true}\n') and output.count(b'"status": "starting"') == 1, output[-300:]
    nothing_left(nodes["go"])


class Answers(Proxy):
    """A way to a node on which its answers are lost from the moment at which it has a unit."""

    def __init__(self, target, node):
        self.node, self.is_armed, self.lost = node, False, []
        super().__init__(target)

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.is_armed and source in self.sockets[1::2] and self.node.command("work list"):
                    self.lost.append(source)
                if source not in self.lost:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(2)

    def mend(self):
        """Ends the connections; those that follow lose nothing."""
        self.is_armed = False
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(2)


@pytest.fixture
def answers(mesh, tmp_path, receptor):
    """A control node and a Go node with a stand-in runner, which keeps a list of its starts; and the way between them."""
    starts = tmp_path / "starts"
    script = f"""-c 'echo "$*" >> {starts}; exec {sys.executable} {STAND_IN} "$@"' sh worker"""
    mesh.node("go", listen=True, work=[command_type("ansible-runner", "sh", script, runtime=True)], program=receptor)
    mesh["go"].start()
    way = Answers(mesh.ports["go"], mesh["go"])
    settings = {"discovery": "enabled", "rundir": str(tmp_path), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "60s"}
    own = own_runner(command_type("own", sys.executable, f"{STAND_IN} worker"))
    control = mesh.node("control", peers=[way.port], extra=[{"work-controller": settings | own}])
    control.start()
    mesh.wait_for_routes()
    until("both to be ready", lambda: ready(control) == {"control", "go"}, 60)
    nothing_left(mesh["go"])
    way.starts = starts
    yield way
    way.close()


@pytest.mark.parametrize("is_killed", [True, False], ids=["daemon killed", "link cut"])
def test_a_submission_whose_answer_is_lost_runs_once(mesh, answers, is_killed):
    """Receptor 1.4.9 gives the unit an ID that nobody learns: it stays there, without a payload, and the job is sent again."""
    control, theirs = mesh["control"], mesh["go"]
    answers.is_armed = True
    unit, number = submit(control, stream(ident="once", lines=5))
    until("its answer to be lost", lambda: answers.lost)
    (lost,) = theirs.command("work list")
    if is_killed:
        control.stop(signal.SIGKILL)
    answers.mend()
    if is_killed:
        control.start()
    one = ended(control, number, 90)
    assert (one["state"], len(one["attempts"])) == ("successful", 1), one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
    assert control.results(unit).startswith(wrote("once", 5))
    child = one["attempts"][0]["unit"]
    until("nothing else to be left there", lambda: set(theirs.command("work list")) <= {lost} - {child})
    # An unfinished payload is run as if it were whole: what refuses it must not remove the directory of the other one.
    starts = [line for line in answers.starts.read_text().splitlines() if child in line]
    pattern = rf"worker --private-data-dir={re.escape(str(answers.starts.parent))}/meshd_{child}_[0-9a-f]{{8}} --delete"
    assert starts and all(re.fullmatch(pattern, line) for line in starts), starts
    assert len(set(starts)) == len(starts) <= (1 if lost == child else 2), starts


def test_a_child_of_which_nothing_is_left_here_runs_nowhere_else(mesh, answers, tmp_path):
    """Nothing of a child is on the control node's disk. Receptor 1.4.9 has it under an ID of its own, which the store knows."""
    control, theirs, gate = mesh["control"], mesh["go"], tmp_path / "gate"
    unit, number = submit(control, stream(ident="found", lines=5, go=str(gate)))
    until("it to run", lambda: job(control, number)["state"] == "running")
    child = job(control, number)["attempts"][0]["unit"]
    with control.control() as client:
        assert any(b"found 5" in line for line in client.results(unit, 0))
    assert not control.unit_dir(child).exists()
    control.stop()
    control.start()
    gate.touch()
    one = ended(control, number, 90)
    assert (one["state"], len(one["attempts"])) == ("successful", 1), one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
    output = control.results(unit)
    assert output.startswith(wrote("found", 5)) and output.count(b'"starting"') == 1, output
    nothing_left(theirs)
