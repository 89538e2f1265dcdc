"""meshd and the Go implementation together, over TCP: jobs, pings, cancel and release in every mixture.

With each release of the Go implementation that the environment names; otherwise these tests are reported as skipped.
"""

import random
import subprocess

import pytest

import mesh as harness
from client import ControlError
from conftest import scoped_mesh
from mesh import MESHCTL, MESHD, RECEPTORCTL, environment, running, until

#: The programs of control, hop (if any) and execution.
MIXTURES = {
    "our-control-go-execution": ("meshd", None, "go"),
    "go-control-our-execution": ("go", None, "meshd"),
    "our-hop-between-go": ("go", "meshd", "go"),
    "go-hop-between-ours": ("meshd", "go", "meshd"),
}
BIG = 50_000_000


@pytest.fixture(scope="module", params=MIXTURES.values(), ids=MIXTURES.keys())
def mixed(request, receptor):
    """A started mesh of one mixture, for all tests of this file that use it."""
    control, hop, execution = ({"meshd": MESHD, "go": receptor}.get(who) for who in request.param)
    with scoped_mesh(request.node) as mesh:
        if hop is None:
            mesh.node("execution", listen=True, work=harness.WORK, program=execution)
            mesh.node("control", peers=["execution"], work=harness.WORK, program=control)
        else:
            harness.line(mesh, programs=(control, hop, execution))
        yield mesh.start()


def path(mesh):
    return [name for name in ("control", "hop", "execution") if name in mesh.nodes]


def test_a_job_of_50_mb_in_and_out(mixed):
    payload = random.Random(50).randbytes(BIG)
    unit, output = mixed["control"].run("execution", "cat", payload)
    assert output == payload, f"{len(output)} bytes came back"
    status = until("the unit to be final", lambda: final(mixed["control"], unit))
    assert (status["StateName"], status["StdoutSize"]) == ("Succeeded", BIG), status
    mixed["control"].command(f"work release {unit}")


def final(node, unit):
    status = node.unit(unit)
    return status if status["State"] in (2, 3, 4) else None


@pytest.mark.parametrize("start, end", [("control", "execution"), ("execution", "control")])
def test_ping_and_traceroute_agree(mixed, start, end):
    hops = path(mixed) if start == "control" else path(mixed)[::-1]
    for target in hops[1:]:
        answer = mixed[start].command(f"ping {target}")
        assert answer["Success"] is True and answer["From"] == target, answer
    answer = mixed[start].command(f"traceroute {end}")
    assert [answer[str(n)]["From"] for n in range(len(answer))] == hops, answer
    assert all(row["Time"] > 0 for row in answer.values())
    assert "Error" not in answer[str(len(answer) - 1)], answer


def test_a_failing_command_gives_its_stream_and_its_exit_status(mixed):
    unit, output = mixed["control"].run("execution", "sh", params="'echo some; exit 2'")
    assert output == b"some\n"
    status = until("the unit to be final", lambda: final(mixed["control"], unit))
    assert (status["StateName"], status["Detail"]) == ("Failed", "exit status 2"), status
    mixed["control"].command(f"work release {unit}")


def test_an_unknown_work_type_is_reported_and_fails_the_unit(mixed):
    node = mixed["control"]
    # A Go node answers a release before it is done.
    until("earlier units to be gone", lambda: node.command("work list") == {})
    with node.control() as control, pytest.raises(ControlError, match="unknown work type nosuch"):
        control.submit("execution", "nosuch")
    (unit,) = node.command("work list")
    status = until("the unit to be final", lambda: final(node, unit))
    assert status["StateName"] == "Failed" and "unknown work type nosuch" in status["Detail"], status
    node.command(f"work force-release {unit}")


def test_cancelling_ends_the_command_on_the_other_side(mixed):
    node, other = mixed["control"], mixed["execution"]
    with node.control() as control:
        unit = control.submit("execution", "sh", params="'echo started; exec sleep 1000'")["unitid"]
    until("the unit to run", lambda: node.unit(unit)["StdoutSize"] == len("started\n"))
    remote = node.unit(unit)["ExtraData"]["RemoteUnitID"]
    pid = other.unit(remote)["ExtraData"]["Pid"]
    assert node.command(f"work cancel {unit}") == {"cancelled": unit}
    until("the command to be gone", lambda: not running(pid))
    until("the unit to be cancelled", lambda: node.unit(unit)["StateName"] in ("Canceled", "Failed"))
    assert node.command(f"work release {unit}") == {"released": unit}
    until("the remote unit to be gone", lambda: remote not in other.command("work list"))
    until("the unit to be gone", lambda: unit not in node.command("work list"))
    until("their files to be gone", lambda: not other.unit_dir(remote).exists() and not node.unit_dir(unit).exists())


def test_a_job_survives_the_restart_of_each_node(mixed):
    for who in path(mixed):
        survives(mixed, who)


def survives(mesh, who):
    node, gate = mesh["control"], mesh.dir / f"gate-{who}"
    script = f"'echo one; while [ ! -e {gate} ]; do sleep 0.1; done; echo two'"
    with node.control() as control:
        unit = control.submit("execution", "sh", params=script)["unitid"]
    until("the first line", lambda: node.unit(unit)["StdoutSize"] == 4)
    mesh[who].restart()
    mesh.wait_for_routes()
    gate.touch()
    assert node.results(unit) == b"one\ntwo\n", f"after a restart of {who}"
    status = until("the unit to be final", lambda: final(node, unit), 90)
    assert status["StateName"] == "Succeeded", (who, status)
    assert node.command(f"work release {unit}") == {"released": unit}
    until("nothing is left", lambda: mesh["execution"].command("work list") == {})


@pytest.mark.parametrize("client", [MESHCTL, RECEPTORCTL], ids=["meshctl", "receptorctl"])
@pytest.mark.parametrize("where", ["control", "execution"])
def test_both_clients_at_both_ends(mixed, client, where):
    node, other = mixed[where], "execution" if where == "control" else "control"

    def run(*args, payload=b""):
        command = [client, "--socket", node.socket, *args]
        return subprocess.run(command, input=payload, capture_output=True, env=environment(), timeout=120)

    for args in (["status"], ["ping", other, "--count", "1"], ["traceroute", other], ["work", "list"], ["version"]):
        done = run(*args)
        assert done.returncode == 0, (args, done)
    done = run("work", "submit", "cat", "--node", other, "-p", "-", "-f", "--rm", payload=b"payload\n" * 1000)
    assert done.returncode == 0, done
    assert done.stdout.startswith(b"payload\n" * 1000), done
    until("nothing is left", lambda: node.command("work list") == {}, 60)
    done = run("work", "submit", "sh", "--node", other, "-n", "-f", "--rm", "'echo out; exit 3'")
    assert done.returncode == 1 and done.stdout.startswith(b"out\n"), done
    assert b"exit status 3" in done.stderr, done


def test_services_behind_a_hop_are_known_at_once(mesh, receptor):
    """A Go node sends a new neighbour no advertisements, and repeats none: its other neighbours announce themselves again."""
    execution = mesh.node("execution", listen=True, work=harness.WORK).start()
    hop = mesh.node("hop", listen=True, peers=["execution"], program=receptor).start()
    until("the way to execution", lambda: hop.reaches("execution"))
    control = mesh.node("control", peers=["hop"]).start()
    until("the way to execution", lambda: control.reaches("execution"))

    def offers():
        ads = control.status()["Advertisements"]
        return {kind["WorkType"] for ad in ads if ad["NodeID"] == "execution" for kind in ad["WorkCommands"] or ()}

    # The next regular announcement comes a minute after the start.
    until("its work types", lambda: {"cat", "sh"} <= offers())
    assert execution.answers()
