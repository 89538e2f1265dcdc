"""The Ansible collection: its configuration of a node, by the variables of ansible.receptor, and what ansible-lint finds in it.
The whole role is in tests/packages/test_collection.py, renewals in test_joining.py."""

import shutil
import sys

import pytest
import yaml

from collection import SOURCE, Collection
from mesh import ROOT
from trust import Pki


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return Collection(tmp_path_factory.mktemp("collection"))


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    pki = Pki(tmp_path_factory.mktemp("pki"))
    pki.issue("exec-1", ["exec-1"])
    pki.signing_keys()
    return pki


@pytest.fixture
def configure(collection, pki, tmp_path):
    """Runs the part of the role that writes files, into a directory; what subprocess says of it."""

    def configure(**variables):
        places = {"receptor_config_dir": tmp_path, "receptor_socket_dir": tmp_path, "receptor_worksign_key_dir": tmp_path,
                  "receptor_tls_dir": tmp_path / "tls"}
        files = {"custom_tls_certfile": "exec-1.crt", "custom_tls_keyfile": "exec-1.key", "custom_ca_certfile": "ca.crt",
                 "custom_worksign_private_keyfile": "work.key", "custom_worksign_public_keyfile": "work.pub"}
        given = {"receptor_host_identifier": "exec-1", "receptor_user": "root", "receptor_group": "root",
                 **{name: str(place) for name, place in places.items()},
                 **{name: str(pki.path(file)) for name, file in files.items()}, **variables}
        tasks = [{"import_role": {"name": "meshd.meshd.node", "tasks_from": "configure.yml"}, "vars": given}]
        (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        local = ["-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
        return collection.run("ansible-playbook", "-i", "localhost,", *local, tmp_path / "play.yml")

    return configure


def written(tmp_path):
    """The directives of the file, without those that every node has."""
    items = [next(iter(item.items())) for item in yaml.safe_load((tmp_path / "receptor.conf").read_text())]
    return [(name, value) for name, value in items if name not in ("node", "log-level")]


def test_two_peers_with_tls(configure, pki, tmp_path):
    odd = {"command": "cat", "params": "-e 'a: \"b\" # é'", "allowruntimeparams": True, "verifysignature": True}
    done = configure(
        receptor_tls=True, receptor_mintls13=True, receptor_sign=True, receptor_verify=True, receptor_log_level="debug",
        receptor_peers=[{"host": "hop1.example.org", "port": 27199, "protocol": "tcp"},
                        {"address": "hop2.example.org:443", "protocol": "wss"},
                        {"address": "wss://hop3.example.org/mesh", "protocol": "ws"}],
        receptor_work_commands={"it's: odd": odd},
        receptor_kubernetes_commands={"pods": {"authmethod": "runtime", "allowruntimeauth": True, "allowruntimepod": True, "verifysignature": True}},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tls, places = tmp_path / "tls", {"cert": f"{tmp_path}/tls/exec-1.crt", "key": f"{tmp_path}/tls/exec-1.key", "mintls13": True}
    authority = f"{tmp_path}/tls/ca/mesh-CA.crt"
    assert written(tmp_path) == [
        ("control-service", {"service": "control", "filename": f"{tmp_path}/receptor.sock", "permissions": "0660", "tls": "tls_server"}),
        ("tls-server", {"name": "tls_server", "clientcas": authority, "requireclientcert": True, **places}),
        ("tls-client", {"name": "tls_client", "rootcas": authority, "insecureskipverify": False, **places}),
        ("work-signing", {"privatekey": f"{tmp_path}/work_private_key.pem", "tokenexpiration": "1m"}),
        ("work-verification", {"publickey": f"{tmp_path}/work_public_key.pem"}),
        ("tcp-listener", {"port": 27199, "tls": "tls_server"}),
        ("tcp-peer", {"address": "hop1.example.org:27199", "tls": "tls_client"}),
        ("ws-peer", {"address": "wss://hop2.example.org:443", "tls": "tls_client"}),
        ("ws-peer", {"address": "wss://hop3.example.org/mesh", "tls": "tls_client"}),
        ("work-command", {"worktype": "it's: odd", **odd}),
        ("work-kubernetes", {"worktype": "pods", "authmethod": "runtime", "allowruntimeauth": True, "allowruntimepod": True, "verifysignature": True}),
    ]
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "work_private_key.pem", tls / "exec-1.key", tls / "exec-1.crt")}
    assert modes == {"work_private_key.pem": 0o600, "exec-1.key": 0o600, "exec-1.crt": 0o644}
    for secret in ("work.key", "exec-1.key"):
        assert pki.path(secret).read_text().splitlines()[1] not in done.stdout


def test_a_wrong_configuration_does_not_take_the_place_of_a_right_one(configure, tmp_path):
    peers = [{"host": "hop1", "port": 8080, "protocol": "ws"}, {"address": "hop2:27200"}]
    assert configure(receptor_protocol="ws", receptor_port=28000, receptor_peers=peers).returncode == 0
    assert written(tmp_path)[1:] == [("ws-listener", {"port": 28000}), ("ws-peer", {"address": "ws://hop1:8080"}),
                                     ("tcp-peer", {"address": "hop2:27200"})]
    before = (tmp_path / "receptor.conf").read_text()
    done = configure(receptor_port=70000)
    assert done.returncode != 0 and "65535" in done.stdout, done.stdout
    assert (tmp_path / "receptor.conf").read_text() == before


def test_ansible_lint_finds_nothing(collection, tmp_path):
    # It finds the roles of a playbook among collections that are installed.
    copy = shutil.copytree(SOURCE, tmp_path / "ansible_collections" / "meshd" / "meshd")
    done = collection.run("ansible-lint", "--offline", "--nocolor", cwd=copy, ANSIBLE_COLLECTIONS_PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_version_is_that_of_the_program():
    version = next(line for line in (ROOT / "Cargo.toml").read_text().splitlines() if line.startswith("version")).split('"')[1]
    assert yaml.safe_load((SOURCE / "galaxy.yml").read_text())["version"] == version
