"""Daemons that end, cleanly or not, while units run: jobs survive, and results resume at the byte where they stopped.
"""

import shutil
import signal
import time

import pytest

from client import ControlError
from mesh import WORK, until

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
#: A job whose output comes in two halves of 3 MB each, in numbered lines.
COUNT = 400_000


def expected(first, last):
    return "".join(f"{n}\n" for n in range(first, last + 1)).encode()


def two_halves(gate):
    half = COUNT // 2
    return f"'seq {half}; while [ ! -e {gate} ]; do sleep 0.05; done; seq {half + 1} {COUNT}'"


def submit(node, target, worktype, **params):
    with node.control() as control:
        return control.submit(target, worktype, **params)["unitid"]


@SIGNALS
@pytest.mark.parametrize("who", ["control", "hop", "execution"])
def test_a_remote_unit_survives_the_restart_of(line, who, number):
    control, gate = line["control"], line.dir / "gate"
    unit = submit(control, "execution", "sh", params=two_halves(gate))
    half = len(expected(1, COUNT // 2))
    until("the first half", lambda: control.unit(unit)["StdoutSize"] == half)
    stopped = time.monotonic()
    line[who].stop(number)
    gate.touch()
    line[who].start()
    assert control.results(unit) == expected(1, COUNT)
    # Not by the silence of a connection, which takes 30 s or more, but by the news that the node restarted.
    assert time.monotonic() - stopped < 30
    status = until("the unit's end", lambda: ended(control, unit), 60)
    assert (status["StateName"], status["Detail"]) == ("Succeeded", "exit status 0"), status
    assert control.command(f"work release {unit}") == {"released": unit}
    until("nothing is left", lambda: line["execution"].command("work list") == {})


def ended(node, unit):
    status = node.unit(unit)
    return status if status["StateName"] not in ("Pending", "Running") else None


@SIGNALS
def test_a_reader_is_served_through_the_restart_of_the_execution_node(line, number):
    """The client's connection stays open: the control node resumes where it stopped."""
    control, gate = line["control"], line.dir / "gate"
    unit = submit(control, "execution", "sh", params=two_halves(gate))
    with control.control(120) as client:
        reader = client.results(unit)
        half = expected(1, COUNT // 2)
        assert reader.read(len(half)) == half
        line["execution"].stop(number)
        gate.touch()
        line["execution"].start()
        assert reader.read() == expected(COUNT // 2 + 1, COUNT)


@SIGNALS
def test_local_units_survive_and_pending_ones_fail(mesh, number):
    node, gate = mesh.node("solo", work=WORK).start(), mesh.dir / "gate"
    running = submit(node, "localhost", "sh", params=two_halves(gate))
    with node.control() as client:
        pending = client.begin("localhost", "cat")
        client.socket.sendall(b"half a payload")
        until("the unit to run", lambda: node.unit(running)["StateName"] == "Running")
        node.stop(number)
    node.start()
    assert node.unit(running)["StateName"] == "Running"
    gate.touch()
    assert node.results(running) == expected(1, COUNT)
    assert ended(node, running)["StateName"] == "Succeeded"
    status = node.unit(pending)
    assert status["StateName"] == "Failed", status
    if number == signal.SIGKILL:
        assert status["Detail"].startswith("Pending at restart"), status


@SIGNALS
def test_a_unit_that_was_disclaimed_is_refused_by_the_next_daemon(line, number):
    control, execution = line["control"], line["execution"]
    unit, other = "c0123abcdn7a1r00000001", "c0123abcdn7a1r00000002"
    disclaim = {"command": "work", "subcommand": "disclaim", "worktype": "sh"}
    assert execution.command({**disclaim, "unitid": unit}) == {"disclaimed": unit}
    submit(control, "execution", "sh", params="true", workUnitID=other)
    report = execution.command({**disclaim, "unitid": other})
    assert report["WorkType"] == "sh" and "disclaimed" not in report, report
    execution.stop(number)
    execution.start()
    line.wait_for_routes()
    with pytest.raises(ControlError, match=f"work unit {unit} was disclaimed"):
        submit(control, "execution", "sh", params="true", workUnitID=unit)
    assert list(execution.command("work list")) == [other]


@SIGNALS
def test_a_unit_that_ended_while_the_node_was_down(mesh, number):
    node, gate = mesh.node("solo", work=WORK).start(), mesh.dir / "gate"
    unit = submit(node, "localhost", "sh", params=f"'while [ ! -e {gate} ]; do sleep 0.05; done; echo end; exit 5'")
    until("the unit to run", lambda: node.unit(unit)["StateName"] == "Running")
    node.stop(number)
    gate.touch()
    until("the command to end", lambda: b'"State":3' in (node.unit_dir(unit) / "status").read_bytes())
    node.start()
    status = node.unit(unit)
    assert (status["StateName"], status["Detail"]) == ("Failed", "exit status 5"), status
    assert node.results(unit) == b"end\n"


def test_a_cancelled_unit_stays_cancelled(line):
    control = line["control"]
    unit = submit(control, "execution", "sh", params="'exec sleep 1000'")
    until("the unit to run", lambda: control.unit(unit)["StateName"] == "Running")
    assert control.command(f"work cancel {unit}") == {"cancelled": unit}
    for node in line.nodes.values():
        node.restart(signal.SIGKILL)
    line.wait_for_routes()
    # If it was killed before it recorded that, it learns it again from the other node.
    until("the unit to be canceled", lambda: control.unit(unit)["StateName"] == "Canceled")


def test_a_release_that_waits_for_the_other_node(line):
    """The other node is down when the unit is released: it gets the release when it returns."""
    control, execution = line["control"], line["execution"]
    unit = submit(control, "execution", "sh", params="'exec sleep 1000'")
    until("the unit to run", lambda: control.unit(unit)["StateName"] == "Running")
    execution.stop(signal.SIGKILL)
    # Soon, even if the route was lost just now.
    answer = control.command(f"work release {unit}", timeout=20)
    assert answer in ({"released": unit}, {"release pending": unit}), answer
    execution.start()
    until("the other node to be told", lambda: execution.command("work list") == {}, 60)
    until("the unit to be gone", lambda: unit not in control.command("work list"))


def test_a_unit_whose_other_node_lost_its_data_directory(line):
    control, execution = line["control"], line["execution"]
    unit = submit(control, "execution", "sh", params="'echo begun; exec sleep 1000'")
    until("output", lambda: control.unit(unit)["StdoutSize"] == 6)
    execution.stop(signal.SIGKILL)
    shutil.rmtree(execution.datadir)
    execution.start()
    status = until("the unit's end", lambda: ended(control, unit))
    assert status["StateName"] == "Failed", status
    assert status["Detail"].startswith("Remote work unit is gone: node execution "), status
    assert control.results(unit) == b"begun\n"
    assert control.command(f"work release {unit}") == {"released": unit}


def test_a_unit_whose_directory_vanishes_while_it_runs(line):
    """Its command continues and ends; its result is lost, so the unit failed."""
    control, execution, gate = line["control"], line["execution"], line.dir / "gate"
    unit = submit(control, "execution", "sh", params=f"'echo begun; while [ ! -e {gate} ]; do sleep 0.05; done'")
    until("output", lambda: control.unit(unit)["StdoutSize"] == 6)
    (there,) = execution.command("work list")
    directory = execution.unit_dir(there)
    # Its runner may be writing there.
    until("it has vanished", lambda: shutil.rmtree(directory, ignore_errors=True) or not directory.exists())
    gate.touch()
    status = until("the unit's end", lambda: ended(control, unit))
    assert status["StateName"] == "Failed" and "ended without a result" in status["Detail"], status
    assert control.command(f"work release {unit}") == {"released": unit}
    until("nothing is left", lambda: execution.command("work list") == {})
