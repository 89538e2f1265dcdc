"""Broken submissions: the connection is cut before and after each line of one, and the job still runs once.

The submitting node runs meshd, the other one meshd or receptor. Between them is a relay that sees every line in the
clear: the submitter's mesh ends at the relay, and another mesh begins behind it, in which a node with the submitter's
name dials.
"""

import contextlib
import json
import os
import pathlib
import random
import socket
import struct

import pytest

from client import Control, ControlError
from conftest import scoped_mesh
from mesh import MESHD, free_port, until
from peer import Door
from trust import Pki

PEERS = {"ours": None, "go-1.4.9": "RECEPTOR_GO", "go-1.5.1": "RECEPTOR_GO_NEW"}
CUTS = [
    "before the greeting",
    "before the line",
    "before the ID",
    "before the payload",
    "within the payload",
    "before the end",
    "before the answer",
    "after the answer",
]
SIZE = 400_000


class Cut(Exception):
    """The point at which the connection breaks."""


class Relay(Door):
    """Relays everything, except for one connection, which breaks at `cut`."""

    def __init__(self, target):
        self.target, self.cut, self.lines = target, None, []
        #: The far ends of broken connections: a lost connection is not noticed at both ends, and does not end a
        #: payload.
        self.lost = []
        super().__init__()

    def here(self, where):
        if self.cut == where:
            self.cut = None
            raise Cut

    def serve(self, near):
        far = socket.create_connection(("127.0.0.1", self.target), 60)
        asks, answers = near.makefile("rb"), far.makefile("rb")
        with near, contextlib.suppress(OSError):
            try:
                self.talk(near, asks, far, answers)
                far.close()
                answers.close()
            except Cut:
                self.lost.append((far, answers))
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.shutdown(socket.SHUT_RD)
            finally:
                asks.close()

    def let_go(self):
        """Ends the lost connections."""
        while self.lost:
            for part in self.lost.pop():
                part.close()

    def talk(self, near, asks, far, answers):
        greeting = answers.readline()
        self.here("before the greeting")
        near.sendall(greeting)
        while line := asks.readline():
            if b'"submit"' in line:
                self.submit(line, near, asks, far, answers)
                return
            if b'"start"' in line:
                self.start(line, near, asks, far, answers)
                return
            far.sendall(line)
            answer = answers.readline()
            near.sendall(answer)
            if (b'"results"' in line or b'"follow"' in line) and not answer.startswith(b"ERROR"):
                while data := answers.read1(65536):
                    near.sendall(data)
                return

    def submit(self, line, near, asks, far, answers):
        self.lines.append(json.loads(line))
        self.here("before the line")
        far.sendall(line)
        answer = answers.readline()
        self.here("before the ID")
        near.sendall(answer)
        if answer.startswith(b"ERROR"):
            return
        self.payload(asks, far)
        answer = answers.readline()
        self.here("before the answer")
        near.sendall(answer)
        self.here("after the answer")

    def start(self, line, near, asks, far, answers):
        """Everything is sent at once, and everything that is told of the unit is the answer."""
        self.lines.append(json.loads(line))
        self.here("before the line")
        far.sendall(line)
        self.here("before the ID")
        self.payload(asks, far)
        answer = answers.read1(65536)
        self.here("before the answer")
        near.sendall(answer)
        self.here("after the answer")
        while data := answers.read1(65536):
            near.sendall(data)

    def payload(self, asks, far):
        self.here("before the payload")
        sent = 0
        while data := asks.read1(65536):
            far.sendall(data)
            sent += len(data)
            if sent > SIZE // 3:
                self.here("within the payload")
        self.here("before the end")
        far.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module", params=PEERS)
def program(request):
    """The program at the other end."""
    name = PEERS[request.param]
    if name is None:
        return MESHD
    if name not in os.environ:
        pytest.skip(f"SKIPPED: {name} is not set")
    return pathlib.Path(os.environ[name])


@pytest.fixture(scope="module")
def nodes(request, program, tmp_path_factory):
    """The submitter, and behind the relay the node that runs its jobs."""
    signer, verifier = Pki(tmp_path_factory.mktemp("pki")).signing_keys()
    shell = {"command": "sh", "params": "-c", "allowruntimeparams": True}
    work = [
        {"work-command": {"worktype": "sh", **shell}},
        {"work-command": {"worktype": "safesh", "verifysignature": True, **shell}},
    ]
    with scoped_mesh(request.node) as near, scoped_mesh(request.node) as far:
        port = free_port()
        entry = {"tcp-server": {"bindaddr": "127.0.0.1", "port": port, "remotenode": "execution", "remoteservice": "control"}}
        far.node("execution", listen=True, work=work, extra=verifier, program=program)
        far.node("control", peers=["execution"], extra=[entry])
        far.start()
        near.relay, near.far = Relay(port), far["execution"]
        link = {"tcp-listener": {"bindaddr": "127.0.0.1", "port": free_port()}}
        exit = {"tcp-client": {"service": "control", "address": f"127.0.0.1:{near.relay.port}"}}
        # The submitter takes the node behind the relay for this kind.
        near.add("execution", [link, exit], program=program, service={"service": "notused"})
        near.add("control", [{"tcp-peer": {"address": f"127.0.0.1:{link['tcp-listener']['port']}"}}, *signer])
        yield near.start()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("cut", CUTS, ids=[cut.replace(" ", "-") for cut in CUTS])
def test_a_submission_that_breaks_is_one_unit_and_one_run(nodes, program, tmp_path, cut, signed):
    control, far, relay = nodes["control"], nodes.far, nodes.relay
    ran, payload = tmp_path / "ran", random.Random(cut).randbytes(SIZE)
    params = {"params": f"'cat; echo run >>{ran}'", **({"signwork": "true"} if signed else {})}
    relay.cut, relay.lines = cut, []
    with control.control() as client:
        unit = client.begin("execution", "safesh" if signed else "sh", **params)
        client.socket.sendall(payload)
        client.socket.shutdown(socket.SHUT_WR)
        client.line()
    until("the end", lambda: control.unit(unit)["State"] > 1, 90)
    status = control.unit(unit)
    assert status["StateName"] == "Succeeded", (status, relay.lines)
    assert relay.cut is None, "the cut was made"
    assert control.results(unit) == payload
    assert ran.read_text() == "run\n"
    assert {line["workUnitID"] for line in relay.lines} == {unit}
    there = far.command("work list")
    if "1.4.9" in str(program):
        # It chooses IDs itself. A unit whose ID it could not return stays there, and never ran.
        waits = ("Error reading input data", "Waiting for Input Data")
        there = {id: unit for id, unit in there.items() if not unit["Detail"].startswith(waits)}
    assert list(there) == [status["ExtraData"]["RemoteUnitID"]], there
    assert "1.4.9" in str(program) or list(there) == [unit]
    if program == MESHD:
        # The lost connections end at last, without any effect.
        relay.let_go()
        assert (far.results(unit), ran.read_text()) == (payload, "run\n")
    control.command(f"work release {unit}")
    far.release_all()


def test_an_id_that_was_released_can_be_used_at_once(nodes, program):
    control, far = nodes["control"], nodes.far
    for turn in (b"one", b"two", b"three"):
        with control.control() as client:
            answer = client.submit("execution", "sh", turn, params="cat", workUnitID="chosen1")
        assert answer["unitid"] == "chosen1"
        until("the end", lambda: control.unit("chosen1")["State"] > 1)
        status = control.unit("chosen1")
        assert (status["StateName"], control.results("chosen1")) == ("Succeeded", turn), status
        with pytest.raises(ControlError, match="^workunit ID chosen1 is already in use, cannot use the same workunit ID more than once$"):
            with control.control() as client:
                client.begin("execution", "sh", params="cat", workUnitID="chosen1")
        assert control.unit("chosen1")["StateName"] == "Succeeded"
        control.command("work release chosen1")
    far.release_all()


def as_node(nodes):
    """A connection to the far control service from the node `control` of its mesh."""
    return Control(("127.0.0.1", nodes.relay.target), 60)


def test_a_repeated_submission_is_the_same_unit(nodes, program, tmp_path):
    if program != MESHD:
        pytest.skip("it refuses every repetition: what this test is about is ours")
    far, ran = nodes.far, tmp_path / "ran"
    same = {"params": f"'cat; echo run >>{ran}'", "workUnitID": "repeated1"}
    # An incomplete payload: the first connection is still open, and its end has no effect.
    with as_node(nodes) as first:
        assert first.begin("execution", "sh", **same) == "repeated1"
        first.socket.sendall(b"half of")
        with as_node(nodes) as second:
            assert second.submit("execution", "sh", b"all of it", **same)["result"] == "Job Started"
        first.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(ControlError, match="it was submitted again"):
            first.line()
    until("the end", lambda: far.unit("repeated1")["State"] > 1)
    assert (far.results("repeated1"), ran.read_text()) == (b"all of it", "run\n")
    # A complete payload: the first answer again, and no second run, also after a restart.
    for _ in range(2):
        with as_node(nodes) as again:
            assert again.submit("execution", "sh", b"all of it", **same) == {"result": "Job Started", "unitid": "repeated1"}
        assert ran.read_text() == "run\n"
        far.restart()
        until("the way back", lambda: nodes_reach(nodes))
    # Other callers, and other work.
    taken = "workunit ID repeated1 is already in use, cannot use the same workunit ID more than once"
    with far.control() as operator, pytest.raises(ControlError, match=taken):
        operator.begin("execution", "sh", **same)
    for other in ({**same, "params": "cat"}, {**same, "secret_x": "y"}):
        with as_node(nodes) as again, pytest.raises(ControlError, match=taken):
            again.begin("execution", "sh", **other)
    assert far.results("repeated1") == b"all of it"
    far.release_all()


def nodes_reach(nodes):
    with contextlib.suppress(OSError, ControlError):
        with as_node(nodes):
            return True
    return False


@pytest.mark.parametrize("bad", ["a-b", "../x", "a b", "x" * 201, "ä"])
def test_an_id_that_is_no_directory_is_refused(nodes, bad):
    with nodes["control"].control() as client, pytest.raises(ControlError, match="workUnitID .* cannot be a unit ID"):
        client.begin("control", "sh", workUnitID=bad)
    with nodes["control"].control() as client, pytest.raises(ControlError, match="workUnitID .* cannot be a unit ID"):
        client.begin("execution", "sh", workUnitID=bad)
    assert nodes["control"].command("work list") == {}
