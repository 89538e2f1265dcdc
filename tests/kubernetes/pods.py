"""What tests submit: simple pods by parameters, and definitions as AWX sends them."""

import json

from images import BUSYBOX, RUNNER

#: A script that runs until it is killed.
STAY = "while :; do sleep 1; done"
#: The pods of a container group.
AWX_LABELS = {"ansible_job": "", "ansible-awx": "1-2-3", "ansible-awx-job-id": "7"}


def shell(script):
    """The parameters of a unit that runs a script."""
    quoted = script.replace("'", "'\\''")
    return {"kube_image": BUSYBOX, "kube_command": "sh -c", "kube_params": f"'{quoted}'"}


def pod(script, **changes):
    """The pod that AWX sends, with a script in it. `worker` changes the container, `beside` adds others."""
    return awx_pod({"image": BUSYBOX, "args": ["sh", "-c", script]}, **changes)


def held(script, directory):
    """A pod whose script begins once the test has made `directory/go`. It has said `begun` by then."""
    wait = "echo begun; until [ -e /held/go ]; do sleep 0.1; done; "
    mounts = {"volumeMounts": [{"name": "held", "mountPath": "/held"}]}
    return pod(wait + script, worker=mounts, volumes=[{"name": "held", "hostPath": {"path": str(directory)}}])


def runner_pod():
    """The pod that AWX sends, unchanged but for its image."""
    return awx_pod({"image": RUNNER, "args": ["ansible-runner", "worker", "--private-data-dir=/runner"]})


def awx_pod(container, worker=None, beside=(), **changes):
    requests = {"resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}
    containers = [{"name": "worker", "imagePullPolicy": "IfNotPresent", **requests, **container, **(worker or {})}, *beside]
    term = {
        "labelSelector": {"matchExpressions": [{"key": "ansible_job", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    spec = {
        "serviceAccountName": "default", "automountServiceAccountToken": False, "affinity": {"podAntiAffinity": apart},
        # AWX leaves 30 s, and a pod's first process ignores signals: each cancel would take that long.
        "terminationGracePeriodSeconds": 1, "containers": containers, **changes,
    }
    metadata = {"name": "automation-job-7", "namespace": "jobs", "labels": AWX_LABELS}
    return {"secret_kube_pod": "---\n" + json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})}


def assert_same(output, expected):
    """Equal, or where they begin to differ: a comparison by pytest would take minutes."""
    if output == expected:
        return
    at = next((n for n, (a, b) in enumerate(zip(output, expected)) if a != b), min(len(output), len(expected)))
    around = slice(max(0, at - 100), at + 100)
    told = f"from {at} on {output[around]!r}, not {expected[around]!r}"
    raise AssertionError(f"{len(output)} bytes, not {len(expected)}; {told}")
