"""Two control nodes with one store have one authority: what the one has made, the other one knows. Real programs on hosts of
namespaces, as in test_enrolment, with a real PostgreSQL."""

import contextlib
import json
import shutil
import urllib.parse

import pytest

import conftest
import hosts as harness
import postgres
from mesh import until
from test_enrolment import certificate, invited, revoked
from test_joining import links

pytestmark = [
    pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces"),
    pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)"),
]


@pytest.fixture(scope="module")
def world(request):
    """`control` and `c2` with the authority and one database, and two hosts with the package."""
    with conftest.scoped_mesh(request.node) as mesh, contextlib.closing(contextlib.ExitStack()) as closing:
        server = postgres.Postgres()
        closing.callback(server.remove)
        # The daemons of all hosts reach it by its socket, because a file has no network namespace.
        server.start().dir.chmod(0o755)
        store = f"postgresql://meshd@{urllib.parse.quote(str(server.dir), safe='')}:{server.port}/{server.database()}"
        world = harness.Hosts(mesh, "control", "c2", "e1", "e2")
        for name in world.names:
            world[name].run("apt install ./meshd.deb")
        control, c2 = world["control"], world["c2"]
        # The first one begins alone, with files.
        c2.run(invited(world, "c2", "--host c2.example.org", role="hop"))
        controller = f"echo '- work-controller: {{tlsclient: mesh, store: \"{store}\"}}' >/etc/meshd/conf.d/20-controller.yml"
        control.run(f"{controller}; systemctl restart meshd")
        ours, theirs = control.file("/etc/meshd/ca/ca.crt").parent, c2.file("/etc/meshd/ca")
        shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns("nodes*", "invites*"))
        shutil.copy(control.file("/etc/meshd/work.pub"), c2.file("/etc/meshd/work.pub"))
        enrolment = "- enrolment: {authority: /etc/meshd/ca, workkey: /etc/meshd/work.pub}\n"
        c2.file("/etc/meshd/conf.d/30-enrolment.yml").write_text(enrolment)
        c2.run(f"chown -R meshd:meshd /etc/meshd/ca; {controller}; systemctl restart meshd")
        until("both to be linked", lambda: links(c2) == ["control"])
        yield world


def test_a_token_of_one_is_used_at_the_other_while_the_first_one_is_off(world):
    control, c2, e1 = world["control"], world["c2"], world["e1"]
    line = invited(world, "e1", peer="c2.example.org")
    assert not control.file("/etc/meshd/ca/nodes").exists() and control.file("/etc/meshd/ca/nodes.in-store/c2.json").exists()
    control.run("systemctl stop meshd")
    assert json.loads(e1.run(f"{line} --json", 120))["linked"] == ["c2"]
    control.run("systemctl start meshd")
    shown = json.loads(c2.run("meshctl node invites --json"))["invites"]
    assert {one["node"]: len(one["used"]) for one in shown} == {"c2": 1, "e1": 1}
    until("both to be linked", lambda: links(c2) == ["control", "e1"])
    refused = world["e2"].fails(f"{line.replace('c2.example.org', 'control.example.org')} --name e1", 120)
    assert "the token for e1 is used up" in refused, refused


def test_what_one_revokes_the_authority_of_the_other_revokes(world):
    control, c2, e1 = world["control"], world["c2"], world["e1"]
    serial = certificate(e1)
    c2.run("meshctl node remove e1 --revoke")
    until("the link to be cut", lambda: links(e1) == [])
    for host in (control, c2):
        until("the list to be there", lambda: serial in revoked(host))
    lists = lambda: {host.file("/etc/meshd/ca/ca.crl").read_bytes() for host in (control, c2)}  # noqa: E731
    until("both authorities to have one list", lambda: len(lists()) == 1)
    assert "the authority knows no node e9" in control.fails("meshctl node remove e9 --revoke")
