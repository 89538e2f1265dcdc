"""Keys for signed work from ssh-keygen and from `meshctl key`, and the errors for unusable ones."""

import subprocess

import pytest

from client import ControlError
from mesh import MESHD, environment
from trust import run


def make(path, *options, passphrase=""):
    """A key pair: the private key in the file, the public one in `.pub`."""
    run("ssh-keygen", "-q", "-N", passphrase, "-f", path, *options)
    return path


def in_pem(path):
    """The same public key in PEM, for a Go node."""
    pem = subprocess.run(["ssh-keygen", "-e", "-m", "PKCS8", "-f", path], capture_output=True, text=True, check=True)
    path.with_suffix(".pem").write_text(pem.stdout)
    return path.with_suffix(".pem")


@pytest.mark.parametrize("kind", [["rsa", "-b", "2048"], ["rsa", "-b", "4096"], ["ed25519"]], ids=["2048", "4096", "ed25519"])
def test_they_sign_and_verify(mesh, kind):
    key = make(mesh.dir / "key", "-t", *kind)
    safe = {"work-command": {"worktype": "safe", "command": "cat", "verifysignature": True}}
    mesh.node("execution", listen=True, work=[safe], extra=[{"work-verification": {"publickey": f"{key}.pub"}}])
    mesh.node("control", peers=["execution"], extra=[{"work-signing": {"privatekey": str(key)}}])
    control = mesh.start()["control"]
    assert control.run("execution", "safe", b"signed", signwork="true")[1] == b"signed"
    with control.control() as client, pytest.raises(ControlError, match="could not verify signature"):
        client.submit("execution", "safe", b"unsigned")
    # The private key no longer fits: the running node reads another one from the file.
    key.unlink()
    make(mesh.dir / "other", "-t", *kind).rename(key)
    with control.control() as client, pytest.raises(ControlError, match="not made with the key"):
        client.submit("execution", "safe", b"signed by another", signwork="true")


def test_a_go_node_verifies_what_they_sign(mesh, receptor):
    key = make(mesh.dir / "key", "-t", "rsa", "-b", "2048")
    safe = {"work-command": {"worktype": "safe", "command": "cat", "verifysignature": True}}
    public = {"work-verification": {"publickey": str(in_pem(key))}}
    mesh.node("execution", listen=True, work=[safe], extra=[public], program=receptor)
    signing = {"work-signing": {"privatekey": str(key), "tokenexpiration": "5m"}}
    mesh.node("control", peers=["execution"], extra=[signing])
    assert mesh.start()["control"].run("execution", "safe", b"signed", signwork="true")[1] == b"signed"


def checked(directive, path):
    """The output of `meshd check` for a key."""
    command = [MESHD, "check", "--node", "id=a", "--local-only", f"--{directive}", path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    return done.stdout + done.stderr


def test_unusable_keys_are_named(tmp_path):
    pair, ecdsa = make(tmp_path / "pair", "-t", "ed25519"), make(tmp_path / "ecdsa", "-t", "ecdsa")
    locked = make(tmp_path / "locked", "-t", "rsa", passphrase="secret")
    old = make(tmp_path / "old", "-t", "rsa", "-m", "PEM", passphrase="secret")
    both = tmp_path / "both"
    both.write_text((tmp_path / "pair.pub").read_text() * 2)
    half = tmp_path / "half"
    half.write_text(pair.read_text()[:200])
    for directive, path, reason in [
        ("work-signing", pair, "fine: "),
        ("work-verification", f"{pair}.pub", "fine: "),
        ("work-signing", f"{pair}.pub", "holds a public key where the private one is needed"),
        ("work-verification", pair, "holds a private key where the public one is needed"),
        ("work-signing", locked, "remove it with `ssh-keygen -p -N '' -f FILE`"),
        ("work-signing", old, "remove it with `ssh-keygen -p -N '' -f FILE`"),
        ("work-signing", ecdsa, "holds no key that can be used: give an RSA or Ed25519 key"),
        ("work-verification", f"{ecdsa}.pub", "holds no key that can be used: give an RSA or Ed25519 key"),
        ("work-verification", both, "holds 2 lines, but must hold one public key"),
        ("work-signing", half, "holds no key that can be used"),
    ]:
        said = checked(directive, path)
        assert reason in said and (reason == "fine: " or f"{directive}: {path}: " in said), said
    run("ssh-keygen", "-q", "-p", "-P", "secret", "-N", "", "-f", locked)
    assert checked("work-signing", locked).startswith("fine: ")
