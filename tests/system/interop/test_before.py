"""Upgrading a mesh one node at a time: this program and its previous version run each other's jobs.

MESHD_BEFORE names the previous version; without it these tests are reported as skipped.
"""

import os
import pathlib

import pytest

from client import ControlError
from mesh import MESHD, until
from trust import Pki

BEFORE = pathlib.Path(os.environ.get("MESHD_BEFORE", ""))
pytestmark = pytest.mark.skipif("MESHD_BEFORE" not in os.environ, reason="SKIPPED: MESHD_BEFORE is not set")
SHELL = {"command": "sh", "params": "-c", "allowruntimeparams": True}


@pytest.fixture(params=["new-submits", "old-submits"])
def pair(request, mesh, tmp_path):
    """control and execution, one of each version."""
    assert BEFORE.is_file(), f"MESHD_BEFORE names no file: {BEFORE}"
    signer, verifier = Pki(tmp_path / "pki").signing_keys()
    work = [
        {"work-command": {"worktype": "sh", **SHELL}},
        {"work-command": {"worktype": "safesh", "verifysignature": True, **SHELL}},
    ]
    programs = (MESHD, BEFORE) if request.param == "new-submits" else (BEFORE, MESHD)
    mesh.node("execution", listen=True, work=work, extra=verifier, program=programs[1])
    mesh.node("control", peers=["execution"], extra=signer, program=programs[0])
    return mesh.start()


def begin(control, signed, script):
    worktype, more = ("safesh", {"signwork": "true"}) if signed else ("sh", {})
    with control.control() as client:
        return client.submit("execution", worktype, b"payload", params=f"'{script}'", **more)["unitid"]


def ends(node, unit, state):
    until(f"the unit to be {state}", lambda: node.unit(unit)["StateName"] == state, 60)
    return node.unit(unit)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_jobs_run_are_cancelled_released_and_outlive_restarts(pair, tmp_path, signed):
    control, execution = pair["control"], pair["execution"]
    unit = begin(control, signed, "cat; exit 3")
    assert ends(control, unit, "Failed")["Detail"] == "exit status 3"
    assert control.results(unit) == b"payload"
    control.command(f"work release {unit}")
    assert execution.command("work list") == {}

    unit = begin(control, signed, "echo on; exec sleep 1000")
    until("output", lambda: control.unit(unit)["StdoutSize"] == 3)
    assert control.command(f"work cancel {unit}") == {"cancelled": unit}
    ends(control, unit, "Canceled")
    control.command(f"work release {unit}")
    assert execution.command("work list") == {}

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    unit = begin(control, signed, f"echo one; read x <{fifo}; echo $x")
    until("output", lambda: control.unit(unit)["StdoutSize"] == 4)
    for node in (control, execution):
        node.restart()
    pair.wait_for_routes()
    fifo.write_text("two\n")
    ends(control, unit, "Succeeded")
    assert control.results(unit) == b"one\ntwo\n"
    control.command(f"work release {unit}")
    until("nothing to be left", lambda: execution.command("work list") == {})

    # While the node is away.
    execution.stop()
    with control.control() as client:
        worktype, more = ("safesh", {"signwork": "true"}) if signed else ("sh", {})
        unit = client.submit("execution", worktype, b"late", params="cat", **more)["unitid"]
    execution.start()
    ends(control, unit, "Succeeded")
    assert control.results(unit) == b"late"
    assert len(execution.command("work list")) == 1


def test_an_upgraded_node_continues_its_jobs(pair, tmp_path):
    control, execution = pair["control"], pair["execution"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    unit = begin(control, True, f"echo one; read x <{fifo}; echo $x")
    until("output", lambda: control.unit(unit)["StdoutSize"] == 4)
    for node in (control, execution):
        node.stop()
        node.program = MESHD
        node.start()
    pair.wait_for_routes()
    fifo.write_text("two\n")
    ends(control, unit, "Succeeded")
    assert control.results(unit) == b"one\ntwo\n"
    control.command(f"work release {unit}")
    until("nothing to be left", lambda: execution.command("work list") == {})


def test_unsigned_work_is_refused(pair):
    with pytest.raises(ControlError, match="signature"), pair["control"].control() as client:
        client.submit("execution", "safesh", params="cat")
