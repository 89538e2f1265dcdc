"""Every subcommand of the real receptorctl against our node, over the Unix socket, over TCP and over TLS."""

import json
import os
import pty
import subprocess

import pytest

import mesh as harness
from conftest import scoped_mesh
from mesh import RECEPTORCTL, command_type, environment, free_port, until
from trust import Pki


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """control - hop - execution, whose control node also listens on TCP, and on another port with TLS."""
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


@pytest.fixture(params=["unix", "tcp", "tls"])
def ctl(request, nodes):
    """Runs receptorctl; gives its exit code, output and errors as text."""
    sockets = {"unix": f"unix:{nodes['control'].socket}", "tcp": f"tcp://127.0.0.1:{nodes.tcp}"}
    where = {**sockets, "tls": f"tls://127.0.0.1:{nodes.tls}"}[request.param]
    files = {"--rootcas": "ca.crt", "--cert": "control.crt", "--key": "control.key"}
    options = [part for flag, name in files.items() for part in (flag, str(nodes.pki.path(name)))]

    def run(*args, payload=b""):
        command = [RECEPTORCTL, "--socket", where, *(options if request.param == "tls" else []), *args]
        done = subprocess.run(command, input=payload, capture_output=True, env=environment(), timeout=60)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    run.where, run.options = where, options if request.param == "tls" else []
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
    assert code == 0 and text.splitlines()[0].split() == ["receptorctl", "1.6.9"], text


def test_reload(ctl):
    code, text, errors = ctl("reload")
    assert (code, text) == (0, "Reload successful\n"), errors


def test_connect_from_a_terminal(ctl):
    """The client insists on a terminal; the service is another node's control service."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [RECEPTORCTL, "--socket", ctl.where, *ctl.options, "connect", "execution", "control"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
    )
    try:
        os.close(theirs)
        os.write(terminal, b"ping control\n")
        # The greeting is not waited for: when it comes together with the answer, this client swallows it.
        assert any(b'"From":"control"' in line for line in iter(process.stdout.readline, b""))
    finally:
        process.terminate()
        process.wait(20)
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
    command = [RECEPTORCTL, "--socket", ctl.where, *ctl.options, *submit]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60)
    assert done.returncode == 0 and done.stdout == bytes(range(256)) * 1000, done.stderr


def test_work_on_another_node_by_connect(ctl, nodes):
    unit = unit_of(ctl("work", "submit", "cat", "--node", "execution", "-l", "x")[1])
    ctl("work", "results", unit)
    code, text, _ = ctl("work", "list", "--node", "execution")
    remote = nodes["control"].unit(unit)["ExtraData"]["RemoteUnitID"]
    assert code == 0 and list(json.loads(text)) == [remote]


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
