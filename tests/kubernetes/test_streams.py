"""Stdin and stdout, byte for byte: long payloads, long lines, rotations, silence, and both transports."""

import gzip
import os
import pathlib

import pytest

import cluster as kubernetes
from mesh import until
from node import Reader
from pods import assert_same, held, pod, shell

PODLOGS = kubernetes.STATE / "podlogs"
#: Lines that tell where one is missing or doubled.
MARKED = "sed 's/.*/a line of the log that is rotated &, and of no other/'"


def marked(last, first=1):
    return b"".join(b"a line of the log that is rotated %d, and of no other\n" % n for n in range(first, last + 1))


def test_an_echo(node):
    output, status = node.run(shell("echo hi"))
    assert output == b"hi\n"
    assert (status["StateName"], status["Detail"], status["ExitCode"]) == ("Succeeded", "Finished", 0)
    extra = status["ExtraData"]
    assert extra["KubeConfig"] == extra["KubePod"] == ""
    assert extra["PodName"].startswith("kube-") and extra["KubeNamespace"] == "jobs"


@pytest.mark.parametrize("work_type", ["kube", "get-attach"])
def test_a_long_payload_and_long_lines_come_byte_for_byte(node, work_type):
    payload = b"".join(bytes([97 + n % 26]) * 3_000_000 + b"\n" for n in range(8))
    output, status = node.run(pod("cat"), payload, work_type)
    assert_same(output, payload)
    assert (status["StateName"], status["StdoutSize"]) == ("Succeeded", len(payload))


def test_all_bytes_come_whatever_the_lengths_of_their_lines(node):
    lengths = [0, 1, 2, 4_095, 4_096, 16_383, 16_384, 16_385, 32_768, 65_536, 1 << 20]
    payload = b"\n".join(bytes([65 + n]) * length for n, length in enumerate(lengths))
    output, status = node.run(pod("cat"), payload)
    assert_same(output, payload)
    assert status["StateName"] == "Succeeded"


def assert_same_but_at(rotated, output, expected):
    """Equal, but that a kubelet may leave out what is printed while it rotates: up to 64 KiB before the end of a file."""
    begin = come = 0
    for end in sorted(end for path in rotated if (end := expected.index(last_entries(path)) + len(last_entries(path))) < len(expected)):
        follows = output.find(expected[end:end + 200], come)
        part = output[come:follows]
        if follows < 0 or not expected[begin:end].startswith(part) or end - begin - len(part) > 65_536:
            break
        begin, come = end, follows
    assert_same(output[come:], expected[begin:])


def last_entries(path):
    """What the last two entries say that were written into a file before the next was begun: where it is, among all."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as log:
        entries = [line.split(b" ", 3)[2:] for line in log.read().splitlines()[-2:]]
    # Of a line that is cut by the rotation, the old file has a part and the new one the rest.
    return b"".join(text + (b"" if tag == b"P" else b"\n") for tag, text in entries)


def followed(node, script, directory):
    """A unit that begins to print when its log is followed: what is rotated away before that is lost to everybody."""
    unit = node.submit(**held(script, directory))
    node.running(unit)
    (directory / "go").touch()
    return unit


def test_output_comes_whole_across_a_rotation_as_fast_as_it_is_read(node, tmp_path):
    # A kubelet whose reader lags behind by two rotations, as on a busy machine, skips a file: the pod is at most two
    # pieces ahead of who reads, which has made a file for each piece that has come.
    numbers = "$((n * 5000 + 1)) $(((n + 1) * 5000))"
    wait = "until [ $n -lt 2 ] || [ -e /held/$((n - 2)) ] || [ -e /held/end ]; do sleep 0.02; done"
    script = f"n=0; until [ -e /held/end ]; do {wait}; seq {numbers} | {MARKED}; n=$((n + 1)); done; echo $n"
    rotated = lambda: {path for path in PODLOGS.glob("*/worker/0.log.*") if path.suffix != ".tmp"}  # noqa: E731
    before = rotated()
    unit = followed(node, script, tmp_path)
    reader = Reader(node, unit)
    come, due = 0, len(b"begun\n" + marked(5_000))

    def is_rotated():
        nonlocal come, due
        while node.status(unit)["StdoutSize"] >= due:
            (tmp_path / str(come)).touch()
            come += 1
            due += len(marked(5_000 * (come + 1), 5_000 * come + 1))
        return bool(rotated() - before)

    until("its log to be rotated", is_rotated, 60, 0.02)
    (tmp_path / "end").touch()
    reader.join(60)
    pieces = int(reader.output.split()[-1])
    assert_same_but_at(rotated() - before, reader.output, b"begun\n%b%d\n" % (marked(5_000 * pieces), pieces))
    assert node.final(unit)["StateName"] == "Succeeded"


def test_output_comes_whole_across_twenty_rotations(node, tmp_path):
    # The kubelet looks every 3 s for logs of more than 1 MiB, which a piece is with its last lines. What it loses by
    # itself is kept out: a piece is printed once the file before it is rotated away and the one before that is read.
    begin, length = 100_000, len("2026-11-30T07:42:31.988598123Z stdout F ") + len(marked(100_000, 100_000))
    lines = (1 << 20) // length + 20
    numbers = f"$(({begin} + n * {lines} + 1)) $(({begin} + (n + 1) * {lines}))"
    wait = "until [ -e /held/$n ] || [ -e /held/end ]; do sleep 0.05; done"
    script = f"n=0; until [ -e /held/end ]; do seq {numbers} | {MARKED}; n=$((n + 1)); {wait}; done; echo $n"
    before = set(PODLOGS.glob("*/worker/0.log.*"))
    unit = followed(node, script, tmp_path)
    reader, seen = Reader(node, unit), set()

    def are_rotated():
        new = set(PODLOGS.glob("*/worker/0.log.*")) - before - seen
        seen.update(path for path in new if path.suffix not in {".gz", ".tmp"} and path.with_name("0.log").exists())
        if node.status(unit)["StdoutSize"] >= len(b"begun\n" + marked(begin + lines * len(seen), begin + 1)):
            (tmp_path / str(len(seen))).touch()
        return len(seen) >= 20

    until("twenty files to be rotated away", are_rotated, 150, 0.2)
    (tmp_path / "end").touch()
    reader.join(60)
    pieces = int(reader.output.split()[-1])
    assert_same(reader.output, b"begun\n%b%d\n" % (marked(begin + lines * pieces, begin + 1), pieces))
    assert node.final(unit)["StateName"] == "Succeeded"


def test_a_silent_job_outlives_an_idle_limit(node):
    output, status = node.run(shell("echo a; sleep 25; echo b"))
    assert (output, status["StateName"]) == (b"a\nb\n", "Succeeded")


def test_a_line_without_a_newline_comes_whole(node):
    output, _ = node.run(shell("printf abc"))
    assert output == b"abc"


def test_a_line_is_with_its_reader_at_once(node):
    # The clock is the machine's: a busy one sleeps longer.
    unit = node.submit(**shell("for n in $(seq 1 10); do read up idle </proc/uptime; echo $n $up; sleep 1; done"))
    with node.control() as control:
        reader = control.results(unit)
        # What was printed before the log was followed comes with the first line.
        late = [uptime() - printed for printed in (printed_line(reader, n) for n in range(1, 11))][1:]
    assert max(late) < 3, f"lines come late: {late}"


def printed_line(reader, number):
    """When the line of that number was printed."""
    found, up = reader.readline().split()
    assert int(found) == number
    return float(up)


def uptime():
    return float(pathlib.Path("/proc/uptime").read_text().split()[0])


def test_a_worker_that_ends_before_it_is_attached_to(node):
    assert node.run(shell("true"))[1]["StateName"] == "Succeeded"
    assert node.run(shell("true"), b"nobody reads this")[1]["StateName"] == "Succeeded"


def test_a_pod_that_connects_by_tcp(node):
    payload = b"".join(b"line %d\n" % n for n in range(100_000))
    script = 'exec nc "$RECEPTOR_HOST" "$RECEPTOR_PORT" -e cat'
    output, status = node.run(pod(script), payload, "tcp")
    assert_same(output, payload)
    assert (status["StateName"], status["Detail"]) == ("Succeeded", "Finished")


def test_many_at_once(node):
    units = [node.submit(payload=b"%d\n" % n, **shell("cat")) for n in range(50)]
    for n, unit in enumerate(units):
        assert node.final(unit, 120)["StateName"] == "Succeeded", node.status(unit)
        assert node.results(unit) == b"%d\n" % n
