"""Broken or hostile neighbours at a listener: none does any harm.

Each test ends with the same check: the other nodes work, and the node's memory has not grown.
"""

import json
import random
import socket
import struct

import pytest

import mesh as harness
from conftest import scoped_mesh
from mesh import until
from peer import ADVERTISEMENT, DATA, ROUTING, Peer, frame

#: How much memory one hostile neighbour may cost for good, including what the allocator keeps.
ROOM = 60_000_000


@pytest.fixture(scope="module")
def nodes(request):
    """One mesh for all tests of this file, which must survive every one of them."""
    with scoped_mesh(request.node) as mesh:
        yield harness.line(mesh).start()


@pytest.fixture
def hop(nodes):
    """The node under attack, which must serve the others as before after the test."""
    node = nodes["hop"]
    before = node.rss()
    yield node
    check_others(nodes)
    until(f"memory as before, which was {before} bytes", lambda: node.rss() < before + ROOM)


def check_others(mesh):
    """Checks that a ping and a job cross the attacked node, and that it has not panicked."""
    until("a ping", lambda: mesh["control"].reaches("execution"))
    unit, output = mesh["control"].run("execution", "cat", b"still here")
    assert output == b"still here"
    mesh["control"].command(f"work release {unit}")
    mesh.check_sane()


def attack(hop):
    return Peer(hop.mesh.ports["hop"])


def test_zero_length_frames(hop):
    with attack(hop) as peer:
        peer.raw(b"\0\0" * 100_000)
    with attack(hop) as peer:
        peer.introduce("hop")
        peer.raw(b"\0\0" * 100_000)


def test_a_frame_that_never_comes_to_its_end(hop):
    with attack(hop) as peer:
        peer.raw(struct.pack("<H", 65535) + b"\1" * 1000)
        check_others(hop.mesh)


def test_messages_of_the_largest_size(hop):
    """A frame can announce at most 65,535 bytes; data messages of that size exceed what the mesh carries."""
    with attack(hop) as peer:
        peer.introduce("hop")
        for kind in range(4):
            peer.send(kind, b"x" * 65534)


def test_truncated_headers(hop):
    with attack(hop) as peer:
        peer.introduce("hop")
        for length in range(36):
            peer.raw(frame(bytes([DATA]) + b"\x1e\0\0" + b"\xff" * length)[: 2 + 36])
            peer.send(DATA, b"\x1e" * min(length, 34))


def test_unknown_types(hop):
    with attack(hop) as peer:
        peer.send(4, b"{}")
        assert peer.ended(), "who begins so is no node"
    with attack(hop) as peer:
        peer.introduce("hop")
        for kind in range(4, 256):
            peer.send(kind, b"{}")


LIES = [
    [], {}, "text", 7, None, [[]] * 1000,
    {"NodeID": 7}, {"NodeID": None}, {"NodeID": "x" * 60_000}, {"NodeID": ""}, {"NodeID": "localhost"},
    {"Connections": []}, {"Connections": None}, {"Connections": {"hop": "much"}}, {"Connections": {"hop": -1}},
    {"Connections": {"hop": 0}}, {"Connections": {"a": 1e308, "b": 1e-308}}, {"Connections": {"": 1}},
    {"UpdateEpoch": -1}, {"UpdateEpoch": 2**64}, {"UpdateEpoch": 1.5}, {"UpdateEpoch": "1"},
    {"UpdateSequence": -1}, {"UpdateSequence": 2**64 - 1}, {"UpdateID": 8}, {"UpdateID": "x" * 10_000},
    {"ForwardingNode": None}, {"ForwardingNode": 7}, {"SuspectedDuplicate": "no"}, {"SuspectedDuplicate": -1},
]  # fmt: skip


def test_routing_updates_that_lie_about_types(hop):
    for lie in LIES:
        for introduced in (False, True):
            with attack(hop) as peer:
                if introduced:
                    peer.introduce("hop")
                if isinstance(lie, dict) and lie:
                    peer.update(**{"connections": {"hop": 1.0}, **lie})
                else:
                    peer.send(ROUTING, lie)
                peer.send(ROUTING, b"{" * 30_000)
                peer.send(ROUTING, b"[" * 60_000)
                peer.send(ROUTING, b'{"NodeID": "\xff\xfe"}')


def test_advertisements_that_lie_about_types(hop):
    good = {"NodeID": "peer", "Service": "x", "Time": "2026-01-01T00:00:00Z", "ConnType": 1, "Tags": None}
    lies = [
        *LIES, {**good, "Time": "yesterday"}, {**good, "Time": 7}, {**good, "ConnType": 300}, {**good, "Tags": []},
        {**good, "Service": "longer than eight"}, {**good, "WorkCommands": {}}, {**good, "WorkCommands": [1, "two"]},
        {**good, "Time": "9999-12-31T23:59:59Z"}, {**good, "Cancel": "yes"}, {**good, "Tags": {"a": 1}},
    ]  # fmt: skip
    with attack(hop) as peer:
        peer.introduce("hop")
        for lie in lies:
            peer.send(ADVERTISEMENT, lie)
        peer.send(ADVERTISEMENT, b"\0" * 1000)


def test_binary_garbage(hop):
    noise = random.Random(1)
    for introduced in (False, True):
        for _ in range(5):
            with attack(hop) as peer:
                if introduced:
                    peer.introduce("hop")
                peer.raw(noise.randbytes(1_000_000))


def test_well_framed_garbage(hop):
    noise = random.Random(2)
    with attack(hop) as peer:
        peer.introduce("hop")
        for _ in range(5000):
            peer.send(noise.randrange(3), noise.randbytes(noise.randrange(200)))


def test_a_neighbour_with_our_own_id(hop):
    with attack(hop) as peer:
        peer.name = "hop"
        peer.update({"hop": 1.0})
        assert peer.ended(), "the session stands"


def test_a_neighbour_with_the_id_of_a_connected_one(hop):
    """The newcomer is rejected once the existing session has shown that it is alive."""
    with attack(hop) as peer:
        peer.name = "control"
        peer.update({"hop": 1.0})
        assert peer.ended(), "the session stands"
    until("a ping", lambda: hop.reaches("control"))


def test_a_neighbour_that_claims_another_cost(hop):
    with attack(hop) as peer:
        peer.update({"hop": 7.5})
        assert peer.ended(), "the session stands"
    hop.logged("cost")


def test_a_neighbour_that_stops_listing_us(hop):
    with attack(hop) as peer:
        peer.introduce("hop")
        peer.update({})
        assert peer.ended(), "the session stands"


def test_a_neighbour_that_changes_its_name(hop):
    with attack(hop) as peer:
        peer.introduce("hop")
        peer.update({"hop": 1.0}, ForwardingNode="another")
        assert peer.ended(), "the session stands"


def test_a_neighbour_that_invents_nodes(hop):
    """Thousands of nodes with long names and many links: bounded, and without work after they are forgotten."""
    with attack(hop) as peer:
        peer.introduce("hop")
        for n in range(3000):
            peer.update({f"imaginary-{n}-{m}": 1.0 for m in range(5)}, NodeID=f"imaginary-{n}" + "x" * 100)
        check_others(hop.mesh)


def test_a_flood_of_datagrams_to_nowhere(hop):
    with attack(hop) as peer:
        peer.introduce("hop")
        header = b"\x1e\0\0" + b"\x11" * 16 + b"service1service2"
        for _ in range(20_000):
            peer.send(DATA, header + b"x" * 100)
        check_others(hop.mesh)


def test_a_neighbour_that_reads_nothing(hop):
    """It requests answers and never reads them: they are dropped, not queued."""
    with attack(hop) as peer:
        peer.introduce("hop")
        own, theirs = (json.loads(peer.wait_for(ROUTING))["NodeID"], "peer")
        assert own in ("hop", "control", "execution") and theirs
        peer.socket.settimeout(0.5)
        header = b"\x1e\0\0" + b"\x22" * 16 + b"service1ping\0\0\0\0"
        try:
            for _ in range(50_000):
                peer.socket.sendall(frame(bytes([DATA]) + header + b"x" * 200))
        except TimeoutError:
            pass
        check_others(hop.mesh)
