"""Neighbours with wrong certificates: none gets in, and our log says why.

The neighbour runs meshd, or either release of the Go implementation if the environment names it. Each implementation
accepts certificates made by the other.
"""

import contextlib
import datetime
import json
import os
import socket
import ssl
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import go
import links
from client import ControlError
from mesh import MESHCTL, MESHD, environment, free_port, until
from trust import Pki, run

NEIGHBOURS = [pytest.param("meshd"), *go.EACH]

#: Wrong certificates: how each is made, and the line in our log.
WRONG = {
    "wrong-ca": (
        {"authority": "stranger"},
        "the certificate of wrong-ca is signed by stranger, which is not among the authorities in",
    ),
    "expired": ({"start": -3, "end": -1}, "the certificate of expired has expired on"),
    "not-yet": ({"start": 1, "end": 3}, "the certificate of not-yet is valid from"),
}


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    pki = Pki(tmp_path_factory.mktemp("pki"))
    pki.authority("stranger")
    pki.issue("us", ["us"])
    pki.issue("them", ["them"])
    pki.issue("somebody", ["somebody"])
    pki.issue("plain", [])
    for name, (how, _) in WRONG.items():
        pki.issue(name, ["them"], **how)
    return pki


def joined(mesh, neighbour, ours, theirs, who_dials, backend="tcp-mtls"):
    """Two nodes and a link between them; the directives are profiles."""
    port = free_port()
    ends = {True: links.peer(backend, port), False: links.listener(backend, port)}
    us = mesh.add("us", [{"log-level": "info"}, *ours, ends[who_dials == "us"]])
    them = mesh.add("them", [{"log-level": "info"}, *theirs, ends[who_dials == "them"]], go.program(neighbour))
    for node in (us, them):
        node.start()
    return us, them


def refused(us, them, reason):
    until(f"the words {reason!r}", lambda: reason in us.log())
    assert us.status()["Connections"] == []
    return them


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("dials", ["us", "them"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_bad_certificate(mesh, pki, neighbour, dials, wrong):
    theirs = pki.profiles(wrong, skipreceptornamescheck=True)
    us, them = joined(mesh, neighbour, pki.profiles("us"), theirs, dials)
    refused(us, them, WRONG[wrong][1])
    if neighbour == "meshd":
        until("the other side to say whose log has the reason", lambda: "does not accept our certificate" in them.log())


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("dials", ["us", "them"])
def test_a_certificate_for_another_node(mesh, pki, neighbour, dials):
    theirs = pki.profiles("somebody", skipreceptornamescheck=True)
    us, _ = joined(mesh, neighbour, pki.profiles("us"), theirs, dials)
    refused(us, None, "it calls itself them, but its certificate names somebody")


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_missing_client_certificate(mesh, pki, neighbour):
    # A Go node does not start without these two, but accepts empty values.
    none = {} if neighbour == "meshd" else {"cert": "", "key": ""}
    theirs = [{"tls-client": {"name": "client", "rootcas": str(pki.path("ca.crt")), **none}}]
    us, them = joined(mesh, neighbour, pki.profiles("us"), theirs, "them")
    refused(us, them, "the client sent no certificate: set cert and key in its tls-client")
    if neighbour == "meshd":
        until("the other side's reason", lambda: "set cert and key in the tls-client" in them.log())


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("dials", ["us", "them"])
def test_one_end_without_tls(mesh, pki, neighbour, dials):
    port = free_port()
    ours = links.peer("tcp-mtls", port) if dials == "us" else links.listener("tcp-mtls", port)
    theirs = links.listener("tcp", port) if dials == "us" else links.peer("tcp", port)
    us = mesh.add("us", [{"log-level": "info"}, *pki.profiles("us"), ours]).start()
    mesh.add("them", [{"log-level": "info"}, theirs], go.program(neighbour)).start()
    refused(us, None, "the peer does not speak TLS")


@pytest.mark.parametrize("neighbour", go.EACH)
@pytest.mark.parametrize("dials", ["us", "them"])
def test_certificates_made_by_the_go_program(mesh, tmp_path, neighbour, dials):
    theirs = Pki(tmp_path / "pki", go.program(neighbour))
    for name in ("us", "them"):
        theirs.issue(name, [name])
    run(MESHCTL, "cert", "verify", theirs.path("us.crt"), "--ca", theirs.path("ca.crt"), "--node", "us")
    joined(mesh, neighbour, theirs.profiles("us"), theirs.profiles("them"), dials)
    mesh.wait_for_routes()


@pytest.mark.parametrize("neighbour", go.EACH)
@pytest.mark.parametrize("dials", ["us", "them"])
def test_a_request_of_one_program_signed_by_the_other(mesh, tmp_path, neighbour, dials):
    """Authorities of both programs sign each other's requests, and one bundle holds both."""
    files = Pki(tmp_path / "pki", MESHD)
    ours, theirs = MESHD, go.program(neighbour)
    files.program = theirs
    files.authority("goca")
    names = ["dnsname=localhost", "ipaddress=127.0.0.1"]
    for name, asks, signs, authority in (("us", ours, theirs, "goca"), ("them", theirs, ours, "ca")):
        files.program = asks
        files.cert("makereq", f"commonname={name}", "bits=2048", *names, f"nodeid={name}", f"outreq={name}.req", f"outkey={name}.key")
        files.program = signs
        files.cert("signreq", f"req={name}.req", f"cacert={authority}.crt", f"cakey={authority}.key", f"outcert={name}.crt", "verify=true")
    bundle = files.path("bundle.crt")
    bundle.write_text(files.path("ca.crt").read_text() + files.path("goca.crt").read_text())
    joined(mesh, neighbour, files.profiles("us", "bundle"), files.profiles("them", "bundle"), dials)
    mesh.wait_for_routes()


@pytest.mark.parametrize("neighbour", go.EACH)
@pytest.mark.parametrize("dials", ["us", "them"])
def test_an_elliptic_certificate_of_ours_serves_a_go_node(mesh, tmp_path, neighbour, dials):
    pki = Pki(tmp_path / "pki")
    for name in ("us", "them"):
        files = {option: pki.path(f"{name}.{end}") for option, end in (("--outreq", "req"), ("--outkey", "key"))}
        pairs = [part for item in files.items() for part in item]
        run(MESHCTL, "cert", "makereq", "--commonname", name, "--nodeid", name, "--dnsname", "localhost", "--ipaddress", "127.0.0.1", "--key", "ecdsa", *pairs)
        pki.cert("signreq", f"req={name}.req", "cacert=ca.crt", "cakey=ca.key", f"outcert={name}.crt", "verify=true")
    joined(mesh, neighbour, pki.profiles("us"), pki.profiles("them"), dials)
    mesh.wait_for_routes()


def shakes_hands(pki, port, newest):
    """The TLS version that a client with a certificate negotiates; None if it is refused."""
    context = ssl.create_default_context(cafile=str(pki.path("ca.crt")))
    context.load_cert_chain(pki.path("them.crt"), pki.path("them.key"))
    context.maximum_version = newest
    with contextlib.suppress(ssl.SSLError, ConnectionError), socket.create_connection(("127.0.0.1", port), 20) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            return tls.version()
    return None


def test_tls_1_2_is_accepted_unless_the_profile_says_otherwise(mesh, pki):
    old, new = free_port(), free_port()
    profiles = pki.profiles("us")
    strict = {"tls-server": {**profiles[0]["tls-server"], "name": "strict", "mintls13": True}}
    listeners = [links.listener("tcp-mtls", old), links.listener("tcp-mtls", new)]
    listeners[1]["tcp-listener"]["tls"] = "strict"
    mesh.add("us", [*profiles, strict, *listeners]).start()
    versions = [shakes_hands(pki, port, newest) for port in (old, new) for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]
    assert versions == ["TLSv1.2", "TLSv1.3", None, "TLSv1.3"]


def verified(*args):
    """The output of `meshctl cert verify`, and whether it accepts."""
    done = subprocess.run([MESHCTL, "cert", "verify", *map(str, args)], capture_output=True, text=True, env=environment(), timeout=60)
    return done.returncode == 0, done.stdout + done.stderr


def test_certificates_that_a_profile_accepts(pki, tmp_path):
    """`meshctl cert verify` judges by a profile of the configuration, like a node with that configuration."""
    config, blocked = tmp_path / "c.yml", tmp_path / "blocked"
    them = x509.load_pem_x509_certificate(pki.path("them.crt").read_bytes()).fingerprint(hashes.SHA512()).hex()
    server, client = pki.profiles("us", blocklist=str(blocked))
    pinned = {"tls-client": {**client["tls-client"], "name": "pinned", "pinnedservercert": [them]}}
    insecure = {"tls-client": {"name": "insecure", "insecureskipverify": True}}
    both = [{"tls-server": {**server["tls-server"], "name": "both"}}, {"tls-client": {**client["tls-client"], "name": "both"}}]
    config.write_text(json.dumps([{"node": {"id": "us"}}, "local-only", server, client, pinned, insecure, *both]))
    blocked.write_text("")
    by = lambda profile, name, *more: verified(pki.path(f"{name}.crt"), "--config", config, "--profile", profile, *more)  # noqa: E731
    for profile, name, more, accepted, says in [
        ("server", "them", ["--node", "them"], True, "accepted"),
        ("server", "them", ["--node", "us"], False, "expected node us, found node them"),
        ("server", "wrong-ca", [], False, f"not among the authorities in {pki.path('ca.crt')}"),
        ("client", "expired", [], False, "has expired on"),
        ("client", "them", ["--host", "localhost"], True, "accepted"),
        ("client", "them", ["--host", "hop.example"], False, "expected host hop.example"),
        ("pinned", "them", [], True, "accepted"),
        ("pinned", "somebody", [], False, "is not pinned"),
        ("insecure", "wrong-ca", [], True, "accepted"),
        ("both", "them", [], False, "choose one with --purpose"),
        ("both", "them", ["--purpose", "client"], True, "accepted"),
        ("client", "them", ["--purpose", "client"], False, 'there is no tls-server named "client"'),
        ("nobody", "them", [], False, 'there is no TLS profile named "nobody"'),
    ]:
        assert by(profile, name, *more)[0] == accepted and says in by(profile, name, *more)[1], (profile, name, more, by(profile, name, *more))
    blocked.write_text(them + "\n")
    accepted, said = by("server", "them")
    assert not accepted and "is blocked" in said
    accepted, said = verified(pki.path("them.crt"), "--ca", pki.path("ca.crt"), "--profile", "server")
    assert not accepted and "cannot be used with" in said


@pytest.mark.parametrize("kind", [kind for kind, (_, tls) in links.OWN.items() if tls])
@pytest.mark.parametrize(
    "options, name, outcome",
    [
        ({}, "plain", "the certificate of plain names no node"),
        ({"requirenodeid": False}, "plain", None),
        ({"skipreceptornamescheck": True}, "plain", None),
        ({"requirenodeid": False}, "somebody", "it calls itself them, but its certificate names somebody"),
        ({"requireclientcert": False}, "plain", None),
    ],
    ids=["refused", "requirenodeid", "skipreceptornamescheck", "still-held-to-its-name", "not-required"],
)
def test_a_neighbour_whose_certificate_names_no_node(mesh, pki, kind, options, name, outcome):
    server, client = pki.profiles("us")
    server["tls-server"].update(options)
    theirs = pki.profiles(name, skipreceptornamescheck=True)
    us, them = joined(mesh, "meshd", [server, client], theirs, "them", kind)
    if outcome is None:
        mesh.wait_for_routes()
        return
    refused(us, them, outcome)
    if "names no node" in outcome:
        us.logged("`requirenodeid: false`", "skipreceptornamescheck")


def test_people_need_no_node_id(mesh, pki):
    """The certificates of clients of the control service name people."""
    port = free_port()
    us = mesh.add("us", ["local-only", *pki.profiles("us")], service={"tcplisten": f"127.0.0.1:{port}", "tcptls": "server"}).start()
    context = ssl.create_default_context(cafile=str(pki.path("ca.crt")))
    context.load_cert_chain(pki.path("plain.crt"), pki.path("plain.key"))
    with socket.create_connection(("127.0.0.1", port), 20) as plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
        assert tls.makefile("rb").readline() == b"Receptor Control, node us\n"


def test_a_listener_needs_no_node_id(mesh, pki):
    joined(mesh, "meshd", pki.profiles("us"), pki.profiles("plain", skipreceptornamescheck=True), "us")
    mesh.wait_for_routes()


def self_signed(tmp_path):
    """A certificate as people first make one; openssl marks it as an authority's."""
    cert, key = tmp_path / "self.crt", tmp_path / "self.key"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", names, "-keyout", key, "-out", cert)
    return str(cert), str(key)


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("dials", ["us", "them"])
def test_a_self_signed_certificate(mesh, tmp_path, neighbour, dials):
    cert, key = self_signed(tmp_path)
    own = {"cert": cert, "key": key, "skipreceptornamescheck": True}
    server, client = {"tls-server": {"name": "server", **own}}, {"tls-client": {"name": "client", **own, "rootcas": cert}}
    joined(mesh, neighbour, [server, client], [server, client], dials)
    mesh.wait_for_routes()


@pytest.mark.parametrize("bits, warning", [(2048, "has no CA flag (X.509 version 1)"), (1024, "has an RSA key of 1024 bits")])
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_an_authority_of_version_1(mesh, tmp_path, neighbour, bits, warning):
    """As `openssl x509 -req -signkey` makes it: a Go node uses it, so do we, with a warning."""
    path = lambda name: str(tmp_path / name)  # noqa: E731

    def request(name, key):
        run("openssl", "req", "-new", "-newkey", key, "-nodes", "-subj", f"/CN={name}", "-keyout", path(f"{name}.key"), "-out", path(f"{name}.csr"))

    request("ca", f"rsa:{bits}")
    run("openssl", "x509", "-req", "-in", path("ca.csr"), "-signkey", path("ca.key"), "-days", "9", "-out", path("ca.crt"))
    for node in ("us", "them"):
        request(node, "rsa:2048")
        names = f"subjectAltName=DNS:localhost,IP:127.0.0.1,otherName:1.3.6.1.4.1.2312.19.1;UTF8:{node}\n"
        (tmp_path / f"{node}.ext").write_text(names)
        by = ["-CA", path("ca.crt"), "-CAkey", path("ca.key"), "-CAcreateserial", "-extfile", path(f"{node}.ext")]
        run("openssl", "x509", "-req", "-in", path(f"{node}.csr"), *by, "-days", "9", "-out", path(f"{node}.crt"))

    def profiles(node):
        own = {"cert": path(f"{node}.crt"), "key": path(f"{node}.key")}
        server = {"name": "server", **own, "clientcas": path("ca.crt"), "requireclientcert": True}
        return [{"tls-server": server}, {"tls-client": {"name": "client", **own, "rootcas": path("ca.crt")}}]

    us, _ = joined(mesh, neighbour, profiles("us"), profiles("them"), "us")
    mesh.wait_for_routes()
    us.logged(warning, "because it is named here")


def test_a_check_warns_that_peers_refuse_a_certificate(pki, tmp_path):
    cert, key = self_signed(tmp_path)
    config = tmp_path / "c.yml"
    own = {"cert": cert, "key": key, "skipreceptornamescheck": True}

    def check(**more):
        server = {"tls-server": {"name": "server", **own, **more}}
        config.write_text(json.dumps([{"node": {"id": "us", "datadir": str(tmp_path / "data")}}, "local-only", server]))
        done = subprocess.run([MESHD, "check", config], capture_output=True, text=True, env=environment(), timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "tls-server server: peers refuse it: the certificate of localhost is an authority's (CA:TRUE)" in check()
    assert "refuse" not in check(clientcas=cert)
    warning = "requireclientcert without clientcas trusts the system's authorities"
    assert warning in check(requireclientcert=True) and warning not in check(requireclientcert=True, clientcas=cert)


def many_authorities(pki, name, count):
    """The mesh's authority, and many others with names of 150 bytes, in one file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    bundle = [pki.path("ca.crt").read_bytes()]
    for number in range(count):
        parts = {x509.NameOID.ORGANIZATION_NAME: "o" * 60, x509.NameOID.ORGANIZATIONAL_UNIT_NAME: "u" * 60, x509.NameOID.COMMON_NAME: f"{number:04}"}
        subject = x509.Name([x509.NameAttribute(oid, text) for oid, text in parts.items()])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        builder = builder.serial_number(number + 1).not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=9))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        bundle.append(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    pki.path(f"{name}.crt").write_bytes(b"".join(bundle))


@pytest.mark.parametrize("other", NEIGHBOURS)
@pytest.mark.parametrize("count", [300, 500])
def test_services_that_trust_many_authorities(mesh, pki, other, count):
    """In both directions: a Go listener lists all of them in its handshake; ours lists none."""
    name = f"many{count}"
    many_authorities(pki, name, count)
    port = free_port()
    for node, link in (("us", links.listener("tcp", port)), ("them", links.peer("tcp", port))):
        server, _ = pki.profiles(node, name)
        _, client = pki.profiles(node)
        program = MESHD if node == "us" else go.program(other)
        mesh.add(node, [{"log-level": "info"}, server, client, link], program, {"tls": "server"})
    mesh.start()
    for here, there in (("us", "them"), ("them", "us")):
        with mesh[here].control() as control:
            if count > 300 and here == "us" and other != "meshd":
                # A Go listener cannot list that many: the old release fails, the new one falls silent.
                with pytest.raises(ControlError, match="its tls-server trusts too many authorities|no answer from"):
                    control.ask(f"connect {there} control client")
            else:
                assert control.ask(f"connect {there} control client") == "Connecting"
                assert control.line() == f"Receptor Control, node {there}"
