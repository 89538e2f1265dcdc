"""What breaks off while a unit runs: the daemon, the API server, the kubelet, the pod. Nothing is lost or left."""

import os
import random
import signal
import time

from mesh import until
from node import Reader
from pods import STAY, pod, shell

#: Seeds the points at which the daemon is killed; a failure prints it.
SEED = int(os.environ.get("FAULTS_SEED", random.randrange(1 << 32)))


def counted(seconds, prefix="line"):
    """A script that prints a line each second, and what it prints."""
    script = f"for n in $(seq 1 {seconds}); do echo {prefix} $n; sleep 1; done"
    return script, b"".join(b"%s %d\n" % (prefix.encode(), n) for n in range(1, seconds + 1))


def test_killing_the_daemon_again_and_again_loses_nothing(node):
    print(f"FAULTS_SEED={SEED}")
    points = random.Random(SEED)
    unit = node.submit(payload=b"payload\n", **shell("cat; for n in $(seq 1 500); do echo line $n; sleep 0.05; done"))
    # A pod that has not started is deleted at the restart.
    node.running(unit)
    for _ in range(20):
        time.sleep(points.uniform(0.0, 1.0))
        node.kill()
        node.start()
    status = node.final(unit, 90)
    assert status["StateName"] == "Succeeded", status
    assert node.results(unit) == b"payload\n" + b"".join(b"line %d\n" % n for n in range(1, 501))


def test_killing_the_daemon_at_any_step_leaves_no_pod(node, cluster):
    print(f"FAULTS_SEED={SEED}")
    points = random.Random(SEED)
    for _ in range(8):
        unit = node.submit(payload=b"payload\n", **pod("cat"))
        time.sleep(points.uniform(0.0, 1.5))
        node.kill()
        node.start()
        status = node.final(unit)
        # A pod that had not started is deleted at the restart.
        assert status["StateName"] in ("Succeeded", "Failed"), status
        if status["StateName"] == "Succeeded":
            assert node.results(unit) == b"payload\n"


def test_a_server_that_is_away_loses_nothing(node, cluster):
    script, lines = counted(35)
    unit = node.submit(**shell(script))
    reader = Reader(node, unit)
    node.running(unit)
    cluster.end("apiserver", signal.SIGTERM)
    # The outage itself is what is tested.
    time.sleep(20)
    cluster.start_server()
    reader.join(60)
    cluster.restart_kubelet()
    assert reader.output == lines
    assert node.final(unit)["StateName"] == "Succeeded"


def test_a_job_that_ends_while_the_server_is_away(node, cluster):
    script, lines = counted(5)
    unit = node.submit(**shell(script))
    node.running(unit)
    cluster.end("apiserver")
    time.sleep(8)
    cluster.start_server()
    cluster.restart_kubelet()
    assert node.results(unit, 60) == lines
    assert node.final(unit)["StateName"] == "Succeeded"


def test_a_submission_waits_for_a_server_that_is_away(node, cluster):
    cluster.end("apiserver")
    # One that ends when the server is back takes the container with it that it has just begun to start.
    cluster.end("kubelet")
    unit = node.submit(payload=b"payload\n", **shell("cat"))
    node.until(unit, lambda status: status["Detail"].startswith("Connecting to Kubernetes"))
    cluster.start_server()
    cluster.start_kubelet()
    assert node.results(unit, 90) == b"payload\n"
    assert node.final(unit)["StateName"] == "Succeeded"


def test_a_kubelet_that_restarts_loses_nothing(node, cluster):
    script, lines = counted(20)
    unit = node.submit(**shell(script))
    reader = Reader(node, unit)
    node.running(unit)
    cluster.restart_kubelet()
    reader.join(90)
    assert reader.output == lines
    assert node.final(unit)["StateName"] == "Succeeded"


def test_a_pod_that_somebody_deletes_is_named(node, cluster):
    unit = node.submit(**pod(f"echo begun; {STAY}"))
    name = node.running(unit)["ExtraData"]["PodName"]
    cluster.kubectl("delete", "pod", "-n", "jobs", name, "--wait=false")
    status = node.final(unit)
    assert status["StateName"] == "Failed" and "delete" in status["Detail"], status
    assert (node.results(unit), status["StdoutSize"]) == (b"begun\n", 6)


def test_a_pod_that_is_drained_is_named(node, cluster):
    unit = node.submit(**pod(f"echo begun; {STAY}"))
    cluster.evict(node.running(unit)["ExtraData"]["PodName"])
    status = node.final(unit)
    assert status["StateName"] == "Failed" and "delete" in status["Detail"], status
    assert node.results(unit) == b"begun\n"


def test_a_pod_that_its_kubelet_evicts_is_named(node, cluster):
    volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    mounts = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    script = f"echo begun; dd if=/dev/zero of=/scratch/file bs=1M count=8 2>/dev/null; {STAY}"
    unit = node.submit(**pod(script, worker=mounts, volumes=volumes))
    status = node.final(unit, 90)
    assert status["StateName"] == "Failed" and "Evicted" in status["Detail"], status
    assert node.results(unit) == b"begun\n"


def test_a_unit_that_is_released_while_the_server_is_away_leaves_no_pod(node, cluster):
    unit = node.submit(**pod(f"echo begun; {STAY}"))
    node.running(unit)
    cluster.end("apiserver")
    assert node.release(unit) == {"release pending": unit}
    assert node.command("work list") == {}
    node.kill()
    node.start()
    cluster.start_server()
    cluster.restart_kubelet()
    until("the end of the pod", lambda: not cluster.pods(), 90)
