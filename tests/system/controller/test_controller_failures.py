"""What becomes of jobs when something around them fails, one failure each, with one control node.

The table in docs/controller-failures.md has the words, this one the tests of each failure, here unless a file is named. All of them
at once, in any order: `test_controller_faults.py`, with one control node or two.

    control node restarts         test_controller.py: test_a_killed_control_node_goes_on_where_it_was;
                                  test_a_suspended_control_node_goes_on
    control node lost             test_controller_many.py: test_a_lost_owner_is_taken_over_and_follows_when_it_is_back,
                                  test_a_job_that_was_not_sent_is_asked_for_and_waits_for_its_payload,
                                  test_a_job_on_the_lost_control_node_itself_fails_and_is_cancelled_there,
                                  test_with_onloss_fail_the_jobs_of_a_lost_owner_fail
    its disk lost                 test_controller_many.py: test_what_only_a_lost_disk_held_fails_when_its_node_is_declared_dead
    an instance's daemon killed   test_the_daemon_of_an_instance_may_die_and_come_back
    instance lost                 test_what_is_left_on_a_lost_instance_is_ended_at_its_return,
                                  test_an_instance_declared_dead_that_returns_starts_nothing_of_before;
                                  retries: src/controller/driver/tests/loss.rs
    hop or link down              test_a_hop_that_is_killed_and_comes_back_is_a_pause;
                                  src/controller/driver/tests/loss.rs: a_short_silence_is_nothing_but_a_pause
    mesh in halves                test_a_mesh_in_halves_goes_on_where_owner_and_instance_are_together;
                                  test_controller_faults.py, with two control nodes
    one is cut from PostgreSQL    test_controller_many.py: test_a_control_node_that_is_cut_from_the_store_stands_down
    PostgreSQL away from all      test_controller_many.py: test_without_the_store_running_jobs_go_on_and_submissions_wait
    store lost its last commits   test_a_store_that_lost_its_last_commits
    disk of a control node full   test_heartbeats_go_on_while_the_end_of_a_job_waits_for_its_disk,
                                  test_a_full_disk_of_a_control_node, test_the_store_goes_on_while_its_disk_is_full
    disk of an instance full      test_a_full_disk_of_an_instance_is_an_error_that_a_retry_may_mend
    a stranger's cancel, release  test_a_strangers_cancel_or_release_on_the_instance_is_an_error_of_the_job,
                                  test_a_child_that_is_released_by_force_is_an_error_of_its_job;
                                  test_controller.py: test_a_cancel_reaches_the_runner
    runner too old, missing       src/controller/driver/tests/health.rs:
                                  a_runner_that_is_missing_or_too_old_makes_its_node_unavailable_and_is_asked_ever_more_rarely
    runner without a result       test_a_runner_without_a_result_is_an_error_with_its_last_words
    failed health check           test_a_failed_health_check_stops_new_jobs_and_ends_none
    quota of a cluster            src/controller/core/tests/life.rs: a_quota_refusal_backs_off_and_costs_no_retry
    two daemons, one node ID      test_controller_many.py: test_of_two_processes_with_one_node_id_the_later_one_works
"""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from client import ControlError
from controller_world import Relay
from mesh import command_type, own_runner, until
from test_controller import ask, ended, job, nodes, runner, stream, submit, wrote  # noqa: F401

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
EXECUTIONS = ("e1", "e2")


@contextlib.contextmanager
def small_disk(node, size="16m"):
    """A node whose data directory has its own disk, which `fill` fills."""
    node.datadir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(node.datadir)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield node
    finally:
        node.mesh.end()
        # A process that has just been killed may still have a file of it open.
        subprocess.run(["umount", "--lazy", str(node.datadir)], check=True)


@contextlib.contextmanager
def full(node):
    """Nothing can be written meanwhile."""
    filler = node.datadir / "filler"
    with pytest.raises(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    yield
    filler.unlink()


def instance(node, name):
    return ask(node, "instance.get", name=name)


def running(control, header=None, **kwargs):
    """A job that runs; returns its unit, its number, and its node."""
    unit, number = submit(control, header, **kwargs)
    one = until(f"job {number} to run", lambda: (one := job(control, number))["state"] == "running" and one)
    return unit, number, one["execution_node"]


def disable_other(control, name):
    """From now on jobs run on this execution node alone."""
    for other in EXECUTIONS:
        if other != name:
            ask(control, "instance.disable", name=other)


def children(node):
    """The units of jobs on an execution node, where a check of its health may have one as well."""
    return [unit for unit in node.command("work list") if unit[9] == "n"]


def no_units(node):
    until(f"{node.name} to have no units", lambda: node.command("work list") == {})


@pytest.mark.parametrize("verb", ["cancel", "release"])
def test_a_strangers_cancel_or_release_on_the_instance_is_an_error_of_the_job(nodes, tmp_path, verb):  # noqa: F811
    control = nodes["control"]
    _, number, place = running(control, ident="s", go=str(tmp_path / "never"))
    (child,) = children(nodes[place])
    nodes[place].command(f"work {verb} {child}")
    one = ended(control, number)
    # A release cancels first.
    said = [f"its unit was {what} on {place}" for what in ("cancelled", "released")]
    assert one["state"] == "error" and one["explanation"] in said, one
    no_units(nodes[place])
    _, again, _ = running(control, {"retry": {"max": 1, "on": ["error"]}}, ident="r", go=str(tmp_path / "go"))
    place = job(control, again)["execution_node"]
    (child,) = children(nodes[place])
    nodes[place].command(f"work {verb} {child}")
    (tmp_path / "go").touch()
    one = ended(control, again)
    assert (one["state"], one["attempt"]) == ("successful", 2), one


def test_a_child_that_is_released_by_force_is_an_error_of_its_job(nodes, tmp_path):  # noqa: F811
    control = nodes["control"]
    unit, number, place = running(control, ident="f", go=str(tmp_path / "never"))
    (attempt,) = job(control, number)["attempts"]
    with pytest.raises(ControlError, match=f"belongs to job {number}"):
        control.command(f"work force-release {attempt['unit']}")
    assert nodes[place].command(f"work force-release {attempt['unit']}") == {"released": attempt["unit"]}
    one = ended(control, number)
    assert (one["state"], len(one["attempts"])) == ("error", 1) and one["explanation"].startswith("its unit was "), one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Failed")
    no_units(nodes[place])
    until("nothing but the job's unit to be left", lambda: set(control.command("work list")) == {unit})
    _, again = submit(control, ident="g")
    assert ended(control, again)["state"] == "successful"


def set_timers(control, **timers):
    """Changes settings while the node runs."""
    settings = next(one["work-controller"] for one in control.directives if "work-controller" in one)
    settings |= timers
    control.write_config()
    assert control.command("reload")["Success"] is True


def test_a_hop_that_is_killed_and_comes_back_is_a_pause(nodes, tmp_path):  # noqa: F811
    control, go = nodes["control"], tmp_path / "go"
    set_timers(control, lostafter="60s")
    jobs = [running(control, ident=f"h{n}", lines=20, go=str(go)) for n in range(2)]
    nodes["hop"].stop(signal.SIGKILL)
    until("both to be out of reach", lambda: not any(instance(control, name)["reachable"] for name in EXECUTIONS))
    waits, later = submit(control, ident="later")
    go.touch()
    until("all runners to end", lambda: all(one["StateName"] == "Succeeded" for name in EXECUTIONS for one in nodes[name].command("work list").values()))
    assert [job(control, number)["state"] for _, number, _ in jobs] == ["running", "running"]
    assert job(control, later)["state"] == "pending"
    nodes["hop"].start()
    for n, (unit, number, _) in enumerate(jobs):
        one = ended(control, number)
        assert (one["state"], len(one["attempts"])) == ("successful", 1), one
        until("the unit's end", lambda u=unit: control.unit(u)["StateName"] == "Succeeded")
        assert control.results(unit).startswith(wrote(f"h{n}", 20))
    assert ended(control, later)["state"] == "successful" and control.results(waits).startswith(wrote("later", 3))


def test_a_mesh_in_halves_goes_on_where_owner_and_instance_are_together(mesh, tmp_path):
    """control, the hop and e1 here, e2 there; they are apart for a moment, then for longer than lostafter."""
    go, never = tmp_path / "go", str(tmp_path / "never")
    mesh.node("hop", listen=True)
    settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "60s", "rundir": str(tmp_path), "poll": "1s"}
    control = mesh.node("control", peers=["hop"], extra=[{"work-controller": settings | own_runner(runner("own"))}])
    with contextlib.closing(Relay(mesh.ports["hop"])) as link:
        for name, peer in (("e1", "hop"), ("e2", link.port)):
            mesh.node(name, peers=[peer], work=[runner("ansible-runner")])
        mesh.start()
        until("three instances to be ready", lambda: sum(i["capacity"] > 0 for i in ask(control, "instance.list")["instances"]) == 3, 60)
        for name in EXECUTIONS:
            ask(control, "group.create", name=f"of-{name}", policy_instance_list=[name])
        on = lambda name, **kwargs: running(control, {"groups": {"launch": [f"of-{name}"]}}, **kwargs)  # noqa: E731
        (_, here, at), (unit, there, far) = on("e1", ident="here", go=str(go)), on("e2", ident="there", go=str(go))
        assert (at, far) == EXECUTIONS
        halve(link)
        until("e2 to be out of reach", lambda: not instance(control, "e2")["reachable"])
        go.touch()
        assert ended(control, here)["state"] == "successful"
        assert job(control, there)["state"] == "running"
        join(link)
        one = ended(control, there)
        assert (one["state"], len(one["attempts"])) == ("successful", 1), one
        assert control.results(unit).startswith(wrote("there", 3))

        set_timers(control, lostafter="3s")
        (_, here, _), (_, there, _) = on("e1", ident="stays", go=never), on("e2", ident="leaves", go=never)
        halve(link)
        one = ended(control, there)
        assert (one["state"], one["explanation"]) == ("failed", "e2 was lost while it ran attempt 1"), one
        until("e2 to have no capacity", lambda: instance(control, "e2")["capacity"] == 0)
        assert len(set(running_units(mesh["e2"])) & set(children(mesh["e2"]))) == 1
        assert job(control, here)["state"] == "running"
        join(link)
        no_units(mesh["e2"])
        until("e2 to be ready", lambda: instance(control, "e2")["capacity"] > 0, 60)
        assert (job(control, there)["state"], job(control, here)["state"]) == ("failed", "running")
        ask(control, "job.cancel", id=here)
        assert ended(control, here)["state"] == "canceled"


def halve(link):
    link.is_broken = True
    link.cut()


def join(link):
    link.is_broken = False


def test_the_daemon_of_an_instance_may_die_and_come_back(nodes, tmp_path):  # noqa: F811
    control, go = nodes["control"], tmp_path / "go"
    unit, number, place = running(control, ident="d", lines=20, go=str(go))
    nodes[place].stop(signal.SIGKILL)
    until("it to be out of reach", lambda: not instance(control, place)["reachable"])
    go.touch()
    nodes[place].start()
    one = ended(control, number)
    assert (one["state"], len(one["attempts"])) == ("successful", 1), one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
    assert control.results(unit).startswith(wrote("d", 20))


def test_what_is_left_on_a_lost_instance_is_ended_at_its_return(nodes, tmp_path):  # noqa: F811
    control = nodes["control"]
    unit, number, place = running(control, ident="l", go=str(tmp_path / "never"))
    nodes[place].stop(signal.SIGKILL)
    one = ended(control, number)
    assert (one["state"], one["explanation"]) == ("failed", f"{place} was lost while it ran attempt 1"), one
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Failed")
    shown = lambda: {key: instance(control, place)[key] for key in ("node_state", "capacity")}  # noqa: E731
    until("it to be unavailable", lambda: shown() == {"node_state": "unavailable", "capacity": 0})
    nodes[place].start()
    no_units(nodes[place])
    until("it to be ready", lambda: instance(control, place)["capacity"] > 0, 60)
    until("nothing to be consumed", lambda: instance(control, place)["consumed_capacity"] == 0)
    assert job(control, number)["state"] == "failed"


def test_an_instance_declared_dead_that_returns_starts_nothing_of_before(nodes, tmp_path):  # noqa: F811
    """Two attempts never reached it: they must not when it is back, as one of the jobs has ended and the other has run
    elsewhere."""
    control, names = nodes["control"], ("once", "twice")
    disable_other(control, "e1")
    ran, _, _ = running(control, ident="ran", go=str(tmp_path / "never"))
    nodes["e1"].process.send_signal(signal.SIGSTOP)
    jobs = [
        submit(control, {"retry": {"max": most}}, ident=name, diary=str(tmp_path / name), locks=[])[1]
        for most, name in enumerate(names)
    ]
    until("both to be sent", lambda: all(job(control, number)["state"] == "waiting" for number in jobs))
    nodes["e1"].process.kill()
    nodes["e1"].process.wait()
    ask(control, "instance.remove", name="e1", dead=True)
    ask(control, "instance.enable", name="e2")
    once, twice = (ended(control, number) for number in jobs)
    until("the end of the one that ran", lambda: control.unit(ran)["StateName"] == "Failed")
    outcomes = lambda one: [attempt["outcome"] for attempt in one["attempts"]]  # noqa: E731
    assert (once["state"], outcomes(once)) == ("failed", ["lost"]), once
    assert (twice["state"], outcomes(twice)) == ("successful", ["lost", "successful"]), twice
    nodes["e1"].start()
    instances = lambda: {one["name"]: one["capacity"] for one in ask(control, "instance.list")["instances"]}  # noqa: E731
    until("it to be ready", lambda: instances().get("e1"), 60)
    children = {attempt["unit"] for one in (once, twice) for attempt in one["attempts"]}
    until("the attempts to be released", lambda: not children & set(control.command("work list")))
    assert not (tmp_path / "once.runs").exists()
    assert (tmp_path / "twice.runs").read_text().count('"run"') == 1


def test_a_suspended_control_node_goes_on(nodes, tmp_path):  # noqa: F811
    """Its lease expires, and nobody else can take it."""
    control = nodes["control"]
    settings = next(one["work-controller"] for one in control.directives if "work-controller" in one)
    settings["ownerlostafter"] = "600ms"
    control.write_config()
    control.restart()
    _, number, _ = running(control, ident="z", go=str(tmp_path / "go"))
    control.process.send_signal(signal.SIGSTOP)
    # Longer than the lease: there is no other sign of its end outside.
    with pytest.raises(subprocess.TimeoutExpired):
        control.process.wait(1.5)
    control.process.send_signal(signal.SIGCONT)
    _, later = submit(control, ident="y")
    assert ended(control, later)["state"] == "successful"
    (tmp_path / "go").touch()
    assert ended(control, number)["state"] == "successful"


def test_a_failed_health_check_stops_new_jobs_and_ends_none(nodes, tmp_path):  # noqa: F811
    control, go = nodes["control"], tmp_path / "go"
    _, number, place = running(control, ident="h", go=str(go))
    disable_other(control, place)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho cannot import ansible_runner >&2; echo no such module; exit 3\n")
    broken.chmod(0o755)
    nodes[place].directives[1] = command_type("ansible-runner", str(broken), runtime=True)
    nodes[place].write_config()
    nodes[place].restart()
    nodes.wait_for_routes()
    ask(control, "instance.health", name=place)
    # It was unavailable while it was away, too.
    sick = until("it to be unavailable for that", lambda: "no such module" in " ".join((i := instance(control, place))["errors"]) and i, 60)
    assert (sick["node_state"], sick["capacity"]) == ("unavailable", 0), sick
    assert job(control, number)["state"] == "running"
    _, waits = submit(control, ident="w")
    explained = ask(control, "job.explain", id=waits)
    whys = {one["name"]: one["why"] for one in explained["groups"][0]["instances"]}
    assert whys[place] == "not_ready", explained
    go.touch()
    assert ended(control, number)["state"] == "successful"
    ask(control, "job.cancel", id=waits)


def test_a_runner_without_a_result_is_an_error_with_its_last_words(nodes):  # noqa: F811
    control = nodes["control"]
    _, number = submit(control, ident="b", lines="many")
    one = ended(control, number)
    assert one["state"] == "error" and "TypeError" in one["explanation"], one
    assert len(one["explanation"]) < 2000, one


@ROOT_ONLY
def test_a_full_disk_of_a_control_node(mesh, tmp_path):
    """No submission is accepted, a cancel works, and output of children waits on their instance."""
    mesh.node("hop", listen=True)
    settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "30s", "rundir": str(tmp_path)}
    mesh.node("control", peers=["hop"], extra=[{"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["hop"], work=[runner("ansible-runner")])
    with small_disk(mesh["control"]) as control:
        mesh.start()
        until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(control, "instance.list")["instances"]}.get("e1"), 60)
        canceled, cancelled, _ = running(control, ident="c", go=str(tmp_path / "never"))
        unit, number, _ = running(control, ident="f", lines=2000, go=str(tmp_path / "go"))
        with full(control):
            with control.control() as client, pytest.raises(ControlError, match="no space left under the data directory"):
                client.submit("control", "controller", stream(ident="no"))
            (tmp_path / "go").touch()
            ask(control, "job.cancel", id=cancelled)
            until("the runner to be cancelled", lambda: len(running_units(mesh["e1"])) == 0)
        assert ended(control, cancelled)["state"] == "canceled"
        assert ended(control, number)["state"] == "successful"
        until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
        output = control.results(unit)
        assert output.startswith(wrote("f", 2000)) and output.endswith(b'{"eof": true}\n')
        until("the cancelled unit's end", lambda: control.unit(canceled)["StateName"] == "Canceled")
        _, later = submit(control, ident="later")
        assert ended(control, later)["state"] == "successful"


@ROOT_ONLY
def test_heartbeats_go_on_while_the_end_of_a_job_waits_for_its_disk(mesh, tmp_path):
    mesh.node("e1", listen=True, work=[runner("ansible-runner")])
    settings = {"discovery": "enabled", "heartbeat": "200ms", "lostafter": "30s"}
    mesh.node("control", peers=["e1"], extra=[{"work-controller": settings | own_runner(runner("own"))}])
    with small_disk(mesh["control"]) as control:
        mesh.start()
        until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(control, "instance.list")["instances"]}.get("e1"), 60)
        # The next line needs a page of its own.
        size = lambda ident: wrote(ident, 5).rindex(b'{"status"')  # noqa: E731
        ident = next(ident for ident in ("h" * n for n in range(1, 4096)) if size(ident) % 4096 > 4050)
        unit, number, _ = running(control, {"retry": {"max": 1, "on": ["error"]}}, ident=ident, lines=5, go=str(tmp_path / "never"))
        until("its output", lambda: control.unit(unit)["StdoutSize"] == size(ident))
        with full(control):
            ask(control, "instance.remove", name="e1", dead=True)
            until("the job to end", lambda: job(control, number)["finished"])
            seen = instance(control, "control")["last_seen"]
            until("a heartbeat", lambda: instance(control, "control")["last_seen"] > seen)
            assert control.unit(unit)["StateName"] == "Running"
        until("the unit's end", lambda: control.unit(unit)["StateName"] == "Failed")
        assert control.results(unit).count(b'"status":"error"') == 1, control.results(unit)


@ROOT_ONLY
def test_the_store_goes_on_while_its_disk_is_full(mesh, tmp_path):
    """It and its log stay within their reserve, also over restarts: an operator can still work."""
    mesh.node("e1", listen=True, work=[runner("ansible-runner")])
    settings = {"discovery": "enabled", "heartbeat": "100ms", "lostafter": "30s"}
    mesh.node("control", peers=["e1"], extra=[{"work-controller": settings | own_runner(runner("own"))}])
    with small_disk(mesh["control"], "64m") as control:
        mesh.start()
        until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(control, "instance.list")["instances"]}.get("e1"), 60)
        unit, number, _ = running(control, ident="c", lines=5, go=str(tmp_path / "never"))
        # The end of a job comes after its output, which would wait for the disk.
        written = wrote("c", 5).rindex(b'{"status"')
        until("its output", lambda: control.unit(unit)["StdoutSize"] == written)
        with full(control):
            for stop in (signal.SIGTERM, signal.SIGKILL):
                for turn in range(500):
                    ask(control, "instance.set", name="e1", capacity_adjustment=turn % 2)
                control.restart(stop)
            ask(control, "job.cancel", id=number)
            assert ended(control, number)["state"] == "canceled"


def test_timers_and_rates_follow_a_reload(mesh, tmp_path):
    settings = {"nodetype": "hybrid", "discovery": "enabled", "heartbeat": "60s", "ownerlostafter": "3m", "rundir": str(tmp_path), "requiretls": False}
    settings |= own_runner(runner("own"))
    control = mesh.node("control", work=[runner("ansible-runner")], extra=[{"work-controller": settings}])
    mesh.start()
    until("the instance to be ready", lambda: instance(control, "control")["capacity"] > 0, 60)
    before = instance(control, "control")
    settings |= {"heartbeat": "200ms", "ownerlostafter": "600ms", "forkspercpu": 8}
    control.write_config()
    assert control.command("reload")["Success"] is True
    until("the capacity to change", lambda: instance(control, "control")["cpu_capacity"] == 2 * before["cpu_capacity"])
    seen = instance(control, "control")["last_seen"]
    until("a heartbeat", lambda: instance(control, "control")["last_seen"] > seen)
    _, number = submit(control, ident="r")
    assert ended(control, number)["state"] == "successful"


def running_units(node):
    return [unit for unit, status in node.command("work list").items() if status["StateName"] == "Running"]


@ROOT_ONLY
def test_a_full_disk_of_an_instance_is_an_error_that_a_retry_may_mend(mesh, tmp_path):
    mesh.node("hop", listen=True)
    settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "lostafter": "30s", "rundir": str(tmp_path)}
    mesh.node("control", peers=["hop"], extra=[{"work-controller": settings | own_runner(runner("own"))}])
    for name in EXECUTIONS:
        mesh.node(name, peers=["hop"], work=[runner("ansible-runner")])
    control = mesh["control"]
    with small_disk(mesh["e1"]):
        mesh.start()
        ready = lambda: sum(one["capacity"] > 0 for one in ask(control, "instance.list")["instances"])  # noqa: E731
        until("three instances to be ready", lambda: ready() == 3, 60)
        disable_other(control, "e1")
        # What a check of its health leaves would make room.
        no_units(mesh["e1"])
        with full(mesh["e1"]):
            _, number = submit(control, ident="x")
            one = ended(control, number)
            assert one["state"] == "error" and "no space left" in one["explanation"].lower(), one
            _, again = submit(control, {"retry": {"max": 3, "on": ["error"]}}, ident="y")
            until("a failed attempt", lambda: job(control, again)["attempts"])
            ask(control, "instance.enable", name="e2")
            ask(control, "instance.disable", name="e1")
            assert ended(control, again)["state"] == "successful"


def test_a_store_that_lost_its_last_commits(nodes, tmp_path):  # noqa: F811
    """An older copy of it: a job that it does not know is entered again, unless it had been placed."""
    control, store, older = nodes["control"], nodes["control"].datadir / "control" / ".controller", tmp_path / "older"
    control.stop()
    shutil.copytree(store, older)
    control.start()
    placed, _, _ = running(control, ident="p", go=str(tmp_path / "never"))
    for name in EXECUTIONS:
        ask(control, "instance.disable", name=name)
    waits, _ = submit(control, ident="w")
    control.stop(signal.SIGKILL)
    shutil.rmtree(store)
    shutil.copytree(older, store)
    control.start()
    until("the pending one to run again", lambda: control.unit(waits)["StateName"] == "Succeeded", 60)
    assert control.results(waits).startswith(wrote("w", 3))
    lost = until("the placed one to end", lambda: (s := control.unit(placed))["StateName"] == "Failed" and s)
    assert "had been placed" in lost["Detail"], lost
