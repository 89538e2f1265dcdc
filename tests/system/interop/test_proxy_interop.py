"""Proxies and `connect` between implementations and among meshd nodes, in both directions at once.

Also half-closes: a client has sent everything and still waits for the answer. meshd preserves them, also behind a Go
node's entrance; a Go node's exit does not.
"""

import contextlib
import socket

import pytest

import go
from echo import Echo, alive, exchange, receive
from mesh import MESHD, free_port, until

SIZE = 5_000_000
#: The programs of entrance and exit.
PAIRINGS = [
    pytest.param(("meshd", "meshd"), id="ours-to-ours"),
    *(go.parameter(variable, ("meshd", variable), label="ours-to-") for variable in go.VARIABLES),
    *(go.parameter(variable, (variable, "meshd"), label="ours-from-") for variable in go.VARIABLES),
]


@pytest.fixture(params=PAIRINGS)
def proxied(request, mesh):
    yield start(mesh, *map(go.program, request.param))
    end(mesh)


def end(mesh):
    for echo in mesh.echoes:
        echo.close()


def start(mesh, near, far):
    """`near` has the entrances, `far` the exits; each exit leads to an echo."""
    mesh.echoes = [Echo(), Echo(mesh.dir / "behind")]
    link, mesh.tcp, mesh.unix = free_port(), free_port(), mesh.dir / "in"
    exits = [
        {"tcp-client": {"service": "tcp", "address": f"127.0.0.1:{mesh.echoes[0].port}"}},
        {"unix-socket-client": {"service": "unix", "filename": str(mesh.dir / "behind")}},
    ]
    to = {"remotenode": "far", "remoteservice": "tcp"}
    entrances = [
        {"tcp-server": {"port": mesh.tcp, "bindaddr": "127.0.0.1", **to}},
        {"unix-socket-server": {"filename": str(mesh.unix), **to, "remoteservice": "unix"}},
    ]
    mesh.add("far", [{"tcp-listener": {"bindaddr": "127.0.0.1", "port": link}}, *exits], far)
    mesh.add("near", [{"tcp-peer": {"address": f"127.0.0.1:{link}"}}, *entrances], near)
    mesh.start()
    # A Go node answers before it has opened all its services.
    until("near to know of the exits", lambda: {"tcp", "unix"} <= offered(mesh["near"], "far"))
    return mesh


def offered(node, other):
    """The services of another node that this one knows."""
    advertised = node.status()["Advertisements"] or []
    return {one["Service"] for one in advertised if one["NodeID"] == other}


def through(mesh, kind):
    if kind == "tcp":
        connection = socket.create_connection(("127.0.0.1", mesh.tcp), 60)
    elif kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(mesh.unix))
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(mesh["near"].socket))
        connection.settimeout(60)
        greeting = b"Receptor Control, node near\n"
        assert receive_line(connection) == greeting
        connection.sendall(b"connect far tcp\n")
        assert receive_line(connection) == b"Connecting\n"
    connection.settimeout(60)
    return connection


def receive_line(connection):
    line = b""
    while not line.endswith(b"\n") and (byte := connection.recv(1)):
        line += byte
    return line


@pytest.mark.parametrize("kind", ["tcp", "unix", "connect"])
def test_both_directions_at_once(proxied, kind):
    payload = bytes(range(256)) * (SIZE // 256)
    with through(proxied, kind) as connection:
        assert exchange(connection, payload) == payload
        assert alive(connection), "the connection stands when all has gone through"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_end_of_one_direction(proxied, kind):
    """Everything sent before the end arrives; among meshd nodes, so does everything that returns after it."""
    payload = b"x" * 200_000
    with through(proxied, kind) as connection:
        connection.sendall(payload)
        connection.shutdown(socket.SHUT_WR)
        received = receive(connection, len(payload) + 1)
    if proxied["far"].is_go:
        # A Go exit drops both directions when one has ended.
        assert payload.startswith(received)
    else:
        assert received == payload


def test_an_exit_without_a_server(mesh):
    """If no server listens behind the exit, the client's connection ends; later connections work again."""

    def gets_through():
        with contextlib.suppress(ConnectionError), through(mesh, "tcp") as connection:
            return alive(connection)
        return False

    start(mesh, MESHD, MESHD)
    assert gets_through()
    behind = mesh.echoes[0]
    behind.close()
    assert not gets_through()
    mesh.echoes[0] = Echo(port=behind.port)
    until("a way through", gets_through)
    end(mesh)
