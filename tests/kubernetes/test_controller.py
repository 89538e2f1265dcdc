"""Jobs in a container group: placed by a controller, run by a real ansible-runner in pods of a real cluster."""

import json
import subprocess
import sys

import pytest

import cluster as kubernetes
import mesh
import project
from images import BUSYBOX, RUNNER
from mesh import until
from node import SECRET, Node, kubeconfig, work_type

STAND_IN = mesh.ROOT / "tests/system/stand_in_runner.py"
WORKER = {"name": "worker", "imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}
RUN = ["ansible-runner", "worker", "--private-data-dir=/runner"]


class ControlNode(Node):
    """A node whose controller knows the credentials `cluster` and `registry`."""

    def __init__(self):
        types = [
            work_type("kubernetes-runtime-auth", authmethod="runtime"),
            work_type("kubernetes-incluster-auth"),
        ]
        super().__init__(types)
        directory = self.dir / "credentials"
        directory.mkdir()
        login = {"kind": "registry", "host": "registry.example", "username": "u", "password": SECRET}
        credential = {"kind": "kubernetes", "kubeconfig": open(kubeconfig("awx")).read(), "namespace": kubernetes.JOBS}
        for name, content in (("registry", login), ("cluster", credential)):
            (directory / f"{name}.yml").write_text(json.dumps(content))
            (directory / f"{name}.yml").chmod(0o600)
        items = json.loads(self.config.read_text())
        settings = {"credentials": str(directory), "rundir": str(self.dir), "poll": "200ms"}
        items.append({"work-controller": {"runner": f"{sys.executable} {STAND_IN} worker", **settings}})
        self.config.write_text(json.dumps(items))

    def operate(self, op, **arguments):
        with self.control() as control:
            answer = control.command({"command": "controller", "op": op, **arguments})
        assert answer["ok"], answer
        return answer["result"]

    def meshctl(self, *arguments, stdin=b""):
        """The answer to an operator's command."""
        command = [str(mesh.MESHCTL), "--socket", self.socket, "--json", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def group(self, name, script=None, **settings):
        """Creates a container group: of the runner, or of pods that run a script."""
        container = {"image": RUNNER, "args": RUN} if script is None else {"image": BUSYBOX, "args": ["sh", "-c", script]}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [{**WORKER, **container}]}
        pod = self.dir / "pod.yaml"
        pod.write_text(json.dumps({"spec": spec}))
        named = [word for key, value in settings.items() for word in (f"--{key}", value)]
        self.meshctl("group", "create", name, "--container", "--pod", str(pod), *named)

    def job(self, number):
        return self.operate("job.get", id=number)

    def until_job(self, number, is_so, seconds=60):
        """Waits until a job is so; returns it."""
        return until(f"job {number} to be so", lambda: is_so(job := self.job(number)) and job, seconds, 0.1)

    def ended(self, number, seconds=60):
        return self.until_job(number, lambda job: job["finished"], seconds)

    def run_stream(self, stream, group):
        """Submits a stream as operators do; returns the job's number."""
        header = {"controller": 1, "groups": {"launch": [group]}}
        return self.meshctl("job", "submit", stdin=json.dumps(header).encode() + b"\n" + stream)["id"]


@pytest.fixture(scope="module")
def controller(cluster):
    node = ControlNode().start()
    instances = lambda: node.operate("instance.list")["instances"]  # noqa: E731
    until("the controller to be ready", lambda: any(one["node_state"] == "ready" for one in instances()), 60)
    yield node
    node.end()
    node.remove()


@pytest.fixture
def control(controller, nodes):
    nodes.append(controller)
    return controller


#: A runner's stream that needs no runner.
NOTHING = b'{"kwargs": {}}\n{"eof": true}\n'


def says(*lines):
    return "".join(f"echo '{json.dumps(line)}'; " for line in lines)


def event(counter):
    return {"counter": counter, "uuid": f"u{counter}", "event": "verbose", "stdout": "", "event_data": {}}


def secrets(cluster):
    found = cluster.api("GET", f"/api/v1/namespaces/{kubernetes.JOBS}/secrets")["items"]
    return {one["metadata"]["name"]: one for one in found}


@pytest.mark.parametrize("named", [{"cluster": "cluster", "registry": "registry"}, {"namespace": kubernetes.JOBS}], ids=["credential", "own"])
def test_a_playbook_runs_in_a_pod(control, cluster, tmp_path, named):
    cluster.wait_for_runner_image()
    control.group("runner", **named)
    number = control.run_stream(project.transmit(project.write(tmp_path / "in")), "runner")
    job = control.ended(number, 90)
    assert (job["state"], job["execution_node"], job["instance_group"]) == ("successful", None, "runner"), job
    assert job["host_stats"]["localhost"]["ok"] == 2
    project.process(control.results(job["unit"]), tmp_path / "out")
    status, code, told, events = project.artifacts(tmp_path / "out")
    assert (status, code) == ("successful", 0) and "it said across the mesh" in told
    assert job["events"] == len(events) > 0
    written = secrets(cluster)
    if "registry" in named:
        [(name, secret)] = written.items()
        assert name.endswith("-registry") and secret["type"] == "kubernetes.io/dockerconfigjson"
    else:
        assert not written
    until("the end of the pod", lambda: not cluster.pods())
    control.operate("group.delete", name="runner")
    assert not secrets(cluster)


def test_a_cancel_deletes_the_pod(control, cluster):
    control.group("stays", "echo '{\"status\": \"starting\"}'; while :; do sleep 1; done", cluster="cluster")
    number = control.run_stream(NOTHING, "stays")
    control.until_job(number, lambda job: job["state"] == "running")
    [pod] = cluster.pods()
    labels = pod["metadata"]["labels"]
    assert labels["meshd/job"] == str(number) and labels["meshd/install"]
    control.operate("job.cancel", id=number)
    job = control.ended(number)
    assert (job["state"], job["attempts"][0]["outcome"]) == ("canceled", "canceled")
    until("the end of the pod", lambda: not cluster.pods())


def test_a_job_goes_on_while_its_control_node_is_dead_and_ends_once(control, cluster):
    # A payload that is cut off by the death of the node that sends it fails the job.
    script = "cat >/dev/null; " + says({"status": "starting"}, event(1)) + "sleep 4; " + says(event(2), {"status": "successful"}, {"eof": True})
    control.group("lives", script, cluster="cluster")
    number = control.run_stream(NOTHING, "lives")
    control.until_job(number, lambda job: job["events"] == 1)
    control.kill()
    control.start()
    job = control.ended(number)
    assert (job["state"], job["events"], len(job["attempts"])) == ("successful", 2, 1), job
    expected = [{"status": "starting"}, event(1), event(2), {"status": "successful"}, {"eof": True}]
    assert [json.loads(line) for line in control.results(job["unit"]).splitlines()] == expected


def test_a_job_waits_for_a_quota(control, cluster):
    control.group("quota", says({"status": "successful"}, {"eof": True}), cluster="cluster")
    cluster.set_quota(0)
    try:
        number = control.run_stream(NOTHING, "quota")
        job = control.until_job(number, lambda job: "exceeded quota: q" in job["explanation"])
        assert job["state"] == "pending"
        assert "exceeded quota: q" in control.operate("job.explain", id=number)["summary"]
    finally:
        cluster.remove_quota()
    job = control.ended(number)
    assert (job["state"], [one["outcome"] for one in job["attempts"]]) == ("successful", ["quota", "successful"])
