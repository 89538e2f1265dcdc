"""Payloads of every size and pace, across a hop, byte for byte; and how units end."""

import hashlib
import random
import threading

import pytest

from mesh import running, until

BIG = 50_000_000


@pytest.fixture
def control(shared_line):
    """The submitting node, without units."""
    node = shared_line["control"]
    yield node
    node.release_all()
    until("no units on the other node", lambda: shared_line["execution"].command("work list") == {})
    shared_line.check_sane()


def final(node, unit):
    status = node.unit(unit)
    return status if status["StateName"] not in ("Pending", "Running") else None


def test_50_mb_in_and_out(control):
    payload = random.Random(1).randbytes(BIG)
    unit, output = control.run("execution", "cat", payload)
    assert output == payload, f"{len(output)} bytes came back"
    assert final(control, unit)["StdoutSize"] == BIG
    # And again from the middle, like a client that lost its connection.
    assert control.results(unit, BIG // 2) == payload[BIG // 2 :]


def test_a_payload_that_is_under_way_says_how_far_it_is(control):
    piece = b"x" * 65_536
    with control.control() as client:
        unit = client.begin("execution", "cat")

        def told():
            client.socket.sendall(piece)
            detail = control.unit(unit)["Detail"]
            return detail.startswith("Sending payload: ") and detail

        detail = until("Detail to say how much was sent", told, pause=0.1)
        assert detail.endswith("MiB/s"), detail
        control.command(f"work cancel {unit}")


def test_nothing_in_and_nothing_out(control):
    unit, output = control.run("execution", "cat", b"")
    assert output == b"" and control.unit(unit)["StateName"] == "Succeeded"


def test_several_at_once(control):
    outcomes = {}

    def job(seed):
        payload = random.Random(seed).randbytes(3_000_000)
        _, output = control.run("execution", "cat", payload)
        outcomes[seed] = output == payload

    threads = [threading.Thread(target=job, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcomes == dict.fromkeys(range(8), True)


def test_a_slow_reader_gets_everything_and_delays_nobody(control, shared_line):
    before = {name: shared_line[name].rss() for name in shared_line.nodes}
    unit = submit(control, "sh", params="'head -c 40000000 /dev/zero'")
    with control.control(120) as slow:
        reader = slow.results(unit)
        assert reader.read(1000) == bytes(1000)
        # It reads nothing while others read everything.
        assert len(control.results(unit)) == 40_000_000
        _, output = control.run("execution", "cat", b"other")
        assert output == b"other"
        assert len(reader.read()) == 40_000_000 - 1000
    growth = {name: shared_line[name].rss() - size for name, size in before.items()}
    assert max(growth.values()) < 15_000_000, growth


def test_readers_that_go_away_hurt_nobody(control):
    unit = submit(control, "sh", params="'head -c 5000000 /dev/zero'")
    for _ in range(20):
        with control.control() as impatient:
            impatient.results(unit).read(10)
    assert hashlib.sha256(control.results(unit)).digest() == hashlib.sha256(bytes(5_000_000)).digest()


def submit(node, worktype, payload=b"", target="execution", **params):
    with node.control() as control:
        return control.submit(target, worktype, payload, **params)["unitid"]


def test_results_are_live(control, shared_line):
    """The command's output arrives before the command ends."""
    gate = shared_line.dir / "gate"
    unit = submit(control, "sh", params=f"'echo early; while [ ! -e {gate} ]; do sleep 0.05; done; echo late'")
    with control.control() as client:
        reader = client.results(unit)
        assert reader.readline() == b"early\n"
        assert control.unit(unit)["StateName"] == "Running"
        gate.touch()
        assert reader.read() == b"late\n"


def test_cancel_ends_the_whole_process_group(control, shared_line):
    unit = submit(control, "sh", params="'sleep 1000 & echo $!; exec sleep 1001'")
    with control.control() as client:
        reader = client.results(unit)
        child = int(reader.readline())
        assert running(child)
        assert control.command(f"work cancel {unit}") == {"cancelled": unit}
        assert reader.read() == b""
    until("the child to be gone", lambda: not running(child))
    assert control.unit(unit)["StateName"] == "Canceled"


def test_release_of_a_running_unit_ends_it(control, shared_line):
    unit = submit(control, "sh", params="'echo $$; exec sleep 1000'")
    with control.control() as client:
        pid = int(client.results(unit).readline())
    assert control.command(f"work release {unit}") == {"released": unit}
    until("the command to be gone", lambda: not running(pid))
    until("the other node to have forgotten it", lambda: shared_line["execution"].command("work list") == {})
    assert not control.unit_dir(unit).exists()


def test_ttl_towards_an_unreachable_node(control):
    with control.control() as client:
        answer = client.submit("nowhere", "cat", b"x", ttl="500ms")
    unit = answer["unitid"]
    assert answer["result"] == "Job Submitted", "it waits"
    status = until("the unit to expire", lambda: final(control, unit))
    assert status["StateName"] == "Failed" and status["Detail"].startswith("Work unit expired on "), status
    assert control.results(unit) == b""


def test_a_ttl_does_not_end_a_started_unit(control):
    unit = submit(control, "sh", params="'sleep 6; echo done'", ttl="5s")
    assert control.results(unit) == b"done\n"
    assert control.unit(unit)["StateName"] == "Succeeded"


def test_force_release_of_a_unit_for_an_unreachable_node(control):
    unit = submit(control, "cat", b"x", target="nowhere")
    assert control.command(f"work force-release {unit}") == {"released": unit}
    assert control.command("work list") == {}
    assert not control.unit_dir(unit).exists()
