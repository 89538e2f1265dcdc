"""Certificates, keys and revocation lists that change on disk are reloaded without a restart.

Connections that are still trusted continue; the others end within two seconds.
"""

import contextlib
import datetime
import re
import shutil
import socket
import ssl
import subprocess
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

import links
from echo import Echo, alive
from mesh import MESHCTL, environment, free_port, until
from trust import Pki, at

#: From the change of a list to the end of what it revokes.
CUT = 2.0


@pytest.fixture
def pki(tmp_path):
    pki = Pki(tmp_path / "pki")
    for name in ("centre", "good", "bad", "quic", "plain"):
        pki.issue(name, [name])
    revoke(pki)
    pki.path("blocklist").write_text("")
    return pki


def revoke(pki, *names):
    """The authority's list with these certificates."""
    key = serialization.load_pem_private_key(pki.path("ca.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(certificate(pki, "ca").subject)
    builder = builder.last_update(now - datetime.timedelta(hours=1)).next_update(now + datetime.timedelta(days=1))
    # RFC 5280 requires both.
    builder = builder.add_extension(x509.CRLNumber(1), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    for name in names:
        entry = x509.RevokedCertificateBuilder().serial_number(certificate(pki, name).serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(now).build())
    replace(pki.path("crl.pem"), builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def block(pki, *names):
    lines = (certificate(pki, name).fingerprint(hashes.SHA256()).hex() for name in names)
    replace(pki.path("blocklist"), "".join(f"{line}\n" for line in lines).encode())


def certificate(pki, name):
    return x509.load_pem_x509_certificate(pki.path(f"{name}.crt").read_bytes())


def replace(path, text):
    """Replaces a file as a careful operator does."""
    new = path.with_suffix(".new")
    new.write_bytes(text)
    new.rename(path)


@pytest.fixture
def star(mesh, pki):
    """Four neighbours of `centre`, each with a stream under TLS profiles to an echo there.

    The link of `plain` has no certificates, so the end of its stream is not caused by its link.
    """
    mesh.echo = Echo()
    ports = {kind: free_port() for kind in ("tcp-mtls", "quic-mtls", "tcp")}
    lists = {"crl": str(pki.path("crl.pem")), "blocklist": str(pki.path("blocklist"))}
    exit = {"tcp-client": {"service": "echo", "address": f"127.0.0.1:{mesh.echo.port}", "tlsserver": "server"}}
    listeners = [links.listener(kind, ports[kind]) for kind in ports]
    mesh.add("centre", [{"log-level": "info"}, *pki.profiles("centre", **lists), *listeners, exit])
    for name, kind in (("good", "tcp-mtls"), ("bad", "tcp-mtls"), ("quic", "quic-mtls"), ("plain", "tcp")):
        mesh.ports[name] = free_port()
        entrance = {"port": mesh.ports[name], "bindaddr": "127.0.0.1", "remotenode": "centre", "remoteservice": "echo"}
        mesh.add(name, [*pki.profiles(name), links.peer(kind, ports[kind]), {"tcp-server": {**entrance, "tlsclient": "client"}}])
    yield mesh.start()
    mesh.echo.close()


def stream(mesh, name):
    connection = socket.create_connection(("127.0.0.1", mesh.ports[name]), 60)
    assert alive(connection), name
    return connection


def neighbours(node):
    return {entry["NodeID"] for entry in node.status()["Connections"]}


@pytest.mark.parametrize(
    "how, reason", [(revoke, "is revoked by the list in"), (block, "is blocked: ")], ids=["crl", "blocklist"]
)
def test_a_revoked_peer_is_disconnected_and_others_stay(star, pki, how, reason):
    centre = star["centre"]
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context(stream(star, name)) for name in ("good", "bad", "quic", "plain")}
        sessions = {entry["NodeID"] for entry in centre.status()["Connections"]}
        assert sessions == {"good", "bad", "quic", "plain"}
        start = time.monotonic()
        how(pki, "bad", "quic", "plain")
        until("the links to be cut", lambda: neighbours(centre) == {"good", "plain"}, pause=0.01)
        links_after = time.monotonic() - start
        # Its link has no certificate; the stream over it has.
        until("the stream to be cut", lambda: not alive(streams["plain"]), pause=0.01)
        stream_after = time.monotonic() - start
        assert links_after < CUT and stream_after < CUT, (links_after, stream_after)
        assert alive(streams["good"]), "who is still trusted has lost a stream"
        until("the reason", lambda: reason in centre.log())
        until("an attempt to come back", lambda: "neighbour refused" in centre.log())
        assert neighbours(centre) == {"good", "plain"} and alive(streams["good"])


def shown(port):
    """The certificate that a listener presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as tls:
        return x509.load_der_x509_certificate(tls.getpeercert(True)).serial_number


def test_a_renewed_certificate_and_a_half_written_key(mesh, pki):
    """The key is written in place and slowly, as a careless script does: the good pair stays in use."""
    port, echo = free_port(), Echo()
    exit = {"tcp-client": {"service": "echo", "address": f"127.0.0.1:{echo.port}", "tlsserver": "server"}}
    centre = mesh.add("centre", [{"log-level": "info"}, *pki.profiles("centre"), links.listener("tcp-mtls", port), exit])
    mesh.ports["good"] = free_port()
    entrance = {"port": mesh.ports["good"], "remotenode": "centre", "remoteservice": "echo", "tlsclient": "client"}
    mesh.add("good", [*pki.profiles("good"), links.peer("tcp-mtls", port), {"tcp-server": entrance}])
    mesh.start()
    with stream(mesh, "good") as held:
        old = certificate(pki, "centre").serial_number
        assert shown(port) == old
        pki.issue("next", ["centre"])
        new = certificate(pki, "next").serial_number
        key = pki.path("next.key").read_bytes()
        pki.path("centre.key").write_bytes(key[: len(key) // 2])
        until("a word about it", lambda: "centre.key" in centre.log() and " WARN" in centre.log())
        assert shown(port) == old and alive(held)
        pki.path("centre.crt").write_bytes(pki.path("next.crt").read_bytes())
        pki.path("centre.key").write_bytes(key)
        until("the new one to be shown", lambda: shown(port) == new)
        assert alive(held), "a stream was dropped for a renewal"
        with stream(mesh, "good") as fresh:
            assert alive(fresh)
        assert neighbours(centre) == {"good"}
        assert centre.log().count(" connected ") == 1, "the link was dropped for a renewal"
    echo.close()


def test_expiry_is_warned_of(mesh, pki):
    pki.issue("soon", ["soon"], start=-200, end=10)
    node = mesh.add("soon", [*pki.profiles("soon"), links.listener("tcp-mtls", free_port())]).start()
    until("the warning", lambda: "expires" in node.log() and " WARN" in node.log())
    [ending] = node.status()["CertificatesEnding"]
    assert ending["File"] == str(pki.path("soon.crt")) and ending["NotAfter"][:10] in (at(10)[:10], at(9)[:10])
    shown = subprocess.run([MESHCTL, "--socket", node.socket, "status"], capture_output=True, text=True, env=environment(), timeout=60)
    # The file's name may need two lines.
    assert re.search(r"Certificates to renew\n.*\n +\S+ +\S+ +9\n( +\S+\n)?", shown.stdout), shown
    pki.issue("later", ["soon"], end=100)
    for kind in ("key", "crt"):
        shutil.copy(pki.path(f"later.{kind}"), pki.path(f"soon.{kind}"))
    until("no warning", lambda: "CertificatesEnding" not in node.status())
