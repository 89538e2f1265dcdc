"""One cluster for all tests, nodes that end with their test, and no pod left behind by any of them."""

import json

import pytest

import cluster as kubernetes
import namespaces
from mesh import until
from node import SECRET, Node, kubeconfig, work_type


def pytest_sessionstart():
    if not namespaces.are_entered():
        pytest.exit("these tests need namespaces of their own: start them with tests/kubernetes/run, as root", 2)


@pytest.fixture(scope="session")
def cluster():
    cluster = kubernetes.Cluster(logmax="1Mi", idle="5s")
    cluster.start()
    cluster.prepare_runner_image()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def shared_node(cluster):
    """A node with a work type for each kind of credential and transport."""
    types = [
        work_type(),
        work_type("get-attach", kubeconfig=kubeconfig("awx-get-attach")),
        work_type("runtime", authmethod="runtime"),
        work_type("tcp", streammethod="tcp"),
    ]
    node = Node(types).start()
    yield node
    node.end()
    node.remove()


@pytest.fixture
def processes():
    """The nodes that end with the test."""
    nodes = []
    yield nodes
    for node in nodes:
        node.end()
        node.remove()


@pytest.fixture
def nodes(cluster, processes):
    """The nodes of a test. Afterwards their units are released, and then there is no pod; they and their logs are sane."""
    nodes = []
    yield nodes
    cluster.mend()
    try:
        for node in nodes:
            # Shown if the test has failed.
            print(json.dumps(node.command("work list"), indent=1))
            node.release_all()
        until("the end of all pods", lambda: not cluster.pods(), 60)
    except BaseException:
        cluster.remove_pods()
        raise
    finally:
        for node in nodes:
            log = node.log()
            print(f"--- the end of the log in {node.dir}\n{log[-3000:]}")
            assert SECRET not in log and "panicked" not in log
            assert not any(token in log for token in tokens())


@pytest.fixture
def node(shared_node, nodes):
    nodes.append(shared_node)
    return shared_node


@pytest.fixture
def add_node(nodes, processes):
    """Starts a node of the test's own, which ends with it."""

    def add(node):
        processes.append(node)
        nodes.append(node.start())
        return node

    return add


def tokens():
    for path in kubernetes.STATE.glob("*.kubeconfig"):
        yield json.loads(path.read_text())["users"][0]["user"]["token"]
