"""Logs, answers and process arguments contain no payloads or secrets."""

import contextlib
import pathlib

import links
from mesh import MESHD, WORK, until
from trust import Pki

PAYLOAD = b"payload-plugh\n"


def test_no_payload_is_logged(mesh):
    """Not even where a Go node would log it."""
    mesh.variables["RECEPTOR_PAYLOAD_TRACE_LEVEL"] = "3"
    node = mesh.node("alone", work=WORK, level="debug").start()
    _, output = node.run("alone", "cat", PAYLOAD)
    assert output == PAYLOAD
    node.stop()
    assert "level=debug" in node.log() or "DEBUG" in node.log(), node.log()
    assert "plugh" not in node.log(), node.log()


def test_secrets_show_nowhere(mesh, tmp_path):
    """They travel under TLS to the node that runs the job, and are stored in the submitting node's own file only."""
    pki = Pki(tmp_path / "pki")
    for name in links.LINE:
        pki.issue(name, [name])
    directives = links.joined("tcp-mtls", lambda left, _: left == "hop")
    for name in links.LINE:
        directives[name] += [*pki.profiles(name), {"log-level": "debug"}]
    directives["execution"] += WORK
    for name in links.LINE:
        mesh.add(name, directives[name], MESHD, {"tls": "server"})
    mesh.start()
    control, execution = mesh["control"], mesh["execution"]
    until("the secret's way", lambda: control.reaches("execution"))
    secret = {"secret_word": "xyzzy", "tlsclient": "client"}
    with control.control() as client:
        unit = client.submit("execution", "sh", params="'echo $$; exec sleep 1000'", **secret)["unitid"]
    with control.control() as client:
        reader = client.results(unit)
        reader.readline()
        assert "xyzzy" not in str(control.command("work list")) + str(execution.command("work list"))
        for pid in mesh.processes():
            process = pathlib.Path(f"/proc/{pid}")
            # One that ends meanwhile has nothing to show.
            with contextlib.suppress(OSError):
                assert b"xyzzy" not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        control.command(f"work cancel {unit}")
        reader.read()
    assert "xyzzy" in (control.unit_dir(unit) / "status").read_text()
    control.command(f"work release {unit}")
    for node in mesh.nodes.values():
        node.stop()
    # All of it is there by now.
    assert "xyzzy" not in "".join(mesh.logs().values())
