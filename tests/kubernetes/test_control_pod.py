"""meshd in a pod of its own, with its data in a volume, as AWX's operator has it: the pod of the documentation, and the one
of packaging/container/control-pod.yml."""

import json
import os
import re
import subprocess
import tarfile

import pytest

import images
import yaml
from cluster import STATE
from mesh import MESHCTL, MESHD, ROOT, until

MANIFEST = ROOT / "packaging" / "container" / "control-pod.yml"
CONTAINERFILE = MANIFEST.with_name("Containerfile")
IMAGE = "docker.io/local/meshd:1"
#: Users as OpenShift chooses them.
ARBITRARY = {"runAsUser": 1000700000, "fsGroup": 1000700000}
CONFIG = [
    {"node": {"id": "control", "datadir": "/var/lib/receptor"}},
    {"local-only": None},
    {"control-service": {"service": "control", "filename": "/var/run/receptor/receptor.sock"}},
    {"work-command": {"worktype": "cat", "command": "cat"}},
]


@pytest.fixture(scope="module")
def image(cluster):
    layer = STATE / "meshd.tar"
    with tarfile.open(layer, "w") as tar:
        images.add_busybox(tar)
        for name in ("meshd", "meshctl"):
            tar.add(MESHD, f"bin/{name}")
        listed = subprocess.run(["ldd", MESHD], capture_output=True, text=True, timeout=60).stdout
        for library in {word for word in listed.split() if word.startswith("/")}:
            # Links are followed: the loader looks for the name that ldd prints.
            tar.add(os.path.realpath(library), library.lstrip("/"))
    images.import_image(cluster.ctr, IMAGE, layer, ["sh"])
    # As the Containerfile says.
    settings = re.search(r"^ENV (STATE_DIRECTORY=.*)$", CONTAINERFILE.read_text(), re.M)[1].split()
    command = ["meshd", "--config-dir", "/etc/meshd/conf.d"]
    images.import_image(cluster.ctr, "docker.io/library/meshd:latest", layer, command, ["PATH=/bin:/usr/bin", *settings], "1000:0")
    layer.unlink()


def documented():
    page = (ROOT / "docs/kubernetes.md").read_text()
    (found,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "receptor-work" in block]
    return yaml.safe_load(found)


@pytest.mark.parametrize("security", [{}, ARBITRARY], ids=["root", "arbitrary"])
def test_the_control_pod_of_the_documentation(cluster, image, security):
    pod = documented()
    pod["spec"].update(securityContext=security, automountServiceAccountToken=False, terminationGracePeriodSeconds=1)
    pod["spec"]["containers"][0].update(image=IMAGE, imagePullPolicy="Never")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "receptor-config", "namespace": "jobs"}}
    config["data"] = {"receptor.conf": json.dumps(CONFIG)}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(config))
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    inside = ("exec", "-n", "jobs", "control", "--")
    meshctl = (*inside, "meshctl", "--socket", "/var/run/receptor/receptor.sock")
    try:
        until("the node to answer", lambda: "control" in cluster.kubectl(*meshctl, "status", check=False), 60, 0.5)
        submitted = (*meshctl, "work", "submit", "cat", "--payload-literal", "through a pod", "--follow", "--rm")
        assert "through a pod" in cluster.kubectl(*submitted)
        modes = cluster.kubectl(*inside, "stat", "-c", "%a %u", "/var/lib/receptor", "/var/lib/receptor/control").split()
        own = str(security.get("runAsUser", 0))
        assert int(modes[2], 8) & 0o777 == 0o700 and modes[3] == own, modes
        assert security or int(modes[0], 8) & 0o022 == 0, modes
        # The API server may learn later than we that the container runs.
        told = lambda: cluster.kubectl("logs", "-n", "jobs", "control", check=False).count("the data directory")  # noqa: E731
        assert until("its log", told, 60, 0.5) == 1
        # The container starts again on what it has left there.
        cluster.kubectl(*inside, "kill", "1", check=False)
        until("a second start", lambda: "control" in cluster.kubectl(*meshctl, "status", check=False), 60, 0.5)
    finally:
        cluster.kubectl("delete", "pod", "-n", "jobs", "control", "--grace-period=1")


def make_keys(directory):
    """The files that the manifest has in its secret."""
    for words in (
        "key generate --private work.key --public work.pub", "cert init --commonname mesh --outcert ca.crt --outkey ca.key",
        "cert makereq --commonname control --nodeid control --outreq control.req --outkey control.key",
        "cert signreq --req control.req --cacert ca.crt --cakey ca.key --outcert control.crt --verify",
    ):
        subprocess.run([MESHCTL, *words.split()], cwd=directory, check=True, capture_output=True, timeout=60)


def bind_claim(cluster, directory):
    """What a controller would do: a volume for the claim `meshd`."""
    claim = json.loads(cluster.kubectl("get", "pvc", "meshd", "-o", "json"))
    here = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]}]}]
    spec = {
        "capacity": {"storage": "8Gi"}, "accessModes": claim["spec"]["accessModes"], "local": {"path": str(directory)},
        "claimRef": {"namespace": "jobs", "name": "meshd", "uid": claim["metadata"]["uid"]},
        "nodeAffinity": {"required": {"nodeSelectorTerms": here}},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "meshd"}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(volume))
    bound = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "meshd"}}
    cluster.kubectl("patch", "pvc", "meshd", "--type=merge", "-p", json.dumps(bound))
    status = {"status": {"phase": "Bound", "accessModes": spec["accessModes"], "capacity": spec["capacity"]}}
    cluster.kubectl("patch", "pvc", "meshd", "--type=merge", "--subresource=status", "-p", json.dumps(status))


def test_the_manifest_beside_the_container_files(cluster, image, tmp_path):
    """The API server takes it as it is. No controller runs here, so the pod of its Deployment is made by hand."""
    cluster.kubectl("apply", "--validate=strict", "-f", str(MANIFEST))
    make_keys(tmp_path)
    words = re.search(r"^#\s+kubectl (create secret .*)$", MANIFEST.read_text(), re.M)[1].split()
    cluster.kubectl(*(word.replace("--from-file=", f"--from-file={tmp_path}/") for word in words))
    (tmp_path / "volume").mkdir()
    # A volume is a file system of its own, or meshd would not share it with root.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "volume"], check=True)
    bind_claim(cluster, tmp_path / "volume")
    template = json.loads(cluster.kubectl("get", "deployment", "control", "-o", "json"))["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "control"}, "spec": template["spec"]}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    inside = ("exec", "control", "-c")
    try:
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        until("the pod to be ready", lambda: cluster.kubectl("get", "pod", "control", "-o", ready) == "True", 90, 0.5)
        meshctl = ("meshctl", "--socket", "/var/run/receptor/receptor.sock")
        assert "control" in cluster.kubectl(*inside, "client", "--", *meshctl, "status")
        assert cluster.kubectl(*inside, "client", "--", "ls", "/etc", "/var/lib", check=False).find("meshd") == -1
        assert cluster.kubectl(*inside, "meshd", "--", "id", "-u").strip() == "1000"
        assert cluster.kubectl(*inside, "meshd", "--", "ls", "/var/lib/meshd").split() == ["control"]
    finally:
        print(cluster.kubectl("describe", "pod", "control", check=False), cluster.kubectl("logs", "control", "-c", "meshd", check=False))
        cluster.kubectl("delete", "pod", "control", "--grace-period=1")
        cluster.kubectl("delete", "deployment", "control")
        cluster.kubectl("delete", "secret", "meshd")
        subprocess.run(["umount", "--lazy", tmp_path / "volume"], check=True)
