"""Configurations of the shapes that people publish or report. What receptor starts with starts here, and what is refused is
refused in words; where the programs differ, docs/interop.md says so.

Each file of tests/data/public is one shape, in our own words; tests/data/spellings.yml has what is spelled in several ways.
"""

import contextlib
import re
import socket
import subprocess

import pytest
import yaml

import go
from client import Control, ControlError
from mesh import MARK, ROOT, environment, free_port, until
from trust import Pki

DATA = ROOT / "tests" / "data"
#: What an item needs beside it, so that the node has something to do and can be asked.
AROUND = "- node: {id: node-1}\n- local-only:\n- control-service: {filename: '@DIR@/s'}\n"


class Kind:
    """A configuration, and with what words ours refuses it, if at all. `receptor` tells whether receptor `starts` with it or has
    it `refused`, where that differs; docs/interop.md has a row `interop` about it then."""

    def __init__(self, name, text, refused=None, receptor=None, interop=None):
        self.name, self.text, self.refused, self.receptor, self.interop = name, text, refused, receptor, interop

    def starts(self, program):
        told = self.receptor if program != "meshd" else None
        # The newer one refuses some that the older one takes.
        return told == "starts" or told == "1.4.9 starts" and program == "RECEPTOR_GO" if told else not self.refused


def read(file):
    """What is expected of a file stands in its comments."""
    text = file.read_text()
    return Kind(file.stem, text, **dict(re.findall(r"^# (refused|receptor|interop): (.+)$", text, re.M)))


def spelled(name, text, spellings, interop=None):
    for spelling in spellings:
        value = spelling.pop("is")
        yield Kind(f"{name} {value[:40]!r}", text.replace("{}", value, 1), **spelling, interop=interop)


FILES = [read(file) for file in sorted((DATA / "public").iterdir())]
GROUPS = yaml.safe_load((DATA / "spellings.yml").read_text())
SPELLED = [kind for name, group in GROUPS.items() for kind in spelled(name, **group)]
KINDS = pytest.mark.parametrize("kind", FILES + SPELLED, ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """The certificates and keys that the files name, and as some people keep them."""
    pki = Pki(tmp_path_factory.mktemp("certificates"))
    pki.issue("node", ["node-1"])
    pki.signing_keys()

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=pki.dir, check=True, capture_output=True)

    pki.path("both.pem").write_text(pki.path("node.key").read_text() + pki.path("node.crt").read_text())
    openssl("pkey", "-in", "node.key", "-aes256", "-passout", "pass:secret", "-out", "encrypted.key")
    openssl("rsa", "-in", "node.key", "-traditional", "-out", "rsa.key")
    openssl("genrsa", "-out", "plain.key", "2048")
    openssl("genrsa", "-out", "short.key", "1024")
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-out", "ec.key")
    (pki.dir / "names").write_text("subjectAltName = otherName:1.3.6.1.4.1.2312.19.1;UTF8:node-1\n")
    for name, more in {"plain": [], "short": ["-extfile", "names"], "ec": ["-extfile", "names"]}.items():
        openssl("req", "-new", "-key", f"{name}.key", "-subj", "/CN=node-1", "-out", "req")
        openssl("x509", "-req", "-in", "req", "-CA", "ca.crt", "-CAkey", "ca.key", *more, "-out", f"{name}.crt")
    openssl("req", "-new", "-key", "plain.key", "-subj", "/CN=own", "-out", "req")
    openssl("x509", "-req", "-in", "req", "-signkey", "plain.key", "-out", "flagless.crt")
    for secret in (*pki.dir.glob("*.key"), pki.path("both.pem")):
        secret.chmod(0o600)
    pki.path("kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], "
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: hidden}}]}\n"
    )
    return pki.dir


class Trial:
    """A program on its way with a configuration, in the directory of the mesh."""

    def __init__(self, mesh, program, text, certificates):
        self.mesh, self.log = mesh, mesh.dir / "log"
        self.ports = {name: free_port() for name in sorted(set(re.findall(r"@PORT\d?@", text)))}
        for name, value in {"@AROUND@": AROUND, "@LONG@": "a" * 300, "@DIR@": mesh.dir, "@CERTS@": certificates, **self.ports}.items():
            text = text.replace(name, str(value))
        (mesh.dir / "node.yml").write_bytes(text.encode())
        words = text.split() if text.startswith("--") else ["--config", "node.yml"]
        self.has_service = "control-service" in text
        # Neither may look at what others have left in the places that they take by default.
        away = {"HOME": str(mesh.dir), "STATE_DIRECTORY": str(mesh.dir), "TMPDIR": str(mesh.dir)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([program, *words], cwd=mesh.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment(**{MARK: str(mesh.dir)}, **away))

    def said(self):
        return self.log.read_text(errors="replace")

    def starts(self):
        until("it to answer", self.answers)
        self.process.terminate()
        self.process.wait(30)

    def answers(self):
        """Whether its control service does, or its listener where it has none."""
        assert self.process.poll() is None, self.said()
        with contextlib.suppress(OSError, ControlError, ValueError):
            if not self.has_service:
                return socket.create_connection(("127.0.0.1", self.ports["@PORT@"]), 5).close() or True
            for place in self.mesh.dir.rglob("s"):
                if place.is_socket():
                    with Control(str(place), 5) as control:
                        return control.command("status")["NodeID"]
        return False

    def refuses(self):
        assert self.process.wait(30) != 0, self.said()
        return self.said()


@pytest.mark.parametrize("program", ["meshd", *go.EACH])
@KINDS
def test_it_starts_or_is_refused(mesh, certificates, program, kind):
    trial = Trial(mesh, go.program(program), kind.text, certificates)
    if kind.starts(program):
        trial.starts()
    else:
        said = trial.refuses()
        assert program != "meshd" or kind.refused in said, said


def test_each_difference_is_in_the_docs():
    interop = (ROOT / "docs" / "interop.md").read_text()
    assert [kind.name for kind in FILES + SPELLED if kind.receptor and f"| {kind.interop} |" not in interop] == []
