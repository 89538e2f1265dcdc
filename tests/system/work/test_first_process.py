"""The daemon as process 1 of a container without an init: no zombie stays, and signals arrive."""

import os
import pathlib
import signal
import subprocess

import pytest

from mesh import MESHD, PATIENCE, until

NAMESPACES = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture
def container(mesh):
    """A node that is process 1; `first` is its number outside."""
    if subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here: run the tests as root")
    program = mesh.dir / "first"
    program.write_text(f'#!/bin/sh\nexec {" ".join(NAMESPACES)} {MESHD} "$@"\n')
    program.chmod(0o755)
    node = mesh.node("contained", program=program).start()
    [node.first] = children(node.process.pid)
    return node


def children(pid):
    listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def state(pid):
    """The letter of a process's state, or nothing once it is reaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_orphans_are_reaped(container):
    # As `kubectl exec` does: a process from outside starts one that outlives it.
    before = set(children(container.first))
    enter = ["nsenter", "--target", str(container.first), "--pid", "--mount"]
    subprocess.run([*enter, "sh", "-c", "sleep 300 >/dev/null 2>&1 &"], check=True)
    [orphan] = until("the orphan to come to process 1", lambda: set(children(container.first)) - before)
    os.kill(orphan, signal.SIGKILL)
    until("the orphan to be reaped", lambda: state(orphan) == "")
    assert container.answers()


def test_signals_reach_the_node(container):
    os.kill(container.first, signal.SIGHUP)
    container.logged(" reloaded ")
    os.kill(container.first, signal.SIGTERM)
    assert container.process.wait(PATIENCE) == 0
    assert container.log().count(" stopping") == 1


def test_the_end_of_the_node_is_the_end_of_the_container(container):
    [node] = children(container.first)
    os.kill(node, signal.SIGKILL)
    assert container.process.wait(PATIENCE) == 128 + signal.SIGKILL
