"""Hosts join a mesh: one by a token, as README says, and the others by bundles. Real programs on hosts of namespaces;
systemd and the package manager are stand-ins. Tokens themselves are in test_enrolment.py."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

import booted
import conftest
import hosts as harness
from collection import Collection
from mesh import MESHCTL, environment, until

pytestmark = pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces")

#: What AWX's bundle for an execution node says, with a listener and a peer.
AWX = """receptor_user: awx
receptor_group: awx
receptor_verify: true
receptor_tls: true
receptor_mintls13: false
receptor_work_commands:
  ansible-runner:
    command: ansible-runner
    params: worker
    allowruntimeparams: true
    verifysignature: true
additional_python_packages:
  - ansible-runner
custom_worksign_public_keyfile: receptor/work_public_key.pem
custom_tls_certfile: receptor/tls/receptor.crt
custom_tls_keyfile: receptor/tls/receptor.key
custom_ca_certfile: receptor/tls/ca/mesh-CA.crt
receptor_protocol: tcp
receptor_listener: true
receptor_port: 27199
receptor_peers:
  - address: control.example.org:27199
    protocol: tcp
podman_user: "{{ receptor_user }}"
podman_group: "{{ receptor_group }}"
"""
JOB = "meshctl work submit ansible-runner --node {} --tls-client mesh {} -n -f --rm -- --worker-info"


@pytest.fixture(scope="module")
def world(request):
    """`control` and `e1`, with what README makes of them, and hosts where nothing is installed."""
    with conftest.scoped_mesh(request.node) as mesh:
        world = harness.Hosts(mesh, "control", "e1", "h1", "e2", "e9", has_ansible=True)
        world.said = []
        for host, script in harness.commands("Two machines"):
            so_far = "".join(printed for _, _, printed in world.said)
            world.said.append((host, script, world[host].run(harness.pasted(script, so_far), 300)))
        yield world


@pytest.fixture(scope="module")
def bundle(world):
    """A bundle of `e1`, on `control` and on `e1`, where it is installed."""
    world["control"].run("meshctl node renew e1 && scp e1.tar root@e1.example.org:")
    world["e1"].run("meshctl install e1.tar")
    return world["control"].file("/home/e1.tar")


def add(world, node, *options, peer="control.example.org"):
    """Adds a node, and brings its bundle to its host."""
    said = world["control"].run(f"meshctl node add {node} --peer {peer} {' '.join(options)}")
    world["control"].run(f"scp {node}.tar root@{node}.example.org:")
    world[node].run("apt install ./meshd.deb")
    return said


def links(host):
    return sorted(one["NodeID"] for one in json.loads(host.run("meshctl status --json"))["Connections"])


def test_two_hosts_run_a_signed_playbook(world):
    assert [host for host, *_ in world.said] == ["control", "e1", "control"], world.said
    _, script, printed = world.said[-1]
    assert script.endswith("meshctl job run site.yml -i hosts") and '"msg": "hello from e1"' in printed, printed
    (job,) = json.loads(world["control"].run("meshctl --json job list"))["jobs"]
    assert (job["execution_node"], job["state"]) == ("e1", "successful"), job
    assert "cpu_count" in world["control"].run(JOB.format("e1", "--signwork"))
    # Only with a signature, and only with a certificate.
    assert "signature" in world["control"].fails(JOB.format("e1", ""))
    # That is given up after a minute: nobody has proven that the node refuses.
    assert "TLS" in world["control"].fails(JOB.format("e1", "--signwork").replace("--tls-client mesh", ""), 180)


def test_what_is_secret_is_read_by_few_and_said_nowhere(world, bundle):
    control, e1 = world["control"], world["e1"]
    # The daemon signs certificates, and nobody else reads the key.
    assert control.mode("/etc/meshd/ca") == ("0o700", 990, 990)
    assert control.mode("/etc/meshd/ca/ca.key") == ("0o600", 990, 990)
    assert control.mode("/home/e1.tar") == ("0o600", 0, 0)
    for host in (control, e1):
        assert host.mode("/etc/meshd/tls/node.key") == ("0o640", 0, 990)
        assert host.mode("/etc/meshd/tls/node.crt") == ("0o644", 0, 0)
    assert control.mode("/etc/meshd/work.key") == ("0o640", 0, 990)
    assert not e1.file("/etc/meshd/work.key").exists()
    said = "".join(printed for _, _, printed in world.said) + control.log() + e1.log()
    keys = [control.file("/etc/meshd/ca/ca.key"), control.file("/etc/meshd/work.key"), e1.file("/etc/meshd/tls/node.key")]
    for key in keys:
        assert key.read_text().splitlines()[1] not in said
    assert not control.file("/etc/meshd/.staged").exists() and not list(control.file("/etc/meshd/ca").parent.glob(".staged*"))


def test_a_host_is_made_ready_for_its_role(world):
    e1 = world["e1"]
    assert e1.file("/etc/systemd/system/meshd.service.d/execution.conf").exists()
    assert e1.file("/var/lib/systemd/linger/meshd").exists()
    for ids in ("/etc/subuid", "/etc/subgid"):
        assert e1.file(ids).read_text().splitlines()[-1].startswith("meshd:")
    assert "daemon-reload" in e1.asked() and "restart meshd.service" in e1.asked()
    assert not world["control"].file("/etc/systemd/system/meshd.service.d").exists()


def test_what_is_installed_stays_as_it_is(world, bundle):
    e1 = world["e1"]
    before, pid = e1.asked(), e1.file("/run/meshd.pid").read_text()
    said = json.loads(e1.run("meshctl install --json e1.tar"))
    assert (said["changed"], said["files"], said["linked"], said["error"]) == (False, [], ["control"], None)
    assert e1.file("/run/meshd.pid").read_text() == pid
    assert not {"restart meshd.service", "daemon-reload"} & set(e1.asked()[len(before):])
    e1.file("/etc/meshd/tls/node.crt").chmod(0o666)
    said = json.loads(e1.run("meshctl install --json e1.tar"))
    assert said["changed"] and said["files"] == ["/etc/meshd/tls/node.crt"]


def test_a_hop_is_dialled_and_takes_in_what_is_behind_it(world):
    control, hop, behind = world["control"], world["h1"], world["e2"]
    add(world, "h1", "--role hop --dial", peer="h1.example.org:5000")
    hop.run("meshctl install h1.tar")
    until("control to be linked to the hop", lambda: "h1" in links(control))
    add(world, "e2", "--role execution", peer="h1.example.org:5000")
    assert "linked to h1" in behind.run("meshctl install e2.tar")
    assert not hop.file("/etc/systemd/system/meshd.service.d").exists()
    # It would make another authority, and leave this mesh.
    before = hop.run("cat /etc/meshd/conf.d/*.yml /etc/meshd/tls/*")
    refused = hop.fails("meshctl node add e9 --role execution --peer h1.example.org")
    assert "this host is h1 of a mesh whose authority is not in /etc/meshd/ca" in refused
    assert hop.run("cat /etc/meshd/conf.d/*.yml /etc/meshd/tls/*") == before
    until("control to reach e2", lambda: control.try_to("meshctl ping --count 1 e2").returncode == 0)
    assert "cpu_count" in control.run(JOB.format("e2", "--signwork"))


def test_a_bundle_says_what_it_is(bundle):
    with tarfile.open(bundle) as opened:
        names = sorted(opened.getnames())
        readme = opened.extractfile("README").read().decode()
    assert names == ["README", "ca.crl", "ca.crt", "node.crt", "node.key", "node.yml", "work.pub"]
    assert len(readme.splitlines()) == 2 and "meshctl install e1.tar" in readme


def test_who_is_known_or_misspelt_is_not_added(world):
    control = world["control"]
    again = control.fails("meshctl node add e1 --role hop --peer control.example.org")
    assert "has already been added" in again and "meshctl node renew e1" in again
    assert "cannot be the name of a node" in control.fails("meshctl node add ../e9 --role hop --peer control.example.org")
    assert "is not an address" in control.fails("meshctl node add e9 --role hop --peer 'a b'")
    assert "listens on port 27199" in control.fails("meshctl node add e9 --role hop --peer control.example.org:999")
    assert not control.file("/home/e9.tar").exists()


def test_what_is_refused_has_written_nothing(world):
    control, e9 = world["control"], world["e9"]
    changes = "find /etc/meshd -type f | sort | xargs sha256sum; ls; meshctl instance list -q"
    before = control.run(changes)
    for words, said in [
        ("e9 --role execution --peer contrl.example.org", "Did you mean control.example.org:27199?"),
        ("e9 --role execution --peer e1.example.org", "no node that was added listens at e1.example.org:27199"),
        ("e9 --role execution --peer nosuch", "addresses of nodes: control:27199, control.example.org:27199"),
        ("control --role execution --peer control.example.org", "control is the node of this host: give the new one a name of its own"),
        ("default --role execution --peer control.example.org", "default is the name of a group of the controller"),
        ("e9 --role execution --peer control.example.org --out nosuch/e9.tar", "nosuch: No such file or directory"),
    ]:
        refused = control.fails(f"meshctl node add {words}")
        assert said in refused and "node remove" not in refused, refused
        assert control.run(changes) == before, words
    assert "no job gets there" not in world.said[0][2]
    # Nor is an authority made for a mistake.
    e9.run("apt install ./meshd.deb")
    for words in ("x --role hop --peer nosuch.example.org", "../x --role hop --peer e9.example.org"):
        e9.fails(f"meshctl node add {words}")
        assert not e9.file("/etc/meshd/ca").exists(), words
    # A name that leads here by other ways has to be said to be this node's.
    e9.run("meshctl node add x --role hop --peer nosuch.example.org --here && rm -r x.tar /etc/meshd")
    e9.run("systemctl stop meshd && apt install ./meshd.deb")


def test_who_makes_bundles_alone_keeps_the_authority_for_root(world):
    host = world["e9"]
    host.run("apt install ./meshd.deb && meshctl node add x --role hop --peer e9.example.org --host x.example.org && "
             "meshctl node add y --role execution --peer x.example.org")
    assert host.mode("/etc/meshd/ca") == ("0o700", 0, 0)
    for path in ("/etc/meshd/ca/ca.key", "/etc/meshd/ca/nodes/x.json", "/home/x.tar"):
        assert host.mode(path) == ("0o600", 0, 0)
    # Nor does the new list of revoked certificates travel by itself.
    said = host.run("meshctl node remove y")
    assert said.endswith("\n    scp /etc/meshd/ca/ca.crl root@x.example.org:/etc/meshd/tls/ca.crl\n"), said
    host.run("systemctl stop meshd; rm -r x.tar y.tar /etc/meshd; apt install ./meshd.deb")


def expiring(host, path):
    """The end and the number of a certificate of the host."""
    shown = json.loads(host.run(f"meshctl cert show --json {path}"))[0]
    return shown["not_after"], shown["serial"]


def test_a_renewed_certificate_takes_the_place_of_the_old_one(world):
    control, e1 = world["control"], world["e1"]
    before, pid = expiring(e1, "/etc/meshd/tls/node.crt"), e1.file("/run/meshd.pid").read_text()
    control.run("meshctl node renew e1 && scp e1.tar root@e1.example.org:")
    said = json.loads(e1.run("meshctl install --json e1.tar"))
    assert said["files"] == ["/etc/meshd/tls/node.key", "/etc/meshd/tls/node.crt"] and said["linked"] == ["control"]
    assert expiring(e1, "/etc/meshd/tls/node.crt")[1] != before[1] and e1.file("/run/meshd.pid").read_text() == pid
    # A link that begins now is made with it.
    until("the new certificate", lambda: "reloaded TLS files" in e1.log())
    e1.run("systemctl restart meshd")
    assert "cpu_count" in until("a job", lambda: control.try_to(JOB.format("e1", "--signwork")).stdout)


@pytest.mark.timeout(300)
def test_what_ends_soon_is_renewed_and_brought_to_its_hosts(world, tmp_path):
    control, many = world["control"], [f"n{number}" for number in range(1, 10)]
    control.run("\n".join(f"meshctl node add {name} --role execution --peer control.example.org >/dev/null" for name in many), 120)
    nodes = ["control", "e1", "e2", "h1", *many]
    assert json.loads(control.run("meshctl node renew --expiring 30d --out soon --json")) == {"renewed": []}
    own = expiring(control, "/etc/meshd/tls/node.crt")
    renewed = json.loads(control.run("meshctl node renew --expiring 400d --out soon --json"))["renewed"]
    assert [one["node"] for one in renewed] == nodes
    assert expiring(control, "/etc/meshd/tls/node.crt")[1] != own[1]
    assert control.mode("/home/soon") == ("0o700", 0, 0) and control.mode("/home/soon/h1.tar") == ("0o600", 0, 0)
    collection = Collection(tmp_path / "collections")
    # Into trees, by the real Ansible, in three batches; `idle` is a host of the inventory that has no bundle.
    hosts = {name: {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable,
                    "meshctl_options": ["--root", str(tmp_path / name)]} for name in (*nodes[1:], "idle")}
    hosts["alias"] = {**hosts.pop("h1"), "meshd_node": "h1"}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts}}))

    def play(*more):
        words = ["--diff", "-vv", "--forks", "10", "-i", tmp_path / "inventory.json", "meshd.meshd.renew"]
        variables = ["-e", f"bundles={control.file('/home/soon')}", "-e", "at_once=5"]
        return collection.done("ansible-playbook", *words, *variables, *more, TMPDIR=str(tmp_path))

    printed = play()
    assert printed.count("\nPLAY [Renew") == 3, printed
    recap = dict(re.findall(r"^(\w+) +: ok=\d+ +changed=(\d+)", printed, re.M))
    assert recap == {**dict.fromkeys(("alias", "e1", "e2", *many), "1"), "idle": "0"}, printed
    for name in ("e1", "e2", "h1", *many):
        key = (tmp_path / name / "etc/meshd/tls/node.key").read_text()
        assert key.splitlines()[1] not in printed
    assert not (tmp_path / "idle").exists() and f"{tmp_path}/meshd." in printed and not list(tmp_path.glob("meshd.*"))
    again = play("--limit", "e1,e2,alias")
    assert "changed=0" in again and "changed=1" not in again


def test_a_removed_node_is_refused_everywhere(world):
    control, hop, e2 = world["control"], world["h1"], world["e2"]
    said = control.run("meshctl node remove e2")
    # Here it is in force already: its certificate opens nothing.
    verify = "meshctl cert verify {} --config /etc/meshd/conf.d --profile mesh --purpose client --node e2"
    shutil.copy(e2.file("/etc/meshd/tls/node.crt"), control.file("/home/e2.crt"))
    assert "revoked" in control.fails(verify.format("e2.crt"))
    # What is printed is for nodes that do not get the new list over the mesh.
    for command in (line.strip() for line in said.splitlines() if line.startswith("    ")):
        control.run(command)
    until("e2 to be cut off", lambda: links(e2) == [])
    until("the hop to say why", lambda: "revoked" in hop.log())
    # A node of the same name may come again, with another certificate.
    assert "e2.tar exists" in control.fails("meshctl node add e2 --role execution --peer control.example.org")
    control.run("rm e2.tar")
    add(world, "e2", "--role execution")
    e2.run("meshctl install e2.tar")
    assert links(e2) == ["control"]
    assert "revoked" in control.fails(verify.format("e2.crt"))


def test_who_was_dialled_is_dialled_no_more(world):
    control = world["control"]
    assert control.file("/etc/meshd/conf.d/60-peer-h1.yml").exists()
    control.run("meshctl node remove h1")
    assert not control.file("/etc/meshd/conf.d/60-peer-h1.yml").exists()
    until("the link to end", lambda: "h1" not in links(control))
    assert "knows no node h1" in control.fails("meshctl node renew h1")


def test_a_bundle_of_awx_is_a_node_as_well(world):
    control, h1 = world["control"], world["h1"]
    h1.run("systemctl stop meshd; rm -r /etc/meshd; apt install ./meshd.deb")
    control.run("meshctl node add a1 --role execution --peer control.example.org")
    with tarfile.open(control.file("/home/a1.tar")) as bundle:
        own = {name: bundle.extractfile(name).read() for name in bundle.getnames()}
    top = "a1_install_bundle/"
    files = {
        "receptor/tls/ca/mesh-CA.crt": own["ca.crt"], "receptor/work_public_key.pem": own["work.pub"],
        "receptor/tls/receptor.key": own["node.key"], "receptor/tls/receptor.crt": own["node.crt"],
        "install_receptor.yml": b"---\n", "inventory.yml": b"---\n", "requirements.yml": b"---\n",
        "group_vars/all.yml": (AWX + "isolation_base_path: /tmp\n").encode(),
    }
    with tarfile.open(h1.file("/home/awx.tar.gz"), "w:gz") as bundle:
        for name, contents in files.items():
            header = tarfile.TarInfo(top + name)
            header.size = len(contents)
            bundle.addfile(header, io.BytesIO(contents))
    said = json.loads(h1.run("meshctl install --json awx.tar.gz"))
    assert said["node"] == "a1" and said["linked"] == ["control"] and said["error"] is None
    assert [note for note in said["notes"] if "isolation_base_path" in note and "does not know" in note], said
    assert not [note for note in said["notes"] if "inventory" in note]
    written = h1.file("/etc/meshd/conf.d/00-local.yml").read_text()
    assert '- tcp-listener:\n    port: 27199\n    tls: "mesh"' in written and 'address: "control.example.org:27199"' in written
    assert "cpu_count" in control.run(JOB.format("a1", "--signwork"))
    assert json.loads(h1.run("meshctl install --json awx.tar.gz"))["changed"] is False


def test_one_bundle_is_for_one_host(world, bundle):
    control, second = world["control"], world["h1"]
    second.run("systemctl stop meshd; rm -rf /etc/meshd; >/run/log; apt install ./meshd.deb")
    until("the first one to be linked", lambda: "e1" in links(control))
    control.run("scp e1.tar root@h1.example.org:")
    said = second.fails("meshctl install e1.tar", 120)
    assert "e1 runs, but has no link after 20 s" in said, said
    assert "it refuses this node" in said and "another node with this ID is in the mesh (one bundle is for one host)" in said, said
    doctor = second.try_to("meshctl doctor")
    assert doctor.returncode == 1 and "one bundle is for one host" in doctor.stdout, doctor
    assert second.log().count("connection refused") == 1 and " connected " not in second.log(), second.log()
    second.run("systemctl stop meshd")


def test_a_profile_that_reads_no_list_of_revoked_certificates_is_named(world):
    control = world["control"]
    files = "cert: /etc/meshd/tls/node.crt, key: /etc/meshd/tls/node.key"
    extra = control.file("/etc/meshd/conf.d/30-web.yml")

    def remove():
        control.run("meshctl node add x9 --role hop --peer control.example.org && rm x9.tar")
        return control.run("meshctl node remove x9")

    # It asks for no certificate, so a revoked one opens nothing more.
    extra.write_text(f"- tls-server: {{name: page, {files}}}\n")
    assert "revoked, and this node no longer accepts them\n" in remove()
    extra.write_text(f"- tls-server: {{name: api, {files}, clientcas: /etc/meshd/tls/ca.crt, requireclientcert: true}}\n")
    said = remove()
    assert "x9: its certificates are revoked\nthis node still accepts them by tls-server api: give it `crl: /etc/meshd/tls/ca.crl`" in said, said
    assert control.run("cmp /etc/meshd/ca/ca.crl /etc/meshd/tls/ca.crl") == ""
    extra.unlink()


def test_a_controller_gets_its_instances(world):
    control, e1 = world["control"], world["e1"]
    controller = control.file("/etc/meshd/conf.d/20-controller.yml")
    usual = controller.read_text()
    controller.write_text("- work-controller: {}\n")
    said = add(world, "e9", "--role execution")
    assert "registered and enabled the instance e9" in said
    assert "no job gets there until work-controller has `tlsclient: mesh`" in said
    controller.write_text(usual)
    # What it runs itself needs the same of its host.
    assert control.file("/etc/systemd/system/meshd.service.d/execution.conf").exists()
    instances = {one["name"]: one for one in json.loads(control.run("meshctl instance list --json"))["instances"]}
    assert instances["e9"]["enabled"] is True and instances["e1"]["enabled"] is True
    # What was added before there was a controller, or was removed since, is found waiting.
    control.run("meshctl instance remove e1 --dead")
    again = "meshctl node add e1 --role execution --peer control.example.org"
    assert control.run(again) == "e1 has already been added; registered and enabled the instance e1\n"
    control.run("meshctl instance disable e1")
    assert "registered and enabled the instance e1" in control.run(again)
    assert "has already been added: `meshctl node renew e1`" in control.fails(again)
    said = control.run("meshctl node remove e9")
    instances = [one["name"] for one in json.loads(control.run("meshctl instance list --json"))["instances"]]
    assert "e9" not in instances and "revoked" in said
    until("e1 to be back", lambda: links(e1) == ["control"])
    control.run("meshctl node remove --dead e1")
    until("e1 to be cut off", lambda: links(e1) == [])
    instances = [one["name"] for one in json.loads(control.run("meshctl instance list --json"))["instances"]]
    assert "e1" not in instances


@pytest.mark.timeout(400)
def test_a_host_with_a_real_systemd_joins(world, tmp_path):
    control = world["control"]
    control.run("meshctl node add box --role execution --peer 10.99.0.1")
    with booted.machine(tmp_path) as box:
        box.write("/etc/meshd/conf.d/00-local.yml", harness.FIRST)
        box.write("/usr/local/bin/ansible-runner", f'#!/bin/sh\nPYTHONPATH=/opt/runner exec {booted.RUNNER} "$@"\n', 0o755)
        control.run(f"ip link add box type veth peer name eth0 netns {box.init} && ip link set box master mesh up")
        address = "ip link set eth0 up && ip address add 10.99.0.9/24 dev eth0"
        subprocess.run(["nsenter", "-t", str(box.init), "-n", "sh", "-c", address], check=True)
        shutil.copy(control.file("/home/box.tar"), box.root / "root/box.tar")
        said = json.loads(box.run("meshctl", "--json", "install", "/root/box.tar", timeout=120).stdout)
        assert said["linked"] == ["control"] and said["changed"] is True, said
        assert (box.show("meshd", "ActiveState"), box.show("meshd", "User")) == ("active", "meshd")
        assert box.run("systemctl", "is-enabled", "meshd").stdout == "enabled\n"
        # The drop-in counts, and the user has what rootless containers need.
        assert box.show("meshd", "PrivateTmp") == "no" and box.show("meshd", "NoNewPrivileges") == "no"
        assert box.sh("grep -c ^meshd: /etc/subuid /etc/subgid") == "/etc/subuid:1\n/etc/subgid:1"
        until("the user's directory", lambda: box.sh("test -d /run/user/$(id -u meshd) && echo there || true") == "there")
        assert "cpu_count" in control.run(JOB.format("box", "--signwork"), 120)
        pid = box.show("meshd", "MainPID")
        said = json.loads(box.run("meshctl", "--json", "install", "/root/box.tar").stdout)
        assert said["changed"] is False and box.show("meshd", "MainPID") == pid
    control.run("meshctl node remove --dead box")


def test_a_configuration_of_ones_own_is_told_what_it_lacks_and_is_never_changed(world):
    mine = world["e9"]
    mine.run("apt install ./meshd.deb")
    assert mine.file("/etc/meshd/conf.d/00-local.yml").read_text() == harness.FIRST
    add_x = "meshctl node add x --role execution --peer e9.example.org"
    own = "- node: {id: mine, datadir: /var/lib/meshd}\n"
    tls = "/etc/meshd/own"
    profile = f"{{name: own, cert: {tls}/n.crt, key: {tls}/n.key, clientcas: {tls}/ca.crt, requireclientcert: true}}"
    files = mine.file("/etc/meshd/conf.d/20-mine.yml")

    def lacks(text, *words):
        files.write_text(text)
        said = mine.fails(add_x)
        assert all(word in said for word in words), said

    # Its node is not the package's, so no authority is made for it.
    lacks(own + "- work-signing: {privatekey: /etc/meshd/own/work.key}\n", "no authority is made for it", "--ca")
    mine.run(f"mkdir -p {tls} /etc/meshd/ca && cd {tls} && meshctl key generate --private work.key --public work.pub && "
             "meshctl cert init --commonname own --outcert ca.crt --outkey ca.key && cp ca.crt ca.key /etc/meshd/ca && "
             "meshctl cert makereq --commonname n --nodeid mine --dnsname e9.example.org --outreq n.req --outkey n.key && "
             "meshctl cert signreq --req n.req --cacert ca.crt --cakey ca.key --outcert n.crt --verify")
    lacks(own + "- trace:\n- work-verification: {publickey: /etc/meshd/own/work.pub}\n- tls-server: " + profile + "\n", "written by hand", "work-signing")
    signs = "- work-signing: {privatekey: /etc/meshd/own/work.key}\n"
    lacks(own + signs, "a tcp-listener on port 27199")
    lacks(own + signs + "- tcp-listener: 27199\n", "a tcp-listener on port 27199")
    whole = f"{own}{signs}- tls-server: {profile}\n- tcp-listener: {{port: 27199, tls: own}}\n"
    # Another authority's certificates would open nothing here.
    mine.run(f"cd {tls} && meshctl cert init --commonname other --outcert o.crt --outkey o.key")
    lacks(whole.replace("own/ca.crt", "own/o.crt"), "would refuse x", "own/o.crt")
    files.write_text(whole)
    mine.run(add_x)
    assert files.read_text() == whole and mine.file("/etc/meshd/conf.d/00-local.yml").read_text() == harness.FIRST
    with tarfile.open(mine.file("/home/x.tar")) as bundle:
        assert bundle.extractfile("work.pub").read() == mine.file(f"{tls}/work.pub").read_bytes()
        mine.file("/home/x.crt").write_bytes(bundle.extractfile("node.crt").read())
    mine.run("meshctl cert verify x.crt --config /etc/meshd/conf.d --profile own --purpose client --node x")


@pytest.fixture
def tree(bundle, tmp_path):
    """An empty tree, and the files of e1's bundle."""
    with tarfile.open(bundle) as opened:
        files = {name: opened.extractfile(name).read() for name in opened.getnames()}
    return tmp_path, files


def install(tree, files):
    """Installs a bundle of these files into the tree; the finished process."""
    path = tree / "b.tar"
    with tarfile.open(path, "w") as bundle:
        for name, contents in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(contents)
            bundle.addfile(header, io.BytesIO(contents))
    path.chmod(0o600)
    (tree / "root").mkdir(exist_ok=True)
    command = [MESHCTL, "install", "--root", tree / "root", path]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)


def written(tree):
    return sorted(str(path.relative_to(tree / "root")) for path in (tree / "root").rglob("*") if path.is_file())


def test_a_tree_gets_the_same_files(tree):
    tree, files = tree
    done = install(tree, files)
    assert done.returncode == 0, done
    assert written(tree) == [
        "etc/meshd/conf.d/00-local.yml", "etc/meshd/tls/ca.crl", "etc/meshd/tls/ca.crt", "etc/meshd/tls/node.crt",
        "etc/meshd/tls/node.key", "etc/meshd/work.pub", "etc/subgid", "etc/subuid",
        "etc/systemd/system/meshd.service.d/execution.conf", "var/lib/systemd/linger/meshd",
    ]
    assert (tree / "root/etc/meshd/tls/node.key").stat().st_mode & 0o777 == 0o600
    assert (tree / "root/etc/meshd").stat().st_mode & 0o777 == 0o755
    assert "nothing had to be changed" in install(tree, files).stdout


@pytest.mark.parametrize("link", ["etc", "etc/meshd", "var/lib/systemd"])
def test_no_link_in_a_tree_leads_out_of_it(tree, link):
    tree, files = tree
    outside = tree / "outside"
    outside.mkdir()
    (tree / "root" / link).parent.mkdir(parents=True)
    (tree / "root" / link).symlink_to(outside)
    done = install(tree, files)
    assert done.returncode != 0 and f"{tree / 'root' / link} is a link" in done.stderr, done
    assert list(outside.iterdir()) == []


def test_a_pipe_is_no_bundle(tree):
    tree, _ = tree
    os.mkfifo(tree / "pipe")
    done = subprocess.run([MESHCTL, "install", "--root", tree, tree / "pipe"], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode != 0 and "it is not a regular file" in done.stderr, done


@pytest.mark.parametrize("change, said", [
    ({"node.key": None}, "there is no node.key"),
    ({"node.crt": b"x"}, "no certificate"),
    ({"node.yml": b"- node: {id: e2}\n- local-only:\n"}, "expected node e2"),
    ({"node.yml": b"- nodes: {id: e1}\n"}, "00-local.yml:1"),
    ({"node.yml": b"\xff"}, "is not text"),
    ({"ca.crt": "other"}, "other nodes would refuse it"),
    ({"node.key": "other"}, "does not belong to the certificate"),
])
def test_a_bundle_whose_parts_do_not_fit_changes_nothing(tree, change, said):
    tree, files = tree
    other = tree / "other"
    if "other" in change.values():
        subprocess.run([MESHCTL, "cert", "init", "--commonname", "x", "--outcert", f"{other}.crt", "--outkey", f"{other}.key"],
                       check=True, capture_output=True)
    for name, contents in change.items():
        if contents is None:
            del files[name]
        else:
            files[name] = other.with_suffix(name[-4:]).read_bytes() if contents == "other" else contents
    done = install(tree, files)
    assert done.returncode == 1 and said in done.stderr, done
    assert written(tree) == []


def test_what_a_bundle_holds_beside_is_named(tree):
    tree, files = tree
    done = install(tree, files | {"etc/cron.d/evil": b"* * * * * root evil\n"})
    assert done.returncode == 0 and "not used: etc/cron.d/evil" in done.stdout, done
    assert not [path for path in written(tree) if "cron" in path]


def test_what_somebody_wrote_by_hand_stays(tree):
    tree, files = tree
    conf_d = tree / "root/etc/meshd/conf.d"
    conf_d.mkdir(parents=True)
    mine = "- node: {id: mine, firewallrules: [{action: reject, tonode: mine}]}\n- local-only:\n"
    (conf_d / "00-local.yml").write_text(mine)
    done = install(tree, files)
    assert done.returncode == 1 and "was written by hand" in done.stderr, done
    (conf_d / "00-local.yml").rename(conf_d / "20-mine.yml")
    done = install(tree, files)
    assert done.returncode == 1 and "20-mine.yml" in done.stderr, done
    assert (conf_d / "20-mine.yml").read_text() == mine and written(tree) == ["etc/meshd/conf.d/20-mine.yml"]


def test_a_host_does_not_become_another_node(tree):
    tree, files = tree
    conf_d = tree / "root/etc/meshd/conf.d"
    conf_d.mkdir(parents=True)
    assert install(tree, files).returncode == 0
    other = files["node.yml"].replace(b'id: "e1"', b'id: "e9"')
    (conf_d / "00-local.yml").write_bytes(other)
    done = install(tree, files)
    assert done.returncode == 1 and "this host is e9, and would become e1: remove what makes it e9 first" in done.stderr, done
    assert "00-local.yml" in done.stderr and (conf_d / "00-local.yml").read_bytes() == other, done
