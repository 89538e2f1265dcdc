"""Types docs/whole-mesh.md: five hosts, which are directories here, from certificates to the first playbook."""

import os
import re
import subprocess

import pytest

import test_trust_setup as trust
from mesh import ANSIBLE_RUNNER, BINARIES, ROOT, VENV, environment, free_port, until
from test_controller import ask, ended

PAGE = ROOT / "docs" / "whole-mesh.md"
HOSTS = ("control", "hop", "e1", "e2", "e3")


@pytest.fixture
def world(mesh):
    if not ANSIBLE_RUNNER.exists():
        pytest.skip(f"there is no ansible-runner in {VENV}")
    mesh.hosts, tools = mesh.dir / "hosts", mesh.dir / "tools"
    for directory in (tools, mesh.dir / "own"):
        directory.mkdir()
    for name, text in (("scp", trust.SCP), ("ssh", trust.SSH)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    mesh.path = f"{tools}:{BINARIES}:{VENV / 'bin'}:{os.environ['PATH']}"
    mesh.port = free_port()
    for host in HOSTS:
        for path in ("run/meshd", "var/lib/meshd"):
            (mesh.hosts / host / path).mkdir(parents=True)
    return mesh


def here(mesh, host, text):
    text = text.replace("hop.example.org:27199", f"localhost:{mesh.port}").replace("port: 27199", f"port: {mesh.port}")
    if host == "own":
        return text.replace("--dnsname $node.example.org", "--dnsname $node.example.org --dnsname localhost")
    return re.sub("(?<![.\\w])(?=/(?:etc|run|var/lib)/meshd)", str(mesh.hosts / host), text)


def start(mesh, host):
    conf = mesh.hosts / host / "etc/meshd/conf.d"
    (file,) = conf.iterdir()
    file.write_text(here(mesh, host, file.read_text()) if host.startswith("e") else file.read_text())
    node = mesh.add(host, [])
    node.config, node.socket = file, mesh.hosts / host / "run/meshd/meshd.sock"
    return node


def test_the_whole_example_in_the_order_in_which_it_is_typed(world, monkeypatch):
    monkeypatch.setattr(trust, "PAGE", PAGE)
    printed, nodes = "", {}
    for place, language, text in trust.steps():
        place = "own" if place == "authority" else place
        if language == "yaml":
            path = world.hosts / place / f"etc/meshd/conf.d/{place}.yml"
            data = f"- node: {{datadir: {world.hosts / place / 'data'}, " if place == "hop" else "- node: {"
            path.write_text(here(world, place, text).replace("- node: {", data, 1))
            continue
        if text.startswith("meshd check"):
            nodes = {host: start(world, host) for host in HOSTS}
            for host, node in nodes.items():
                done = subprocess.run([BINARIES / "meshd", "check", node.config.parent], capture_output=True, text=True,
                                      env=environment(PATH=world.path), timeout=60)
                assert done.returncode == 0 and f"fine: node {host}" in done.stdout, done
            continue
        if text.startswith("meshd --config-dir"):
            world.variables["PATH"] = world.path
            for host in ("hop", "control", "e1", "e2", "e3"):
                nodes[host].start()
            continue
        script = here(world, place, text)
        if place == "control":
            until("the three nodes to be found", lambda: len(ask(nodes["control"], "instance.list", found=True)["found"]) >= 3, 60)
            script = f"export RECEPTORCTL_SOCKET={nodes['control'].socket}\n{script}"
            # The example's hosts are this machine, with the interpreter that runs Ansible.
            script = script.replace("local\\n", "local ansible_python_interpreter={{ansible_playbook_python}}\\n")
        directory = world.dir / "own" if place == "own" else world.hosts / place / "home"
        directory.mkdir(exist_ok=True)
        code, out, err = trust.run(world, directory, script)
        assert code == 0, (script, out, err)
        printed += out
    assert set(nodes) == set(HOSTS) and printed.count("hello from the mesh") == 2, printed
    (job,) = ask(nodes["control"], "job.list")["jobs"]
    job = ended(nodes["control"], job["id"])
    assert (job["state"], job["name"]) == ("successful", "site.yml") and job["execution_node"] in ("e1", "e2", "e3"), job
