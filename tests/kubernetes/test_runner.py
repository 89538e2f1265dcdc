"""A container group's jobs: AWX's pod with ansible-runner in it, transmitted to and processed by ansible-runner."""

import json

import pytest

import project
from mesh import until
from pods import pod, runner_pod, shell


@pytest.fixture
def runner(node, cluster):
    """A node that can run pods with ansible-runner."""
    cluster.wait_for_runner_image()
    return node


@pytest.mark.parametrize(
    "playbook, status, code, told",
    [(project.GREETING, "successful", 0, "it said across the mesh"), (project.FAILURE, "failed", 2, "on purpose")],
    ids=["good", "failing"],
)
def test_a_playbook(runner, tmp_path, playbook, status, code, told):
    payload = project.transmit(project.write(tmp_path / "in", playbook))
    stream, unit = runner.run(runner_pod(), payload)
    assert unit["StateName"] == "Succeeded", unit
    project.process(stream, tmp_path / "out")
    found = project.artifacts(tmp_path / "out")
    assert found[:2] == (status, code) and told in found[2]
    assert [event["counter"] for event in found[3]] == list(range(1, len(found[3]) + 1))


def test_a_playbook_outlives_the_daemon(runner, tmp_path):
    payload = project.transmit(project.write(tmp_path / "in"))
    unit = runner.submit(payload=payload, **runner_pod())
    runner.until(unit, lambda status: status["State"] >= 1)
    runner.kill()
    runner.start()
    assert runner.final(unit)["StateName"] == "Succeeded"
    assert project.process(runner.results(unit), tmp_path / "out")[1] == 0
    assert project.artifacts(tmp_path / "out")[0] == "successful"


def test_a_pod_that_runs_already_is_followed(node):
    """What AWX does after the loss of a control node: another unit takes the pod over, from its first byte."""
    unit = node.submit(**shell("for n in $(seq 1 8); do echo $n; sleep 1; done"))
    name = node.running(unit)["ExtraData"]["PodName"]
    output, status = node.run({"pod_name": name, "kube_namespace": "jobs"})
    assert output == b"1\n2\n3\n4\n5\n6\n7\n8\n"
    assert status["StateName"] == "Succeeded"
    assert node.results(unit) == output


def test_a_followed_pod_ends_with_the_unit_that_follows_it(node, cluster):
    node_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "labels": {"ansible_job": ""}}}
    definition = json.loads(pod("echo theirs; sleep 2; exit 3")["secret_kube_pod"][4:])
    node_pod["spec"] = {**definition["spec"], "restartPolicy": "Never"}
    cluster.api("POST", "/api/v1/namespaces/jobs/pods", node_pod)
    output, status = node.run({"pod_name": "theirs"})
    assert (output, status["StateName"], status["ExitCode"]) == (b"theirs\n", "Succeeded", 3)
    assert set(cluster.pod("theirs")["metadata"]["labels"]) == {"ansible_job"}
    node.release_all()
    until("the end of the pod", lambda: not cluster.pods())
