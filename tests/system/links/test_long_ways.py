"""Jobs over a long link between two network namespaces, with loss and with a bottleneck: as ratios to a plain TCP
connection in the same run, on `benches/wan.py`. What the machine does beside it slows both, so the bounds are low: they
are for windows that stay small and ways that stand still, which cost a factor of ten."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mesh import BINARIES

WAN = Path(__file__).parents[3] / "benches" / "wan.py"


def missing():
    if os.geteuid() != 0:
        return "root"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun"
    return next((program for program in ("ip", "cc", "openssl") if not shutil.which(program)), None)


pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=f"SKIPPED: needs {missing()}"),
    pytest.mark.timeout(180),
]


def figures(*options):
    command = [sys.executable, WAN, "--bin", f"meshd={BINARIES / 'meshd'}", "--ms", "50", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    if "No such file" in done.stderr and "netns" in done.stderr:
        pytest.skip("SKIPPED: no network namespaces here")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("exact", True), found
    return found


@pytest.mark.parametrize("backend", ["tcp", "ws", "quic", "udp"])
def test_a_long_link_carries_about_what_its_path_carries(backend):
    found = figures("--backend", backend, "--mb", "10", "--only", "bare,out,in")
    assert min(found["out_mbs"], found["in_mbs"]) > 0.25 * found["bare_mbs"], found


def test_a_lossy_quic_link_carries_more_than_tcp():
    found = figures("--backend", "quic", "--mb", "10", "--loss", "0.005", "--only", "bare,out,in")
    assert min(found["out_mbs"], found["in_mbs"]) > found["bare_mbs"], found


def test_a_lossy_udp_link_is_exact():
    figures("--backend", "udp", "--mb", "3", "--loss", "0.005", "--only", "out,in")


@pytest.mark.parametrize("way", [["--backend", "tcp", "--hop"], ["--backend", "quic"]])
def test_a_bottleneck_is_filled_and_pings_pass(way):
    found = figures(*way, "--mb", "10", "--rate", "20", "--only", "out,in,ping")
    assert min(found["out_mbs"], found["in_mbs"]) > 0.3 * 20 / 8, found
    # The second pings are those beside bulk, the last one of them is the 99th percentile.
    assert found["ping_bulk_ms"][1] < 1000, found
