"""What a node keeps of payloads: what a start finds of it, how operators see and remove it, and that it gives way."""

import hashlib
import json
import os
import subprocess

import pytest

from mesh import MESHCTL, WORK, environment, until
from test_controller_failures import small_disk
from test_disk_reserve import MIB, leave, set_reserve

#: A caller whose name nobody knows.
CALLER = "0123456789abcdef"


def meshctl(node, *words):
    command = [MESHCTL, "--socket", node.socket, "node", "cache", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def pieces(node):
    return [name for _, _, names in os.walk(node.datadir / node.name / ".pieces") for name in names]


def fill(node, count):
    """Leaves pieces of 64 KiB as an earlier process would have."""
    own = node.datadir / node.name / ".pieces" / f"certified-node:{CALLER}"
    own.mkdir(parents=True, mode=0o700)
    for path in (node.datadir, node.datadir / node.name):
        path.chmod(0o700)
    for number in range(count):
        piece = number.to_bytes(8) * 8192
        (own / hashlib.sha256(piece).hexdigest()).write_bytes(piece)


def cached(node):
    return node.command("node cache")["pieces"]


def set_cache(node, size):
    config = json.loads(node.config.read_text())
    config[0]["node"]["payloadcache"] = size
    node.config.write_text(json.dumps(config))


def test_what_is_kept_is_shown_and_removed(mesh):
    node = mesh.node("a", work=WORK)
    set_cache(node, "1GiB")
    fill(node, 20)
    node.start()
    until("the pieces", lambda: cached(node) == 20)
    assert node.command("node cache") == {
        "callers": [{"node": CALLER, "certified": True, "pieces": 20, "bytes": 20 * 65536}],
        "more_callers": 0, "pieces": 20, "bytes": 20 * 65536, "most": 1 << 30,
    }  # fmt: skip
    line, total = meshctl(node).splitlines()
    assert line.split() == [CALLER, "20", "pieces,", "1.2", "MiB"]
    assert total.split() == "In all 20 pieces, 1.2 MiB of 1.0 GiB".split()
    assert meshctl(node, "--clear") == "Cleared: 20 pieces, 1.2 MiB\n"
    assert (cached(node), pieces(node)) == (0, [])
    # A configuration that keeps less, or nothing, counts at once.
    node.stop()
    fill(node, 20)
    node.start()
    until("the pieces", lambda: cached(node) == 20)
    set_cache(node, "512KiB")
    assert node.command("reload")["Success"] is True
    assert cached(node) == len(pieces(node)) == 8
    set_cache(node, 0)
    assert node.command("reload")["Success"] is True
    assert (cached(node), pieces(node)) == (0, [])
    assert meshctl(node) == "Nothing is kept: payloadcache is 0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
def test_what_is_kept_goes_when_the_disk_has_less_than_its_reserve(mesh):
    node = mesh.node("small", work=WORK)
    set_cache(node, "40MiB")
    with small_disk(node, "100m"):
        fill(node, 320)
        node.start()
        until("the pieces", lambda: cached(node) == 320)
        set_reserve(node, 20 * MIB)
        leave(node, 15 * MIB)
        # 5 MiB of them are enough.
        until("room", lambda: cached(node) < 320)
        until("the reserve", lambda: node.run("localhost", "cat", b"x")[1] == b"x")
        left = cached(node)
        assert 100 < left <= 240 and len(pieces(node)) == left
