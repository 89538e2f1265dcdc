"""Links of a node behind a router that translates addresses: addresses change while a job streams, nothing is said for
as long as the router remembers, and the first packets of a dial get lost."""

import random
import threading
import time

import pytest

import links
import mesh as harness
import routed
from mesh import until
from trust import Pki

PORT = 27199
MB = 1_000_000

pytestmark = pytest.mark.skipif(routed.missing() is not None, reason=f"SKIPPED: needs {routed.missing()}")


@pytest.fixture
def router():
    router = routed.Routed()
    yield router
    router.close()


def joined(mesh, router, kind, pki=None):
    """A node outside that listens, started, and one inside that dials it."""
    profiles = {}
    for name in ("outside", "inside"):
        if pki:
            pki.issue(name, [name], address=routed.OUTSIDE)
        profiles[name] = pki.profiles(name) if pki else []
    near = mesh.add("outside", [*profiles["outside"], links.listener(kind, PORT, routed.OUTSIDE)])
    far = mesh.add("inside", [*profiles["inside"], links.peer(kind, PORT, routed.OUTSIDE), *harness.WORK])
    for node in (near, far):
        node.prefix = router.prefix(node.name)
    near.start()
    return near, far


def sent(node):
    answer = node.command({"command": "status", "requested_fields": ["Links"]})
    return sum(link["BytesOut"] for link in answer["Links"])


def sessions(node):
    return node.log().count(" connected ")


@pytest.mark.parametrize("kind", ["quic-mtls", "udp"])
def test_addresses_change_while_a_job_streams(mesh, router, tmp_path, kind):
    near, far = joined(mesh, router, kind, Pki(tmp_path / "pki") if "mtls" in kind else None)
    far.start()
    mesh.wait_for_routes()
    # Of such a size that some seconds are left after the last change, however late it comes.
    payload, results = random.Random(7).randbytes(32 * MB), []
    job = threading.Thread(target=lambda: results.append(near.run("inside", "cat", payload)[1]))
    job.start()
    # First what goes in, then what comes out.
    for node in (near, far):
        for at, change in ((3, router.renumber_router), (8, router.renumber_inside)):
            until(f"{at} MB from {node.name}", lambda n=node, a=at: sent(n) > a * MB)
            assert job.is_alive()
            change()
    job.join()
    assert results == [payload]
    assert router.addresses == {"outer": 11, "eth0": 4}
    if kind == "udp":
        return
    assert any(seen.startswith("192.0.2.11:") for seen in router.translations())
    for node in (near, far):
        assert sessions(node) == 1 and "disconnected" not in node.log(), node.log()


def test_a_udp_link_outlives_the_memory_of_the_router(mesh, router):
    near, far = joined(mesh, router, "udp")
    far.start()
    mesh.wait_for_routes()
    payload = random.Random(7).randbytes(4 * MB)
    assert near.run("inside", "cat", payload)[1] == payload
    seen = router.translations()
    assert len(seen) == 1
    # Nobody uses the link, for longer than the router remembers.
    time.sleep(routed.MEMORY + 2)
    assert router.translations() == seen
    assert near.run("inside", "cat", payload)[1] == payload
    for node in (near, far):
        assert sessions(node) == 1 and "disconnected" not in node.log(), node.log()


@pytest.mark.parametrize("kind", ["tcp", "quic-mtls"])
def test_two_lost_first_packets_cost_a_dial_at_most_three_seconds(mesh, router, tmp_path, kind):
    near, far = joined(mesh, router, kind, Pki(tmp_path / "pki") if "mtls" in kind else None)
    router.lose_first(2, "tcp" if kind == "tcp" else "udp", PORT)
    far.spawn()
    until("the first packet", lambda: router.lost() > 0)
    begun = time.monotonic()
    until("the link", lambda: sessions(near) > 0)
    assert time.monotonic() - begun < 3
    assert router.lost() == 2
    until("a route", lambda: near.reaches("inside"))
