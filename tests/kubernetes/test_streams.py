"""Stdin and stdout, byte for byte: long payloads, long lines, rotations, silence, and both transports."""

import pathlib

import pytest

import cluster as kubernetes
from mesh import until
from node import Reader
from pods import assert_same, held, pod, shell

PODLOGS = kubernetes.STATE / "podlogs"
#: Lines that tell where one is missing or doubled.
MARKED = "sed 's/.*/a line of the log that is rotated &, and of no other/'"


def marked(count):
    return b"".join(b"a line of the log that is rotated %d, and of no other\n" % n for n in range(1, count + 1))


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


def followed(node, script, directory):
    """A unit that begins to print when its log is followed: what is rotated away before that is lost to everybody."""
    unit = node.submit(**held(script, directory))
    node.running(unit)
    (directory / "go").touch()
    return unit


def test_output_at_full_speed_comes_whole_across_a_rotation(node, tmp_path):
    unit = followed(node, f"seq 1 320000 | {MARKED}", tmp_path)
    assert_same(node.results(unit), b"begun\n" + marked(320_000))
    assert node.final(unit)["StateName"] == "Succeeded"


def test_output_comes_whole_across_twenty_rotations(node, tmp_path):
    # The kubelet looks every 3 s for logs of more than 1 MiB.
    numbers = "$((n * 27000 + 1)) $(((n + 1) * 27000))"
    script = f"n=0; until [ -e /held/end ]; do seq {numbers} | {MARKED}; n=$((n + 1)); sleep 3; done; echo $n"
    unit = followed(node, script, tmp_path)
    reader, seen = Reader(node, unit), set()

    def are_rotated():
        seen.update(path.name for path in PODLOGS.glob("*/worker/0.log.*"))
        return len({name for name in seen if not name.endswith((".gz", ".tmp"))}) >= 20

    until("twenty files to be rotated away", are_rotated, 100, 0.2)
    (tmp_path / "end").touch()
    reader.join(60)
    pieces = int(reader.output.split()[-1])
    assert_same(reader.output, b"begun\n%b%d\n" % (marked(27_000 * pieces), pieces))
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
