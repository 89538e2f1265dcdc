"""A full disk, and a data directory that belongs to somebody else."""

import os
import subprocess

import pytest

from client import ControlError
from mesh import PATIENCE, WORK, until

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")


@pytest.fixture
def small_disk(mesh):
    """A node whose data directory holds 8 MB."""
    node = mesh.node("small", work=WORK)
    node.datadir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(node.datadir)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"SKIPPED: cannot mount a tmpfs: {done.stderr}")
    yield node.start()
    mesh.end()
    # A process that has just been killed may still have a file of it open.
    subprocess.run(["umount", "--lazy", str(node.datadir)], check=True)


@ROOT_ONLY
def test_a_payload_that_does_not_fit(small_disk):
    with small_disk.control() as control:
        control.begin("localhost", "cat")
        try:
            control.socket.sendall(b"x" * 20_000_000)
        except ConnectionError:
            pass
        with pytest.raises(ControlError, match="no space left under the data directory"):
            control.line()
    still_works(small_disk)


@ROOT_ONLY
def test_output_that_does_not_fit(small_disk):
    params = "'head -c 20000000 /dev/zero; echo end >&2; exit 7'"
    with small_disk.control() as control:
        unit = control.submit("localhost", "sh", params=params)["unitid"]
    status = until("the unit to fail", lambda: final(small_disk, unit))
    assert status["StateName"] == "Failed", status
    still_works(small_disk)


@ROOT_ONLY
def test_a_disk_that_is_full_already(small_disk):
    filler = small_disk.datadir / "filler"
    with pytest.raises(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
    with small_disk.control() as control:
        with pytest.raises(ControlError, match="no space left under the data directory"):
            control.submit("localhost", "cat", b"x" * 1_000_000)
    until("the node to answer", small_disk.answers)
    filler.unlink()
    still_works(small_disk)


def final(node, unit):
    status = node.unit(unit)
    return status if status["StateName"] not in ("Pending", "Running") else None


def still_works(node):
    """Releasing frees space, and the next job runs."""
    node.release_all()
    unit, output = node.run("localhost", "cat", b"still here")
    assert output == b"still here"
    node.mesh.check_sane()


@ROOT_ONLY
def test_a_data_directory_of_someone_else(mesh):
    node = mesh.node("other", work=WORK)
    node.datadir.mkdir()
    os.chown(node.datadir, 12345, 12345)
    node.spawn()
    assert node.process.wait(PATIENCE) != 0
    for part in (str(node.datadir), "12345", "chown"):
        assert part in node.log(), node.log()


@ROOT_ONLY
def test_a_data_directory_that_cannot_be_written(mesh):
    """A file is in the way of the directory."""
    node = mesh.node("file", work=WORK)
    node.datadir.write_text("not a directory")
    node.spawn()
    assert node.process.wait(PATIENCE) != 0
    assert str(node.datadir) in node.log()
