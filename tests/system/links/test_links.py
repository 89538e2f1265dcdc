"""Links that fail silently, are dialled from both ends, or come back, as an operator sees them."""

import contextlib
import fcntl
import http.client
import os
import re
import signal
import socket
import sys
import termios
import threading
import time

import pytest

import links
import mesh as harness
from echo import Echo, exchange
from mesh import free_port, until
from peer import HttpProxy, Nat, Proxy
from trust import Pki


def connections(node):
    return {entry["NodeID"] for entry in node.status()["Connections"]}


@pytest.fixture
def proxied(mesh):
    """near - proxy - far; the proxy can swallow all data without closing anything."""
    far = mesh.node("far", listen=True, work=harness.WORK).start()
    proxy = Proxy(mesh.ports["far"])
    near = mesh.node("near", peers=[proxy.port], work=harness.WORK).start()
    mesh.wait_for_routes()
    yield proxy, near, far
    proxy.close()


def test_a_black_hole_is_torn_down_redialled_and_heals(proxied):
    proxy, near, far = proxied
    proxy.swallowing = True
    start = time.monotonic()
    until("near to give the link up", lambda: connections(near) == set(), 40)
    near_after = time.monotonic() - start
    until("far to give the link up", lambda: connections(far) == set(), 40)
    far_after = time.monotonic() - start
    # A new link gets 25 probes, 0.35 s apart; no link more than 21 s.
    assert 8 < near_after < 26 and 8 < far_after < 26, (near_after, far_after)
    before = proxy.accepted
    # The longest delay between two attempts is 20 s. The current one ends by itself.
    until("near to dial again", lambda: proxy.accepted > before, 60)
    proxy.swallowing = False
    until("a link", lambda: connections(near) == {"far"}, 60)
    until("a route", lambda: near.reaches("far"))
    unit, output = near.run("far", "cat", b"healed")
    assert output == b"healed", unit


def test_a_stopped_peer_is_torn_down_and_comes_back(line):
    execution, hop, control = line["execution"], line["hop"], line["control"]
    execution.stop(signal.SIGSTOP)
    start = time.monotonic()
    until("hop to give the link up", lambda: connections(hop) == {"control"}, 40)
    assert 8 < time.monotonic() - start < 26
    until("the way to the hop", lambda: control.reaches("hop"))
    execution.process.send_signal(signal.SIGCONT)
    until("the way back", lambda: control.reaches("execution"), 60)


def test_a_job_goes_on_through_a_black_hole(proxied):
    proxy, near, far = proxied
    gate = near.mesh.dir / "gate"
    with near.control() as control:
        script = f"'echo one; while [ ! -e {gate} ]; do sleep 0.05; done; echo two'"
        unit = control.submit("far", "sh", params=script)["unitid"]
    until("the first line", lambda: near.unit(unit)["StdoutSize"] == 4)
    proxy.swallowing = True
    gate.touch()
    until("near to give the link up", lambda: connections(near) == set(), 40)
    proxy.swallowing = False
    assert near.results(unit) == b"one\ntwo\n"
    until("the end", lambda: near.unit(unit)["StateName"] == "Succeeded", 60)


def test_a_ping_without_an_answer_does_not_delay_the_stop(proxied):
    proxy, near, _ = proxied
    proxy.swallowing = True
    with near.control() as client:
        client.send("ping far")
        unread = lambda: int.from_bytes(fcntl.ioctl(client.socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)  # noqa: E731
        until("near to have read it", lambda: unread() == 0)
        # The ping itself would wait for 10 s.
        near.stop(signal.SIGTERM, seconds=8)
        answer = client.reader.readline()
    assert answer == b"ERROR: the control service is stopping\n", answer


def test_two_nodes_that_dial_each_other_have_one_link(mesh):
    mesh.ports["a"] = free_port()
    a = mesh.node("a", peers=[], work=harness.WORK, extra=[listener(mesh.ports["a"])])
    mesh.ports["b"] = free_port()
    mesh.node("b", peers=["a"], work=harness.WORK, extra=[listener(mesh.ports["b"])])
    a.directives.append({"tcp-peer": {"address": f"127.0.0.1:{mesh.ports['b']}"}})
    a.write_config()
    for node in mesh.nodes.values():
        node.spawn()
    for node in mesh.nodes.values():
        until("an answer", node.answers)
    mesh.wait_for_routes()
    for node, other in (("a", "b"), ("b", "a")):
        # One of the two attempts may still take the other one's place.
        until(f"the link to {other}", lambda n=node, o=other: [entry["NodeID"] for entry in mesh[n].status()["Connections"]] == [o])
    payload = bytes(range(256)) * 40_000
    assert mesh["a"].run("b", "cat", payload)[1] == payload
    assert mesh["b"].run("a", "cat", payload)[1] == payload


def listener(port):
    return {"tcp-listener": {"bindaddr": "127.0.0.1", "port": port}}


def test_a_killed_hop_comes_back(line):
    control, hop = line["control"], line["hop"]
    for _ in range(3):
        hop.restart(signal.SIGKILL)
        until("the way", lambda: control.reaches("execution"))
        assert control.run("execution", "cat", b"again")[1] == b"again"


def test_the_happy_path_logs_no_warning(line):
    """A job, a cancelled one, pings, a traceroute, a clean stop: nothing needs a person's attention."""
    control = line["control"]
    unit, _ = control.run("execution", "cat", b"x" * 1_000_000)
    control.command(f"work release {unit}")
    with control.control() as client:
        unit = client.submit("execution", "sh", params="'exec sleep 1000'")["unitid"]
    until("the unit to run", lambda: control.unit(unit)["StateName"] == "Running")
    control.command(f"work cancel {unit}")
    control.command(f"work release {unit}")
    until("the way", lambda: control.reaches("execution"))
    control.command("traceroute execution")
    for name in ("control", "execution", "hop"):
        line[name].stop(signal.SIGTERM)
        assert line[name].process.returncode == 0
    for name, log in line.logs().items():
        # This mesh is open, and its nodes say so.
        log = "\n".join(line for line in log.splitlines() if "docs/security.md" not in line)
        for word in (" WARN", " ERROR", "panicked"):
            assert word not in log, (name, log)


def test_a_quic_link_survives_a_change_of_address(mesh, tmp_path):
    """Repeatedly, in the middle of a transfer through a proxy: no session or stream ends, and no byte is lost."""
    pki, port, echo = Pki(tmp_path / "pki"), free_port(), Echo()
    for name in ("near", "far"):
        pki.issue(name, [name])
    exit = {"tcp-client": {"service": "echo", "address": f"127.0.0.1:{echo.port}"}}
    far = mesh.add("far", [*pki.profiles("far"), links.listener("quic-mtls", port), exit])
    nat, mesh.ports["near"] = Nat(port), free_port()
    entrance = {"port": mesh.ports["near"], "bindaddr": "127.0.0.1", "remotenode": "far", "remoteservice": "echo"}
    near = mesh.add("near", [*pki.profiles("near"), links.peer("quic-mtls", nat.port), {"tcp-server": entrance}])
    mesh.start()
    payload, received, turns = os.urandom(1_000_000), 0, 40
    with socket.create_connection(("127.0.0.1", mesh.ports["near"]), 60) as stream:
        for turn in range(turns):
            if turn % 10 == 5:
                # While the transfer runs.
                mover = threading.Timer(0.005, nat.move)
                mover.start()
            assert exchange(stream, payload) == payload, f"turn {turn}"
            received += len(payload)
            if turn % 10 == 5:
                mover.join()
    assert nat.moves == 5 and received == turns * len(payload)
    for node, peer in ((near, "far"), (far, "near")):
        node.logged(f" connected session=#1 peer={peer}")
        assert node.log().count(" connected ") == 1, node.log()
        assert "disconnected" not in node.log()
    nat.close()
    echo.close()


def test_a_websocket_is_reached_through_the_proxy_that_the_environment_names(mesh):
    port = free_port()
    mesh.add("far", [links.listener("ws", port)])
    proxy = HttpProxy(port)
    mesh.variables = {"HTTP_PROXY": f"http://127.0.0.1:{proxy.port}", "http_proxy": f"http://127.0.0.1:{proxy.port}", "NO_PROXY": "", "no_proxy": ""}
    mesh.add("near", [{"ws-peer": {"address": "ws://far.invalid:8080/"}}])
    mesh.start()
    assert proxy.asked == ["CONNECT far.invalid:8080 HTTP/1.1"]
    # If the environment exempts the host, no host of that name exists.
    mesh.variables["NO_PROXY"] = mesh.variables["no_proxy"] = "far.invalid"
    mesh["near"].restart()
    until("the word about it", lambda: "cannot reach peer" in mesh["near"].log())
    assert len(proxy.asked) == 1
    proxy.close()


@pytest.mark.parametrize("kind", links.OWN)
def test_the_policy_of_a_link_holds_on_every_kind(mesh, tmp_path, kind):
    """`cost`, `nodecost`, `allowedpeers` and `redial`."""
    pki, port = Pki(tmp_path / "pki"), free_port()
    names = ("far", "near", "once", "stranger")
    for name in names:
        pki.issue(name, [name])
    listener = links.listener(kind, port)
    (terms,) = listener.values()
    terms.update({"cost": 2.0, "nodecost": {"near": 1.5}, "allowedpeers": ["near", "once"]})
    far = mesh.add("far", [*pki.profiles("far"), listener]).start()
    for name, own in (("near", {"cost": 1.5}), ("once", {"cost": 2.0, "redial": False}), ("stranger", {"cost": 2.0})):
        peer = links.peer(kind, port)
        next(iter(peer.values())).update(own)
        mesh.add(name, [*pki.profiles(name), peer]).start()
    until("both neighbours", lambda: connections(far) == {"near", "once"})
    until("the refusal", lambda: "stranger is not in the link's allowedpeers" in far.log())
    assert {entry["NodeID"]: entry["Cost"] for entry in far.status()["Connections"]} == {"near": 1.5, "once": 2.0}
    until("the costs at the other end", lambda: mesh["near"].status()["KnownConnectionCosts"].get("far") == {"near": 1.5, "once": 2.0})
    far.restart()
    until("the one that dials again, alone", lambda: connections(far) == {"near"} and connections(mesh["once"]) == set(), 60)


@pytest.mark.parametrize("kind", ["tcp", "udp", "ws"])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_listener_on_all_addresses_serves_both_families(mesh, kind, host):
    port = free_port()
    far = mesh.add("far", [{"log-level": "debug"}, {f"{kind}-listener": {"port": port}}])
    address = f"ws://{host}:{port}/" if kind == "ws" else f"{host}:{port}"
    mesh.add("near", [{f"{kind}-peer": address}])
    mesh.start()
    mesh.wait_for_routes()
    # As their owners know them: the system gives an IPv4 address on such a socket as one of IPv6.
    far.logged(" connected ")
    assert "::ffff:" not in far.log(), far.log()


def test_ports_of_services_serve_both_families(mesh):
    to_control, control = free_port(), free_port()
    server = {"tcp-server": {"port": to_control, "remotenode": "localhost", "remoteservice": "control"}}
    node = mesh.add("a", ["local-only", {"log-level": "debug"}, server], service={"tcplisten": str(control)}).start()
    for port in (to_control, control):
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), 20) as client:
                assert client.makefile("rb").readline() == b"Receptor Control, node a\n"
    assert "::ffff:" not in node.log(), node.log()


class ChangesHost(Proxy):
    """Carries bytes, but changes the Host header of requests as proxies do that are not told otherwise."""

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            sink.sendall(re.sub(rb"(?im)^host: .*$", b"Host: backend\r", source.recv(65536)))
        super().copy(source, sink)


def test_a_refused_upgrade_is_explained_on_both_sides(mesh):
    port = free_port()
    far = mesh.add("far", [{"log-level": "info"}, {"ws-listener": {"port": port, "bindaddr": "127.0.0.1", "path": "/mesh"}}]).start()
    proxy = ChangesHost(port)
    near = mesh.add("near", [{"log-level": "info"}, {"ws-peer": f"ws://127.0.0.1:{proxy.port}/mesh"}]).start()
    near.logged("the server answers 403 Forbidden instead of a WebSocket: the Origin header (http://127.0.0.1:", "nginx: proxy_set_header Host $http_host")
    until("near to dial again", lambda: proxy.accepted > 4)
    far.logged("answered with 403 Forbidden: the Origin header")
    assert far.log().count("neighbour refused") == 1, far.log()
    proxy.close()
    for path, status in (("/mesh", 400), ("/", 404), ("/healthz", 200)):
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        asked.request("GET", path)
        answer = asked.getresponse()
        assert answer.status == status and answer.read(), path
        assert (answer.getheader("Sec-WebSocket-Version") == "13") == (status == 400)
