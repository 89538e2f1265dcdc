"""Broken or hostile clients of a control service, over the Unix socket and over TCP."""

import random
import socket
import threading

import pytest

import mesh as harness
from client import Control, ControlError
from conftest import scoped_mesh
from mesh import free_port, until

ROOM = 40_000_000
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def nodes(request):
    """control - hop - execution with a TCP control service, which must survive every test of this file."""
    with scoped_mesh(request.node) as mesh:
        mesh.tcp = free_port()
        mesh.node("hop", listen=True)
        tcp = {"control-service": {"service": "tcpctl", "tcplisten": f"127.0.0.1:{mesh.tcp}"}}
        mesh.node("control", peers=["hop"], work=harness.WORK, extra=[tcp])
        mesh.node("execution", peers=["hop"], work=harness.WORK)
        yield mesh.start()


@pytest.fixture(params=["unix", "tcp"])
def connect(request, nodes):
    """Opens connections; afterwards the node must be as before."""
    node = nodes["control"]
    where = {"unix": str(node.socket), "tcp": ("127.0.0.1", nodes.tcp)}[request.param]
    before = node.rss()
    yield lambda timeout=60: Control(where, timeout)
    until("a ping", lambda: node.reaches("execution"))
    unit, output = node.run("execution", "cat", b"still here")
    assert output == b"still here"
    node.release_all()
    nodes.check_sane()
    until(f"memory as before, which was {before} bytes", lambda: node.rss() < before + ROOM)


def test_a_line_of_200_mb_is_cut_at_1_mib(connect, nodes):
    """However long the line: one error, the end, and no memory for it."""
    node, most = nodes["control"], 0
    with connect() as control:
        try:
            for _ in range(200):
                control.socket.sendall(b"x" * MIB)
                most = max(most, node.rss())
        except ConnectionError:
            pass
        with pytest.raises((ControlError, ConnectionError)):
            control.line()
        with pytest.raises((ControlError, ConnectionError)):
            control.line()
    # Of which some 50 are the pages of a program that is not optimised.
    assert most < 90 * MIB, most


def test_the_error_about_a_line_that_is_too_long(connect):
    with connect() as control:
        control.socket.sendall(b"x" * (MIB + 1))
        with pytest.raises(ControlError, match="1048576"):
            control.line()


def test_a_line_of_exactly_1_mib_is_read(connect):
    with connect() as control:
        with pytest.raises(ControlError, match="^Unknown command"):
            control.ask("x" * MIB)
        goes_on_or_ended(control)


def goes_on_or_ended(control):
    """Behind a line that is no command: over TCP, where browsers come as well, nothing is one."""
    if control.socket.family == socket.AF_INET:
        with pytest.raises((ControlError, ConnectionError)):
            control.command("status")
    else:
        assert control.command("status")["NodeID"] == "control"


def test_binary_garbage(connect):
    noise = random.Random(3)
    for _ in range(10):
        with connect() as control:
            # A client that does not read its answers blocks itself.
            drain = threading.Thread(target=read_to_end, args=(control,))
            drain.start()
            try:
                control.socket.sendall(noise.randbytes(500_000))
                control.socket.shutdown(socket.SHUT_WR)
            except ConnectionError:
                pass
            drain.join()


def read_to_end(control):
    try:
        while control.reader.read1(65536):
            pass
    except ConnectionError:
        pass


@pytest.mark.parametrize(
    "line",
    [
        "nosuch", "work", "work nosuch", "work submit", "work submit x", "work results", "work results x y",
        "work cancel", "work status", "ping", "traceroute", "connect", "connect a", "{", "[]", "7", "{}",
        '{"command": 7}', '{"command": "work"}', '{"command": "work", "subcommand": "submit"}',
        '{"command": "work", "subcommand": "submit", "node": 7, "worktype": []}', '{"command": "ping"}',
        '{"command": "work", "subcommand": "results", "unitid": "x", "startpos": "far"}', "[" * 100_000,
        '{"command": "status", "requested_fields": "all"}', "work status ../../etc/passwd",
        '{"command": "work", "subcommand": "results", "unitid": "x", "startpos": -1}',
    ],
)  # fmt: skip
def test_a_bad_command_is_refused_and_the_next_one_answered(connect, line):
    with connect() as control:
        with pytest.raises(ControlError):
            control.ask(line)
        # It can be read, and is refused.
        if line.startswith("work status "):
            assert control.command("status")["NodeID"] == "control"
        else:
            goes_on_or_ended(control)


def test_unknown_work_types_units_and_nodes(connect):
    with connect() as control:
        with pytest.raises(ControlError, match="^unknown work type nosuch"):
            control.begin("localhost", "nosuch")
        for verb in ("status", "cancel", "release", "force-release", "results"):
            with pytest.raises(ControlError, match="^unknown work unit nosuch"):
                control.ask(f"work {verb} nosuch")
        assert control.command("ping nowhere")["Success"] is False
        with pytest.raises(ControlError):
            control.ask("connect nowhere control")


def test_an_unknown_node_keeps_the_unit_pending_until_it_is_released(connect, nodes):
    with connect() as control:
        answer = control.submit("nowhere", "cat", b"payload")
    assert answer["result"] == "Job Submitted"
    unit, node = answer["unitid"], nodes["control"]
    assert node.unit(unit)["StateName"] == "Pending"
    assert node.command(f"work release {unit}") == {"released": unit}


@pytest.mark.parametrize("target", ["localhost", "execution"])
def test_a_payload_that_stops_half_way(connect, nodes, target):
    """The connection breaks before the end of the payload: the unit fails, and never runs."""
    with connect() as control:
        unit = control.begin(target, "cat")
        control.socket.sendall(b"half")
        # A reset, which cannot be taken for an end.
        control.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until("the unit to fail", lambda: nodes["control"].unit(unit)["StateName"] in ("Failed", "Succeeded"))
    if control.socket.family == socket.AF_INET:
        assert nodes["control"].unit(unit)["StateName"] == "Failed"
        assert nodes["control"].results(unit) == b""


def test_a_payload_that_stalls_delays_nobody(connect, nodes):
    with connect() as control:
        unit = control.begin("execution", "cat")
        control.socket.sendall(b"half")
        assert nodes["control"].unit(unit)["StateName"] == "Pending"
        other, output = nodes["control"].run("execution", "cat", b"other")
        assert output == b"other"
        control.socket.sendall(b" and half")
        control.socket.shutdown(socket.SHUT_WR)
        control.line()
    assert nodes["control"].results(unit) == b"half and half"


def test_500_clients_that_say_nothing(connect, nodes):
    before = nodes["control"].rss()
    silent = [connect() for _ in range(500)]
    try:
        until("a ping", lambda: nodes["control"].reaches("execution"))
        assert nodes["control"].rss() < before + ROOM
    finally:
        for one in silent:
            one.close()
