"""Where credentials come from, the rights that they have, and what may not come with a submission."""

import base64
import contextlib
import json
import re
import socket
import threading
import time

import pytest

import cluster as kubernetes
from client import ControlError
from images import BUSYBOX
from mesh import ROOT, until
from node import SECRET, Node, ServiceAccount, kubeconfig, work_type
from pods import pod, shell

MANIFEST = ROOT / "docs/kubernetes.md"


def test_a_credential_that_comes_with_the_job(node):
    submitted = (kubernetes.STATE / "awx.kubeconfig").read_text()
    output, status = node.run({**pod("echo hi"), "secret_kube_config": submitted}, work_type="runtime")
    assert (output, status["StateName"]) == (b"hi\n", "Succeeded")
    token = json.loads(submitted)["users"][0]["user"]["token"]
    assert token not in json.dumps(status) and token not in node.log()


def test_a_credential_with_a_certificate_in_it_as_awx_sends_it(node, cluster):
    submitted = json.loads((kubernetes.STATE / "awx.kubeconfig").read_text())
    trusted = base64.b64encode(cluster.certificate_authority().encode()).decode()
    submitted["clusters"][0]["cluster"] = {"server": kubernetes.SERVER, "certificate-authority-data": trusted}
    output, status = node.run({**pod("echo hi"), "secret_kube_config": json.dumps(submitted)}, work_type="runtime")
    assert (output, status["StateName"]) == (b"hi\n", "Succeeded"), status


def test_what_a_submission_must_not_bring(node):
    user = {"name": "u", "user": {"exec": {"command": f"/bin/{SECRET}"}}}
    bad = {"apiVersion": "v1", "kind": "Config", "users": [user]}
    with node.control() as control, pytest.raises(ControlError) as refused:
        control.submit("localhost", "runtime", b"", secret_kube_config=json.dumps(bad), **pod("true"))
    assert "users[0].user.exec" in str(refused.value) and SECRET not in str(refused.value)


@pytest.mark.timeout(240)
def test_the_account_of_the_pod_that_the_node_runs_in(cluster, add_node):
    """Without `namespace` the mounted one counts; a token that is replaced is read again."""
    cluster.make_account("mounted", kubernetes.AWX_RULES)
    mounted = ServiceAccount(cluster, "mounted")
    node = add_node(mounted.node([work_type("incluster", authmethod="incluster")]))
    assert "warning" not in node.check()
    output, status = node.run(shell("echo hi"), work_type="incluster")
    assert (output, status["StateName"], status["ExtraData"]["KubeNamespace"]) == (b"hi\n", "Succeeded", "jobs"), status
    # The end of the account is the end of its tokens; the binding holds for its successor of the same name.
    old = mounted.token()
    cluster.kubectl("delete", "serviceaccount", "-n", "jobs", "mounted")
    cluster.kubectl("create", "serviceaccount", "-n", "jobs", "mounted")
    mounted.replace_token()
    until("the server to refuse the old token", lambda: cluster.refuses(old), 30)
    # Nothing else ends a token so early: a kubelet replaces it long before its end, and ours is read once a minute.
    until("a unit with the new token", lambda: node.run(shell("true"), work_type="incluster")[1]["State"] == 2, 120, 2)
    node.release_all()
    mounted.remove()


def test_the_manifest_of_the_documentation_is_enough(cluster, add_node):
    page = MANIFEST.read_text()
    (manifest,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Role\n" in block]
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    kubernetes.write_kubeconfig("meshd", cluster.token("meshd"))
    node = add_node(Node([work_type(kubeconfig=kubeconfig("meshd"))]))
    assert "warning" not in node.check()
    output, status = node.run(pod("cat"), b"payload\n")
    assert (output, status["StateName"]) == (b"payload\n", "Succeeded")
    # The account may list events: the last one of a pod completes the Detail.
    _, status = node.run(pod("true", worker={"image": "Not A Name"}))
    assert "InspectFailed" in status["Detail"] or "Failed to apply default image tag" in status["Detail"], status


def test_the_check_finds_missing_rights(cluster, add_node):
    cluster.make_account("poor", {"pods": ["get", "list", "watch", "create"], "pods/log": ["get"]})
    node = add_node(Node([work_type(kubeconfig=kubeconfig("poor"))]))
    findings = node.check()
    for right in ("delete pods", "create pods/attach"):
        assert f"its credential may not {right} in namespace jobs" in findings
    assert "get pods/log" not in findings


def test_the_check_finds_a_server_that_does_not_answer(cluster, add_node):
    node = add_node(Node([work_type()]))
    assert "warning" not in node.check()
    cluster.end("apiserver")
    assert "cannot ask the API server" in node.check()


def test_the_check_finds_a_bad_pod(cluster, add_node, tmp_path):
    (tmp_path / "pod.yml").write_text("{apiVersion: v1, kind: Pod, spec: {containers: [{name: other, image: a}]}}")
    node = add_node(Node([work_type(pod=str(tmp_path / "pod.yml"))]))
    assert "at least one container must be named worker" in node.check()


def test_a_sweep_deletes_pods_of_ours_alone(cluster, add_node):
    """A pod of this node's store whose unit is gone is deleted at a start, and no other pod."""
    node = add_node(Node([work_type()]))
    unit = node.submit(**shell("echo hi"))
    made = cluster.pod(node.final(unit)["ExtraData"]["PodName"])
    labels = made["metadata"]["labels"]

    def orphan(name, **changed):
        container = {"name": "worker", "image": BUSYBOX, "args": ["true"]}
        metadata = {"name": name, "labels": {**labels, "meshd/unit": "gone", **changed}}
        definition = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        cluster.api("POST", "/api/v1/namespaces/jobs/pods", definition)

    orphan("ours")
    orphan("theirs", **{"meshd/store": "another"})
    node.kill()
    node.start()
    names = lambda: {pod["metadata"]["name"] for pod in cluster.pods()}
    until("the sweep", lambda: "ours" not in names(), 60)
    assert {made["metadata"]["name"], "theirs"} <= names()
    cluster.api("DELETE", "/api/v1/namespaces/jobs/pods/theirs?gracePeriodSeconds=0")


def wrong(address=kubernetes.SERVER, authority=None):
    """The kubeconfig of a credential that leads elsewhere, or trusts somebody else."""
    config = json.loads((kubernetes.STATE / "awx.kubeconfig").read_text())
    cluster = {"server": address}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    config["clusters"][0]["cluster"] = cluster
    return json.dumps(config)


@contextlib.contextmanager
def relayed(address):
    """The API server at another address, which its certificate does not name."""

    def copy(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection((kubernetes.ADDRESS, kubernetes.PORT))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    with socket.create_server((address, kubernetes.PORT)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield


@pytest.mark.parametrize("is_trusted, address, cause", [(False, kubernetes.ADDRESS, "UnknownIssuer"), (True, "127.0.0.9", "not valid for name")])
def test_a_wrong_address_or_authority_fails_at_once(cluster, add_node, request, is_trusted, address, cause):
    """AWX gives a pod two hours to start."""
    if address != kubernetes.ADDRESS:
        relay = contextlib.ExitStack()
        relay.enter_context(relayed(address))
        request.addfinalizer(relay.close)
    node, address = add_node(Node([work_type("runtime", authmethod="runtime")])), f"https://{address}:{kubernetes.PORT}"
    config = wrong(address, cluster.certificate_authority() if is_trusted else None)
    began = time.monotonic()
    _, status = node.run({**pod("true"), "secret_kube_config": config, "pod_pending_timeout": "2h"}, work_type="runtime")
    # A server that has answered is waited for.
    assert time.monotonic() - began < 40
    host = address.removeprefix("https://")
    assert status["StateName"] == "Failed" and host in status["Detail"] and cause in status["Detail"], status


def test_a_refused_connection_fails_at_once_and_leaves_nothing(cluster, add_node):
    node = add_node(Node([work_type("runtime", authmethod="runtime")]))
    began = time.monotonic()
    definition = {**pod("true"), "secret_kube_config": wrong("https://127.0.0.1:9"), "pod_pending_timeout": "2h"}
    unit = node.submit("runtime", **definition)
    status = node.final(unit, 30)
    assert time.monotonic() - began < 20
    cause = "API server 127.0.0.1:9: Connection refused (os error 111)"
    assert (status["StateName"], status["Detail"]) == ("Failed", f"Error creating pod: {cause}"), status
    assert cause in node.log()
    assert node.release(unit) == {"released": unit}
    assert not list((node.dir / "data").glob(f"*/*{unit}*")), "its credential is gone"
