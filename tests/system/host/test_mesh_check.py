"""`meshctl mesh check`: a mesh agrees with the file that is written of it, and each thing that changes is told."""

import json
import signal
import subprocess

from mesh import HEALTHY, MESHCTL, environment, own_runner, until
from test_controller import ask, runner
from trust import Pki


def check(node, *args, code):
    command = [str(MESHCTL), "--socket", node.socket, "mesh", "check", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == code, done
    return done.stdout, done.stderr


def differences(node, file):
    told = json.loads(check(node, file, "--json", code=1)[0])
    assert told["not_compared"] == [], told
    return sorted((one["kind"], one["what"], one["wanted"], one["found"]) for one in told["differences"])


def test_a_mesh_beside_the_file_that_was_written_of_it(mesh, tmp_path):
    pki = Pki(tmp_path / "pki")
    signing, verification = pki.signing_keys()
    mesh.node("hop", listen=True, extra=verification)
    settings = {"discovery": "enabled", "heartbeat": "200ms", "rundir": str(tmp_path)}
    control = mesh.node("control", peers=["hop"], extra=[*signing, {"work-controller": settings | own_runner(runner("own"))}])
    for name in ("e1", "e2"):
        mesh.node(name, peers=["hop"], work=[runner("ansible-runner")], extra=verification)
    mesh.start()
    roles = lambda: {one["name"]: one["node_type"] for one in ask(control, "instance.list")["instances"]}  # noqa: E731
    until("the instances to be known", lambda: {"control", "e1", "e2"} <= set(roles()), HEALTHY)
    ask(control, "group.create", name="east", policy_instance_list=["e1"])
    until("e1 to be in its group", lambda: "east" in ask(control, "instance.get", name="e1")["groups"])
    wanted = tmp_path / "mesh.yml"
    wanted.write_text(check(control, "--print", code=0)[0])
    assert check(control, wanted, code=0) == (f"The mesh is as {wanted} says: 4 nodes, 3 links\n", "")

    text = wanted.read_text()
    edited = tmp_path / "edited.yml"
    edited.write_text(text.replace("role: execution", "role: hop", 1) + "  e3:\n    peers: [hop]\n")
    assert differences(control, edited) == [
        ("different", "role of e1", "hop", "execution"),
        ("missing", "link e3 - hop", "", ""),
        ("missing", "node e3", "", ""),
    ]
    broken = tmp_path / "broken.yml"
    broken.write_text(text + "  e3:\n    pears: [hop]\n")
    _, error = check(control, broken, code=64)
    assert f"{broken}: " in error and "pears" in error and "line" in error, error

    # What AWX's installer reads says the same.
    inventory = tmp_path / "inventory"
    inventory.write_text(
        "[automationcontroller]\ncontrol peers=hop\n[execution_nodes]\nhop node_type=hop\ne1 peers=hop\ne2 peers=hop\n"
        "[instance_group_east]\ne1\n"
    )
    if "hop" not in roles():
        said, told = check(control, inventory, code=0)
        assert "4 nodes, 3 links" in said and told == "not compared: role of hop: no controller knows it\n", (said, told)

    mesh["e2"].stop(signal.SIGKILL)
    until("e2 to be out of reach", lambda: not control.reaches("e2"), HEALTHY)
    lost = differences(control, wanted)
    assert [one[:2] for one in lost] == [("missing", "link e2 - hop"), ("missing", "node e2")], lost
    assert lost[0][3].startswith("broken since 2") and lost[1][3] == "out of reach", lost
    shown, _ = check(control, wanted, code=1)
    assert shown.splitlines()[0].split() == ["KIND", "WHAT", "FOUND"], shown
