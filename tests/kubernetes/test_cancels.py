"""Twenty cancels of pods at random moments of their lives, as AWX sends them; beside a node of receptor if RECEPTOR_GO
names one, whose answers are printed and not judged."""

import os
import random
import threading
import time

import pytest

from client import ControlError
from mesh import until
from node import Node, kubeconfig, work_type
from pods import STAY, pod

CANCELS = 20
#: A pod of this cluster runs after some 2 s.
LATEST = 4.0
#: Sent to the pod as AWX sends a project.
PAYLOAD = os.urandom(1 << 20)


class Cancel(threading.Thread):
    """Submits a pod, reads its results, and cancels it at its moment. What comes of it stands in the attributes."""

    def __init__(self, node, moment):
        super().__init__(daemon=True)
        self.node, self.moment = node, moment
        self.answer = self.before = self.status = self.output = self.stayed = None
        self.start()

    def run(self):
        node, config = self.node, open(kubeconfig("awx")).read()
        definition = pod(f"cat > /dev/null; echo begun; {STAY}")
        unit = node.submit("runtime", PAYLOAD, **definition, secret_kube_config=config, pod_pending_timeout="2h")
        begun = time.monotonic()
        reader = threading.Thread(target=self.read, args=(unit,), daemon=True)
        reader.start()
        time.sleep(max(0, begun + self.moment - time.monotonic()))
        self.before = node.status(unit)["Detail"]
        try:
            self.answer = node.cancel(unit)
        except ControlError as error:
            self.answer = str(error)
        answered = time.monotonic()
        # AWX shuts its reader down now, and receptor leaves the results of a cancelled unit open.
        reader.join(10)
        self.stayed = time.monotonic() - answered
        self.status = node.status(unit)
        try:
            node.release(unit)
        except ControlError as error:
            self.answer = f"{self.answer}, release: {error}"

    def read(self, unit):
        try:
            self.output = self.node.results(unit, 60)
        except (ControlError, OSError) as error:
            self.output = str(error).encode()

    def row(self):
        end = f"ended {self.stayed:.1f} s later" if self.stayed < 9.9 else "open"
        return f"{self.status['StateName']}, {self.status['Detail']!r}, answer {self.answer}, results {end}"


@pytest.mark.timeout(600)
def test_a_cancel_at_any_moment_is_answered_and_explained(cluster, add_node, processes):
    types = [work_type("runtime", authmethod="runtime")]
    beside = [add_node(Node(types))]
    if program := os.environ.get("RECEPTOR_GO"):
        go = Node(types, program=program)
        processes.append(go)
        beside.append(go.start())
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    moments = random.Random(seed)
    print(f"SEED={seed}")
    for number in range(CANCELS):
        moment = moments.uniform(0, LATEST)
        cancels = [Cancel(node, moment) for node in beside]
        for cancel, name in zip(cancels, ("meshd", "Go")):
            cancel.join(60)
            assert not cancel.is_alive(), f"{name}: cancel {number} hangs"
            print(f"{number:2} {moment:.2f} s {name:5} ({cancel.before!r}): {cancel.row()}")
        ours = cancels[0]
        assert (ours.status["StateName"], ours.status["Detail"]) == ("Canceled", "Canceled")
        assert list(ours.answer) == ["cancelled"] and ours.stayed < 5 and ours.output in (b"", b"begun\n"), ours.row()
    # The nodes run on: what is left now is left by them.
    ours = lambda: [made for made in cluster.pods() if "meshd/unit" in made["metadata"]["labels"]]  # noqa: E731
    until("the end of our pods", lambda: not ours(), 60)
    left = len(cluster.pods())
    print(f"pods left: {left}, all of them Go's")
    cluster.remove_pods()
