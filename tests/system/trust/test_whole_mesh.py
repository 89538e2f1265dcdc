"""Types docs/whole-mesh.md: five hosts, which are namespaces here, from their packages to the first playbook. systemd and the
package manager are stand-ins, Ansible is real."""

import json
import re

import pytest

import conftest
import hosts as harness
from mesh import ROOT

pytestmark = pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces")

PAGE = ROOT / "docs" / "whole-mesh.md"
NAMES = ("control", "hop", "e1", "e2", "e3")


def steps():
    """(hosts, script) of each block, in order."""
    block, hosts, found = None, (), []
    for line in PAGE.read_text().splitlines():
        if line.startswith("```"):
            if block is not None:
                found.append((hosts, "\n".join(block)))
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        elif named := re.search(r"On (\w+)\.example\.org:$", line):
            hosts = (named[1],)
        elif named := re.search(r"On each of ((?:\w+, )*\w+ and \w+):$", line):
            hosts = tuple(re.findall(r"\b\w+\d\b", named[1]))
    return found


@pytest.mark.timeout(400)
def test_the_whole_example_in_the_order_in_which_it_is_typed(request):
    with conftest.scoped_mesh(request.node) as mesh:
        world = harness.Hosts(mesh, *NAMES, has_ansible=True)
        printed, blocks = "", steps()
        assert [hosts for hosts, _ in blocks] == [("control",), ("hop",), ("e1", "e2", "e3"), ("control",)]
        for hosts, script in blocks:
            for host in hosts:
                printed += world[host].run(script, 300)
        assert printed.count("hello from the mesh") == 2 and printed.count("linked to") == 4, printed
        (job,) = json.loads(world["control"].run("meshctl --json job list"))["jobs"]
        assert (job["state"], job["name"]) == ("successful", "site.yml") and job["execution_node"] in ("e1", "e2", "e3"), job
        status = json.loads(world["control"].run("meshctl --json status"))
        assert [one["NodeID"] for one in status["Connections"]] == ["hop"]
        # Nobody without a certificate gets in, and nothing unsigned runs.
        refused = world["control"].fails("meshctl work submit ansible-runner --node e1 --tls-client mesh -n -f --rm -- --worker-info")
        assert "signature" in refused, refused
