"""The results of a unit that a client cancels, seen by a reader as AWX has one: it sends the cancel, and shuts its reader
down once that is answered. A reader that meets the end before takes the output for cut off, and AWX shows that to users.
"""

import select
import socket
import subprocess
import threading
import time

import pytest

import mesh as harness
from conftest import scoped_mesh
from mesh import MESHCTL, PATIENCE, command_type, until
from test_awx import api

#: How long results stay open once the answer has gone out.
OPEN = 2
CANCELS = 200


@pytest.fixture(scope="module")
def nodes(request):
    with scoped_mesh(request.node) as mesh:
        local = command_type("local", "sh", "-c", runtime=True)
        mesh.node("execution", listen=True, work=harness.WORK)
        mesh.node("control", peers=["execution"], work=[local, *harness.WORK])
        mesh.start()
        ready = mesh["control"].run("execution", "cat", b"x")
        assert ready[1] == b"x"
        yield mesh


@pytest.fixture(params=[("control", "sh"), ("control", "local"), ("execution", "sh")], ids=["command", "local", "remote"])
def kind(request):
    """Where a unit runs, and its work type."""
    return request.param


def submit(control, kind, script="exec sleep 1000"):
    with control.control() as client:
        return client.submit(*kind, params=f"'{script}'")["unitid"]


def has_ended(reader):
    """Whether the node has ended a stream, of which nothing else is left to read."""
    readable, _, _ = select.select([reader.socket], [], [], 0)
    return bool(readable) and reader.socket.recv(1, socket.MSG_PEEK) == b""


def takes(action):
    """So many seconds."""
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def test_the_answer_to_a_cancel_comes_before_the_end_of_the_results(nodes, kind):
    control, waits = nodes["control"], []
    with control.control() as canceller:
        for number in range(CANCELS):
            unit = submit(control, kind)
            with control.control() as reader:
                reader.results(unit)
                begun = time.monotonic()
                assert canceller.command(f"work cancel {unit}") == {"cancelled": unit}
                # Where this test itself was held up for so long, they have ended in time.
                assert not has_ended(reader) or time.monotonic() - begun >= OPEN, f"cancel {number} of {CANCELS}"
                is_so = lambda: canceller.command(f"work status {unit}")["StateName"] == "Canceled"  # noqa: E731
                until("the state", is_so, pause=0.001)
                assert canceller.command(f"work release {unit}") == {"released": unit}
                waits.append(time.monotonic() - begun)
    # Neither the state, which comes from another node, nor a release waits; a busy machine may hold up some.
    assert sorted(waits)[CANCELS // 2] < OPEN / 2, sorted(waits)


def test_the_results_end_a_while_after_the_answer_on_every_node(nodes, kind):
    control = nodes["control"]
    unit = submit(control, kind, "echo started; exec sleep 1000")
    far = nodes[kind[0]]
    there = until("the unit to be there", lambda: far is control and unit or next(iter(far.command("work list")), None))
    with control.control() as near_reader, far.control() as far_reader, control.control() as late, control.control() as canceller:
        assert near_reader.results(unit).readline() == b"started\n"
        assert far_reader.results(there).readline() == b"started\n"
        begun = time.monotonic()
        assert canceller.command(f"work cancel {unit}") == {"cancelled": unit}
        assert late.results(unit, 8).read() == b""
        assert time.monotonic() - begun > OPEN - 0.1, "also for who asks after the end"
        for reader in (near_reader, far_reader):
            assert reader.reader.read() == b""
        assert time.monotonic() - begun > OPEN - 0.1

    def read():
        with control.control() as reader:
            assert reader.results(unit).read() == b"started\n"

    until("results that end at once, as it is over", lambda: takes(read) < OPEN / 2)
    control.release_all()


def test_who_closes_first_and_who_reads_the_state_wait_for_nothing(nodes, kind):
    control = nodes["control"]

    def is_quick():
        """Whether it ends before the results do. A busy machine may hold it up."""
        unit = submit(control, kind, "echo started; exec sleep 1000")
        meshctl = [MESHCTL, "--socket", control.socket, "work", "results", unit]
        with subprocess.Popen(meshctl, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ours:
            assert ours.stdout.readline() == b"started\n"
            with control.control() as canceller:
                assert canceller.command(f"work cancel {unit}") == {"cancelled": unit}
            seconds = takes(lambda: ours.wait(PATIENCE))
            assert ours.returncode == 1
        return seconds < OPEN - 0.5

    until("who reads the state to end at once", is_quick)
    control.release_all()


def test_a_unit_that_ended_before_the_cancel_came_is_not_concerned(nodes, kind):
    control = nodes["control"]
    unit = submit(control, kind, "echo done")
    until("its end", lambda: control.unit(unit)["StateName"] == "Succeeded")

    def is_quick():
        with control.control() as client:
            assert client.command(f"work cancel {unit}") == {"cancelled": unit}
            begun = time.monotonic()
            assert client.results(unit).read() == b"done\n"
            return time.monotonic() - begun < OPEN - 0.5

    until("results that end at once", is_quick)
    control.release_all()


def test_awx_sees_its_own_shutdown_first(nodes, kind, tmp_path):
    """Its calls with the real receptorctl, and the reader of the real ansible-runner in a thread of its own."""
    receptor_control, control = api(), nodes["control"]
    from ansible_runner.streaming import Processor

    for number in range(10):
        unit = submit(control, kind)
        receptor = receptor_control(str(control.socket))
        result_socket, result_file = receptor.get_work_results(unit, return_socket=True)
        is_shut, early, begun = threading.Event(), [], time.monotonic()

        def saw(status, runner_config, is_shut=is_shut, early=early, begun=begun):
            # Where this test itself was held up for so long, it came in time.
            if not is_shut.is_set() and time.monotonic() - begun < OPEN:
                early.append(status)

        reader = Processor(_input=result_file, status_handler=saw, quiet=True, private_data_dir=str(tmp_path / str(number)))
        thread = threading.Thread(target=reader.run)
        thread.start()
        assert receptor.simple_command(f"work cancel {unit}") == {"cancelled": unit}
        is_shut.set()
        result_socket.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        assert not thread.is_alive() and not early, early
        assert receptor.simple_command(f"work release {unit}") == {"released": unit}
        for end in (result_file, result_socket, receptor):
            end.close()
