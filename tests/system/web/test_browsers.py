"""What a web page can do that its reader's browser shows: it sends a POST to each kind of listener of a node on the reader's
machine. docs/security.md has the table."""

import json
import socket
import ssl

import pytest

import mesh as harness
import trust
from client import Control
from conftest import scoped_mesh
from mesh import free_port, until
from peer import ROUTING, frame

#: How a node reads `PO`, which is the length of a packet to it.
FIRST_PACKET = int.from_bytes(b"PO", "little")
KINDS = ("control", "control-tls", "tcp-server", "tcp-listener", "tcp-listener-tls", "ws-listener", "metrics", "web", "udp-listener",
         "quic-listener")


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """ctl has a listener of every kind on the loopback, and signs; exe runs what ctl has signed."""
    with scoped_mesh(request.node) as mesh:
        pki = mesh.pki = trust.Pki(mesh.dir / "pki")
        for name, ids in {"ctl": ["ctl"], "person": []}.items():
            pki.issue(name, ids)
        pair = {"cert": str(pki.path("ctl.crt")), "key": str(pki.path("ctl.key")), "clientcas": str(pki.path("ca.crt"))}
        signs, verifies = pki.signing_keys()
        port = mesh.port = {kind: free_port() for kind in KINDS}
        here = {kind: f"127.0.0.1:{port[kind]}" for kind in KINDS}
        bound = {kind: {"bindaddr": "127.0.0.1", "port": port[kind]} for kind in KINDS}
        doors = [
            {"tls-server": {"name": "both", "requireclientcert": True, **pair}}, {"tls-server": {"name": "open", **pair}},
            {"control-service": {"service": "tcpctl", "tcplisten": here["control"]}},
            {"control-service": {"service": "tlsctl", "tcplisten": here["control-tls"], "tcptls": "both"}},
            {"control-service": {"service": "allctl", "forward": "all"}},
            {"tcp-server": {**bound["tcp-server"], "remotenode": "localhost", "remoteservice": "allctl"}},
            {"tcp-listener": bound["tcp-listener"]}, {"tcp-listener": {**bound["tcp-listener-tls"], "tls": "open"}},
            {"ws-listener": bound["ws-listener"]}, {"udp-listener": bound["udp-listener"]},
            {"quic-listener": {**bound["quic-listener"], "tls": "open"}},
            {"metrics": {"address": here["metrics"]}}, {"web": {"address": here["web"], "allow": "admin"}},
        ]
        secured = {"work-command": {"worktype": "secured", "command": "cat", "verifysignature": True}}
        mesh.node("ctl", listen=True, work=harness.WORK, extra=[*signs, *doors])
        mesh.node("exe", peers=["ctl"], work=[secured], extra=verifies)
        yield mesh.start()


def browser(nodes, kind, body, method="POST", path="/", certificate=None, tls=False, host=None, **more):
    """What comes back for a browser's request, up to the end of the connection."""
    port = nodes.port[kind]
    headers = {"Host": host or f"127.0.0.1:{port}", "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", "Accept": "*/*", "Accept-Language": "en-US,en;q=0.9",
               "Accept-Encoding": "gzip, deflate", "Origin": "https://evil.example", "Content-Type": "text/plain", "Content-Length": len(body), **more}
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    client = socket.create_connection(("127.0.0.1", port), 60)
    if tls or certificate:
        context = ssl.create_default_context(cafile=str(nodes.pki.path("ca.crt")))
        if certificate:
            context.load_cert_chain(nodes.pki.path(f"{certificate}.crt"), nodes.pki.path(f"{certificate}.key"))
        client = context.wrap_socket(client, server_hostname="localhost")
    with client:
        answer = b""
        try:
            client.sendall(head.encode() + (body(len(head)) if callable(body) else body))
            while data := client.recv(65536):
                answer += data
        except (ConnectionError, ssl.SSLError):
            pass
        return answer


SUBMISSION = b"".join(json.dumps(line).encode() + b"\n" for line in (
    {"command": "work", "subcommand": "submit", "node": "exe", "worktype": "secured", "signwork": "true"},
    {"command": "work", "subcommand": "submit", "node": "ctl", "worktype": "cat"}))


class Introduction:
    """Fills the packet that the request has begun, and goes on as a neighbour."""

    def __init__(self):
        update = {"NodeID": "page", "UpdateID": "page0001", "UpdateEpoch": 1, "UpdateSequence": 1, "Connections": {"ctl": 1.0, "friend": 1.0},
                  "ForwardingNode": "page", "SuspectedDuplicate": 0}
        self.messages = frame(bytes([ROUTING]) + json.dumps(update).encode()) * 2

    def __len__(self):
        return FIRST_PACKET + len(self.messages)

    def __call__(self, head):
        return b"x" * (FIRST_PACKET + 2 - head) + self.messages


def begun_a_websocket(nodes, **headers):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    return browser(nodes, "ws-listener", b"", method="GET", **upgrade, **headers).split(b"\r\n")[0]


def at_a_control_service(nodes, kind):
    certificate = "person" if kind == "control-tls" else None
    answer = browser(nodes, kind, SUBMISSION, certificate=certificate).decode().splitlines()
    assert answer[0] == "Receptor Control, node ctl" and len(answer) == 2, answer
    assert answer[1].startswith("ERROR: this is the control service of a meshd node, which speaks neither HTTP nor TLS here"), answer


def at_a_listener(nodes, kind):
    browser(nodes, kind, Introduction(), tls=kind.endswith("tls"))


def at_a_websocket(nodes, kind):
    assert browser(nodes, kind, SUBMISSION).split()[1] == b"400"
    assert b" 403 " in begun_a_websocket(nodes)
    # Its own name leads here: it is of the host that it calls.
    port = nodes.port[kind]
    for scheme in ("http", "https"):
        assert b" 403 " in begun_a_websocket(nodes, host=f"evil.example:{port}", Origin=f"{scheme}://evil.example:{port}")


def at_metrics(nodes, kind):
    assert browser(nodes, kind, SUBMISSION, path="/metrics").split()[1] == b"405"
    for path in ("/metrics", "/readyz"):
        assert browser(nodes, kind, b"", method="GET", path=path, host="evil.example", Connection="close").split()[1] == b"421"


def at_the_page(nodes, kind):
    post = {"path": "/api/v1/jobs/1/cancel", "Connection": "close"}
    assert browser(nodes, kind, b"", **post).split()[1] == b"401"
    assert browser(nodes, kind, b"", **post, **{"Sec-Fetch-Site": "cross-site"}).split()[1] == b"403"
    assert browser(nodes, kind, b"", host="evil.example", **post).split()[1] == b"421"
    assert browser(nodes, kind, b'{"token": "x"}', path="/api/v1/session", Connection="close").split()[1] == b"403"


def at_a_datagram_port(nodes, kind):
    """A browser sends what WebRTC and HTTP/3 begin with, of which a page decides little."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        binding = b"\x00\x01\x00\x00\x21\x12\xa4\x42" + b"page" * 3
        for datagram in (binding, binding + SUBMISSION, b"\xc3\x00\x00\x00\x01" + b"\x08" * 1195):
            client.sendto(datagram, ("127.0.0.1", nodes.port[kind]))
        # Nothing counts them: they are what no neighbour begins with.
        until("all to be read", lambda: waiting(nodes.port[kind]) == 0)


def waiting(port):
    """Bytes that have come for a datagram port and that nobody has read."""
    with open("/proc/net/udp") as sockets:
        rows = [row.split() for row in sockets][1:]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if int(row[1].rpartition(":")[2], 16) == port)


DOORS = {"control": at_a_control_service, "control-tls": at_a_control_service, "tcp-server": at_a_control_service, "tcp-listener": at_a_listener,
         "tcp-listener-tls": at_a_listener, "ws-listener": at_a_websocket, "metrics": at_metrics, "web": at_the_page,
         "udp-listener": at_a_datagram_port, "quic-listener": at_a_datagram_port}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_gets_nothing_done(nodes, kind):
    DOORS[kind](nodes, kind)
    until("the way to exe", lambda: nodes["ctl"].reaches("exe"))
    for name in ("ctl", "exe"):
        assert nodes[name].command("work list") == {}, f"a page has made {name} work"
    status = nodes["ctl"].status()
    assert {one["NodeID"] for one in status["Connections"]} == {"exe"}, status["Connections"]
    assert "page" not in status["KnownConnectionCosts"]
    nodes.check_sane()


def test_a_program_that_calls_by_a_name_is_a_neighbour(nodes):
    """A node of receptor and ours send the Origin of what they dial, and nothing of what browsers add."""
    port = nodes.port["ws-listener"]
    head = (f"GET / HTTP/1.1\r\nHost: mesh.example:{port}\r\nUser-Agent: Go-http-client/1.1\r\nConnection: Upgrade\r\nOrigin: http://mesh.example:{port}\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nUpgrade: websocket\r\n\r\n")
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(head.encode())
        assert client.makefile("rb").readline().split()[1] == b"101"


def test_a_client_that_errs_opens_another_connection(nodes):
    with Control(("127.0.0.1", nodes.port["control"])) as control:
        assert control.command("status")["NodeID"] == "ctl" and control.command("status")["NodeID"] == "ctl"
