"""Thousands of strangers that connect and say nothing, or never finish what they begin: closed in time, at little
cost.

Meanwhile an honest neighbour or client gets in at once.
"""

import contextlib
import pathlib
import resource
import socket
import ssl
import subprocess
import time

import pytest

import links
import mesh as harness
from client import Control
from mesh import MESHD, environment, free_port, until
from trust import Pki

STRANGERS = 3000
#: All must be closed this many seconds after the last one connected.
PATIENCE = 30
#: So long an honest one may wait meanwhile, with the start of its node: less than those live that say nothing.
WAIT = 15


@pytest.fixture(scope="module", autouse=True)
def many_files():
    """Raises the limit of open files for the strangers' sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    pki = Pki(tmp_path_factory.mktemp("pki"))
    for name in ("target", "honest"):
        pki.issue(name, [name])
    return pki


@pytest.fixture
def target(mesh, pki):
    return start_target(mesh, pki)


def start_target(mesh, pki, name="target"):
    """A node with listeners of every kind, and control services on a Unix socket and on TCP."""
    ports = {kind: free_port() for kind in [*links.OWN, "control"]}
    tcp = {"control-service": {"service": "tcpctl", "tcplisten": f"127.0.0.1:{ports['control']}"}}
    listeners = [links.listener(kind, ports[kind]) for kind in links.OWN]
    profiles = pki.profiles("target", skipreceptornamescheck=True)
    node = mesh.add(name, [*profiles, *listeners, tcp]).start()
    node.ports = ports
    until("all listeners", lambda: " ready " in node.log())
    return node


def connect(node, kind):
    """One connection that says nothing."""
    if kind == "unix":
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(str(node.socket))
        return silent
    return socket.create_connection(("127.0.0.1", node.ports[kind]), 20)


def honest_neighbour(target, pki, kind):
    """Seconds from the start of a neighbour of the target until both are connected."""
    mesh, name = target.mesh, f"honest-{target.name}"
    profiles = pki.profiles("honest", skipreceptornamescheck=True)
    node = mesh.add(name, [*profiles, links.peer(kind, target.ports[kind])])
    start = time.monotonic()
    node.start()
    until("the honest neighbour", lambda: node.reaches(target.name))
    return time.monotonic() - start


def honest_client(target, kind):
    """Seconds until a client has an answer."""
    start = time.monotonic()
    with Control(str(target.socket) if kind == "unix" else ("127.0.0.1", target.ports[kind])) as control:
        assert control.command("status")["NodeID"] == target.name
    return time.monotonic() - start


def all_cut(silent, start):
    """The node closes every connection within PATIENCE; its messages are discarded."""
    for one in silent:
        one.settimeout(max(0.1, start + PATIENCE - time.monotonic()))
        with contextlib.suppress(ConnectionError):
            while one.recv(65536):
                pass


def half_open(node, kind):
    """The first flight of a handshake, and then nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    connection = socket.create_connection(("127.0.0.1", node.ports[kind]), 20)
    connection.sendall(outgoing.read())
    return connection


#: How many bytes the allocator may keep of a crowd that has gone, for the next one.
KEPT = 8 * 1024 * 1024
#: Each crowd: the kind of listener, the number of connections, the most bytes of the node's memory for each (without
#: the kernel's share), and how it connects. A WebSocket upgrade has a buffer from the start.
CROWDS = {
    "tcp": (STRANGERS, 8_500, connect),
    "tcp-mtls": (STRANGERS, 9_500, connect),
    "ws": (STRANGERS, 11_000, connect),
    "control": (STRANGERS, 8_500, connect),
    "unix": (STRANGERS, 8_500, connect),
    "half-open tcp-mtls": (1000, 20_000, half_open),
    "half-open wss-mtls": (1000, 20_000, half_open),
}


def test_crowds_of_strangers(mesh, pki):
    """Each crowd has its own node; all run at the same time, as the wait is the same for all."""
    with contextlib.ExitStack() as stack:
        crowds, prices = [], {}
        for number, (name, (count, price, begin)) in enumerate(CROWDS.items()):
            kind, target = name.rpartition(" ")[2], start_target(mesh, pki, f"target{number}")
            before = target.rss()
            crowd = [stack.enter_context(begin(target, kind)) for _ in range(count)]
            start = time.monotonic()
            took = honest_neighbour(target, pki, kind) if kind in links.OWN else honest_client(target, kind)
            assert took < WAIT, f"{name}: an honest one had to wait for {took:.1f} s"
            each = (target.rss() - before) / count
            print(f"{name}: {each:.0f} bytes for each of {count}; an honest one waited for {took:.2f} s")
            prices[name] = (each, price)
            crowds.append((crowd, start, target, before + count * price + KEPT))
        for crowd, start, target, most in crowds:
            all_cut(crowd, start)
            assert target.rss() < most, f"{target.rss()} bytes when all are gone"
        assert all(each < price for each, price in prices.values()), prices


def test_more_strangers_than_there_is_room_for(mesh, pki, target):
    """Excess strangers displace the oldest strangers, never a neighbour that introduced itself."""
    with contextlib.ExitStack() as stack:
        honest_neighbour(target, pki, "tcp")
        silent = [stack.enter_context(connect(target, "tcp")) for _ in range(STRANGERS)]
        first = silent[0]
        first.settimeout(10)
        while first.recv(65536):
            pass
        mesh["honest-target"].stop()
        mesh["honest-target"].start()
        until("the neighbour is back", lambda: mesh["honest-target"].reaches("target"))
    assert target.log().count("disconnected") <= 3, "a stranger's end is no news"


def test_a_flood_of_quic_initials(mesh, pki, target):
    """Datagrams that look like the first ones of many connections: they cost no memory, and a neighbour gets in."""
    port, before = target.ports["quic-mtls"], target.rss()
    # Long header, type Initial, version 1, a connection ID that counts up, and random bytes.
    tail = bytes([0, 0, 0x44, 0x9E]) + b"\x55" * 1170
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        for number in range(30_000):
            head = b"\xc3\0\0\0\1\x08" + number.to_bytes(8, "big")
            flood.sendto(head + b"\x08" + bytes(8) + tail, ("127.0.0.1", port))
    assert honest_neighbour(target, pki, "quic-mtls") < WAIT
    assert target.rss() < before + 40_000_000, f"{before} bytes became {target.rss()}"


def test_datagrams_from_many_sources(mesh, pki, target):
    """Each source sends a neighbour's first message; few are held, and a real neighbour gets in."""
    port, before = target.ports["udp"], target.rss()
    update = b'\1{"NodeID":"s%d","UpdateID":"%08d","UpdateEpoch":1,"UpdateSequence":1,"Connections":{"target":1.0},"ForwardingNode":"s%d","SuspectedDuplicate":0}'
    with contextlib.ExitStack() as stack:
        for number in range(STRANGERS):
            source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            source.sendto(update % (number, number, number), ("127.0.0.1", port))
        assert honest_neighbour(target, pki, "udp") < WAIT
        assert len(target.status()["Connections"]) <= 300
    # Each source that was held received the whole table, like any new neighbour.
    print(f"{target.rss() - before} bytes more")
    assert target.rss() < before + 20_000_000, f"{before} bytes became {target.rss()}"


def test_a_node_takes_as_many_files_as_it_may_and_its_jobs_do_not(mesh):
    """A service usually starts with 1,024."""
    node = mesh.node("alone", work=harness.WORK)
    few = ["prlimit", "--nofile=1024:4096", str(MESHD), "--config", str(node.config)]
    with open(node.logfile, "ab") as log:
        marked = environment(**{harness.MARK: str(mesh.dir)})
        node.process = subprocess.Popen(few, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=marked)
    until("an answer", node.answers)
    limits = pathlib.Path(f"/proc/{node.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3:5] == ["4096", "4096"], line
    _, output = node.run("alone", "sh", params="'ulimit -Sn'")
    assert output == b"1024\n"
