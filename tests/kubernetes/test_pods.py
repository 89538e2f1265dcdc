"""Units as pods of a real cluster, with the rights that AWX's operator grants."""

import json
import os
import random
import threading
import time

import pytest

import cluster as kubernetes

IMAGE = "docker.io/local/busybox:1"


def shell(script):
    """The parameters of a unit that runs a script."""
    quoted = script.replace("'", "'\\''")
    return {"kube_image": IMAGE, "kube_command": "sh -c", "kube_params": f"'{quoted}'"}


def pod(script, **changes):
    """The pod that AWX sends, with a script in it."""
    worker = {"name": "worker", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "args": ["sh", "-c", script]}
    worker.update(changes.pop("worker", {}))
    spec = {
        "serviceAccountName": "default",
        "automountServiceAccountToken": False,
        "containers": [worker, *changes.pop("beside", [])],
        **changes,
    }
    labels = {"ansible_job": "", "ansible-awx": "1-2-3", "ansible-awx-job-id": "7"}
    metadata = {"name": "automation-job-7", "namespace": "jobs", "labels": labels}
    definition = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {"secret_kube_pod": "---\n" + json.dumps(definition)}


def run(node, params, payload=b"", work_type="kube"):
    unit = node.submit(work_type, payload, **params)
    output = node.results(unit)
    return output, node.final(unit)


def test_an_echo(node):
    output, status = run(node, shell("echo hi"))
    assert output == b"hi\n"
    assert (status["StateName"], status["Detail"], status["ExitCode"]) == ("Succeeded", "Finished", 0)
    extra = status["ExtraData"]
    assert extra["KubeConfig"] == extra["KubePod"] == ""
    assert extra["PodName"].startswith("kube-") and extra["KubeNamespace"] == "jobs"


@pytest.mark.parametrize("work_type", ["kube", "get-attach"])
def test_a_long_payload_and_long_lines_come_byte_for_byte(node, work_type):
    payload = b"".join(bytes([97 + n % 26]) * 3_000_000 + b"\n" for n in range(8))
    output, status = run(node, pod("cat"), payload, work_type)
    assert output == payload
    assert status["StateName"] == "Succeeded"


def test_output_comes_whole_across_rotations(node):
    output, status = run(node, shell("seq 1 320000 | sed 's/.*/a line of the log that is rotated &, and of no other/'"))
    assert output == b"".join(b"a line of the log that is rotated %d, and of no other\n" % n for n in range(1, 320001))
    assert status["StateName"] == "Succeeded"


def test_a_silent_job_outlives_an_idle_limit(node):
    output, status = run(node, shell("echo a; sleep 25; echo b"))
    assert (output, status["StateName"]) == (b"a\nb\n", "Succeeded")


def test_an_exit_code_is_no_failure_of_the_unit(node):
    output, status = run(node, shell("echo out; exit 3"))
    assert (output, status["StateName"], status["ExitCode"]) == (b"out\n", "Succeeded", 3)


def test_a_line_without_a_newline_comes_at_once_and_whole(node):
    output, _ = run(node, shell("printf abc"))
    assert output == b"abc"


def test_a_worker_that_ends_before_it_is_attached_to(node):
    assert run(node, shell("true"))[1]["StateName"] == "Succeeded"
    assert run(node, shell("true"), b"nobody reads this")[1]["StateName"] == "Succeeded"


def test_running_out_of_memory_is_named(node):
    limits = {"worker": {"resources": {"limits": {"memory": "20Mi"}}}}
    output, status = run(node, pod("echo before; exec tail /dev/zero", **limits))
    assert output == b"before\n"
    assert status["StateName"] == "Failed" and "OOMKilled" in status["Detail"] and "node1" in status["Detail"]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"worker": {"image": "docker.io/local/none:1", "imagePullPolicy": "Never"}}, "ErrImageNeverPull"),
        ({"worker": {"image": "Not A Name"}}, "InvalidImageName"),
    ],
)
def test_an_image_that_never_comes_is_named_at_once(node, changes, reason):
    begun = time.monotonic()
    _, status = run(node, pod("true", **changes))
    assert status["StateName"] == "Failed" and reason in status["Detail"], status
    assert time.monotonic() - begun < 15


def test_a_pod_that_no_node_takes_says_so(node):
    unit = node.submit(**pod("true", nodeSelector={"no": "where"}), pod_pending_timeout="5s")
    status = node.until(unit, lambda status: "nodes are available" in status["Detail"], 4)
    assert status["Detail"].startswith("Pod created: 0/1 nodes are available")
    status = node.final(unit)
    assert "timed out waiting for the condition: 0/1 nodes are available" in status["Detail"]


def test_a_quota_is_told_in_the_servers_words(node, cluster):
    cluster.set_quota(0)
    try:
        _, status = run(node, shell("true"))
    finally:
        cluster.remove_quota()
    assert status["StateName"] == "Failed" and "exceeded quota" in status["Detail"]


def test_a_missing_right_is_told_in_the_servers_words(node):
    _, status = run(node, {**shell("true"), "kube_namespace": "default"})
    assert status["StateName"] == "Failed" and "forbidden" in status["Detail"]


def test_a_sidecar_that_stays_holds_nothing_up(node):
    sidecar = {"name": "sidecar", "image": IMAGE, "args": ["sleep", "1000"]}
    output, status = run(node, pod("echo done", beside=[sidecar]))
    assert (output, status["StateName"]) == (b"done\n", "Succeeded")


def test_a_cancel_ends_the_results(node, cluster):
    unit = node.submit(**shell("echo begun; sleep 1000"))
    node.until(unit, lambda status: status["StdoutSize"] > 0)
    reader = threading.Thread(target=node.results, args=(unit,))
    reader.start()
    assert node.cancel(unit) == {"cancelled": unit}
    reader.join(10)
    assert not reader.is_alive()
    assert node.status(unit)["StateName"] == "Canceled"


def test_a_credential_that_comes_with_the_job(node):
    kubeconfig = (kubernetes.HOME / "awx.kubeconfig").read_text()
    output, status = run(node, {**pod("echo hi"), "secret_kube_config": kubeconfig}, work_type="runtime")
    assert (output, status["StateName"]) == (b"hi\n", "Succeeded")
    token = json.loads(kubeconfig)["users"][0]["user"]["token"]
    assert token not in json.dumps(status) and token not in node.log()


def test_a_pod_that_runs_already_is_followed(node, cluster):
    unit = node.submit(**shell("for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 1; done"))
    running = node.until(unit, lambda status: status["StdoutSize"] > 3)
    name = running["ExtraData"]["PodName"]
    output, status = run(node, {"pod_name": name, "kube_namespace": "jobs"})
    assert output == b"1\n2\n3\n4\n5\n6\n7\n8\n"
    assert status["StateName"] == "Succeeded"


def test_killing_the_daemon_again_and_again_loses_nothing(node):
    unit = node.submit(payload=b"payload\n", **shell("cat; for n in $(seq 1 400); do echo line $n; sleep 0.05; done"))
    for _ in range(20):
        time.sleep(random.uniform(0.1, 1.2))
        node.kill()
        node.start()
    status = node.final(unit, 90)
    assert status["StateName"] == "Succeeded", status
    assert node.results(unit) == b"payload\n" + b"".join(b"line %d\n" % n for n in range(1, 401))


def test_a_server_that_is_away_and_a_kubelet_that_restarts_lose_nothing(node, cluster):
    unit = node.submit(**shell("for n in $(seq 1 45); do echo line $n; sleep 1; done"))
    node.until(unit, lambda status: status["StdoutSize"] > 0)
    cluster.end("apiserver")
    time.sleep(20)
    cluster.start_server()
    cluster.end("kubelet")
    cluster.start_kubelet()
    status = node.final(unit, 120)
    assert status["StateName"] == "Succeeded", status
    assert node.results(unit) == b"".join(b"line %d\n" % n for n in range(1, 46))


def test_a_pod_that_somebody_deletes_is_named(node, cluster):
    unit = node.submit(**shell("echo begun; sleep 1000"))
    name = node.until(unit, lambda status: status["StdoutSize"] > 0)["ExtraData"]["PodName"]
    cluster.kubectl("delete", "pod", "-n", "jobs", name, "--grace-period=1", "--wait=false")
    status = node.final(unit)
    assert status["StateName"] == "Failed" and "delete" in status["Detail"], status
    assert node.results(unit) == b"begun\n"


def test_fifty_at_once(node):
    units = [node.submit(payload=b"%d\n" % n, **shell("cat")) for n in range(50)]
    for n, unit in enumerate(units):
        assert node.final(unit, 240)["StateName"] == "Succeeded", node.status(unit)
        assert node.results(unit) == b"%d\n" % n


def test_what_a_submission_must_not_bring(node):
    from client import ControlError

    bad = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "u", "user": {"exec": {"command": "/bin/hunter2"}}}]}
    with node.control() as control, pytest.raises(ControlError) as refused:
        control.submit("localhost", "runtime", b"", secret_kube_config=json.dumps(bad), **pod("true"))
    assert "users[0].user.exec" in str(refused.value) and "hunter2" not in str(refused.value)
    assert not os.path.exists(node.dir / "data" / "hunter2")
