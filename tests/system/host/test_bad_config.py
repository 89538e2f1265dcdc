"""Configuration errors as an operator sees them: file, line, directive, and the allowed values."""

import json
import os
import re
import shutil
import subprocess

import pytest

from mesh import MESHCTL, MESHD, ROOT, environment, until

NODE = "- node:\n    id: a\n- local-only\n"
#: One that names a server and nothing else.
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: hidden}}]
"""


def refused(*args):
    """The output of a node that must refuse to start."""
    done = subprocess.run([MESHD, *args], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode != 0, done
    assert "panicked" not in done.stderr, done
    return done.stderr


@pytest.mark.parametrize(
    "text, line, parts",
    [
        ("- tcp-listner:\n    port: 1\n", 4, ["tcp-listner", "tcp-listener"]),
        ("- tcp-listener:\n    prot: 1\n", 5, ["tcp-listener", "prot", "port"]),
        ("- tcp-listener:\n    port: high\n", 5, ["tcp-listener", "port", "high"]),
        ("- tcp-listener:\n    port: 70000\n", 5, ["tcp-listener", "port", "65535"]),
        ("- tcp-listener:\n    bindaddr: 127.0.0.1\n", 4, ["tcp-listener", "port"]),
        ("- tcp-listener:\n    port: 1\n    cost: -1\n", 6, ["cost", "-1"]),
        ("- log-level: loud\n", 4, ["log-level", "loud", "debug"]),
        ("- node:\n    id: b\n", 4, ["node"]),
        ("- work-command:\n    worktype: x\n", 4, ["work-command", "command"]),
        ("- control-service:\n    filename: /x\n    permissions: rw\n", 6, ["permissions", "rw"]),
        ("- [\n", None, []),
        ("just text\n", None, []),
    ],
)
def test_a_file_with_a_mistake(tmp_path, text, line, parts):
    path = tmp_path / "bad.yml"
    path.write_text(NODE + text)
    said = refused("--config", str(path))
    assert "bad.yml" in said, said
    assert line is None or f"bad.yml:{line}" in said, said
    for part in parts:
        assert part in said, said


def test_a_file_that_is_not_there():
    assert "/nonexistent/x.yml" in refused("--config", "/nonexistent/x.yml")


def test_the_command_line():
    assert "`tcp-listner`" in refused("--node", "id=a", "--tcp-listner", "port=1")
    assert "`prot`" in refused("--node", "id=a", "--tcp-listener", "prot=1")


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "arguments"])
def test_an_error_is_reported_once(tmp_path, as_file):
    """On standard error; nothing of it in the log."""
    path = tmp_path / "alone.yml"
    path.write_text(f"- node: {{id: a, datadir: {tmp_path}}}\n")
    args = ["--config", str(path)] if as_file else ["--node", "id=a", f"datadir={tmp_path}"]
    done = subprocess.run([MESHD, *args], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 1
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line in done.stderr and line.startswith("meshd: ") and "`local-only`" in line, done
    (finding,) = subprocess.run([MESHD, "check", *args], capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert "`local-only`" in finding, finding


MOVED = [
    (
        {"node": {"id": "a", "firewallrules": [{"action": "reject", "fromnode": "/evil|bad/"}]}},
        ["fromnode: /evil|bad/ is read as ^(?:evil|bad)$ here", "as ^evil|bad$ by a receptor node", "write /(?:evil|bad)/"],
    ),
    (
        {"pyroscope-client": {"applicationName": "a", "tags": {"k": "v"}, "basicAuthPassword": "hidden", "profileTypes": ["cpu"]}},
        ["pyroscope-client: meshd sends no profiles"],
    ),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("directive, parts", MOVED, ids=["alternatives", "pyroscope"])
def test_differences_from_receptor_are_warned_of_once(mesh, version, directive, parts):
    """From `meshd check`, and from a node at its start."""
    node = mesh.node("a")
    items = {"node": {"id": "a"}, "local-only": None, "control-service": {"filename": str(node.socket)}, **directive}
    items["node"]["datadir"] = str(node.datadir)
    items = {"version": 2, **items} if version == 2 else [{name: values} for name, values in items.items()]
    node.config.write_text(json.dumps(items))
    checked = subprocess.run([MESHD, "check", str(node.config)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked
    node.start().stop()
    for said in (checked.stdout, node.log()):
        (warning,) = [line for line in said.splitlines() if "warning" in line]
        assert all(part in warning for part in parts) and "hidden" not in warning, warning


def test_a_port_that_is_taken_is_named(mesh):
    first = mesh.node("first", listen=True).start()
    second = mesh.node("second", extra=[{"tcp-listener": {"bindaddr": "127.0.0.1", "port": mesh.ports["first"]}}])
    said = refused("--config", str(second.config))
    assert str(mesh.ports["first"]) in said, said
    until("the first one to answer", first.answers)


def test_a_control_socket_that_is_in_use(mesh):
    first = mesh.node("first").start()
    second = mesh.node("second")
    second.config.write_text(second.config.read_text().replace(str(second.socket), str(first.socket)))
    assert "in use by another daemon" in refused("--config", str(second.config))
    until("the first one to answer", first.answers)


EXAMPLES = pytest.mark.parametrize("path", sorted((ROOT / "conf.d").glob("*.yml")), ids=lambda path: path.name)


def fitted(mesh, path):
    """A node with an example's configuration, unchanged except for paths and a program that only exist on a real machine,
    and for addresses outside of it."""
    text = path.read_text()
    name, socket = re.search(r"id: (\w+)", text)[1], re.search(r"filename: /run/meshd/(\S+)", text)[1]
    files = f"{mesh.dir}/{name}"
    make = [["cert", "init", "--commonname", "a", "--key", "ecdsa", "--outcert", f"{mesh.dir}/ca.crt", "--outkey", f"{mesh.dir}/ca.key"],
            ["cert", "makereq", "--commonname", name, "--nodeid", name, "--key", "ecdsa", "--outreq", f"{files}.req", "--outkey", f"{files}.key"],
            ["cert", "signreq", "--req", f"{files}.req", "--cacert", f"{mesh.dir}/ca.crt", "--cakey", f"{mesh.dir}/ca.key", "--outcert", f"{files}.crt", "--verify"],
            ["key", "generate", "--type", "ed25519", "--private", f"{mesh.dir}/work.key", "--public", f"{mesh.dir}/work.pub"]]
    for words in make:
        subprocess.run([MESHCTL, *words], check=True, capture_output=True, env=environment(), timeout=60)
    shutil.copy(mesh.dir / "ca.crt", mesh.dir / "db.pem")
    (mesh.dir / "db.password").write_text("hidden\n")
    (mesh.dir / "db.password").chmod(0o600)
    (mesh.dir / "kubeconfig").write_text(KUBECONFIG)
    for program in ("ansible-runner", "report"):
        (mesh.dir / program).symlink_to("/bin/true")
    mesh.variables["PATH"] = f"{mesh.dir}:{os.environ['PATH']}"
    for there, here in [("/run/meshd/", f"{mesh.dir}/"), ("/var/lib/meshd", f"{mesh.dir}/data"), ("/etc/meshd/", f"{mesh.dir}/"),
                        ("hop.example.org:27199", "127.0.0.1:1"), ("db1.example.org,db2.example.org", "127.0.0.1:1,127.0.0.1:2"),
                        ("port: 27199", "port: 0")]:
        text = text.replace(there, here)
    node = mesh.node(name)
    node.config.write_text(text)
    node.socket = mesh.dir / socket
    return node


@EXAMPLES
def test_the_worked_examples_start(mesh, path):
    fitted(mesh, path).start()


#: What is on other machines is not here.
AWAY = ("store: it cannot be reached now", "cannot ask the API server")


@EXAMPLES
def test_a_check_finds_nothing_wrong_with_the_worked_examples(mesh, path):
    config = fitted(mesh, path).config
    checked = subprocess.run([MESHD, "check", config], capture_output=True, text=True, env=environment(**mesh.variables), timeout=60)
    said = [line for line in checked.stdout.splitlines() if not any(words in line for words in AWAY)]
    assert checked.returncode == 0 and len(said) == 1 and said[0].startswith("fine: node "), checked
