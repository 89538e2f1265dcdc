"""The same project is not sent twice: streams of the real ansible-runner, and what may go wrong with pieces that are kept."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh import WORK, Mesh, line, until

#: Each with its own libraries: the version of the other tests, and an older one.
RUNNERS = {
    "2.4": Path(sys.prefix),
    "2.3": Path(sys.prefix) / "ansible-runner-2.3.6",
}


@pytest.fixture
def nodes():
    """A control node, a hop and an execution node."""
    mesh = line(Mesh(), WORK)
    try:
        yield mesh.start()
        mesh.check_sane()
    finally:
        mesh.end()
        mesh.remove()


@pytest.fixture
def project(tmp_path):
    """A private data directory as AWX makes one, with some MB of a project."""
    data = random.Random(5)
    root = tmp_path / "private"
    files = {
        "env/extravars": b"token: first",
        "inventory/hosts": b"localhost ansible_connection=local ansible_password=secret-of-inventory\n",
        "project/site.yml": b"- hosts: all\n  gather_facts: false\n  tasks: []\n",
        "project/empty": b"",
        **{f"project/roles/r{n}/tasks/main.yml": b"- debug: msg=%d\n" % n * 20 for n in range(200)},
        **{f"project/roles/r{n}/files/data": data.randbytes(60_000) for n in range(50)},
    }
    for name, body in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    (root / "project/link").symlink_to("site.yml")
    return root


def transmitted(project, version, job):
    """What ansible-runner sends of a fresh copy of the directory, as AWX makes one for every job."""
    copy = project.parent / f"job{job}"
    shutil.copytree(project, copy, symlinks=True)
    for path in copy.rglob("*"):
        os.utime(path, (1_700_000_000 + 60 * job,) * 2, follow_symlinks=False)
    (copy / "env/extravars").write_text(f"token: of-job-{job}")
    (copy / "project/site.yml").write_text(f"- hosts: all\n  tasks: [] # {job}\n")
    runner = [RUNNERS[version] / "bin/python", "-m", "ansible_runner"]
    sent = subprocess.run([*runner, "transmit", copy, "-p", "site.yml"], capture_output=True, timeout=120, check=True)
    shutil.rmtree(copy)
    return sent.stdout


def pieces(node):
    """The files of pieces that a node keeps."""
    return [path for path in Path(node.dir).rglob(".pieces/*/*") if len(path.name) == 64]


def size(node):
    return sum(path.stat().st_size for path in pieces(node))


def carried(node, payload):
    """Runs `cat` with a payload; what was sent of it, and what was saved."""
    unit, output = node.run("execution", "cat", payload)
    assert output == payload, f"{len(output)} of {len(payload)} bytes came back"
    extra = node.unit(unit)["ExtraData"]
    return extra.get("PayloadSent", 0), extra.get("PayloadSaved", 0)


@pytest.mark.parametrize("version", RUNNERS)
def test_streams_of_ansible_runner_come_whole_and_the_project_is_sent_once(nodes, project, version):
    first, second = (transmitted(project, version, job) for job in (1, 2))
    assert carried(nodes["control"], first) == (0, 0), "the first payload goes as it is"
    until("pieces to be kept", lambda: size(nodes["execution"]) > 3_000_000)
    sent, saved = carried(nodes["control"], second)
    assert sent < 120_000 < 3_900_000 < saved, (sent, saved)
    for path in pieces(nodes["execution"]):
        assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
        assert b"secret-of-inventory" not in path.read_bytes() and b"of-job" not in path.read_bytes()
    assert not pieces(nodes["control"]) and not pieces(nodes["hop"])


def test_pieces_outlive_a_killed_node_and_a_damaged_one_is_sent_again(nodes, project):
    control, execution = nodes["control"], nodes["execution"]
    carried(control, transmitted(project, "2.4", 1))
    until("pieces to be kept", lambda: size(execution) > 3_000_000)
    execution.restart(signal.SIGKILL)
    nodes.wait_for_routes()
    assert carried(control, transmitted(project, "2.4", 2))[1] > 3_900_000
    damaged = max(pieces(execution), key=lambda path: path.stat().st_size)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    since = len(control.log())
    assert carried(control, transmitted(project, "2.4", 3)) == (0, 0)
    control.logged("the payload is sent again, all of it", since=since)
    # The whole payload has brought the piece back.
    until("the piece to be kept again", lambda: damaged.exists() and any(damaged.read_bytes()))
    assert carried(control, transmitted(project, "2.4", 4))[1] > 3_900_000


def test_a_payload_that_is_short_or_no_stream_goes_as_it_is(nodes, project):
    control = nodes["control"]
    carried(control, transmitted(project, "2.4", 1))
    until("pieces to be kept", lambda: size(nodes["execution"]) > 3_000_000)
    shutil.rmtree(project / "project/roles")
    assert carried(control, transmitted(project, "2.4", 2)) == (0, 0)
    noise = random.Random(1).randbytes(3_000_000)
    for payload in (noise, b'{"zipfile": 2000000}\n' + noise, b"{" * 3_000_000):
        sent, saved = carried(control, payload)
        assert len(payload) <= sent < len(payload) * 1.01 and saved == 0


def test_a_node_that_keeps_nothing_is_sent_everything(project):
    mesh = line(Mesh(), WORK)
    execution = mesh["execution"]
    own, *others = json.loads(execution.config.read_text())
    own["node"]["payloadcache"] = 0
    execution.config.write_text(json.dumps([own, *others]))
    try:
        mesh.start()
        for job in (1, 2):
            assert carried(mesh["control"], transmitted(project, "2.4", job)) == (0, 0)
        assert not pieces(mesh["execution"])
    finally:
        mesh.end()
        mesh.remove()


def test_no_caller_learns_what_another_has_sent(nodes, project):
    """Both nodes send the same project, and each has to send it itself."""
    carried(nodes["control"], transmitted(project, "2.4", 1))
    until("pieces to be kept", lambda: size(nodes["execution"]) > 3_000_000)
    before = size(nodes["execution"])
    assert carried(nodes["hop"], transmitted(project, "2.4", 2)) == (0, 0)
    until("pieces of the other", lambda: size(nodes["execution"]) > before * 1.9)
    assert carried(nodes["hop"], transmitted(project, "2.4", 3))[1] > 3_900_000
