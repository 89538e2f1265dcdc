"""What a control node runs on itself belongs to its controller: no other node starts it, nobody hears of it, and what an
earlier configuration had in its place goes on."""

import json
import os
import pathlib
import re
import subprocess

import pytest

from client import Control, ControlError
from mesh import MESHD, environment, free_port, own_runner, until
from test_callers import Tunnel
from test_controller import ended, job, runner, stream, wrote
from test_controller_failures import instance

#: An earlier build of meshd, which has no such runner.
TIMES = {"heartbeat": "200ms", "ownerlostafter": "10s", "poll": "1s"}
#: The in-cluster type of AWX, as conf.d has it: it takes any pod.
PODS = {"allowruntimeauth": True, "allowruntimepod": True, "allowruntimeparams": True}
INCLUSTER = {"work-kubernetes": {"worktype": "kubernetes-incluster-auth", "authmethod": "incluster", **PODS}}
RUNTIME = {"work-kubernetes": {"worktype": "kubernetes-runtime-auth", "authmethod": "runtime", **PODS}}
#: What H1 of the hostile read sent: any transmit stream would do.
THEIRS = {"params": "--private-data-dir=/tmp/zz --delete"}


def hybrid(mesh, tmp_path, work=(), **settings):
    """A hybrid node c1, and a stranger one hop away."""
    settings = {"nodetype": "hybrid", "rundir": str(tmp_path), **TIMES, **settings}
    port = free_port()
    mesh.node("hop", listen=True)
    control = mesh.node("c1", peers=["hop"], work=work, extra=[INCLUSTER, RUNTIME, {"work-controller": settings}])
    control.service = {"tcplisten": f"127.0.0.1:{port}"}
    control.write_config()
    control.tcp = ("127.0.0.1", port)
    mesh.node("stranger", peers=["hop"])
    mesh.start()
    until("c1 to be ready", lambda: instance(control, "c1")["capacity"] > 0, 60)
    return control


def advertised(node, of):
    ads = [one for one in node.status()["Advertisements"] if one["NodeID"] == of]
    return {kind["WorkType"] for one in ads for kind in one.get("WorkCommands") or []}


def refusals(mesh, control, worktype):
    """What the stranger is told, through the mesh's own control service, by its own node, and what a TCP client is told."""
    with Tunnel(mesh["stranger"], "c1") as client, pytest.raises(ControlError) as tunnelled:
        client.submit("c1", worktype, stream(ident="h"), **THEIRS)
    with mesh["stranger"].control() as client, pytest.raises(ControlError) as relayed:
        client.submit("c1", worktype, stream(ident="h"), **THEIRS)
    with Control(control.tcp) as client, pytest.raises(ControlError) as port:
        client.submit("c1", worktype, stream(ident="h"), **THEIRS)
    return [str(refused.value) for refused in (tunnelled, relayed, port)]


def submit(node, **kwargs):
    with node.control() as client:
        unit = client.submit(node.name, "controller", stream(**kwargs))["unitid"]
    return unit, node.unit(unit)["ExtraData"]["JobID"]


def test_no_other_node_runs_what_the_controller_runs_on_its_own_node(mesh, tmp_path):
    control = hybrid(mesh, tmp_path, **own_runner(runner("own")))
    until("the advertisement", lambda: advertised(mesh["stranger"], "c1"))
    assert advertised(mesh["stranger"], "c1") == {"controller"}
    go, before = tmp_path / "go", set(control.command("work list"))
    for worktype, why in [
        ("local", "unknown work type local"),
        ("controller-runner", "unknown work type controller-runner"),
        ("kubernetes-incluster-auth", "kubernetes-incluster-auth is for this node's own operators"),
        ("kubernetes-runtime-auth", "kubernetes-runtime-auth is for this node's own operators"),
    ]:
        for said in refusals(mesh, control, worktype):
            assert why in said, (worktype, said)
    with control.control() as client, pytest.raises(ControlError, match="unknown work type controller-runner"):
        client.submit("c1", "controller-runner", stream(ident="h"), **THEIRS)
    # Operators have the types of pods: this one lacks its credential.
    with control.control() as client, pytest.raises(ControlError, match="secret_kube_config"):
        client.submit("c1", "kubernetes-runtime-auth")
    # A check of the node's health may have been there before.
    until("nothing to be left of any", lambda: set(control.command("work list")) <= before)
    # The controller has it, and its unit is as closed as the job.
    _, number = submit(control, ident="own", go=str(go))
    child = until("it to run", lambda: (one := job(control, number))["state"] == "running" and one["attempts"][0]["unit"])
    assert control.unit(child)["WorkType"] == "controller-runner"
    for words in (f"work cancel {child}", f"work results {child} 0"):
        with Tunnel(mesh["stranger"], "c1") as client, pytest.raises(ControlError, match="signature is empty"):
            client.ask(words)
    go.touch()
    assert ended(control, number)["state"] == "successful"


def test_pods_are_taken_from_the_mesh_where_the_configuration_says_so(mesh, tmp_path):
    control = hybrid(mesh, tmp_path, **own_runner(runner("own")))
    for directive in (INCLUSTER, RUNTIME):
        at = control.directives.index(directive)
        control.directives[at] = {"work-kubernetes": {**directive["work-kubernetes"], "mesh": True}}
    control.write_config()
    assert control.command("reload")["Success"] is True
    control.logged("work-kubernetes kubernetes-incluster-auth: any node of the mesh can have it run with a pod")
    names = {"kubernetes-incluster-auth", "kubernetes-runtime-auth"}
    until("both to be advertised", lambda: names < advertised(mesh["stranger"], "c1"))
    with Tunnel(mesh["stranger"], "c1") as client, pytest.raises(ControlError, match="secret_kube_config"):
        client.submit("c1", "kubernetes-runtime-auth")


#: A runner that any user can run. It tells whose it is.
TELL = """#!/bin/sh
id -u >"$SAID/$$"
case "$*" in *--worker-info*)
    echo "{cpu_count: $CPUS, mem_in_bytes: 17179869184, runner_version: 2.4.0, uuid: u, errors: []}"
    exit
esac
case "$(cat)" in *slow*) exec sleep 600; esac
echo '{"status": "starting", "command": ["ansible-playbook"]}'
echo '{"status": "successful"}'
echo '{"eof": true}'
"""


def test_runnerlimits_bound_what_runs_on_this_node(mesh):
    """Environment and time, and another user where there are rights for that."""
    # The user may not read where the test lies.
    said, tell = mesh.dir / "said", mesh.dir / "tell"
    said.mkdir()
    said.chmod(0o777)
    mesh.dir.chmod(0o711)
    tell.write_text(TELL)
    tell.chmod(0o755)
    limits = {"env": {"CPUS": 7, "SAID": str(said)}, "timeout": "3s"} | ({"user": "nobody"} if os.geteuid() == 0 else {})
    settings = {"nodetype": "hybrid", "rundir": str(mesh.dir), "runner": f"{tell} worker", "runnerlimits": limits, **TIMES}
    control = mesh.node("c1", extra=[{"work-controller": settings}])
    mesh.start()
    until("the check", lambda: instance(control, "c1")["cpu"] == 7, 60)
    _, number = submit(control, ident="slow")
    one = ended(control, number)
    assert one["state"] != "successful" and "3s" in json.dumps(one), one
    nobody = int(subprocess.run(["id", "-u", "nobody"], capture_output=True, check=True).stdout)
    users = {int(path.read_text()) for path in said.iterdir()}
    assert users == {nobody if os.geteuid() == 0 else os.geteuid()}
    limits["timeout"] = "60s"
    control.write_config()
    assert control.command("reload")["Success"] is True
    _, number = submit(control, ident="quick")
    assert ended(control, number)["state"] == "successful"


SHELL = {"work-command": {"worktype": "sh", "command": "sh", "params": "-c", "allowruntimeparams": True}}


def checked(tmp_path, *directives):
    """The warnings of `meshd check`."""
    config = tmp_path / "c.yml"
    usual = {"node": {"id": "a", "datadir": str(tmp_path / "data")}}, {"control-service": {"filename": str(tmp_path / "s")}}
    config.write_text(json.dumps([*usual, *directives]))
    done = subprocess.run([MESHD, "check", config], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done
    return [line.removeprefix("warning: ") for line in done.stdout.splitlines() if line.startswith("warning: ")]


def test_a_check_warns_of_what_strangers_reach_and_names_the_page(tmp_path):
    port = free_port()
    far, near = ({"tcp-listener": {"port": port, "bindaddr": address}} for address in ("0.0.0.0", "127.0.0.1"))
    rule = {"action": "reject", "tonode": "a", "toservice": "control"}
    signed = {"work-command": {**SHELL["work-command"], "verifysignature": True}}
    for directives, whats in [
        ([{"local-only": None}, SHELL], []),
        ([near, SHELL], ["work-command sh: any node"]),
        ([far], [f"tcp-listener on 0.0.0.0:{port}: anybody who reaches"]),
        ([far, SHELL], ["work-command sh: any node", f"tcp-listener on 0.0.0.0:{port}: anybody who reaches"]),
        ([near, {"work-controller": {"discovery": "enabled", "runner": "true"}}], ["work-controller: discovery is enabled"]),
        ([near, {"work-controller": {"verifysignature": False, "runner": "true"}}], ["work-controller: verifysignature is false"]),
    ]:
        warnings = checked(tmp_path, *directives)
        assert len(warnings) == len(whats), warnings
        for warning, what in zip(warnings, whats, strict=True):
            assert what in warning and "docs/security.md" in warning, warnings
    config = {"node": {"id": "a", "datadir": str(tmp_path / "data"), "firewallrules": [rule]}}
    (tmp_path / "key.pub").write_text("")
    key, public = tmp_path / "k", tmp_path / "k.pub"
    subprocess.run([MESHD.with_name("meshctl"), "key", "generate", "--type", "ed25519", "--private", key, "--public", public], check=True, capture_output=True)
    assert checked(tmp_path, near, signed, {"work-verification": str(public)}) == []
    directives = [config, {"control-service": {"filename": str(tmp_path / "s")}}, near, SHELL]
    (tmp_path / "r.yml").write_text(json.dumps(directives))
    done = subprocess.run([MESHD, "check", tmp_path / "r.yml"], capture_output=True, text=True, env=environment(), timeout=60)
    assert re.fullmatch("fine: .*\n", done.stdout), done
