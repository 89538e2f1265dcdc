"""What proxies owe their clients while something goes wrong: a killed node, a client with a thousand connections."""

import contextlib
import selectors
import signal
import socket
import time

import pytest

from echo import Echo
from mesh import free_port


def proxied(mesh, address):
    """Two nodes; the port of the first leads to an address behind the second."""
    link, entrance = free_port(), free_port()
    exit_ = {"tcp-client": {"service": "tcp", "address": address}}
    to = {"remotenode": "far", "remoteservice": "tcp"}
    mesh.add("far", [{"tcp-listener": {"bindaddr": "127.0.0.1", "port": link}}, exit_])
    mesh.add("near", [{"tcp-peer": {"address": f"127.0.0.1:{link}"}}, {"tcp-server": {"port": entrance, **to}}])
    mesh.start()
    return entrance


@pytest.mark.parametrize("killed", ["near", "far"])
def test_what_a_killed_node_cuts_does_not_look_complete(mesh, killed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        entrance = proxied(mesh, f"127.0.0.1:{server.getsockname()[1]}")
        with socket.create_connection(("127.0.0.1", entrance), 60) as client:
            client.sendall(b"half")
            behind, _ = server.accept()
            with behind:
                behind.settimeout(60)
                assert behind.recv(4) == b"half"
                mesh[killed].stop(signal.SIGKILL)
                with pytest.raises(ConnectionResetError):
                    (client if killed == "near" else behind).recv(1)


def test_a_client_with_a_thousand_connections_keeps_no_other_waiting(mesh):
    echo = Echo()
    entrance = proxied(mesh, f"127.0.0.1:{echo.port}")
    crowd, answered = [], []
    with selectors.DefaultSelector() as answers, contextlib.ExitStack() as stack:
        for _ in range(800):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", entrance), 60))
            one.sendall(b"x")
            crowd.append(one)
        other = stack.enter_context(socket.create_connection(("127.0.0.1", entrance), 60, ("127.0.0.9", 0)))
        other.sendall(b"y")
        for one in [*crowd, other]:
            answers.register(one, selectors.EVENT_READ)
        # Those that had their turn before the other one came do not count.
        before, place, progress = len(answers.select(0)), None, time.monotonic()
        while len(answered) <= len(crowd) and time.monotonic() < progress + 60:
            ready = [key.fileobj for key, _ in answers.select(1)]
            if other in ready:
                place = len(answered)
            for one in ready:
                answers.unregister(one)
                answered.append((one, answer(one)))
                progress = time.monotonic()
    echo.close()
    print(f"{len(answered)} were answered, {before} at first, the other one as number {place}")
    assert (other, b"y") in answered
    assert place - before < max(100, (len(crowd) - before) / 2)
    assert all(text for _, text in answered) and len(answered) == len(crowd) + 1, "each has its turn"


def answer(connection):
    try:
        return connection.recv(1)
    except OSError:
        return b""
