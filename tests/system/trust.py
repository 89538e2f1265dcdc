"""Certificates and signing keys for a test, made by either program.

Knows the syntax of the `cert-*` commands, which both implementations share, and of `meshctl key`. The use of profiles
is up to the test.
"""

import datetime
import pathlib
import subprocess

from mesh import MESHCTL, MESHD, environment


def run(*command):
    """Runs a program to its end; if it failed, the failure shows its output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, env=environment(), timeout=60)
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def at(days):
    """The time that many days from now, in the commands' format."""
    time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Pki:
    """An authority in `ca.crt` and `ca.key`, and what it signs, in their own directory."""

    def __init__(self, directory, program=MESHD):
        self.dir, self.program = pathlib.Path(directory), program
        self.dir.mkdir(exist_ok=True)
        self.authority("ca")

    def path(self, name):
        return self.dir / name

    def authority(self, name):
        """Another authority, in `NAME.crt` and `NAME.key`."""
        self.cert("init", f"commonname={name}", "bits=2048", f"outcert={name}.crt", f"outkey={name}.key")

    def issue(self, name, nodes, authority="ca", start=None, end=None, address="127.0.0.1"):
        """A certificate for these node IDs and for this machine, in `NAME.crt` and `NAME.key`."""
        names = ["dnsname=localhost", f"ipaddress={address}", *(f"nodeid={node}" for node in nodes)]
        self.cert("makereq", f"commonname={name}", "bits=2048", *names, f"outreq={name}.req", f"outkey={name}.key")
        dates = [f"notbefore={at(start)}"] if start is not None else []
        dates += [f"notafter={at(end)}"] if end is not None else []
        by = [f"cacert={authority}.crt", f"cakey={authority}.key"]
        self.cert("signreq", f"req={name}.req", *by, *dates, f"outcert={name}.crt", "verify=true")

    def cert(self, verb, *items):
        """Runs one of the `cert-*` commands; values of file parameters are names in the directory."""
        files = ("outcert=", "outkey=", "outreq=", "req=", "cacert=", "cakey=")
        where = (item.replace("=", f"={self.dir}/", 1) if item.startswith(files) else item for item in items)
        run(self.program, f"--cert-{verb}", *where)

    def profiles(self, name, authority="ca", **more):
        """A `server` profile that requires client certificates and a `client` profile, both with the certificate
        `name`.
        """
        pair = {"cert": str(self.path(f"{name}.crt")), "key": str(self.path(f"{name}.key")), **more}
        ca = str(self.path(f"{authority}.crt"))
        return [
            {"tls-server": {"name": "server", **pair, "clientcas": ca, "requireclientcert": True}},
            {"tls-client": {"name": "client", **pair, "rootcas": ca}},
        ]

    def signing_keys(self, kind="rsa"):
        """A key pair for signing work; the directives for the signer and for the verifier."""
        private, public = self.path("work.key"), self.path("work.pub")
        run(MESHCTL, "key", "generate", "--type", kind, "--private", private, "--public", public)
        return (
            # receptor 1.4.9 does not start without an expiration.
            [{"work-signing": {"privatekey": str(private), "tokenexpiration": "5m"}}],
            [{"work-verification": {"publickey": str(public)}}],
        )
