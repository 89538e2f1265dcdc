"""Signatures of work between real nodes, with an attacker in between who changes the requests they were made for.

The honest nodes are our own control node and a verifying execution node. Between them is a relay that sees every line
in the clear, like a hop of the mesh that an attacker controls.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import time

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from client import Control, ControlError
from conftest import scoped_mesh
from mesh import command_type, free_port, until
from peer import Door
from trust import Pki

WORK = [
    {"work-command": {"worktype": kind, "command": "sh", "params": "-c cat", "allowruntimeparams": True, "verifysignature": True}}
    for kind in ("signed", "other")
] + [command_type("open", "cat")]


class Relay(Door):
    """Takes the place of the execution node's control service; `change` gets each request and each payload."""

    def __init__(self, target):
        self.target, self.requests = target, []
        self.change = lambda request, payload: (request, payload)
        #: Withholds and records the lines for which this is true.
        self.holds_back = lambda request: False
        self.held = []
        super().__init__()

    def serve(self, near):
        with near, contextlib.suppress(OSError, ControlError), Control(("127.0.0.1", self.target), 60) as far:
            near.sendall(far.greeting.encode() + b"\n")
            reader = near.makefile("rb")
            while line := reader.readline():
                if b'"submit"' in line or b'"start"' in line:
                    self.submit(near, reader, far, json.loads(line))
                    return
                if line.startswith(b"{") and self.holds_back(json.loads(line)):
                    self.held.append(json.loads(line))
                    return
                far.socket.sendall(line)
                near.sendall(far.reader.readline())
                if b'"results"' in line or b'"follow"' in line:
                    while data := far.reader.read1(65536):
                        near.sendall(data)
                    return

    def submit(self, near, reader, far, request):
        """It reads the whole payload before it relays it, since it may change it."""
        request, _ = self.change(request, b"")
        self.requests.append(request)
        far.socket.sendall(json.dumps(request).encode() + b"\n")
        is_start = request["subcommand"] == "start"
        answer = b"" if is_start else far.reader.readline()
        near.sendall(answer)
        if not answer.startswith(b"ERROR"):
            _, payload = self.change(request, reader.read())
            far.socket.sendall(payload)
            far.socket.shutdown(socket.SHUT_WR)
            near.sendall(far.reader.readline())
        while is_start and (data := far.reader.read1(65536)):
            near.sendall(data)
            if self.holds_back({"subcommand": "follow"}):
                # It asks for the rest.
                return


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """control, the relay's own node under the name of `execution`, and the real one, which the mesh cannot reach."""
    pki = Pki(tmp_path_factory.mktemp("pki"))
    signer, verifier = pki.signing_keys()
    with scoped_mesh(request.node) as mesh, scoped_mesh(request.node) as real:
        port = free_port()
        tcp = {"control-service": {"service": "tcpctl", "tcplisten": f"127.0.0.1:{port}"}}
        real.node("execution", extra=[*verifier, *WORK, tcp]).start()
        mesh.relay, mesh.pki, mesh.real, mesh.port = Relay(port), pki, real, port
        link = {"tcp-listener": {"bindaddr": "127.0.0.1", "port": free_port()}}
        exit = {"tcp-client": {"service": "control", "address": f"127.0.0.1:{mesh.relay.port}"}}
        mesh.add("execution", [link, exit], service={"service": "notused"})
        peer = {"tcp-peer": {"address": f"127.0.0.1:{link['tcp-listener']['port']}"}}
        mesh.add("control", [peer, *signer])
        yield mesh.start()


@pytest.fixture
def relay(nodes):
    before = nodes.relay.change, nodes.relay.holds_back
    yield nodes.relay
    nodes.relay.change, nodes.relay.holds_back = before
    nodes.relay.held = []
    for unit in nodes["control"].command("work list"):
        nodes["control"].command(f"work force-release {unit}")


def submit(nodes, payload=b"the payload"):
    """A signed job through the relay; returns (the unit's last status, output)."""
    node = nodes["control"]
    with node.control() as control:
        unit = control.begin("execution", "signed", signwork="true", params="''")
        control.socket.sendall(payload)
        control.socket.shutdown(socket.SHUT_WR)
        control.reader.readline()
    status = until("the end", lambda: final(node.unit(unit)))
    return status, node.results(unit) if status["StateName"] == "Succeeded" else b""


def final(status):
    return status if status["StateName"] in ("Succeeded", "Failed", "Canceled") else None


def test_unchanged_requests_arrive(nodes, relay):
    status, output = submit(nodes)
    assert (status["StateName"], output) == ("Succeeded", b"the payload"), status


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("params", "'; touch /tmp/owned'", "the token was made for another set of parameters"),
        ("secret_more", "x", "the token was made for another set of parameters"),
        ("worktype", "other", "the token was made for another work type"),
    ],
)
def test_altered_requests_are_refused(nodes, relay, name, value, reason):
    relay.change = lambda request, payload: ({**request, name: value}, payload)
    status, _ = submit(nodes)
    assert status["StateName"] == "Failed" and reason in status["Detail"], status


@pytest.mark.parametrize("altered", [b"", b"the paylaod", b"the payload and more", b"the paylo"])
def test_an_altered_payload_is_refused(nodes, relay, altered):
    relay.change = lambda request, payload: (request, altered if payload else payload)
    status, _ = submit(nodes)
    assert status["StateName"] == "Failed" and "the payload is not the one that was signed" in status["Detail"], status


def test_a_token_is_good_once(nodes, relay):
    submit(nodes)
    assert answer(nodes, relay.requests[-1]) == "could not verify signature: the token was used before"


def test_a_stolen_token_does_nothing_else(nodes, relay):
    """A token refused at the payload gives no access to existing units."""
    submit(nodes)
    relay.change = lambda request, payload: (request, b"x" if payload else payload)
    submit(nodes)
    tokens = relay.requests[-1]["signature"].split(" ")
    assert len(tokens) == 2
    (unit, *_) = nodes.real["execution"].command("work list")
    for token in tokens:
        for verb in ("cancel", "release", "results"):
            request = {"command": "work", "subcommand": verb, "unitid": unit, "signature": token, "startpos": 0}
            assert "could not verify signature" in answer(nodes, request), verb


def held_back(nodes, relay):
    """A signed job that runs, and a request about it that the relay withheld, so that its token is unused."""
    relay.holds_back = lambda request: request["subcommand"] in ("follow", "results")
    with nodes["control"].control() as control:
        unit = control.submit("execution", "signed", b"all", signwork="true", params="''")["unitid"]
    until("a token", lambda: relay.held)
    relay.holds_back = lambda request: False
    return unit, relay.held[-1]


def test_a_token_is_good_for_its_command_only(nodes, relay):
    unit, request = held_back(nodes, relay)
    for verb in ("cancel", "release", "force-release"):
        stolen = {"command": "work", "subcommand": verb, "unitid": unit, "signature": request["signature"]}
        assert answer(nodes, stolen) == "could not verify signature: the token was made for another command", verb
    until("the end", lambda: final(nodes["control"].unit(unit)))
    assert nodes["control"].results(unit) == b"all"


def test_a_token_from_before_the_start_is_refused_and_replaced(nodes, relay):
    unit, request = held_back(nodes, relay)
    nodes.real["execution"].restart()
    before = "could not verify signature: the token was made before this node started: make another"
    assert answer(nodes, request) == before
    status = until("the end", lambda: final(nodes["control"].unit(unit)))
    assert (status["StateName"], nodes["control"].results(unit)) == ("Succeeded", b"all"), status
    # Files come and go while the node runs.
    nodes.real["execution"].stop()
    for file in nodes.real["execution"].datadir.rglob("*"):
        assert not file.is_file() or request["signature"].encode() not in file.read_bytes(), file
    nodes.real["execution"].start()


def answer(nodes, request):
    """The verifying node's answer to a request over TCP with an empty payload."""
    with Control(("127.0.0.1", nodes.port)) as control:
        control.send(request)
        first = control.reader.readline().decode()
        if first.startswith("ERROR: "):
            return first.removeprefix("ERROR: ").strip()
        control.socket.shutdown(socket.SHUT_WR)
        return first + control.reader.read().decode()


def encoded(part):
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def rs512(pki, claims, header=None):
    """A token with arbitrary claims, signed with the true key."""
    key = serialization.load_pem_private_key(pki.path("work.key").read_bytes(), None)
    text = encoded(header or {"alg": "RS512", "typ": "JWT"}) + b"." + encoded(claims)
    return text + b"." + encoded(key.sign(text, padding.PKCS1v15(), hashes.SHA512()))


def hs256_with_the_public_key(pki, claims):
    text = encoded({"alg": "HS256", "typ": "JWT"}) + b"." + encoded(claims)
    return text + b"." + encoded(hmac.new(pki.path("work.pub").read_bytes(), text, hashlib.sha256).digest())


def unsigned(_, claims):
    return encoded({"alg": "none", "typ": "JWT"}) + b"." + encoded(claims) + b"."


HOUR = 3600
TOKENS = {
    "expired": (rs512, {"exp": -1200, "aud": ["execution"]}, "token is expired by 12"),
    "no expiry": (rs512, {"aud": ["execution"]}, "the token has no expiry"),
    "wrong audience": (rs512, {"exp": HOUR, "aud": ["control"]}, "token audience did not match node ID: it is for control"),
    "no audience": (rs512, {"exp": HOUR}, "token audience did not match node ID: it is for nobody"),
    "none": (unsigned, {"exp": HOUR, "aud": ["execution"]}, "the token is malformed"),
    "HS256 with the public key": (hs256_with_the_public_key, {"exp": HOUR, "aud": ["execution"]}, "not signed with RS512"),
}


@pytest.mark.parametrize("kind", TOKENS)
def test_bad_tokens(nodes, kind):
    make, claims, reason = TOKENS[kind]
    claims = {**claims, "exp": int(time.time()) + claims["exp"]} if "exp" in claims else claims
    token = make(nodes.pki, claims).decode()
    request = {"command": "work", "subcommand": "submit", "node": "execution", "worktype": "signed", "signature": token}
    assert reason in answer(nodes, request)
    assert "signature is empty" in answer(nodes, {**request, "signature": ""})


def test_a_good_token_of_a_receptor_node(nodes):
    """The same code as for the tokens above, to show that those are refused for their own reasons."""
    token = rs512(nodes.pki, {"exp": int(time.time()) + HOUR, "aud": ["execution"]}).decode()
    request = {"command": "work", "subcommand": "submit", "node": "execution", "worktype": "signed", "signature": token}
    assert "Job Started" in answer(nodes, request)


def test_the_own_socket_needs_no_signature(nodes):
    """Its file mode decides who may connect; TCP, like the mesh, needs a signature."""
    real = nodes.real["execution"]
    unit, output = real.run("execution", "signed", b"mine")
    assert output == b"mine"
    assert "signature is empty" in answer(nodes, {"command": "work", "subcommand": "release", "unitid": unit})
    real.command(f"work release {unit}")
    with real.control() as control, pytest.raises(ControlError, match="work type did not expect a signature"):
        control.begin("execution", "open", signature="x")
    assert "did not expect a signature" in answer(nodes, {"command": "work", "subcommand": "submit", "node": "execution", "worktype": "open", "signature": "x"})


PRIVATE = {"PKCS#1": serialization.PrivateFormat.TraditionalOpenSSL, "PKCS#8": serialization.PrivateFormat.PKCS8}
PUBLIC = {"PKCS#1": serialization.PublicFormat.PKCS1, "SPKI": serialization.PublicFormat.SubjectPublicKeyInfo}


@pytest.mark.parametrize("private, public", [("PKCS#1", "SPKI"), ("PKCS#8", "PKCS#1")])
def test_keys_of_every_form(mesh, tmp_path, private, public):
    """In the formats of current and older versions of openssl."""
    key, pem, port = rsa.generate_private_key(65537, 2048), serialization.Encoding.PEM, free_port()
    (tmp_path / "key").write_bytes(key.private_bytes(pem, PRIVATE[private], serialization.NoEncryption()))
    (tmp_path / "pub").write_bytes(key.public_key().public_bytes(pem, PUBLIC[public]))
    verification = {"work-verification": {"publickey": str(tmp_path / "pub")}}
    mesh.add("execution", [*WORK, verification, {"tcp-listener": {"bindaddr": "127.0.0.1", "port": port}}])
    mesh.add("control", [{"work-signing": {"privatekey": str(tmp_path / "key")}}, {"tcp-peer": {"address": f"127.0.0.1:{port}"}}])
    mesh.start()
    _, output = mesh["control"].run("execution", "signed", b"signed", signwork="true")
    assert output == b"signed"
