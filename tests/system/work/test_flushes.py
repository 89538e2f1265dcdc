"""What a job for another node waits for on a slow disk: what is durable before which answer, and how few flushes come one
behind the other."""

import pathlib
import shutil
import socket
import subprocess
import time
import typing

import pytest

from mesh import ROOT, WORK

LIBRARY = ROOT / "benches" / "slowdisk.c"
#: How long a flush takes, in milliseconds.
FLUSH = 10
#: Of flushes one behind the other: the unit; its payload and the draft of its status; that status's name; the unit on the
#: other node; output and status; that status's name.
MOST = 6
JOBS = 10


class Flush(typing.NamedTuple):
    began: float
    ended: float
    node: str
    #: The name of a file in the unit's directory; `unit` and `units` are directories.
    what: str


class Job(typing.NamedTuple):
    begun: float
    #: Its ID was answered.
    known: float
    #: It was answered that it runs.
    started: float
    ended: float
    unit: str


@pytest.fixture
def slow(mesh, tmp_path):
    """Two nodes with slow disks, and the file with their flushes."""
    if shutil.which("cc") is None:
        pytest.skip("SKIPPED: needs a C compiler")
    library, log = tmp_path / "slowdisk.so", tmp_path / "flushes"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, LIBRARY, "-ldl"], check=True, capture_output=True)
    mesh.variables |= {"LD_PRELOAD": str(library), "SLOWDISK_MS": str(FLUSH), "SLOWDISK_LOG": str(log)}
    mesh.node("control", listen=True)
    mesh.node("execution", peers=["control"], work=WORK)
    mesh.start()
    return mesh, log


def run(control):
    begun = time.monotonic()
    with control.control() as client:
        unit = client.begin("execution", "cat")
        known = time.monotonic()
        client.socket.sendall(b"some stdin")
        client.socket.shutdown(socket.SHUT_WR)
        client.line()
        started = time.monotonic()
    assert control.results(unit) == b"some stdin"
    return Job(begun, known, started, time.monotonic(), unit)


def flushes(mesh, log, job):
    """Those of a job, in order."""
    found = []
    for line in log.read_text().splitlines():
        began, ended, _, _, path = line.split(" ", 4)
        began, ended = int(began) / 1e6, int(ended) / 1e6
        # At its start a node flushes the names of directories, which are no unit's.
        if job.begun <= began < job.ended:
            node, _, _, *inner = pathlib.Path(path).relative_to(mesh.dir).parts
            # The far node may still write down the end of the job before, whose output was read already.
            if inner and inner[0] != job.unit:
                continue
            what = {0: "units", 1: "unit"}.get(len(inner)) or inner[-1]
            found.append(Flush(began, ended, node, what))
    return sorted(found)


def in_a_row(flushes):
    """The most of them of which each begins after the end of the one before."""
    last, count = 0.0, 0
    for flush in sorted(flushes, key=lambda flush: flush.ended):
        if flush.began >= last:
            last, count = flush.ended, count + 1
    return count


def test_what_is_durable_before_each_answer_of_a_job_for_another_node(slow):
    mesh, log = slow
    rows = []
    for _ in range(JOBS):
        job = run(mesh["control"])
        done = flushes(mesh, log, job)

        def ended(node, until, since=0.0):
            return {f.what for f in done if f.node == node and f.began >= since and f.ended <= until}

        # The unit before its ID is told, whole, by its name in the directory of all units too.
        assert ended("control", job.known) == {".status.new", "unit", "units"}, done
        # The payload, and then the name of a status that tells of all of it, before the other node has the end of it.
        there = min(f.began for f in done if f.node == "execution")
        payload = next(f.ended for f in done if (f.node, f.what) == ("control", "stdin"))
        assert "unit" in ended("control", there, since=payload), done
        # All of the unit there, before that is answered.
        assert {"stdin", ".status.new", "unit", "units"} <= ended("execution", job.started), done
        # The output and the status, and then that one's name, before the results end.
        output = next(f.ended for f in done if (f.node, f.what) == ("control", "stdout"))
        assert "unit" in ended("control", job.ended, since=output), done
        # Of a job that takes long it is written down that it runs.
        end = next(f.began for f in done if (f.node, f.what) == ("execution", "end"))
        rows.append(in_a_row([f for f in done if f.node != "control" or not there <= f.began < end]))
    assert min(rows) <= MOST, rows
