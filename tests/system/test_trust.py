"""Neighbours whose certificates are not in order: none of them gets in, and our log says why.

The neighbour is ours, and the Go implementation's of either release where the environment names its programs.
Certificates that either implementation made are good for the other.
"""

import contextlib
import json
import socket
import ssl
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

import go
import links
from mesh import MESHCTL, MESHD, environment, free_port, until
from trust import Pki, run

NEIGHBOURS = [pytest.param("meshd"), *go.EACH]

#: What is wrong with the neighbour's certificate: how it is made, and what our log says of it.
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
    refused(us, None, "it calls itself them, and its certificate names somebody")


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_missing_client_certificate(mesh, pki, neighbour):
    # A Go node does not start without these two, and takes them empty.
    none = {} if neighbour == "meshd" else {"cert": "", "key": ""}
    theirs = [{"tls-client": {"name": "client", "rootcas": str(pki.path("ca.crt")), **none}}]
    us, them = joined(mesh, neighbour, pki.profiles("us"), theirs, "them")
    refused(us, them, "the client shows no certificate: set cert and key in its tls-client")
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
    """Authorities of both, who sign what the other has asked for, in one bundle."""
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
    """The version of TLS that a client with a certificate gets; None if it is turned away."""
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
    """What `meshctl cert verify` says, and whether it accepts."""
    done = subprocess.run([MESHCTL, "cert", "verify", *map(str, args)], capture_output=True, text=True, env=environment(), timeout=60)
    return done.returncode == 0, done.stdout + done.stderr


def test_what_a_profile_would_accept(pki, tmp_path):
    """`meshctl cert verify` judges by the profile of a configuration, as a node with it would."""
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
        ("both", "them", [], False, "say with --purpose which of them judges"),
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
