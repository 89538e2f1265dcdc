"""A real cluster for all tests, and a node that runs its pods with the rights that AWX's operator grants."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import cluster as kubernetes

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from client import Control  # noqa: E402

MESHD = os.environ.get("MESHD", str(HERE.parent.parent / "target/debug/meshd"))


class Node:
    """A daemon in the cluster's network namespace."""

    def __init__(self, cluster, work_types):
        self.cluster = cluster
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="meshd-kubernetes-"))
        self.socket = str(self.dir / "control.sock")
        items = [
            {"node": {"id": "controller", "datadir": str(self.dir / "data")}},
            {"local-only": None},
            {"control-service": {"service": "control", "filename": self.socket}},
            *({"work-kubernetes": work_type} for work_type in work_types),
        ]
        self.config = self.dir / "meshd.yml"
        self.config.write_text(json.dumps(items))
        self.process = None
        self.start()

    def start(self):
        log = open(self.dir / "log", "a")
        command = self.cluster.inside(MESHD, "--config", str(self.config))
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        kubernetes.until("the node", self.answers)

    def answers(self):
        assert self.process.poll() is None, self.log()
        try:
            with Control(self.socket, 5):
                return True
        except OSError:
            return False

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.terminate()
        self.process.wait(30)

    def log(self):
        return (self.dir / "log").read_text()

    def control(self):
        return Control(self.socket, 120)

    def submit(self, work_type="kube", payload=b"", **params):
        with self.control() as control:
            return control.submit("localhost", work_type, payload, **params)["unitid"]

    def status(self, unit):
        with self.control() as control:
            return control.command(f"work status {unit}")

    def results(self, unit):
        with self.control() as control:
            return control.results(unit).read()

    def cancel(self, unit):
        with self.control() as control:
            return control.command(f"work cancel {unit}")

    def release(self, unit):
        with self.control() as control:
            return control.command(f"work release {unit}")

    def until(self, unit, is_so, seconds=60):
        end = time.monotonic() + seconds
        while not is_so(status := self.status(unit)):
            assert time.monotonic() < end, status
            time.sleep(0.05)
        return status

    def final(self, unit, seconds=60):
        return self.until(unit, lambda status: status["State"] >= 2, seconds)


def pytest_collection_modifyitems(items):
    if why := kubernetes.missing():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"no Kubernetes cluster here: {why}"))


@pytest.fixture(scope="session")
def cluster():
    kubernetes.build()
    running = kubernetes.Cluster(logmax="1Mi", idle="5s")
    running.start()
    yield running
    running.stop()


def work_type(cluster, name="kube", account="awx", **settings):
    return {
        "worktype": name,
        "authmethod": "kubeconfig",
        "kubeconfig": str(kubernetes.HOME / f"{account}.kubeconfig"),
        "allowruntimeauth": True,
        "allowruntimecommand": True,
        "allowruntimeparams": True,
        "allowruntimepod": True,
        **settings,
    }


@pytest.fixture(scope="session")
def node(cluster):
    runtime = {"authmethod": "runtime", "kubeconfig": None}
    settings = [
        work_type(cluster),
        work_type(cluster, "get-attach", "awx-get-attach"),
        {key: value for key, value in work_type(cluster, "runtime", **runtime).items() if value is not None},
    ]
    node = Node(cluster, settings)
    yield node
    node.end()
    shutil.rmtree(node.dir)


@pytest.fixture(autouse=True)
def no_pod_is_left(request):
    """Each test releases its units, and then there is no pod."""
    yield
    if "node" not in request.fixturenames:
        return
    node, cluster = request.getfixturevalue("node"), request.getfixturevalue("cluster")
    with node.control() as control:
        units = control.command("work list")
    # Shown where the test has failed.
    print(json.dumps(units, indent=1))
    for unit in units:
        node.release(unit)
    kubernetes.until("the end of all pods", lambda: not cluster.pods(), 60)
    assert "hunter2" not in node.log()
