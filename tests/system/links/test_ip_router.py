"""An IP router beside a member of the mesh that offers whatever it likes, and sends from whatever address.

Each test has a network namespace of its own; needs root and `ip` (iproute2).
"""

import contextlib
import ctypes
import datetime
import os
import socket
import struct
import subprocess
import time

import pytest

from mesh import free_port, until
from peer import ADVERTISEMENT, DATA, Peer

LIBC = ctypes.CDLL(None, use_errno=True)
#: What would take the traffic of the machine or of its neighbours.
STOLEN = [
    "0.0.0.0/0",
    "0.0.0.0/1",
    "128.0.0.0/1",
    "8.8.8.8/32",
    "10.20.5.0/24",
    "10.50.7.0/24",
    "10.99.0.1/32",
    "127.0.0.0/8",
    "169.254.169.254/32",
    "192.168.9.1/32",
    "192.168.9.128/25",
]


class Space:
    """A network namespace, with an interface behind which nobody plays the gateway."""

    def __init__(self):
        self.name = f"meshd-t-{os.getpid()}-{time.monotonic_ns()}"
        for line in [
            f"netns add {self.name}",
            f"-n {self.name} link set lo up",
            f"-n {self.name} link add wire type veth peer name far",
            f"-n {self.name} addr add 192.168.9.2/24 dev wire",
            f"-n {self.name} link set wire up",
            f"-n {self.name} link set far up",
            f"-n {self.name} route add default via 192.168.9.1",
            f"-n {self.name} route add 10.20.0.0/16 via 192.168.9.1",
        ]:
            subprocess.run(["ip", *line.split()], check=True)

    def routes(self):
        """The networks that lead into the tun device."""
        listed = subprocess.run(
            ["ip", "-n", self.name, "route", "show", "dev", "mesh0"], capture_output=True, text=True, check=True
        )
        return {line.split()[0] for line in listed.stdout.splitlines()}

    @contextlib.contextmanager
    def inside(self):
        """Sockets that this thread opens belong to the namespace."""
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self.name}") as there:
            assert LIBC.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert LIBC.setns(before.fileno(), 0) == 0

    def remove(self):
        subprocess.run(["ip", "netns", "del", self.name], check=False)


@pytest.fixture
def routed(mesh):
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: namespaces take root")
    space, port = Space(), free_port()
    try:
        router = {"networkname": "net", "interface": "mesh0", "localnet": "10.99.0.0/30", "routes": "10.50.0.0/16"}
        listener = {"tcp-listener": {"bindaddr": "127.0.0.1", "port": port}}
        node = mesh.add("us", [{"log-level": "info"}, listener, {"ip-router": router}])
        node.prefix = ["ip", "netns", "exec", space.name]
        node.start()
        with space.inside():
            evil = Peer(port, "evil")
        with evil:
            yield space, node, evil.introduce("us")
    finally:
        mesh.end()
        space.remove()


def offer(evil, networks):
    """An advertisement of these networks."""
    routes = {f"route_{number}": network for number, network in enumerate(networks)}
    tags = {"type": "IP Router", "network": "net", "route_local": "10.98.0.0/30", **routes}
    now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    one = {"NodeID": "evil", "Service": "net", "Time": now, "ConnType": 0, "Tags": tags, "WorkCommands": None}
    evil.send(ADVERTISEMENT, one)


def test_others_offer_and_this_node_decides(routed):
    space, node, evil = routed
    offer(evil, [*STOLEN, "10.60.0.0/16"])
    until("the network that is private", lambda: "10.60.0.0/16" in space.routes())
    assert space.routes() == {"10.60.0.0/16", "10.98.0.0/30", "10.99.0.2"}
    node.logged("not following networks that other nodes offer", "node=evil")
    assert node.log().count("not following networks") == 1


def test_a_packet_comes_from_a_node_that_leads_to_its_source_and_goes_to_this_one(routed):
    space, _, evil = routed
    offer(evil, ["10.60.0.0/16", "8.8.8.8/32"])
    until("the way to evil", lambda: "10.60.0.0/16" in space.routes())
    with space.inside(), contextlib.ExitStack() as stack:
        receiver, beyond = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        receiver.bind(("10.99.0.1", 0))
        receiver.settimeout(60)
        port = receiver.getsockname()[1]
        beyond.bind(("192.168.9.2", port))
        receiver.sendto(b"who are you?", ("10.60.0.5", 9))
        while (packet := evil.wait_for(DATA))[19:27] != b"net".ljust(8, b"\0") or packet[35] >> 4 != 4:
            pass
        ours, evils = packet[3:11], packet[11:19]
        ends = [(source, "10.99.0.1") for source in ["8.8.8.8", "10.50.1.1", "127.0.0.1", "192.168.9.1"]]
        for source, to in [*ends, ("10.60.0.5", "192.168.9.2"), ("10.60.0.5", "10.99.0.1")]:
            head = b"\x1e\0\0" + evils + ours + 2 * b"net".ljust(8, b"\0")
            evil.send(DATA, head + datagram(source, to, port, source.encode()))
        assert receiver.recvfrom(100)[1][0] == "10.60.0.5", "all before it are dropped"
        beyond.setblocking(False)
        with pytest.raises(BlockingIOError):
            beyond.recvfrom(100)


def datagram(source, destination, port, data):
    """A UDP datagram in its IPv4 packet."""
    content = struct.pack(">HHHH", 53, port, 8 + len(data), 0) + data
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(content), 1, 0, 64, socket.IPPROTO_UDP, 0) + ends
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + head[12:] + content


def test_routes_that_change_all_the_time_cost_a_line_a_second(routed):
    space, node, evil = routed
    begun, before = time.monotonic(), len(node.log())
    for turn in range(10):
        offer(evil, [f"10.{60 + turn}.{number}.0/24" for number in range(250)])
        until("some of them", lambda turn=turn: f"10.{60 + turn}.9.0/24" in space.routes())
    until("the last of them", lambda: "10.69.249.0/24" in space.routes())
    lines = [line for line in node.log()[before:].splitlines() if "route" in line]
    assert 1 <= len(lines) <= time.monotonic() - begun + 2, lines[:20]
