"""Every subcommand of the real receptorctl, old and new, against a meshd node over the Unix socket, TCP and TLS.

Finally the kind of mesh that receptorctl's own tests start: nodes of a program called `receptor`, and a key for signed
work from ssh-keygen.
"""

import json
import os
import pty
import subprocess

import pytest

import mesh as harness
from conftest import scoped_mesh
from mesh import MESHD, RECEPTORCTLS, command_type, environment, free_port, until
from trust import Pki, run


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """control - hop - execution; the control node also listens on TCP, and on another port with TLS."""
    with scoped_mesh(request.node) as mesh:
        mesh.tcp, mesh.tls, mesh.pki = free_port(), free_port(), Pki(tmp_path_factory.mktemp("pki"))
        mesh.pki.issue("control", ["control"])
        mesh.node("hop", listen=True)
        tcp = {"control-service": {"service": "tcpctl", "tcplisten": f"127.0.0.1:{mesh.tcp}"}}
        tls = {"service": "tlsctl", "tcplisten": f"127.0.0.1:{mesh.tls}", "tcptls": "server"}
        extra = [tcp, {"control-service": tls}, *mesh.pki.profiles("control")]
        mesh.node("control", peers=["hop"], work=harness.WORK, extra=extra)
        mesh.node("execution", peers=["hop"], work=[*harness.WORK, command_type("both", "echo", "one", True)])
        yield mesh.start()


@pytest.fixture(scope="module", params=RECEPTORCTLS)
def client(request):
    """The program and its version."""
    program = RECEPTORCTLS[request.param]
    assert program.is_file(), f"receptorctl {request.param} is missing: tests/run installs {program}"
    return program, request.param


@pytest.fixture(params=["unix", "tcp", "tls"])
def ctl(request, nodes, client):
    """Runs receptorctl; returns its exit code, output and errors as text."""
    sockets = {"unix": f"unix:{nodes['control'].socket}", "tcp": f"tcp://127.0.0.1:{nodes.tcp}"}
    where = {**sockets, "tls": f"tls://127.0.0.1:{nodes.tls}"}[request.param]
    files = {"--rootcas": "ca.crt", "--cert": "control.crt", "--key": "control.key"}
    options = [part for flag, name in files.items() for part in (flag, str(nodes.pki.path(name)))]

    def run(*args, payload=b""):
        command = [client[0], "--socket", where, *(options if request.param == "tls" else []), *args]
        done = subprocess.run(command, input=payload, capture_output=True, env=environment(), timeout=60)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    run.where, run.options = where, options if request.param == "tls" else []
    run.program, run.version = client
    yield run
    nodes["control"].release_all()


def unit_of(text):
    return text.partition("Unit ID: ")[2].strip()


def test_status(ctl, nodes):
    code, text, _ = ctl("status")
    assert code == 0
    assert text.startswith("Node ID: control\n")
    for part in ("Connection", "Known Node", "Route", "Service   Type", "Work Types"):
        assert part in text, text
    assert "Additional data" not in text
    until("the advertisement of execution", lambda: "execution control" in " ".join(ctl("status")[1].split()))


def test_status_as_json(ctl):
    code, text, _ = ctl("status", "--json")
    status = json.loads(text)
    assert code == 0 and status["NodeID"] == "control"
    assert status["RoutingTable"] == {"hop": "hop", "execution": "hop"}
    assert status["KnownConnectionCosts"]["hop"] == {"control": 1.0, "execution": 1.0}


def test_ping(ctl):
    code, text, _ = ctl("ping", "execution", "--count", "2", "--delay", "0")
    assert code == 0 and text.count("Reply from execution in ") == 2, text


def test_ping_of_an_unknown_node(ctl):
    code, _, errors = ctl("ping", "nowhere", "--count", "1")
    assert code == 2 and "ERROR: no route to node" in errors, errors


def test_traceroute(ctl):
    code, text, _ = ctl("traceroute", "execution")
    assert code == 0
    assert [row.split()[1] for row in text.splitlines()] == ["control", "hop", "execution"], text


def test_version(ctl):
    code, text, _ = ctl("version")
    assert code == 0 and text.splitlines()[0].split() == ["receptorctl", ctl.version], text


def test_reload(ctl):
    code, text, errors = ctl("reload")
    assert (code, text) == (0, "Reload successful\n"), errors


def test_connect_from_a_terminal(ctl):
    """The client requires a terminal; the service is another node's control service."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [ctl.program, "--socket", ctl.where, *ctl.options, "connect", "execution", "control"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
    )
    try:
        os.close(theirs)
        os.write(terminal, b"ping control\n")
        # It does not wait for the greeting: if that arrives together with the answer, this client swallows it.
        assert any(b'"From":"control"' in line for line in iter(process.stdout.readline, b""))
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        os.close(terminal)


def test_submit_status_results_release(ctl):
    code, text, errors = ctl("work", "submit", "cat", "--node", "execution", "-l", "some words")
    assert code == 0 and "Result: Job Started" in text, errors
    unit = unit_of(text)
    assert ctl("work", "results", unit)[:2] == (0, "some words\n")
    code, text, _ = ctl("work", "list", "--unit_id", unit)
    assert code == 0 and json.loads(text)[unit]["StateName"] == "Succeeded"
    assert ctl("work", "list", "-q")[1] == f"{unit}\n"
    assert ctl("work", "release", unit)[1] == f"Released:\n({unit}, released)\n"
    assert json.loads(ctl("work", "list")[1]) == {}


def test_submit_on_the_node_itself(ctl):
    code, text, _ = ctl("work", "submit", "cat", "-p", "-", "-f", "--rm", payload=b"local\n")
    assert code == 0 and text.startswith("local\n(") and text.endswith(", released)\n"), text


def test_submit_without_payload_and_with_params(ctl):
    code, text, _ = ctl("work", "submit", "both", "--node", "execution", "-n", "-f", "-a", "params=two", "three")
    assert (code, text) == (0, "one two three\n")


def test_submit_with_a_payload_from_a_file(ctl, tmp_path):
    (tmp_path / "payload").write_bytes(bytes(range(256)) * 1000)
    path = str(tmp_path / "payload")
    submit = ["work", "submit", "cat", "--node", "execution", "-p", path, "-f"]
    command = [ctl.program, "--socket", ctl.where, *ctl.options, *submit]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60)
    assert done.returncode == 0 and done.stdout == bytes(range(256)) * 1000, done.stderr


def test_work_on_another_node_by_connect(ctl, nodes):
    unit = unit_of(ctl("work", "submit", "cat", "--node", "execution", "-l", "x")[1])
    ctl("work", "results", unit)
    remote = nodes["control"].unit(unit)["ExtraData"]["RemoteUnitID"]

    def listed():
        code, text, _ = ctl("work", "list", "--node", "execution")
        assert code == 0
        return list(json.loads(text))

    # Those that earlier tests released by force may go a moment later.
    until("the one unit", lambda: listed() == [remote])


def test_cancel(ctl):
    unit = unit_of(ctl("work", "submit", "sh", "--node", "execution", "-n", "'sleep 1000'")[1])
    until("the unit to run", lambda: json.loads(ctl("work", "list")[1])[unit]["StateName"] == "Running")
    assert ctl("work", "cancel", unit)[1] == f"Cancelled:\n({unit}, cancelled)\n"
    until("the end", lambda: json.loads(ctl("work", "list")[1])[unit]["StateName"] == "Canceled")
    # Its results end, too.
    assert ctl("work", "results", unit)[0] == 0


def test_release_of_all_and_by_force(ctl):
    units = [unit_of(ctl("work", "submit", "cat", "--node", "execution", "-n")[1]) for _ in range(2)]
    code, text, _ = ctl("work", "release", "--force", units[0])
    assert (code, text) == (0, f"Released:\n({units[0]}, released)\n")
    code, text, _ = ctl("work", "release", "--all")
    assert (code, text) == (0, f"Released:\n({units[1]}, released)\n")


def test_ttl(ctl):
    unit = unit_of(ctl("work", "submit", "cat", "--node", "nowhere", "-n", "--ttl", "100ms")[1])
    until("the unit to expire", lambda: json.loads(ctl("work", "list")[1])[unit]["StateName"] == "Failed")
    code, _, errors = ctl("work", "results", unit)
    assert code == 1 and "Remote unit failed: Work unit expired on " in errors, errors


@pytest.mark.parametrize(
    "args, code, text",
    [
        (["work", "submit", "nosuch", "-n"], 101, "unknown work type nosuch"),
        (["work", "submit", "cat", "-n", "-a", "params=x"], 101, ""),
        (["work", "results", "nosuch"], 1, "unknown work unit nosuch"),
        (["work", "cancel", "nosuch"], 1, "unknown work unit nosuch"),
        (["work", "release", "nosuch"], 1, "unknown work unit nosuch"),
        (["work", "list", "--unit_id", "nosuch"], 1, "unknown work unit nosuch"),
        (["work", "submit", "cat", "--node", "execution", "--tls-client", "nosuch", "-n"], 101, "nosuch"),
    ],
)
def test_refusals(ctl, args, code, text):
    got, _, errors = ctl(*args)
    assert got == code and text in errors, (got, errors)


KEY = ["ssh-keygen", "-b", "2048", "-t", "rsa", "-q", "-N", ""]


@pytest.fixture(scope="module")
def receptors(request):
    """node1 - node2 - node3 as processes called `receptor`; node1 has the key and two work types."""
    with scoped_mesh(request.node) as mesh:
        program, mesh.tcp, key = mesh.dir / "receptor", free_port(), mesh.dir / "signwork_key"
        program.symlink_to(MESHD)
        run(*KEY, "-f", key)
        signing = [
            {"work-signing": {"privatekey": str(key), "tokenexpiration": "10h30m"}},
            {"work-verification": {"publickey": f"{key}.pub"}},
        ]
        words = {"command": "bash", "params": '-c "for w in {1..3}; do echo ${w}; done"'}
        work = [
            {"work-command": {"worktype": "signed-echo", **words, "verifysignature": True}},
            {"work-command": {"workType": "unsigned-echo", **words}},
        ]
        entrance = {"port": mesh.tcp, "bindaddr": "127.0.0.1", "remotenode": "localhost", "remoteservice": "control"}
        upper = command_type("echo-uppercase", "bash", '-c "read PAYLOAD; echo ${PAYLOAD^^}"')
        mesh.node("node1", listen=True, work=work, extra=[*signing, {"tcp-server": entrance}], program=program)
        mesh.node("node2", listen=True, peers=["node1"], extra=signing[:1], program=program)
        mesh.node("node3", peers=["node2"], work=[upper], program=program)
        yield mesh.start()


def driven(client, socket, *args, code=0):
    """The output of a receptorctl command over a Unix socket, or its errors if it should fail."""
    command = [client[0], "--socket", f"unix://{socket}", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == code, (args, done)
    return done.stderr if code else done.stdout


def test_work_on_nodes_called_receptor(receptors, client):
    node1, node2 = receptors["node1"].socket, receptors["node2"].socket
    said = driven(client, node1, "work", "submit", "echo-uppercase", "--node", "node3", "-l", "it works", "-f", "--rm")
    assert said.startswith("IT WORKS\n"), said
    for options in (["unsigned-echo"], ["signed-echo", "--signwork"]):
        said = driven(client, node2, "work", "submit", *options, "--node", "node1", "--no-payload", "-f")
        assert said == "1\n2\n3\n", said
    said = driven(client, node2, "work", "submit", "signed-echo", "--node", "node1", "--no-payload", code=101)
    assert "could not verify signature: signature is empty" in said
    driven(client, node2, "work", "release", "--all")
    until("nothing is left", lambda: receptors["node1"].command("work list") == {})


def test_status_of_nodes_called_receptor(receptors, client):
    """Exactly the keys that receptorctl's own suite compares."""
    status = json.loads(driven(client, receptors["node1"].socket, "status", "--json"))
    keys = "Advertisements Connections KnownConnectionCosts NodeID RoutingTable SystemCPUCount SystemMemoryMiB Version"
    assert sorted(status) == keys.split()
    assert "node1" in driven(client, receptors["node2"].socket, "status")
    command = [client[0], "--socket", f"tcp://localhost:{receptors.tcp}", "status", "--json"]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60)
    assert json.loads(done.stdout)["NodeID"] == "node1", done
