"""How units end, and what users are told: exit codes, failures by name, pods that cannot start, cancel and release."""

import select
import time

import pytest

from images import BUSYBOX
from node import Reader
from pods import STAY, pod, shell

#: Longest time until a reason that the cluster knows at once is shown.
SECONDS = 60


def test_an_exit_code_is_no_failure_of_the_unit(node):
    output, status = node.run(shell("echo out; exit 3"))
    assert (output, status["StateName"], status["ExitCode"]) == (b"out\n", "Succeeded", 3)


def test_running_out_of_memory_is_named(node):
    limits = {"worker": {"resources": {"limits": {"memory": "20Mi"}}}}
    output, status = node.run(pod("echo before; exec tail /dev/zero", **limits))
    assert output == b"before\n"
    assert status["StateName"] == "Failed" and "OOMKilled" in status["Detail"] and "node1" in status["Detail"]


@pytest.mark.parametrize(
    "worker, reason",
    [
        ({"image": "docker.io/local/none:1", "imagePullPolicy": "Never"}, "ErrImageNeverPull"),
        ({"image": "Not A Name"}, "InvalidImageName"),
    ],
)
def test_an_image_that_never_comes_is_named_at_once(node, worker, reason):
    begun = time.monotonic()
    _, status = node.run(pod("true", worker=worker))
    assert status["StateName"] == "Failed" and reason in status["Detail"], status
    assert time.monotonic() - begun < SECONDS


def test_an_image_that_cannot_be_pulled_is_named_while_it_is_tried(node):
    unit = node.submit(**pod("true", worker={"image": "127.0.0.1:1/none:1"}), pod_pending_timeout="20s")
    told = node.until(unit, lambda status: "ErrImagePull" in status["Detail"], SECONDS)
    assert told["Detail"].startswith("Pod created: ") and "127.0.0.1:1/none:1" in told["Detail"]
    status = node.final(unit)
    assert status["StateName"] == "Failed" and "127.0.0.1:1/none:1" in status["Detail"], status


def test_a_command_that_is_not_in_the_image_is_named(node):
    _, status = node.run(pod("true", worker={"command": ["/no/such/program"]}))
    assert status["StateName"] == "Failed" and "/no/such/program" in status["Detail"], status


def test_a_config_map_that_is_missing_is_named(node):
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "missing", "key": "a"}}}]
    unit = node.submit(**pod("true", worker={"env": env}))
    told = node.until(unit, lambda status: "CreateContainerConfigError" in status["Detail"], SECONDS)
    assert 'configmap "missing" not found' in told["Detail"]
    assert node.cancel(unit) == {"cancelled": unit}


def test_a_pod_that_no_node_takes_says_so(node):
    unit = node.submit(**pod("true", nodeSelector={"no": "where"}), pod_pending_timeout="15s")
    status = node.until(unit, lambda status: "nodes are available" in status["Detail"])
    assert status["Detail"].startswith("Pod created: 0/1 nodes are available")
    status = node.final(unit)
    assert "timed out waiting for the condition: 0/1 nodes are available" in status["Detail"]


def test_a_quota_is_told_in_the_servers_words(node, cluster):
    cluster.set_quota(0)
    try:
        begun = time.monotonic()
        _, status = node.run(shell("true"))
        assert time.monotonic() - begun < SECONDS
    finally:
        cluster.remove_quota()
    assert status["StateName"] == "Failed" and "exceeded quota" in status["Detail"]


def test_a_missing_right_is_told_in_the_servers_words_with_all_others(node):
    begun = time.monotonic()
    _, status = node.run({**shell("true"), "kube_namespace": "default"})
    refused, named = status["Detail"].split("; its credential may not ")
    assert status["StateName"] == "Failed" and refused.startswith("Error creating pod: ") and "cannot create" in refused, status
    assert named == "create pods, get pods, list pods, watch pods, delete pods, get pods/log, create pods/attach"
    assert time.monotonic() - begun < SECONDS


@pytest.mark.parametrize("restart", [None, "Always"], ids=["container", "native"])
def test_a_sidecar_that_stays_holds_nothing_up(node, restart):
    sidecar = {"name": "sidecar", "image": BUSYBOX, "args": ["sh", "-c", STAY]}
    if restart is None:
        definition = pod("echo done", beside=[sidecar])
    else:
        definition = pod("echo done", initContainers=[{**sidecar, "restartPolicy": restart}])
    output, status = node.run(definition)
    assert (output, status["StateName"]) == (b"done\n", "Succeeded")


def test_a_cancel_ends_the_results_and_the_pod(node, cluster):
    unit = node.submit(**pod(f"echo begun; {STAY}"))
    node.running(unit)
    reader = Reader(node, unit)
    assert node.cancel(unit) == {"cancelled": unit}
    reader.join(60)
    assert reader.output == b"begun\n"
    status = node.status(unit)
    assert (status["StateName"], status["Detail"]) == ("Canceled", "Canceled")


def test_the_answer_to_a_cancel_comes_before_the_end_of_the_results(node, cluster):
    """AWX shuts its reader down once the cancel is answered, and takes an earlier end for output that is cut off."""
    unit = node.submit(**pod(f"echo begun; {STAY}"))
    node.running(unit)
    with node.control() as reader, node.control() as canceller:
        assert reader.results(unit).readline() == b"begun\n"
        assert canceller.command(f"work cancel {unit}") == {"cancelled": unit}
        answered = time.monotonic()
        assert node.status(unit)["StateName"] == "Canceled"
        # That is 2 s, some of which may have passed before the answer was noticed here.
        assert reader.reader.read() == b"" and time.monotonic() - answered > 1
    # Pods that never start: that many others would take an hour.
    for number in range(200):
        unit = node.submit(**pod("true", nodeSelector={"no": "where"}))
        with node.control() as reader, node.control() as canceller:
            reader.results(unit)
            assert canceller.command(f"work cancel {unit}") == {"cancelled": unit}
            readable, _, _ = select.select([reader.socket], [], [], 0)
            assert not readable, f"cancel {number}"
        node.release(unit)


def test_a_cancel_while_the_pod_is_pending(node, cluster):
    unit = node.submit(**pod("true", nodeSelector={"no": "where"}))
    node.until(unit, lambda status: "nodes are available" in status["Detail"])
    assert node.cancel(unit) == {"cancelled": unit}
    assert node.final(unit)["StateName"] == "Canceled"
    assert node.results(unit, 60) == b""


def test_a_finished_pod_stays_until_its_unit_is_released(node, cluster):
    unit = node.submit(**shell("echo hi"))
    name = node.final(unit)["ExtraData"]["PodName"]
    assert cluster.pod(name)["metadata"]["labels"]["meshd/unit"] == unit
    answer = node.release(unit)
    assert answer in ({"released": unit}, {"release pending": unit})


def test_fields_that_no_type_of_ours_knows_reach_the_server(node, cluster):
    spec = {"hostname": "odd", "schedulingGates": [{"name": "test/gate"}]}
    unit = node.submit(**pod("true", **spec))
    name = node.until(unit, lambda status: status["ExtraData"].get("PodName"))["ExtraData"]["PodName"]
    node.until(unit, lambda _: "spec" in cluster.pod(name))
    made = cluster.pod(name)
    assert name.startswith("automation-job-7-")
    assert made["spec"]["hostname"] == "odd" and made["spec"]["schedulingGates"] == [{"name": "test/gate"}]
    assert made["metadata"]["labels"]["ansible-awx-job-id"] == "7"
    assert made["spec"]["restartPolicy"] == "Never" and made["spec"]["containers"][0]["stdinOnce"] is True
