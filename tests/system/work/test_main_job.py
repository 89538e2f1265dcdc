"""The most important job: a playbook run by ansible-runner across control - hop - execution."""

import pytest
import yaml

import project
from mesh import MESHCTL, RECEPTORCTL

CLIENTS = pytest.mark.parametrize("client", [MESHCTL, RECEPTORCTL], ids=["meshctl", "receptorctl"])


def submit(mesh, client):
    front = [client, "--socket", mesh["control"].socket]
    return [*front, "work", "submit", "ansible-runner", "--node", "execution", "-p", "-", "-f"]


def last_unit(node):
    (unit,) = node.command("work list")
    return unit


@pytest.fixture
def nodes(shared_line):
    """The shared mesh, without units."""
    yield shared_line
    # The control node's units first: their units on the execution node go with them.
    for node in (shared_line["control"], shared_line["execution"]):
        node.release_all()


@CLIENTS
def test_a_playbook(nodes, client, tmp_path):
    source, out = project.write(tmp_path / "source"), tmp_path / "out"
    output, told, code = project.pipeline(source, submit(nodes, client), out)
    assert code == 0, told
    assert "it said across the mesh" in output
    status, rc, stdout, events = project.artifacts(out)
    assert (status, rc) == ("successful", 0)
    assert "it said across the mesh" in stdout
    assert {"playbook_on_start", "runner_on_ok", "playbook_on_stats"} <= {event["event"] for event in events}
    unit = nodes["control"].unit(last_unit(nodes["control"]))
    assert (unit["StateName"], unit["Detail"]) == ("Succeeded", "exit status 0"), unit


@CLIENTS
def test_a_playbook_that_fails_gives_its_whole_stream(nodes, client, tmp_path):
    source, out = project.write(tmp_path / "source", project.FAILURE), tmp_path / "out"
    output, told, code = project.pipeline(source, submit(nodes, client), out)
    assert code == 1
    assert "exit status 2" in told, told
    assert "before the failure" in output and "on purpose" in output
    status, rc, stdout, events = project.artifacts(out)
    assert (status, rc) == ("failed", 2)
    assert "on purpose" in stdout
    assert events[-1]["event"] == "playbook_on_stats"
    unit = nodes["control"].unit(last_unit(nodes["control"]))
    assert (unit["StateName"], unit["Detail"]) == ("Failed", "exit status 2"), unit


def test_worker_info(nodes):
    unit, output = nodes["control"].run("execution", "ansible-runner", params="--worker-info")
    info = yaml.safe_load(output)
    assert info["runner_version"] == "2.4.3", info
    assert info["cpu_count"] > 0 and info["mem_in_bytes"] > 0, info
    assert nodes["control"].unit(unit)["StateName"] == "Succeeded"


def test_a_playbook_on_the_control_node_itself(nodes, tmp_path):
    """A job on the node itself; AWX runs project updates like this."""
    stream = project.transmit(project.write(tmp_path / "source"))
    params = f"--private-data-dir={tmp_path / 'private'}"
    _, result = nodes["execution"].run("localhost", "ansible-runner", stream, params=params)
    output, code = project.process(result, tmp_path / "out")
    assert code == 0 and "it said across the mesh" in output
