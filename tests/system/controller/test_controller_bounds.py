"""What one job, and one node that nobody knows, may take of a control node's disk."""

import contextlib

import pytest

import go
from mesh import files, own_runner, until
from test_controller import ask, ended, runner, submit

MIB = 1 << 20
#: What one job may print here.
MOST = 300_000


def settings(tmp_path, **more):
    timers = {"heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "30s", "poll": "1s"}
    return {"rundir": str(tmp_path), **timers, **own_runner(runner("own")), **more}


def used(node):
    """Bytes below a node's data directory."""
    size = 0
    for path in files(node.datadir):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def instance(node, name):
    return next((one for one in ask(node, "instance.list")["instances"] if one["name"] == name), None)


def test_a_node_that_nobody_enabled_is_asked_nothing_and_no_answer_fills_the_disk(mesh, tmp_path):
    """A stranger joins whose runner prints without end."""
    control = mesh.node("control", listen=True, extra=[{"work-controller": settings(tmp_path)}])
    evil = mesh.node("evil", peers=["control"], work=[runner("ansible-runner")])
    evil.variables["STAND_IN_FLOOD"] = "1"
    mesh.start()
    ready = lambda: (instance(control, "control") or {}).get("node_state") == "ready"  # noqa: E731
    until("the control node to be ready", ready, 60)
    found = lambda: [one["name"] for one in ask(control, "instance.list", found=True)["found"]]  # noqa: E731
    until("the stranger to be found", lambda: found() == ["evil"])
    before = used(control)
    # Passes and heartbeats in which it could be asked.
    seen = instance(control, "control")["last_seen"]
    until("another heartbeat", lambda: instance(control, "control")["last_seen"] != seen)
    assert instance(control, "evil") is None and evil.command("work list") == {}
    ask(control, "instance.enable", name="evil")
    refused = until("its answer", lambda: (one := instance(control, "evil"))["errors"] and one, 60)
    assert "Killed: it wrote more than 65536 bytes (the bound of a health check)" in refused["errors"][0], refused
    assert refused["node_state"] == "unavailable"
    until("the check to be released", lambda: control.command("work list") == {} and evil.command("work list") == {})
    assert used(control) - before < MIB
    # On demand it is asked whether it is enabled or not.
    ask(control, "instance.disable", name="evil")
    checked = instance(control, "evil")["last_health_check"]
    ask(control, "instance.health", name="evil")
    until("another check", lambda: instance(control, "evil")["last_health_check"] != checked, 60)
    assert used(control) - before < MIB


@pytest.mark.parametrize("place", ["elsewhere", "here", *(go.parameter(variable, variable) for variable in go.VARIABLES)])
def test_a_job_that_prints_without_end_is_an_error_that_names_the_setting(mesh, tmp_path, place):
    kind = {"nodetype": "hybrid"} if place == "here" else {"discovery": "enabled"}
    control = mesh.node(
        "control",
        listen=True,
       
        extra=[{"work-controller": settings(tmp_path, joboutput=MOST, **kind)}],
    )
    runs = control
    if place != "here":
        program = {} if place == "elsewhere" else {"program": go.program(place)}
        runs = mesh.node("e1", peers=["control"], work=[runner("ansible-runner")], **program)
    mesh.start()
    until("the instance to be ready", lambda: (instance(control, runs.name) or {}).get("capacity"), 60)
    before = used(control)
    for header, most, name in [
        (None, MOST, "joboutput of work-controller"),
        ({"output_limit": 10_000_000}, MOST, "joboutput of work-controller"),
        ({"output_limit": 70_000}, 70_000, "output_limit of the job's header"),
    ]:
        unit, number = submit(control, header, ident="loud", flood=0)
        one = ended(control, number)
        assert one["state"] == "error" and f"it wrote more than {most} bytes ({name})" in one["explanation"], one
        # What it printed before is there to be read.
        until("the unit's end", lambda: control.unit(unit)["StateName"] == "Failed")  # noqa: B023
        assert control.results(unit).startswith(b'{"status": "starting"') and one["output_bytes"] == most, one
        until("nothing of it to be left there", lambda: set(runs.command("work list")) <= {unit})  # noqa: B023
        control.command(f"work release {unit}")
    assert used(control) - before < MIB
    # With retries it prints no more than that in all.
    unit, number = submit(control, {"retry": {"max": 3, "on": ["error"]}}, ident="loud", flood=0)
    one = ended(control, number)
    assert (one["state"], one["attempt"]) == ("error", 4), one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Failed")
    assert len(control.results(unit)) < MOST + 4000
    quiet = submit(control, ident="quiet")[1]
    assert ended(control, quiet)["state"] == "successful"
