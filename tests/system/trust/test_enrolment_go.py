"""A node of the Go implementation in a mesh whose other nodes enrol: it has a bundle, and nothing is asked of it."""

import json

import pytest

import conftest
import go
import hosts as harness
from mesh import until
from test_enrolment import invited, issuer, works
from test_joining import links

pytestmark = pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces")

CONFIGURATION = """---
- node: {{id: g1, datadir: {dir}/data}}
- log-level: {{level: info}}
- tls-client: {{name: mesh, cert: {dir}/node.crt, key: {dir}/node.key, rootcas: {dir}/ca.crt}}
- tcp-peer: {{address: "control.example.org:27199", tls: mesh}}
- control-service: {{service: control, filename: {dir}/g1.sock}}
- work-command: {{worktype: cat, command: cat}}
"""


@pytest.mark.parametrize("neighbour", go.EACH)
def test_a_go_node_stays_linked_while_others_join_and_the_authority_changes(request, neighbour):
    with conftest.scoped_mesh(request.node) as mesh:
        world = harness.Hosts(mesh, "control", "g1", "e1")
        control, g1, e1 = (world[name] for name in world.names)
        for host in (control, e1):
            host.run("apt install ./meshd.deb")
        control.run("meshctl node add g1 --role hop --peer control.example.org --out g1.tar")
        dir = g1.dir / "home"
        g1.run(f"cp {control.file('/home/g1.tar')} g1.tar; tar -xf g1.tar; mkdir data")
        (dir / "go.yml").write_text(CONFIGURATION.format(dir=dir))
        g1.run(f"setsid {go.program(neighbour)} --config go.yml >log 2>&1 </dev/null &")
        until("the Go node to be linked", lambda: "g1" in links(control))
        e1.run(invited(world, "e1"))
        works(world, "e1")
        times = lambda: sum(" connected " in line and "peer=g1 " in line for line in control.log().splitlines())  # noqa: E731
        before = times()
        assert before
        # It is told nothing, and trusts the new authority by the former one's word.
        show = lambda: json.loads(control.run("meshctl authority show --json"))  # noqa: E731
        control.run("meshctl authority rotate")
        until("our nodes to trust both", lambda: show()["waits_for"] == ["g1"])
        control.run("meshctl authority rotate --force")
        until("our nodes to have certificates of the new one", lambda: show()["waits_for"] == ["g1"])
        assert times() == before and links(control) == ["e1", "g1"]
        control.run("systemctl restart meshd")
        until("the Go node to be linked again", lambda: "g1" in links(control))
        assert issuer(control).startswith("mesh of control of ")
        assert control.run("echo it came | meshctl work submit --node g1 cat --payload - --follow --rm") == "it came\n"
        control.run("meshctl node remove g1 --dead")
        until("the Go node to be cut off", lambda: links(control) == ["e1"])

