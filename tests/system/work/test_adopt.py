"""Taking over a unit that another node submitted, by `work adopt` on the control service and by meshctl."""

import json
import subprocess

import pytest

from client import ControlError
from mesh import MESHCTL, command_type, environment, until
from trust import Pki

SHELL = command_type("sh", "sh", "-c", runtime=True)


@pytest.fixture
def nodes(mesh):
    """The former owner, its successor, and the node that runs the jobs."""
    mesh.node("execution", listen=True, work=[SHELL])
    mesh.node("former", peers=["execution"])
    mesh.node("heir", peers=["execution"])
    return mesh.start()


def adopt(node, unit, target="execution", **more):
    return node.command({"command": "work", "subcommand": "adopt", "node": target, "unitid": unit, **more})


def begin(node, script):
    with node.control() as client:
        return client.submit("execution", "sh", params=f"'{script}'")["unitid"]


def meshctl(node, *words):
    command = [str(MESHCTL), "--socket", str(node.socket), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)


def ends(node, unit):
    until("the end", lambda: node.unit(unit)["State"] > 1)
    return node.unit(unit)


def test_an_adopted_unit_is_whole_and_its_former_owner_sees_it_go(nodes, tmp_path):
    former, heir, execution = nodes["former"], nodes["heir"], nodes["execution"]
    go = tmp_path / "go"
    unit = begin(former, f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two; exit 4")
    until("output", lambda: former.unit(unit)["StdoutSize"] == 4)
    former.stop()
    assert adopt(heir, unit) == {"unitid": unit, "result": "Adopted"}
    extra = heir.unit(unit)["ExtraData"]
    wanted = {"RemoteNode": "execution", "RemoteUnitID": unit, "RemoteStarted": True, "TLSClient": "", "Adopted": True}
    assert wanted.items() <= extra.items(), extra
    with pytest.raises(ControlError, match=f"^workunit ID {unit} is already in use, cannot use the same workunit ID more than once$"):
        adopt(heir, unit)
    heir.restart()
    nodes_meet(heir)
    go.touch()
    status = ends(heir, unit)
    assert (status["StateName"], status["Detail"], status["ExitCode"]) == ("Failed", "exit status 4", 4), status
    assert heir.results(unit) == b"one\ntwo\n"
    assert heir.command(f"work release {unit}") == {"released": unit}
    assert execution.command("work list") == {}
    former.start()
    assert ends(former, unit)["Detail"].startswith("Remote work unit is gone")
    former.command(f"work release {unit}")


def nodes_meet(node):
    until("the way", lambda: node.reaches("execution"))


def test_an_adoption_survives_a_kill_and_an_absent_node(nodes):
    former, heir, execution = nodes["former"], nodes["heir"], nodes["execution"]
    unit = begin(former, "echo all")
    ends(former, unit)
    former.stop()
    execution.stop()
    assert adopt(heir, unit)["result"] == "Adopted"
    status = heir.unit(unit)
    assert (status["StateName"], status["WorkType"]) == ("Pending", "remote"), status
    # What keeps the news from coming follows once it has failed a few times.
    assert json.loads((heir.unit_dir(unit) / "status").read_text())["Detail"].startswith("Adopting Remote Work")
    heir.restart(9)
    execution.start()
    assert ends(heir, unit)["StateName"] == "Succeeded"
    assert heir.results(unit) == b"all\n"


def test_cancel_goes_to_the_far_unit_and_the_former_owner_sees_it(nodes):
    former, heir = nodes["former"], nodes["heir"]
    unit = begin(former, "echo on; exec sleep 1000")
    until("output", lambda: former.unit(unit)["StdoutSize"] == 3)
    adopt(heir, unit)
    until("output", lambda: heir.unit(unit)["StdoutSize"] == 3)
    assert heir.command(f"work cancel {unit}") == {"cancelled": unit}
    assert ends(heir, unit)["StateName"] == ends(former, unit)["StateName"] == "Canceled"


def test_a_unit_that_is_not_there_ends_failed(nodes):
    assert adopt(nodes["heir"], "nobody12")["result"] == "Adopted"
    status = ends(nodes["heir"], "nobody12")
    assert status["StateName"] == "Failed" and status["Detail"].startswith("Remote work unit is gone"), status


def test_refused_adoptions(nodes, mesh):
    heir = nodes["heir"]
    for request, text in [
        ({"target": "heir"}, "name the node that runs it"),
        ({"target": "localhost"}, "localhost"),
        ({"tlsclient": "none"}, "unknown TLS config none"),
        ({"signwork": "true"}, "cannot sign work: signing key is empty"),
        ({"unit": "../x"}, "is not a unit ID"),
    ]:
        unit = request.pop("unit", "nobody12")
        with pytest.raises(ControlError, match=text):
            adopt(heir, unit, **request)
    with pytest.raises(ControlError, match="bad command"):
        heir.command("work adopt execution nobody12")
    # From another node.
    with nodes["former"].control() as client:
        client.send({"command": "connect", "node": "heir", "service": "control"})
        assert client.line() == "Connecting" and client.line().startswith("Receptor Control, node heir")
        with pytest.raises(ControlError, match="work adopt over this connection is not allowed"):
            client.command({"command": "work", "subcommand": "adopt", "node": "execution", "unitid": "nobody12"})
    assert heir.command("work list") == {}


def test_meshctl_adopts(nodes):
    former, heir = nodes["former"], nodes["heir"]
    unit = begin(former, "echo all")
    ends(former, unit)
    done = meshctl(heir, "work", "adopt", "execution", unit)
    assert (done.returncode, done.stdout) == (0, f"{unit}: adopted\n"), done
    again = meshctl(heir, "work", "adopt", "execution", unit)
    assert again.returncode != 0 and "is already in use" in again.stderr, again
    ends(heir, unit)
    assert heir.results(unit) == b"all\n"
    refused = meshctl(heir, "work", "adopt", "execution", "nobody12", "--signwork", "--tls-client", "none")
    assert refused.returncode != 0 and "unknown TLS config none" in refused.stderr, refused


def test_a_signed_unit_is_adopted_with_signatures(mesh, tmp_path):
    signer, verifier = Pki(tmp_path / "pki").signing_keys()
    safe = {"worktype": "safesh", "command": "sh", "params": "-c", "allowruntimeparams": True, "verifysignature": True}
    mesh.node("execution", listen=True, extra=[*verifier, {"work-command": safe}])
    mesh.node("former", peers=["execution"], extra=signer)
    mesh.node("heir", peers=["execution"], extra=signer)
    mesh.start()
    with mesh["former"].control() as client:
        unit = client.submit("execution", "safesh", params="'echo all'", signwork="true")["unitid"]
    ends(mesh["former"], unit)
    adopt(mesh["heir"], unit, signwork="true")
    assert ends(mesh["heir"], unit)["StateName"] == "Succeeded"
    assert mesh["heir"].results(unit) == b"all\n"
    assert mesh["heir"].command(f"work release {unit}") == {"released": unit}
    assert mesh["execution"].command("work list") == {}
