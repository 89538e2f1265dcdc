"""A data directory that others may write to, on this host and in a container: a PID namespace with a volume mounted there,
as a kubelet mounts an `emptyDir`. Needs root, which makes namespaces and mounts.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile

import pytest

from client import Control, ControlError
from mesh import MESHD, PATIENCE, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root")
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
#: A user without a name, as OpenShift chooses them.
ARBITRARY = 1000700000


@pytest.fixture
def place():
    """A directory that everybody may write to, and a node with its data there."""
    # Those of pytest are closed to other users.
    with tempfile.TemporaryDirectory(prefix="meshd-c-") as directory:
        yield prepared(pathlib.Path(directory))


def prepared(tmp_path):
    tmp_path.chmod(0o755)
    data, run = tmp_path / "data", tmp_path / "run"
    for directory in (data, run):
        directory.mkdir()
        directory.chmod(0o777)
    config = [{"node": {"id": "n", "datadir": str(data)}}, {"local-only": None}]
    config.append({"control-service": {"service": "control", "filename": str(run / "s")}})
    (tmp_path / "c.yml").write_text(json.dumps(config))
    return tmp_path


@contextlib.contextmanager
def started(place, *before, user=None, prepare="true"):
    """A node behind these words; its directory is prepared by a shell first. Yields its process, which may have ended."""
    drop = f"setpriv --reuid={user} --regid={user} --clear-groups" if user else ""
    script = f"{prepare} && exec {drop} {MESHD} --config {place}/c.yml"
    with open(place / "log", "ab") as log:
        process = subprocess.Popen([*before, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        # The first process of a PID namespace takes a signal that it handles; its parent ends after it.
        for pid in children(process) or [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait(PATIENCE)


def children(process):
    """The processes that a process has started."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    return []


def answers(place):
    with contextlib.suppress(OSError, ControlError), Control(str(place / "run/s"), 5) as control:
        return control.command("status")["NodeID"] == "n"
    return False


def await_answer(place, process):
    """Until the node answers; fails at once if it has ended."""

    def answered():
        assert process.poll() is None, log(place)
        return answers(place)

    until("the node to answer", answered)


def log(place):
    return (place / "log").read_text()


def seen(process, path):
    """The mode and the owner of a path as the node sees it."""
    (node,) = until("the node", lambda: children(process))
    found = os.stat(f"/proc/{node}/root{path}")
    return found.st_mode & 0o777, found.st_uid


MOUNT = "mount -t tmpfs -o mode=0777 tmpfs {}"


@pytest.mark.parametrize("user", [None, ARBITRARY], ids=["root", "arbitrary"])
def test_a_volume_of_a_container_is_made_safe(place, user):
    data = place / "data"
    with started(place, *CONTAINER, user=user, prepare=MOUNT.format(data)) as process:
        await_answer(place, process)
        assert seen(process, data / "n") == (0o700, user or 0)
        assert seen(process, data) == (0o777 if user else 0o755, 0)
    assert log(place).count("the data directory") == 1, log(place)


def test_a_node_in_a_container_starts_again_on_its_own_directory_in_a_volume(place):
    """The mount of the first start is this host's, which has it after the container's end."""
    subprocess.run(MOUNT.format(place / "data").split(), check=True, timeout=60)
    try:
        for _ in range(2):
            with started(place, *CONTAINER, user=ARBITRARY) as process:
                await_answer(place, process)
        assert log(place).count("the data directory") == 1, log(place)
    finally:
        subprocess.run(["umount", place / "data"], check=True, timeout=60)


def test_an_empty_directory_of_ours_in_a_container_is_closed(place):
    with started(place, *CONTAINER) as process:
        await_answer(place, process)
    assert (place / "data").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("before, user, prepare", [
    ([], None, "true"),
    ([], ARBITRARY, "true"),
    (["unshare", "--mount"], None, MOUNT),
    (CONTAINER, None, "touch {}/somebody-elses"),
    (CONTAINER, ARBITRARY, "true"),
], ids=["host", "host, another's", "a mount without a container", "not empty and no volume", "another's and no volume"])
def test_elsewhere_it_is_refused(place, before, user, prepare):
    with started(place, *before, user=user, prepare=prepare.format(place / "data")) as process:
        assert process.wait(30) != 0
    assert "writable by others" in log(place) or "belongs to user" in log(place), log(place)
    assert (place / "data").stat().st_mode & 0o777 == 0o777
