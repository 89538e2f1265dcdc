"""meshd in a pod of its own, with its data in a volume, as AWX's operator has it: the pod of the documentation."""

import json
import os
import re
import subprocess
import tarfile

import pytest

import images
import yaml
from cluster import STATE
from mesh import MESHD, ROOT, until

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
