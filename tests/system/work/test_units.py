"""What receptor and AWX read of a unit: its ID, how its process ended, and the Details that they look at."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile

import pytest

from client import ControlError
from mesh import MESHD, command_type, environment, free_port, until
from trust import Pki

SHELL = command_type("sh", "sh", "-c", runtime=True)


def begin(node, target, script, **more):
    with node.control() as client:
        return client.submit(target, "sh", params=f"'{script}'", **more)["unitid"]


def ends(node, unit):
    until("the end", lambda: node.unit(unit)["State"] > 1)
    return node.unit(unit)


@pytest.mark.parametrize("name, start", [("foo", "foo"), ("10.0.0.1:a_B-c@d", "10001aBcd"), ("-_.", "")])
def test_ids_are_of_receptors_shape_and_one_on_both_nodes(mesh, name, start):
    mesh.node("execution", listen=True, work=[SHELL])
    node = mesh.node(name, peers=["execution"], work=[SHELL])
    mesh.start()
    for target in (name, "execution"):
        unit = begin(node, target, "echo x")
        assert re.fullmatch(start + "[A-Za-z0-9]{8}", unit), unit
        ends(node, unit)
    assert list(mesh["execution"].command("work list")) == [unit]
    assert node.unit(unit)["ExtraData"]["RemoteUnitID"] == unit


def test_a_chosen_id_is_no_parameter(mesh):
    mesh.node("execution", listen=True, work=[SHELL])
    node = mesh.node("control", peers=["execution"])
    mesh.start()
    assert begin(node, "execution", "echo x", workUnitID="chosenByMe") == "chosenByMe"
    ends(node, "chosenByMe")
    extra = node.unit("chosenByMe")["ExtraData"]
    assert (extra["RemoteParams"], extra["RemoteUnitID"]) == ({"params": "'echo x'"}, "chosenByMe"), extra
    assert list(mesh["execution"].command("work list")) == ["chosenByMe"]


@pytest.mark.parametrize("name", ["a b", "a/b", "ä", "a,b"])
def test_an_own_id_of_other_characters_is_refused_at_the_start(tmp_path, name):
    command = [str(MESHD), "--node", f"id={name}", f"datadir={tmp_path}", "--local-only"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    text = f"node id can only contain a-z, A-Z, 0-9 or special characters . - _ @ : but received: {name}"
    assert done.returncode != 0 and text in done.stderr, done


@pytest.mark.parametrize("go", [None, "RECEPTOR_GO", "RECEPTOR_GO_NEW"])
def test_the_end_of_a_process_is_a_number(mesh, go):
    if go and go not in os.environ:
        pytest.skip(f"SKIPPED: {go} is not set")
    program = pathlib.Path(os.environ[go]) if go else MESHD
    mesh.node("execution", listen=True, work=[SHELL, command_type("none", "/nonexistent")], program=program)
    node = mesh.node("control", peers=["execution"], work=[SHELL])
    mesh.start()
    for script, code in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)]:
        for target in ("control", "execution"):
            unit = begin(node, target, script)
            status = ends(node, unit)
            # A Go node does not report the number of a signal.
            wanted = None if go and target == "execution" and code > 128 else code
            assert status.get("ExitCode") == wanted, (target, status)
            assert json.loads((node.unit_dir(unit) / "status").read_text()).get("ExitCode") == wanted
            assert node.command("work list")[unit].get("ExitCode") == wanted
    unit = begin(node, "execution", "exec sleep 1000")
    until("it to run", lambda: node.unit(unit)["StateName"] == "Running")
    assert "ExitCode" not in node.unit(unit)
    with node.control() as client:
        never = client.begin("execution", "none")
        client.socket.shutdown(1)
        client.reader.readline()
    assert "ExitCode" not in ends(node, never)
    node.command(f"work cancel {unit}")
    if not go:
        # A job inherits an ignored SIGINT from the test runner, and then ends by the next signal.
        assert ends(node, unit)["ExitCode"] in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_details_that_clients_look_at(mesh, tmp_path):
    pki = Pki(tmp_path / "pki")
    pki.issue("execution", ["execution"])
    mesh.add("hub", [{"tcp-listener": {"bindaddr": "127.0.0.1", "port": (port := free_port())}}])
    peer = {"tcp-peer": {"address": f"127.0.0.1:{port}"}}
    mesh.add("execution", [peer, SHELL, *pki.profiles("execution")], service={"tls": "server"})
    node = mesh.add("control", [peer])
    mesh.start()
    with node.control() as client:
        unit = client.begin("execution", "sh")
        client.socket.shutdown(1)
        client.reader.readline()
    # It ends by that after a minute: src/work/remote/failures.rs.
    status = node.unit(unit)
    assert status["State"] == 0 and status["Detail"].startswith("TLS error connecting to remote service: "), status
    assert node.command(f"work cancel {unit}") == {"cancelled": unit}

    with node.control() as client:
        unit = client.submit("away", "sh")["unitid"]
    assert node.command(f"work cancel {unit}") == {"cancelled": unit}
    node.restart()
    status = node.unit(unit)
    assert (status["State"], status["Detail"]) == (3, "Locally Cancelled"), status
    node.command(f"work release {unit}")
    with pytest.raises(ControlError, match="unknown work unit"):
        node.unit(unit)


def test_a_cancelled_unit_stays_through_a_restart(mesh):
    mesh.node("execution", listen=True, work=[SHELL])
    node = mesh.node("control", peers=["execution"])
    mesh.start()
    unit = begin(node, "execution", "exec sleep 1000")
    until("it to run", lambda: node.unit(unit)["StateName"] == "Running")
    node.command(f"work cancel {unit}")
    before = ends(node, unit)
    assert before["StateName"] == "Canceled"
    node.restart()
    assert node.unit(unit) == before


def test_what_a_job_has_of_the_daemon_s_environment(mesh):
    kinds = {"whole": {}, "clean": {"environment": "clean", "env": {"OWN": "own"}}, "another": {"user": "nobody"}, "wanted": {"user": "nobody", "environment": "whole"}}
    if os.geteuid() != 0:
        kinds = {name: kind for name, kind in kinds.items() if "user" not in kind}
    types = [{"work-command": command_type(name, "env")["work-command"] | kind} for name, kind in kinds.items()]
    mesh.variables |= {"PGPASSWORD": "canary", "LC_ALL": "C", "SSL_CERT_FILE": "/nonexistent", "https_proxy": "http://user:canary@127.0.0.1:1"}
    node = mesh.node("n", work=types)
    mesh.start()

    def variables(name):
        _, output = node.run("n", name)
        return dict(line.split("=", 1) for line in output.decode().splitlines())

    found = {name: variables(name) for name in kinds}
    secrets = {name: {key for key, value in one.items() if "canary" in value} for name, one in found.items()}
    wanted = {"whole": {"PGPASSWORD", "https_proxy"}, "clean": set(), "another": set(), "wanted": {"PGPASSWORD", "https_proxy"}}
    assert secrets == {name: wanted[name] for name in kinds}, secrets
    for name in set(kinds) - {"whole", "wanted"}:
        assert {"PATH", "HOME", "LC_ALL", "SSL_CERT_FILE", "MESHD_UNIT_DIR"} <= set(found[name]), found[name]
    assert found["clean"]["OWN"] == "own"


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
def test_what_removes_another_user_s_container_has_none_of_the_daemon_s_secrets(mesh):
    with tempfile.TemporaryDirectory() as place:
        programs = pathlib.Path(place)
        programs.chmod(0o777)
        engine, seen = programs / "podman", programs / "seen"
        engine.write_text(f'#!/bin/sh\nif [ "$1" = rm ]; then env >{seen}.new && mv {seen}.new {seen}; else sleep 600; fi; true\n')
        engine.chmod(0o755)
        mesh.variables |= {"PATH": f"{programs}:{os.environ['PATH']}", "PGPASSWORD": "canary", "LC_ALL": "C"}
        kind = command_type("box", "podman", "run --name ansible_runner_1 image")
        kind["work-command"]["user"] = "nobody"
        node = mesh.node("n", work=[kind]).start()
        with node.control() as client:
            unit = client.submit("n", "box")["unitid"]
        until("it to run", lambda: node.unit(unit)["StateName"] == "Running")
        node.command(f"work cancel {unit}")
        until("the engine to be asked", seen.exists)
        found = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    assert "PGPASSWORD" not in found and {"PATH", "HOME", "LC_ALL"} <= set(found), found
