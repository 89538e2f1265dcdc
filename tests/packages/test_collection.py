"""The role `node` of the Ansible collection on a machine that has really booted: Ansible comes to it through what it takes for
ssh."""

import re

import pytest

import booted
from collection import Collection
from mesh import until
from trust import Pki

pytestmark = pytest.mark.timeout(500)

#: Runs the last word inside, as a server of SSH would.
SSH = """\
#!/bin/sh
for last; do :; done
exec nsenter -t {init} -a env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c "$last"
"""
SOCKET = ["--socket", "/var/run/receptor/receptor.sock"]


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    with booted.machine(tmp_path_factory.mktemp("booted"), "exec-1", with_meshd=False) as box:
        yield box


@pytest.fixture
def role(box, debs, tmp_path):
    """Gives the machine the role; what changed there, and what was printed."""
    collection, pki = Collection(tmp_path / "collections"), Pki(tmp_path / "pki")
    pki.issue("exec-1", ["exec-1"])
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(init=box.init))
    ssh.chmod(0o755)
    host = {"exec-1": {"ansible_ssh_executable": str(ssh), "ansible_ssh_transfer_method": "piped", "ansible_ssh_args": "",
                       "ansible_python_interpreter": "/usr/bin/python3"}}

    def role(**variables):
        given = {"receptor_user": "awx", "receptor_group": "awx", "custom_tls_certfile": str(pki.path("exec-1.crt")),
                 "custom_tls_keyfile": str(pki.path("exec-1.key")), "custom_ca_certfile": str(pki.path("ca.crt")), **variables}
        printed = collection.done(*collection.role(tmp_path, "node", host, **given))
        return int(re.search(r"^exec-1 +: ok=\d+ +changed=(\d+)", printed, re.M)[1]), printed

    return role


def test_a_node_of_the_role(box, debs, role):
    box.sh("useradd --system awx")
    wait = "-c 'until [ -e /tmp/go ]; do sleep 0.1; done; echo done'"
    peers = [{"address": "hop1.example.org:27199", "protocol": "tcp"}, {"host": "hop2.example.org", "port": 27199, "protocol": "tcp"}]
    variables = {"receptor_tls": True, "receptor_peers": peers, "receptor_work_commands": {"wait": {"command": "sh", "params": wait}}}
    packages = [str(debs.now[name]) for name in ("meshd", "meshd-receptor")]
    changed, printed = role(meshd_packages=packages, meshd_start=False, **variables)
    assert changed and "Start it as awx: /usr/bin/receptor --config /etc/receptor/receptor.conf" in printed
    assert box.run("systemctl", "is-active", "receptor", check=False).stdout == "inactive\n"

    role(**variables)
    status = lambda: box.run("meshctl", *SOCKET, "status", check=False)  # noqa: E731
    until("the node", lambda: status().returncode == 0)
    assert box.run("systemctl", "is-enabled", "receptor").stdout == "enabled\n"
    assert box.sh("stat -c %U /var/run/receptor/receptor.sock") == "awx"
    until("both peers in its log", lambda: all(f"hop{number}.example.org" in box.journal("receptor") for number in (1, 2)))

    pid = box.show("receptor", "MainPID")
    assert role(meshd_packages=packages, **variables)[0] == 0 and box.show("receptor", "MainPID") == pid

    unit = re.search(r'"unitid": *"(\w+)"', box.run("meshctl", *SOCKET, "--json", "work", "submit", "wait", "--no-payload").stdout)[1]
    state = lambda: re.search(r'"StateName": *"(\w+)"', box.run("meshctl", *SOCKET, "--json", "work", "status", unit).stdout)[1]  # noqa: E731
    until("the job to run", lambda: state() == "Running")
    assert role(receptor_log_level="debug", **variables)[0] == 2
    assert box.show("receptor", "MainPID") != pid
    until("the node", lambda: status().returncode == 0)
    assert state() == "Running"
    box.sh("touch /tmp/go")
    until("its end", lambda: state() == "Succeeded")
