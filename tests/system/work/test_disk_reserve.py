"""The part of its disk that a node leaves free: what it takes no more, and what it stops for that."""

import json
import os

import pytest

from client import ControlError
from mesh import WORK, own_runner, until
from test_controller import ask, ended, job, runner, submit
from test_controller_failures import small_disk

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
MIB = 1 << 20
REFUSED = r"no space left under the data directory .* less than its reserve of \d+ \(diskreserve\)"
#: Some 100 MB a second.
FLOOD = "'while :; do head -c 5000000 /dev/zero; sleep 0.05; done'"
SLOW = "'while :; do echo still here; sleep 0.1; done'"


def leave(node, free):
    """Fills a node's disk, up to so many bytes."""
    space = os.statvfs(node.datadir)
    filler = node.datadir / "filler"
    with open(filler, "ab") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - free)
    return filler


def set_reserve(node, size):
    """Changes the reserve while the node runs."""
    config = json.loads(node.config.read_text())
    config[0]["node"]["diskreserve"] = size
    node.config.write_text(json.dumps(config))
    assert node.command("reload")["Success"] is True


def state(node, unit):
    return node.unit(unit)["StateName"]


def begin(node, script, at="localhost"):
    with node.control() as control:
        unit = control.submit(at, "sh", params=script)["unitid"]
    until("it to print", lambda: node.unit(unit)["StdoutSize"] > 0)
    return unit


def test_below_its_reserve_a_node_takes_no_submissions_and_ends_nothing(mesh):
    """A twentieth of the disk, as at an upgrade of a node whose disk is nearly full."""
    node = mesh.node("small", work=WORK)
    with small_disk(node, "100m"):
        node.start()
        unit, other = begin(node, SLOW), begin(node, SLOW)
        filler = leave(node, 4 * MIB)
        with node.control() as control, pytest.raises(ControlError, match=REFUSED):
            control.submit("localhost", "cat", b"x")
        node.logged("less free space than the reserve")
        node.restart()
        with node.control() as control, pytest.raises(ControlError, match=REFUSED):
            control.submit("localhost", "cat", b"x")
        size = node.unit(unit)["StdoutSize"]
        until("it to print on", lambda: node.unit(unit)["StdoutSize"] > size + 100)
        node.command(f"work cancel {other}")
        assert (state(node, unit), state(node, other)) == ("Running", "Canceled")
        node.command(f"work release {other}")
        # Whoever wants none has none.
        set_reserve(node, 0)
        assert node.run("localhost", "cat", b"later")[1] == b"later"
        set_reserve(node, 10 * MIB)
        with node.control() as control, pytest.raises(ControlError, match=REFUSED):
            control.submit("localhost", "cat", b"x")
        filler.unlink()
        assert node.run("localhost", "cat", b"later")[1] == b"later"
        assert state(node, unit) == "Running"


def test_a_payload_stops_at_the_reserve(mesh):
    node = mesh.node("small", work=WORK)
    with small_disk(node, "100m"):
        node.start()
        with node.control() as control:
            control.begin("localhost", "cat")
            with pytest.raises((ControlError, ConnectionError), match="no space left|reset|pipe"):
                for _ in range(400):
                    control.socket.sendall(b"x" * 1_000_000)
                control.line()
        space = os.statvfs(node.datadir)
        assert space.f_bavail * space.f_frsize > MIB
        node.release_all()
        assert node.run("localhost", "cat", b"later")[1] == b"later"


def test_a_unit_that_fills_the_disk_is_stopped_and_no_other(mesh):
    node = mesh.node("small", work=WORK)
    with small_disk(node, "300m"):
        node.start()
        slow = begin(node, SLOW)
        filler = leave(node, 250 * MIB)
        flood = begin(node, FLOOD)
        until("it to be stopped", lambda: state(node, flood) == "Failed", 60)
        detail = node.unit(flood)["Detail"]
        assert detail.startswith("Killed: ") and detail.count("(diskreserve)") == 1 and "disk of" in detail, detail
        assert node.unit(flood)["StdoutSize"] > 64 * MIB and node.results(flood)[:3] == b"\0\0\0"
        assert state(node, slow) == "Running"
        node.command(f"work release {flood}")
        filler.unlink()
        assert node.run("localhost", "cat", b"later")[1] == b"later"
        assert state(node, slow) == "Running"


def test_a_job_that_fills_the_disk_of_its_control_node_is_an_error_and_the_others_go_on(mesh, tmp_path):
    settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "30s", "rundir": str(tmp_path), "poll": "1s"}
    settings |= {"diskreserve": 100 * MIB, **own_runner(runner("own"))}
    mesh.node("control", listen=True, extra=[{"work-controller": settings}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    with small_disk(mesh["control"], "400m") as control:
        mesh.start()
        until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(control, "instance.list")["instances"]}.get("e1"), 60)
        _, quiet = submit(control, ident="quiet", lines=3, go=str(tmp_path / "go"))
        until("it to run", lambda: job(control, quiet)["state"] == "running")
        unit, loud = submit(control, ident="loud", flood=30)
        one = ended(control, loud)
        assert one["state"] == "error" and "(diskreserve)" in one["explanation"], one
        assert control.results(unit).startswith(b'{"status": "starting"')
        seen = ask(control, "instance.get", name="control")["last_seen"]
        until("a heartbeat", lambda: ask(control, "instance.get", name="control")["last_seen"] > seen)
        (tmp_path / "go").touch()
        assert ended(control, quiet)["state"] == "successful"
        control.command(f"work release {unit}")
        _, later = submit(control, ident="later")
        assert ended(control, later)["state"] == "successful"
