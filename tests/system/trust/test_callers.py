"""What untrusted callers of a control service may do: on the mesh, and on a TCP port that others can reach."""

import contextlib
import functools
import json
import socket
import ssl
import subprocess
import time

import pytest

import mesh as harness
import trust
from client import Control, ControlError
from conftest import scoped_mesh
from mesh import MESHD, environment, free_port, until

MIB = 1024 * 1024
#: Seconds for which a node reads on once it has written its last byte.
LINGER = 2
NOT_ALLOWED = (
    "over this connection is not allowed: use the Unix socket, a client certificate, or forward of control-service"
)


class Tunnel(Control):
    """The control service of another node, through the caller's own node."""

    def __init__(self, node, target, service="control", timeout=60):
        super().__init__(str(node.socket), timeout)
        assert self.ask(f"connect {target} {service}") == "Connecting"
        assert self.line() == f"Receptor Control, node {target}"


class Tls(Control):
    """A control service behind TLS."""

    def __init__(self, port, pki, certificate=None):
        self.context = ssl.create_default_context(cafile=str(pki.path("ca.crt")))
        if certificate:
            self.context.load_cert_chain(pki.path(f"{certificate}.crt"), pki.path(f"{certificate}.key"))
        plain = socket.create_connection(("127.0.0.1", port), 60)
        self.socket = self.context.wrap_socket(plain, server_hostname="localhost")
        # Like receptorctl: below TLS; answers can still be read.
        self.socket.shutdown = functools.partial(socket.socket.shutdown, self.socket)
        self.greet(60)


def service(name, port, address="0.0.0.0", **more):
    return {"control-service": {"service": name, "tcplisten": f"{address}:{port}", **more}}


@pytest.fixture(scope="module")
def nodes(request):
    """exe and evil are neighbours of ctl, which signs; exe only runs signed work. ctl has TCP ports of several kinds.
    """
    with scoped_mesh(request.node) as mesh:
        pki = mesh.pki = trust.Pki(mesh.dir / "pki")
        pki.issue("ctl", ["ctl"])
        pki.issue("person", [])
        pki.issue("other", ["evil"])
        signs, verifies = pki.signing_keys()
        pair = {"cert": str(pki.path("ctl.crt")), "key": str(pki.path("ctl.key"))}
        tls = [
            {"tls-server": {"name": "open", **pair}},
            {
                "tls-server": {
                    "name": "mutual",
                    **pair,
                    "clientcas": str(pki.path("ca.crt")),
                    "requireclientcert": True,
                }
            },
        ]
        kinds = ("plain", "loopback", "tls", "mutual", "tcp", "all")
        port = mesh.tcp = {kind: free_port() for kind in kinds}
        doors = [
            service("plain", port["plain"]),
            service("loopback", port["loopback"], "127.0.0.1"),
            service("tls", port["tls"], tcptls="open"),
            service("mutual", port["mutual"], tcptls="mutual"),
            service("tcp", port["tcp"], forward="tcp"),
            service("all", port["all"], forward="all"),
        ]
        secured = {"work-command": {"worktype": "secured", "command": "cat", "verifysignature": True}}
        mesh.node("ctl", listen=True, work=harness.WORK, extra=[*signs, *tls, *doors])
        mesh.node("exe", peers=["ctl"], work=[secured], extra=verifies)
        mesh.node("evil", peers=["ctl"])
        yield mesh.start()


@contextlib.contextmanager
def opened(nodes, way):
    """A connection to ctl."""
    match way:
        case "unix":
            control = nodes["ctl"].control()
        case "mesh":
            control = Tunnel(nodes["evil"], "ctl")
        case "mesh-all":
            control = Tunnel(nodes["evil"], "ctl", "all")
        case "mesh-tcp":
            control = Tunnel(nodes["evil"], "ctl", "tcp")
        case "tls":
            control = Tls(nodes.tcp["tls"], nodes.pki)
        case "mutual":
            control = Tls(nodes.tcp["mutual"], nodes.pki, "person")
        case "own":
            control = Tls(nodes.tcp["mutual"], nodes.pki, "ctl")
        case "other":
            control = Tls(nodes.tcp["mutual"], nodes.pki, "other")
        case _:
            control = Control(("127.0.0.1", nodes.tcp[way]))
    with control:
        yield control


def submission(node, worktype, **more):
    return {"command": "work", "subcommand": "submit", "node": node, "worktype": worktype, **more}


BEYOND = [
    (submission("exe", "secured", signwork="true"), "signwork"),
    (submission("ctl", "cat", signwork="true"), "signwork"),
    (submission("exe", "cat"), "work submit to another node"),
    ("reload", "reload"),
    ("loglevel debug", "loglevel"),
    ("loglevel", "loglevel"),
    ("node forget nobody", "node forget"),
    ("node cache clear", "node cache clear"),
    ("link test exe", "link test"),
    ("connect exe control", "connect to another node"),
]


@pytest.mark.parametrize("way", ["mesh", "mesh-tcp", "plain", "tls", "other"])
def test_strangers_act_on_this_node_alone(nodes, way):
    before = nodes["exe"].command("work list")
    level = nodes["ctl"].command("loglevel")
    with opened(nodes, way) as control:
        for line, what in BEYOND:
            with pytest.raises(ControlError) as refused:
                control.ask(line)
            assert str(refused.value) == f"{what} {NOT_ALLOWED}", line
        assert control.command("status")["NodeID"] == "ctl"
        assert control.command({"command": "ping", "target": "exe"})["Success"]
    assert nodes["exe"].command("work list") == before, "something was submitted in ctl's name"
    assert nodes["ctl"].command("loglevel") == level
    for name in ("ctl", "localhost"):
        with opened(nodes, way) as control:
            unit = control.submit(name, "cat", b"mine")["unitid"]
        with opened(nodes, way) as control:
            assert control.results(unit).read() == b"mine"
        with opened(nodes, way) as control:
            assert control.command(f"work status {unit}")["StateName"] == "Succeeded"
            assert control.command(f"work release {unit}") == {"released": unit}


@pytest.mark.parametrize("way", ["unix", "loopback", "mutual", "own", "tcp", "all", "mesh-all"])
def test_trusted_clients_do_as_before(nodes, way):
    with opened(nodes, way) as control:
        level = control.command("loglevel")["Level"]
        assert control.command(f"loglevel {level}")["Level"] == level
        assert control.command("reload")["Success"] in (True, False)
        with pytest.raises(ControlError, match="^(?!.*not allowed)"):
            control.ask("node forget nobody")
        with pytest.raises(ControlError, match="^nobody is not a neighbour of this node"):
            with opened(nodes, way) as other:
                other.ask("link test nobody")
        unit = control.submit("exe", "secured", b"signed", signwork="true")["unitid"]
    assert nodes["ctl"].results(unit) == b"signed"
    nodes["ctl"].command(f"work release {unit}")
    with opened(nodes, way) as control:
        assert control.ask("connect exe control") == "Connecting"
        assert control.line() == "Receptor Control, node exe"


def test_a_list_over_the_mesh_has_the_callers_units(nodes):
    ctl = nodes["ctl"]
    own = ctl.run("ctl", "cat")[0]
    units = {}
    for name in ("evil", "exe"):
        with Tunnel(nodes[name], "ctl") as control:
            units[name] = control.submit("ctl", "cat")["unitid"]

    def check():
        for name, unit in units.items():
            with Tunnel(nodes[name], "ctl") as control:
                assert list(control.command("work list")) == [unit]
            with Tunnel(nodes[name], "ctl") as control:
                assert list(control.command(f"work list {own}")) == [own], "who knows an ID may ask for it"
        assert set(ctl.command("work list")) == {own, *units.values()}

    check()
    ctl.restart()
    nodes.wait_for_routes()
    check()
    ctl.release_all()


def test_check_warns_of_a_control_service_that_trusts_everybody(nodes):
    command = [str(MESHD), "check", "--running", str(nodes["ctl"].config)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    warnings = [line for line in done.stdout.splitlines() if "forward: all" in line]
    assert len(warnings) == 1 and "control-service all" in warnings[0], done.stdout


@pytest.fixture
def bounded(mesh):
    """ctl allows a calling node three units and 1000 bytes."""
    mesh.node("ctl", listen=True, work=harness.WORK)
    mesh.node("evil", peers=["ctl"])
    mesh.node("other", peers=["ctl"])
    directives = json.loads(mesh["ctl"].config.read_text())
    directives[0]["node"].update(peerunits=3, peerpayload=1000)
    mesh["ctl"].config.write_text(json.dumps(directives))
    return mesh.start()


def test_the_units_of_a_calling_node_are_bounded(bounded):
    ctl, evil = bounded["ctl"], bounded["evil"]

    def submit(node, payload=b""):
        with Tunnel(node, "ctl") as control:
            return control.submit("ctl", "cat", payload)["unitid"]

    def refused(node):
        with pytest.raises(ControlError) as error:
            submit(node)
        text = str(error.value)
        assert "(peerunits of node)" in text and " 3 units" in text and f"node {node.name}" in text, text

    units = [submit(evil, b"x" * 300) for _ in range(3)]
    refused(evil)
    # Without a certificate an ID proves nothing.
    refused(bounded["other"])
    operators = [ctl.run("ctl", "cat", b"y" * 5000)[0] for _ in range(4)]
    ctl.command(f"work release {units.pop()}")
    with pytest.raises(ControlError) as error:
        submit(evil, b"x" * 401)
    assert "(peerpayload of node)" in str(error.value) and " 1000 bytes" in str(error.value)
    failed = set(ctl.command("work list")) - {*units, *operators}
    assert [ctl.unit(unit)["StateName"] for unit in failed] == ["Failed"]
    ctl.command(f"work release {failed.pop()}")
    submit(evil, b"x" * 400)
    ctl.restart()
    bounded.wait_for_routes()
    refused(evil)


def test_a_payload_that_nobody_reads_counts_again_after_a_restart(bounded):
    ctl, evil = bounded["ctl"], bounded["evil"]

    def submit(worktype, payload, **params):
        with Tunnel(evil, "ctl") as control:
            return control.submit("ctl", worktype, payload, **params)["unitid"]

    # What is read is removed, and counts no more once the node looks anew.
    read = submit("cat", b"x" * 300)
    until("it to end", lambda: ctl.unit(read)["StateName"] == "Succeeded")
    kept = submit("sh", b"x" * 700, params="'sleep 1000'")
    for _ in range(2):
        with pytest.raises(ControlError, match="peerpayload of node"):
            submit("cat", b"x" * 301)
        failed = [unit for unit, report in ctl.command("work list").items() if report["StateName"] == "Failed"]
        assert len(failed) == 1
        ctl.command(f"work release {failed[0]}")
        ctl.restart()
        bounded.wait_for_routes()
    submit("cat", b"x" * 300)
    ctl.command(f"work release {kept}")


def test_many_requested_fields_take_no_time(nodes):
    """The line has a megabyte; fields that it repeats are reported once."""
    fields = ["NodeID", *(f"x{n}" for n in range(100_000)), "NodeID", "Version"]
    with nodes["ctl"].control(timeout=30) as control:
        answer = control.command({"command": "status", "requested_fields": fields})
    assert answer.keys() == {"NodeID", "Version"}


@pytest.mark.parametrize("answer", [True, False])
def test_a_killed_client_has_not_sent_everything(nodes, answer):
    """The kernel closes the socket of a killed client at once."""
    ctl = nodes["ctl"]
    with ctl.control() as control:
        unit = control.begin("ctl", "cat")
        control.socket.sendall(b"first half")
        if answer:
            control.socket.shutdown(socket.SHUT_WR)
            assert json.loads(control.line())["unitid"] == unit
    final = until("the unit's end", lambda: (s := ctl.unit(unit))["StateName"] in ("Failed", "Succeeded") and s)
    if answer:
        assert final["StateName"] == "Succeeded"
    else:
        assert final["StateName"] == "Failed"
        assert final["Detail"].startswith("Error reading input data: the client went away after 10 bytes"), final
    ctl.command(f"work release {unit}")


@pytest.mark.parametrize("way", ["plain", "mutual"])
@pytest.mark.parametrize("announced, whole", [("10", True), ("20", False), ("9", False), ("", True)])
def test_a_payload_over_tcp_is_as_long_as_announced(nodes, way, announced, whole):
    ctl = nodes["ctl"]
    with opened(nodes, way) as control:
        unit = control.begin("ctl", "cat", payloadlength=announced)
        control.socket.sendall(b"first half")
        control.socket.shutdown(socket.SHUT_WR)
        if whole:
            assert json.loads(control.line())["unitid"] == unit
            assert ctl.results(unit) == b"first half"
        else:
            with pytest.raises(ControlError, match="the client went away after 10 bytes|payloadlength is 9"):
                control.line()
            assert ctl.unit(unit)["StateName"] == "Failed"
            assert ctl.unit(unit)["Detail"].startswith("Error reading input data: ")
    ctl.command(f"work release {unit}")


def test_a_length_is_a_number(nodes):
    for bad in ("x", "-1", "+1", "1e3", "99999999999999999999"):
        with pytest.raises(ControlError, match="payloadlength must be a decimal number of bytes"):
            nodes["ctl"].command(submission("ctl", "cat", payloadlength=bad))


def test_a_length_is_not_forwarded(nodes):
    ctl = nodes["ctl"]
    with ctl.control() as control:
        unit = control.submit("exe", "secured", b"abc", signwork="true", payloadlength="3")["unitid"]
    assert ctl.results(unit) == b"abc"
    assert "payloadlength" not in json.dumps(ctl.unit(unit))
    ctl.command(f"work release {unit}")


@pytest.mark.parametrize("way", ["unix", "loopback", "tls", "mesh"])
def test_results_end_before_the_client_closes(nodes, way):
    """The node closes its write side after the last byte and still reads for a moment, so late input loses nothing."""
    payload = b"r" * 3_000_000
    unit = nodes["ctl"].run("ctl", "cat", payload)[0]
    with opened(nodes, way) as control:
        begun = time.monotonic()
        control.send(f"work results {unit}")
        control.socket.sendall(b"something that nobody asked for\n" * 100)
        assert control.line() == f"Streaming results for work unit {unit}"
        assert control.reader.read() == payload
        # Our direction is open until we close it, for that moment.
        try:
            control.socket.sendall(b"still here\n")
        except ConnectionError:
            assert time.monotonic() - begun > LINGER, "it was closed at once"
    nodes["ctl"].command(f"work release {unit}")


def test_lines_that_do_not_end_share_a_bound(nodes):
    """Strangers can neither fill the memory with half lines, nor keep trusted clients from sending theirs."""
    ctl = nodes["ctl"]
    before, strangers, taken = ctl.rss(), [], 0
    line = b"x" * (MIB - 1)
    try:
        for _ in range(100):
            control = Control(("127.0.0.1", nodes.tcp["plain"]))
            control.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            control.socket.setblocking(False)
            strangers.append([control, 0])
        quiet = 0

        def is_full():
            """Whether it takes no more. A busy machine may take a while between two pieces."""
            nonlocal quiet, taken
            quiet += 1
            for stranger in strangers:
                with contextlib.suppress(BlockingIOError):
                    if stranger[1] < len(line):
                        stranger[1] += stranger[0].socket.send(line[stranger[1] :])
                        quiet = 0
            taken = sum(sent for _, sent in strangers)
            return quiet >= 50 and taken > 32 * MIB

        until("more than 32 MiB to be taken, and then no more", is_full, 60, pause=0.01)
        assert ctl.rss() - before < 60 * MIB, (ctl.rss() - before, taken)
        with ctl.control() as control:
            with pytest.raises(ControlError, match="^Unknown command"):
                control.ask("y" * MIB)
    finally:
        for control, _ in strangers:
            control.close()
