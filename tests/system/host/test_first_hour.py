"""What somebody types in the first hour: nodes are found as they come, a job that waits says how it can run, tokens open the page
that they are made for, a misspelt node is named."""

import json
import os
import re
import subprocess
import sys

import pytest

from mesh import HEALTHY, MESHCTL, command_type, environment, free_port, own_runner, until
from test_controller import STAND_IN, ask
from test_controller_cli import arguments, meshctl, project  # noqa: F401
from web import Client

#: So long that nothing that is found was found by them.
SLOW = {"heartbeat": "100s", "ownerlostafter": "300s", "poll": "100s"}


@pytest.fixture
def control(mesh, tmp_path):
    """A control node that looks at the mesh by itself every 100 s, alone. Each playbook succeeds."""
    script = tmp_path / "runner"
    info = f'case "$*" in *--worker-info*) exec {sys.executable} {STAND_IN} "$@";; esac'
    script.write_text(f"""#!/bin/sh\n{info}\ncat >/dev/null\necho '{{"status": "successful"}}'; echo '{{"eof": true}}'\n""")
    script.chmod(0o755)
    mesh.runner = command_type("ansible-runner", str(script), "worker", runtime=True)
    mesh.node("control", listen=True, extra=[{"work-controller": SLOW | {"rundir": str(tmp_path)} | own_runner(mesh.runner)}]).start()
    is_known = lambda: any(one["name"] == "control" for one in ask(mesh["control"], "instance.list")["instances"])  # noqa: E731
    until("it to be known", is_known, HEALTHY)
    until("it to be ready", lambda: ask(mesh["control"], "instance.get", name="control")["node_state"] == "ready", HEALTHY)
    return mesh["control"]


def found(control):
    return {one["name"]: one["runner"] for one in ask(control, "instance.list", found=True)["found"]}


def test_a_node_is_found_as_it_comes_and_a_job_that_waits_names_the_command(control, mesh, project):  # noqa: F811
    run = subprocess.Popen(arguments(control, "job", "run", project, "-p", "site.yml"), text=True, env=environment(),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with run:
        try:
            number = int(run.stderr.readline().split()[1])
            assert run.stderr.readline() == f"Job {number} waits: waiting for an instance in default\n"
            mesh.node("e1", peers=["control"], work=[mesh.runner]).start()
            until("e1 to be found", lambda: found(control) == {"e1": True}, 20)
            helps = "e1 could run it: meshctl instance enable e1"
            assert f"\n  instances: {helps}\n" in meshctl(control, "job", "explain", number).stdout
            again = subprocess.Popen(arguments(control, "job", "run", project, "-p", "site.yml"), text=True, env=environment(),
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            with again:
                assert [again.stderr.readline() for _ in range(3)][2] == f"{helps}\n"
                again.kill()
            assert meshctl(control, "instance", "enable", "e1").stdout == "e1 enabled\n"
            said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0, (run.returncode, said)


def test_a_work_type_that_comes_with_a_reload_is_found(control, mesh):
    e1 = mesh.node("e1", peers=["control"], work=[command_type("cat", "cat")]).start()
    until("a way to e1", lambda: control.reaches("e1"))
    assert found(control) == {}
    e1.directives.append(mesh.runner)
    e1.write_config()
    assert e1.command("reload")["Success"] is True
    until("e1 to be found", lambda: found(control) == {"e1": True}, 20)


def test_any_node_that_the_mesh_knows_is_enabled(control, mesh):
    missing = meshctl(control, "instance", "enable", "nosuch")
    assert missing.returncode == 1 and "there is no instance nosuch" in missing.stderr, missing
    mesh.node("e1", peers=["control"], work=[command_type("cat", "cat")]).start()
    until("a way to e1", lambda: control.reaches("e1"))
    done = until("e1 to be known", lambda: (done := meshctl(control, "instance", "enable", "e1")).returncode == 0 and done)
    assert done.stdout == "e1 enabled\n"
    assert ask(control, "instance.get", name="e1")["node_type"] == "execution"


def test_a_job_for_a_node_that_nobody_knows_says_so(mesh):
    mesh.node("alpha", listen=True, work=[command_type("cat", "cat")])
    mesh.node("exec-east", peers=["alpha"], work=[command_type("cat", "cat")])
    mesh.start()
    submit = lambda node: meshctl(mesh["alpha"], "work", "submit", "cat", "--node", node, "-n")  # noqa: E731
    for node, near in (("exec-eats", ": did you mean exec-east?"), ("nosuch", "")):
        done = submit(node)
        assert (done.returncode, done.stderr) == (0, f"Warning: the mesh knows no node {node} now, so the job waits for it{near}\n"), done
    for node in ("exec-east", "alpha", "localhost"):
        assert submit(node).stderr == ""


def test_a_reload_that_needs_a_restart_speaks_of_this_program(mesh, tmp_path):
    node = mesh.node("n").start()
    for change, what in (({"work-controller": {"runner": "true"}}, "'work-controller' was modified or added"),
                         ({"node": {"id": "other"}}, "id cannot change while the node runs")):
        node.directives = [change, {"local-only": None}] if "work-controller" in change else [{"local-only": None}]
        node.write_config()
        if "node" in change:
            node.config.write_text(node.config.read_text().replace('"id": "n"', '"id": "other"'))
        done = meshctl(node, "reload")
        assert done.returncode == 3 and what in done.stderr and done.stderr.endswith("systemctl restart meshd\n"), done
        assert "receptor" not in done.stderr and "ERRORCODE" not in done.stderr
        node.config.write_text("- node: [")
        done = meshctl(node, "reload")
        assert done.returncode == 4 and str(node.config) in done.stderr and done.stderr.endswith("; nothing was changed\n"), done
        assert "ERRORCODE" not in done.stderr
        failed = [line for line in node.log().splitlines() if "reload failed" in line]
        assert failed and not any("receptor" in line or "ERRORCODE" in line for line in failed), failed


def test_a_control_node_without_a_runner_says_so_and_goes_on_once_it_is_there(mesh, tmp_path, project):  # noqa: F811
    script = tmp_path / "bin" / "ansible-runner"
    quick = {"heartbeat": "1s", "ownerlostafter": "10s", "poll": "1s"}
    mesh.node("control", listen=True, extra=[{"work-controller": quick | {"rundir": str(tmp_path), "runner": str(script)}}]).start()
    control = mesh["control"]
    until("its runner to be missed", lambda: any(one["errors"] for one in ask(control, "instance.list")["instances"]), HEALTHY)
    number = meshctl(control, "job", "run", project, "-m", "ping", "--detach").stdout.strip()
    waits = until("it to be told", lambda: meshctl(control, "job", "show", number, "--json").stdout.count("waiting for the runner of control: ")
                  and meshctl(control, "job", "explain", number).stdout)
    assert f"fork/exec {script}: no such file or directory (install it" in waits, waits
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {STAND_IN} \"$@\"\n")
    script.chmod(0o755)
    until("its runner to be found", lambda: ask(control, "instance.get", name="control")["node_state"] == "ready", 60)
    assert "waiting for an instance in default" in until("it to wait for others", lambda: (
        done := meshctl(control, "job", "explain", number).stdout) and "the runner" not in done and done)


def test_who_looks_for_the_nodes_is_told_where_they_are(mesh):
    node = mesh.node("n").start()
    for words in (("node", "list"), ("nodes",), ("instances",)):
        done = meshctl(node, *words)
        assert done.returncode == 64 and "`meshctl status` shows the nodes of the mesh, `meshctl instance list`" in done.stderr, done


def test_a_list_of_no_tokens_is_empty(tmp_path):
    token = lambda *words: subprocess.run([str(MESHCTL), "web", "token", *words, "--file", str(tmp_path / "none")], capture_output=True,  # noqa: E731
                                          text=True, env=environment(), timeout=60)
    listed = token("list", "--json")
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, '{\n  "tokens": []\n}\n', ""), listed
    assert token("remove", "alice").stderr == f"meshctl: {tmp_path}/none has no token alice\n"
    for level in ("none", "loud"):
        assert "it must be read, operate or admin" in token("add", "alice", "--level", level).stderr


@pytest.mark.skipif(os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
                    reason="needs root and a mount namespace")
def test_a_token_made_as_the_page_says_opens_the_page(mesh, tmp_path):
    etc = tmp_path / "etc"
    (etc / "conf.d").mkdir(parents=True)
    port, conf = free_port(), etc / "conf.d" / "n.yml"
    inside = ["unshare", "-m", "sh", "-c", f'mkdir -p /etc/meshd && mount --bind {etc} /etc/meshd && exec "$0" "$@"']

    def token(*words):
        done = subprocess.run([*inside, str(MESHCTL), "web", "token", *words], capture_output=True, text=True, env=environment(), timeout=60)
        assert done.returncode == 0, done
        return done

    conf.write_text("- node: {id: n}\n- local-only:\n")
    assert "the configuration of this node has no directive web" in token("add", "early", "--level", "read").stderr
    (etc / "web.tokens").unlink()
    node = mesh.node("n", extra=[{"web": {"address": f"127.0.0.1:{port}"}}])
    node.prefix = inside
    conf.write_text(node.config.read_text())
    node.start()
    client = Client(port)
    assert client.get("/api/v1/session").json["has_tokens"] is False
    made = token("add", "alice", "--level", "operate")
    assert "With it the page allows only read: for more, set `allow: operate` in the directive web" in made.stderr, made
    session = client.get("/api/v1/session", made.stdout.strip()).json
    assert (session["who"], session["level"], session["has_tokens"]) == ("alice", "read", True)
    assert "The page of this node does not use this file, but /etc/meshd/web.tokens" in token("add", "bob", "--file", "/etc/meshd/other").stderr
    listed = json.loads(token("list", "--json").stdout)["tokens"]
    assert listed == [{"name": "alice", "level": "operate"}]
    # Which file it is, the directive says.
    conf.write_text(re.sub('"address"', f'"tokens": "{etc}/other", "address"', conf.read_text()))
    assert json.loads(token("list", "--json").stdout)["tokens"] == [{"name": "bob", "level": "read"}]
