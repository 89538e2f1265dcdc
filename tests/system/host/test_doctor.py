"""`meshctl doctor`: nothing is told where all is well, and each fault that is made here is told with its cause and remedy.

Faults are real where a test can make them. What it cannot (SELinux, fapolicyd, firewalld, systemd's directories) is read
from a tree of files, recorded on hosts that have them.
"""

import json
import os
import shutil
import subprocess
import time

import pytest

import mesh as harness
import routed
from clocks import Clock
from mesh import HEALTHY, MARK, MESHCTL, MESHD, WORK, environment, free_port, own_runner, until
from test_controller import ask, runner as stand_in
from trust import Pki

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
NETWORKS = pytest.mark.skipif(routed.missing() is not None, reason=f"SKIPPED: needs {routed.missing()}")
SAFE = {"work-command": {"worktype": "safe", "command": "cat", "verifysignature": True}}
#: Where the node would listen whose host is read from a tree of files: this machine's own must be free.
PORT = free_port()
#: A private /tmp with these options, in which the directory of the test is still there.
PRIVATE_TMP = (
    'mount --make-rprivate / && mount --bind "$1" /mnt && mount -t tmpfs -o "$2" tmpfs /tmp && mkdir -p "$1" '
    '&& mount --bind /mnt "$1" && shift 2 && exec "$@"'
)


def doctor(socket, *args, prefix=(), variables=None):
    """The exit code and the findings."""
    command = [*prefix, str(MESHCTL), "--socket", str(socket), "--json", "doctor", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(**(variables or {})))
    assert done.stdout, done
    found = json.loads(done.stdout)
    assert all(one["what"] and one["remedy"] for one in found), found
    assert done.returncode == (1 if any(one["severity"] == "error" for one in found) else 0), done
    return found


def examine(node, *args, **more):
    return doctor(node.socket, *args, prefix=node.prefix, **more)


def told(found, what, remedy, severity="error", at=""):
    """The one finding with these words, and with no other fault beside it."""
    hits = [one for one in found if what in f"{one['where']}: {one['what']}" and one["at"].startswith(at)]
    assert len(hits) == 1, (what, found)
    assert hits[0]["severity"] == severity and remedy in hits[0]["remedy"], hits
    others = [one for one in found if one["severity"] == "error" and one is not hits[0]]
    assert not others, others
    return hits[0]


def starts(mesh):
    """Starts the nodes, and waits until the near one knows what the far one offers: that comes behind the routes."""
    mesh.start()
    types = {one["work-command"]["worktype"] for one in mesh["far"].directives if "work-command" in one}

    def offered():
        ads = [one for one in mesh["near"].status()["Advertisements"] or () if one["NodeID"] == "far"]
        return {kind["WorkType"] for one in ads for kind in one["WorkCommands"] or ()}

    until("the work types of far", lambda: types <= offered())


def signed(mesh, pki, work=(), peer_of="hop", verifies=True, name="far", **more):
    """A line of which the first node signs and the last verifies."""
    signing, verification = pki.signing_keys()
    mesh.node("hop", listen=True, extra=verification)
    mesh.node("near", peers=["hop"], extra=signing)
    mesh.node(name, peers=["hop"], work=work, extra=verification if verifies else ())
    return mesh


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path / "pki")


def test_nothing_is_told_where_all_is_well(mesh, pki):
    starts(signed(mesh, pki, [*WORK, SAFE]))
    assert examine(mesh["near"]) == []
    found = examine(mesh["near"], "far", "--work-type", "safe")
    assert found == [], found
    text = subprocess.run([MESHCTL, "--socket", mesh["near"].socket, "doctor", "far"], capture_output=True, text=True)
    lines = text.stdout.splitlines()
    assert lines[0] == "this node (near)" and lines[-1] == "0 faults, 0 advice, 0 not asked", text
    assert [line.split(" ")[0] for line in lines if line and line[0] != " "] == ["this", "the", "hop", "far", "0"]


def test_names_routes_and_work_types(mesh, pki):
    starts(signed(mesh, pki, WORK))
    near = mesh["near"]
    told(examine(near, "farr"), "the mesh knows no node farr", "did you mean far?", at="the way to farr")
    told(examine(near, "elsewhere"), "the mesh knows no node elsewhere", "meshctl status", at="the way")
    told(examine(near, "far", "--work-type", "catt"), "no work type catt", "did you mean cat?", at="the way")
    told(examine(near, "hop", "--work-type", "cat"), "hop offers no work type", "work-command cat", at="the way")
    mesh["far"].stop()
    until("the route to go", lambda: "far" not in near.status()["RoutingTable"])
    told(examine(near, "far"), "no route leads to far", "systemctl status meshd", at="the way to far")


def test_a_node_that_cannot_sign(mesh, pki):
    _signing, verification = pki.signing_keys()
    mesh.node("far", listen=True, work=[SAFE], extra=verification)
    mesh.node("near", peers=["far"])
    starts(mesh)
    found = examine(mesh["near"], "far", "--work-type", "safe")
    told(found, "demands signatures, but this node has no key", "work-signing", at="the way")
    told(examine(mesh["near"], "far"), "signature is empty", "configure work-signing here", "not asked", at="far")


def test_a_node_that_cannot_verify(mesh, pki):
    signed(mesh, pki, WORK, verifies=False).start()
    told(examine(mesh["near"], "far"), "no key to verify who asks: a hop node needs none", "work-verification", "not asked", at="far")


def test_another_verification_key(mesh, pki, tmp_path):
    signing, _ = pki.signing_keys()
    _, other = Pki(tmp_path / "other").signing_keys()
    mesh.node("far", listen=True, extra=other)
    mesh.node("near", peers=["far"], extra=signing)
    mesh.start()
    told(examine(mesh["near"], "far"), "it refuses all signed work", "work-verification of far", at="far")


@pytest.mark.parametrize("seconds, way", [(7200, "ahead of"), (-7200, "behind")])
def test_a_clock_that_is_wrong(mesh, pki, tmp_path, seconds, way):
    clock = Clock(tmp_path)
    if not clock.variables:
        pytest.skip("SKIPPED: needs a C compiler")
    signed(mesh, pki)
    mesh["far"].variables = clock.variables
    clock.set(seconds)
    mesh.start()
    found = examine(mesh["near"], "far")
    hit = told(found, f"s {way} this node's", "chronyc", at="far")
    assert abs(int(hit["what"].split(" ")[3]) - 7200) < 60, hit
    if seconds > 0:
        assert "it refuses work: token is expired by" in hit["what"], hit
        assert any(one["severity"] == "not asked" and one["at"] == "far" for one in found), found


def test_a_control_service_with_tls(mesh, pki):
    for name in ("near", "far"):
        pki.issue(name, [name])
    signing, verification = pki.signing_keys()
    far, near = pki.profiles("far"), pki.profiles("near")
    mesh.add("far", [*far, *verification, {"tcp-listener": {"bindaddr": "127.0.0.1", "port": (port := free_port())}}], service={"tls": "server"})
    node = mesh.add("near", [*near, *signing, {"tcp-peer": {"address": f"127.0.0.1:{port}"}}])
    mesh.start()
    # The only profile that there is, and then the controller's among others.
    assert examine(node, "far") == []
    other = {"tls-client": {"name": "other", "rootcas": str(pki.path("ca.crt"))}}
    node.directives.append(other)
    node.write_config()
    assert node.command("reload")["Success"], node
    told(examine(node, "far"), "it has TLS, so name a tls-client", "--tls-client", "not asked", at="far")
    assert examine(node, "far", "--tls-client", "client") == []
    node.stop()
    node.directives.append({"work-controller": {"tlsclient": "client", **own_runner(WORK[0])}})
    node.write_config()
    node.start()
    until("a route", lambda: node.reaches("far"))
    assert not [one for one in examine(node, "far") if one["at"] == "far"]


def test_a_controller_without_a_profile_for_its_nodes(mesh, pki):
    pki.issue("near", ["near"])
    what, remedy = "work-controller: tlsclient is missing: nodes whose control service", "work-controller: {tlsclient: client}"
    near = mesh.add("near", [*pki.profiles("near"), {"local-only": None}, {"work-controller": own_runner(WORK[0])}])
    checked = subprocess.run([MESHD, "check", near.config], capture_output=True, text=True, timeout=60, env=environment())
    assert checked.returncode == 0 and what in checked.stdout and remedy in checked.stdout, checked
    near.start()
    near.logged("tlsclient is missing", remedy)
    told(examine(near), what, "meshctl reload", "warning")
    near.directives[-1] = {"work-controller": {"tlsclient": "client", **own_runner(WORK[0])}}
    near.write_config()
    assert near.command("reload")["Success"], near
    assert examine(near) == []
    # Where nobody has a certificate, none is asked for.
    near.directives[:2] = []
    near.directives[-1] = {"work-controller": own_runner(WORK[0])}
    near.write_config()
    assert near.command("reload")["Success"] and examine(near) == []


def test_a_profile_that_is_not_there(mesh):
    near = mesh.node("near").start()
    command = [MESHCTL, "--socket", near.socket, "doctor", "far", "--tls-client", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and "this node has no tls-client nosuch" in done.stderr, done


def test_a_firewall_of_the_mesh(mesh, pki):
    signed(mesh, pki)
    node = mesh["far"]
    node.directives.append({"node": {"firewallrules": [{"action": "reject", "toservice": "control"}]}})
    own = json.loads(node.config.read_text())
    own[0]["node"]["firewallrules"] = [{"action": "reject", "tonode": "far", "toservice": "control"}]
    node.directives.pop()
    node.config.write_text(json.dumps(own))
    for each in mesh.nodes.values():
        each.start()
    # Also back: without a way for its refusal, far is silent.
    for one, other in [("near", "far"), ("far", "near")]:
        until("a route", lambda one=one, other=other: other in mesh[one].status()["RoutingTable"])
    told(examine(mesh["near"], "far"), "firewall", "firewallrule", "not asked", at="far")


def test_a_node_of_receptor(mesh, pki, receptor):
    signing, verification = pki.signing_keys()
    mesh.node("near", listen=True, extra=signing)
    mesh.node("far", peers=["near"], program=receptor, extra=verification)
    mesh.start()
    found = examine(mesh["near"], "far")
    told(found, "it is a receptor node", "on the host of far", "not asked", at="far")
    # And the other way round: what the node here cannot be asked is not taken for well.
    found = doctor(mesh["far"].socket)
    assert [one["severity"] for one in found] == ["not asked"], found
    found = doctor(mesh["far"].socket, "near")
    told(found, "it is a receptor node", "meshd check", "not asked", at="this node")
    assert [one["at"] for one in found] == ["this node", "near"], found


def certified(mesh, pki, name="near"):
    """A hop that demands certificates, started, and a node that dials it with the one called `name`."""
    pki.issue("hop", ["hop"])
    port = free_port()
    hop = mesh.add("hop", [*pki.profiles("hop"), {"tcp-listener": {"port": port, "bindaddr": "127.0.0.1", "tls": "server"}}])
    peer = {"tcp-peer": {"address": f"127.0.0.1:{port}", "tls": "client"}}
    return hop.start(), mesh.add("near", [*pki.profiles(name), peer])


def test_certificates(mesh, pki):
    pki.issue("near", ["near"])
    pki.issue("old", ["near"], start=-3, end=-1)
    pki.issue("ending", ["near"], start=-200, end=10)
    hop, near = certified(mesh, pki)
    near.start()
    until("a link", lambda: near.reaches("hop"))
    assert examine(near) == []
    near.stop()

    near.directives[:2] = pki.profiles("ending")
    near.write_config()
    near.start()
    until("a link", lambda: near.reaches("hop"))
    told(examine(near), "ending.crt: the certificate expires on", "meshctl node renew near", "warning")
    near.stop()

    near.directives[:2] = pki.profiles("old")
    near.write_config()
    near.start()
    found = examine(near)
    faults = [one for one in found if one["severity"] == "error"]
    assert len(faults) == 2, found
    assert "old.crt: the certificate has expired" in f"{faults[0]['where']}: {faults[0]['what']}", found
    assert "meshctl node renew near" in faults[0]["remedy"] and "ends each session at once" in faults[1]["what"], found


def test_keys_that_others_can_read(mesh, pki):
    pki.issue("near", ["near"])
    signing, _ = pki.signing_keys()
    near = mesh.add("near", [*pki.profiles("near"), *signing, {"local-only": None}]).start()
    assert examine(near) == []
    for name in ("near.key", "work.key"):
        pki.path(name).chmod(0o644)
        told(examine(near), f"{name}: this private key can be read by others", f"chmod 600 {pki.path(name)}", "warning")
        pki.path(name).chmod(0o640)
        assert examine(near) == []


def test_files_that_the_next_start_would_refuse(mesh, pki):
    pki.issue("near", ["near"])
    pki.issue("other", ["near"])
    near = mesh.add("near", [*pki.profiles("near"), {"local-only": None}]).start()
    start, profile = "the next start or reload fails: ", near.directives[0]["tls-server"]

    def faults():
        return sorted((one["where"], one["what"]) for one in examine(near) if one["severity"] == "error")

    assert faults() == []
    # The files that are in use.
    kept = pki.path("near.crt").read_bytes()
    pki.path("near.crt").unlink()
    found = faults()
    for (_, what), profile_of in zip(found, ("tls-client client", "tls-server server"), strict=True):
        assert what.startswith(f"{start}{profile_of}: cert ") and "near.crt: cannot be read" in what, found
    pki.path("near.crt").write_bytes(kept)
    assert faults() == []
    # The configuration names others since.
    for parameters, what in (({"cert": "/nonexistent.crt"}, "/nonexistent.crt: cannot be read"),
                             ({"key": str(pki.path("other.key"))}, "its private key does not belong to the certificate")):
        near.directives[0] = {"tls-server": profile | parameters}
        near.write_config()
        ((_, words),) = faults()
        assert words.startswith(f"{start}tls-server server: ") and what in words, words
        assert near.command("reload")["Success"] is False
    near.directives[0] = {"tls-server": profile | {"nosuch": 1}}
    near.write_config()
    ((_, words),) = faults()
    assert words.startswith(start), words
    # A program that is missing keeps jobs from running, and the node from nothing.
    near.directives[:] = [{"work-command": {"worktype": "gone", "command": "/nonexistent"}}, {"local-only": None}]
    near.write_config()
    ((_, words),) = faults()
    assert words.startswith("there is no program"), words


def test_a_neighbour_that_is_lost(mesh):
    control = mesh.node("control", listen=True)
    e1, _hop, _behind = mesh.node("e1", peers=["control"]), mesh.node("hop", listen=True, peers=["control"]), mesh.node("behind", peers=["hop"])
    mesh.start()
    assert examine(control) == []
    e1.stop()
    mesh["behind"].stop()
    until("both to be away", lambda: set(control.status()["RoutingTable"]) == {"hop"})
    # A single node that was linked to another one is that one's to name.
    hit = told(examine(control), "e1 is out of reach since", "on e1: systemctl status meshd", "warning")
    assert hit["where"] == "node e1", hit
    assert len(examine(control)) == 1
    told(examine(mesh["hop"]), "node behind", "meshctl node forget behind", "warning")
    mesh["hop"].stop()
    until("the hop to be away too", lambda: control.status()["RoutingTable"] == {})
    whole = [one["what"].partition(" since")[0] for one in examine(control)]
    assert sorted(whole) == ["e1 is out of reach", "hop is out of reach"], whole
    mesh["hop"].start()
    mesh["behind"].start()
    until("both to be back", lambda: set(control.status()["RoutingTable"]) == {"hop", "behind"})
    # A hop that takes others along is named once for all of them.
    mesh["hop"].stop()
    until("the loss", lambda: not control.status()["RoutingTable"])
    hit = told(examine(control), "hop is out of reach since", "on hop: systemctl status meshd", "warning")
    assert hit["what"].endswith("; 1 node behind it (broken link: control - hop)"), hit
    mesh["hop"].start()
    e1.start()
    until("it to be back", lambda: set(control.status()["RoutingTable"]) == {"e1", "hop", "behind"})
    assert examine(control) == []
    e1.stop()
    until("the loss", lambda: examine(control))
    control.command("node forget e1")
    assert examine(control) == []


def test_instances_that_get_no_jobs(mesh, tmp_path):
    settings = {"discovery": "enabled", "heartbeat": "200ms", "lostafter": "1s", "rundir": str(tmp_path), "poll": "200ms"}
    control = mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(stand_in("own"))}])
    e1 = mesh.node("e1", peers=["control"], work=[stand_in("ansible-runner")])
    mesh.start()

    def of_instances():
        return [one for one in examine(control) if one["where"].startswith("instance ")]

    state = lambda: ask(control, "instance.get", name="e1")["node_state"]  # noqa: E731
    until("e1 to be registered", lambda: any(one["name"] == "e1" for one in ask(control, "instance.list")["instances"]))
    until("e1 to be ready", lambda: state() == "ready", HEALTHY)
    assert of_instances() == []
    e1.stop()
    until("the loss", lambda: state() == "unavailable", 60)
    hit = told(examine(control), "e1 is out of reach since", "systemctl status meshd")
    assert "instance" in hit["what"] and of_instances() == [], "one cause is one finding"
    ask(control, "instance.disable", name="e1")
    assert [one for one in examine(control) if one["severity"] == "error"] == []


def test_an_authority_that_is_not_trusted(mesh, pki):
    pki.issue("near", ["near"])
    pki.authority("other")
    _hop, near = certified(mesh, pki)
    near.directives[1]["tls-client"]["rootcas"] = str(pki.path("other.crt"))
    near.write_config()
    near.start()
    hit = told(examine(near), "is signed by ca, which is not among the authorities", "meshctl cert verify")
    assert hit["where"].startswith("tcp-peer"), hit


def alone(mesh, *directives):
    return mesh.add("near", list(directives)).start()


def test_peers_that_are_not_there(mesh):
    port = free_port()
    near = alone(mesh, {"tcp-peer": {"address": f"127.0.0.1:{port}"}})
    told(examine(near), f"nobody listens at 127.0.0.1:{port}", "systemctl start meshd")
    near.stop()
    near.directives[:] = [{"udp-peer": {"address": f"127.0.0.1:{port}"}}]
    near.write_config()
    near.start()
    told(examine(near), f"nothing comes back from 127.0.0.1:{port}", "check that meshd runs")
    near.stop()
    near.directives[:] = [{"tcp-peer": {"address": "no-such-host.invalid:27199"}}]
    near.write_config()
    near.start()
    told(examine(near), "the name in no-such-host.invalid:27199 has no address", "getent hosts no-such-host.invalid")


def test_a_peer_that_does_not_want_this_node(mesh):
    port = free_port()
    listener = {"tcp-listener": {"port": port, "bindaddr": "127.0.0.1", "allowedpeers": ["other"]}}
    mesh.add("hop", [listener]).start()
    near = alone(mesh, {"tcp-peer": {"address": f"127.0.0.1:{port}"}})
    told(examine(near), "answers, but it refuses this node", "allowedpeers")


@pytest.fixture
def router():
    router = routed.Routed()
    yield router
    router.close()


def across(mesh, router, kind):
    """A node inside that dials one outside; both are in each other's routes."""
    peer = {f"{kind}-peer": {"address": f"{routed.OUTSIDE}:27199"}}
    mesh.add("outside", [{f"{kind}-listener": {"port": 27199, "bindaddr": routed.OUTSIDE}}, *WORK])
    mesh.add("inside", [peer])
    for node in mesh.nodes.values():
        node.prefix = router.prefix(node.name)
        node.start()
    return mesh["inside"]


@NETWORKS
def test_a_port_that_is_filtered(mesh, router):
    router.run("outside", "nft 'table ip closed { chain in { type filter hook input priority 0; tcp dport 27199 drop; }; }'")
    inside = across(mesh, router, "tcp")
    told(examine(inside), "does not answer within", "firewall-cmd --add-port=27199/tcp")


@NETWORKS
def test_large_packets_that_are_lost(mesh, router):
    inside = across(mesh, router, "udp")
    until("a link", lambda: inside.reaches("outside"))
    assert not [one for one in examine(inside, "outside") if one["severity"] == "error"]
    router.run("router", "nft 'table ip small { chain f { type filter hook forward priority 0; meta length > 900 drop; }; }'")
    told(examine(inside, "outside"), "large packets are lost between inside and outside (MTU)", "ping -M do -s 1372", at="the way")


@NETWORKS
def test_a_link_that_loses_packets(mesh, router):
    inside = across(mesh, router, "udp")
    until("a link", lambda: inside.reaches("outside"))
    router.run("router", "nft 'table ip lossy { chain f { type filter hook forward priority 0; numgen random mod 10 < 4 drop; }; }'")

    def lossy():
        found = examine(inside, "outside")
        hits = [one for one in found if "pings were lost between inside and outside" in one["what"]]
        return hits and (hits[0], [one for one in found if "of its probes are lost" in one["what"]])

    hit, _probes = until("lost pings", lossy, 120)
    assert hit["severity"] == "error" and "meshctl link test outside" in hit["remedy"], hit

    def probes():
        return [one for one in examine(inside) if "of its probes are lost" in one["what"]]

    told(until("lost probes", probes, 120), "of its probes are lost", "ip -s link", at="this node")


# The node that does not run, or does not answer.


def configured(mesh, *directives):
    """A node that is not started."""
    return mesh.add("near", list(directives))


def test_no_node_runs(mesh):
    node = configured(mesh, {"local-only": None})
    found = doctor(node.socket, "--node-config", str(node.config))
    told(found, "control socket: no socket at", "systemctl start meshd", at="this host")
    node.start()
    node.process.kill()
    node.process.wait()
    found = doctor(node.socket, "far", "--node-config", str(node.config))
    told(found, "nobody listens", "journalctl -u meshd", at="this host")
    assert [one["at"] for one in found if one["severity"] == "not asked"] == ["far"], found
    found = doctor(node.socket, "--node-config", "/nonexistent/c.yml")
    assert any("there is no /nonexistent/c.yml" in one["what"] and one["severity"] == "not asked" for one in found)


def noted(path, *more):
    """A program that notes that it was run."""
    path.write_text("\n".join(["#!/bin/sh", f"id -u >>{path}.ran", f"env >>{path}.environment", *more, ""]))
    path.chmod(0o755)
    return path


def cluster(mesh, program):
    """A work type whose kubeconfig names a program."""
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}}
    (mesh.dir / "kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "u", "user": user}],
    }))
    return {"work-kubernetes": {"worktype": "pods", "authmethod": "kubeconfig", "kubeconfig": str(mesh.dir / "kubeconfig"), "image": "x"}}


def test_who_examines_a_node_that_does_not_run_runs_no_program_of_it(mesh):
    """Root may have asked, and a job may have written the program."""
    runner, credential = noted(mesh.dir / "ansible-runner", "echo 2.4.0"), noted(mesh.dir / "credential", "exit 1")
    node = configured(mesh, {"local-only": None}, {"work-command": {"worktype": "run", "command": str(runner)}}, cluster(mesh, credential))
    (mesh.dir / "root").mkdir()
    doctor(node.socket, "--node-config", str(node.config))
    doctor(node.socket, "--node-config", str(node.config), "--root", str(mesh.dir / "root"))
    assert sorted(mesh.dir.glob("*.ran")) == []
    # The check of a node does, with the rights of the node: as root it leaves alone what belongs to another.
    check = [str(MESHD), "check", "--running", "--json", str(node.config)]
    if os.geteuid() == 0:
        os.chown(mesh.dir / "kubeconfig", 65534, 65534)
        done = subprocess.run(check, capture_output=True, text=True, timeout=120, env=environment())
        assert "root does not ask the cluster: its kubeconfig belongs to user 65534" in done.stdout, done
        assert sorted(mesh.dir.glob("*.ran")) == []
        os.chown(mesh.dir / "kubeconfig", 0, 0)
    subprocess.run(check, capture_output=True, timeout=120, env=environment())
    assert [path.name for path in mesh.dir.glob("*.ran")] == ["credential.ran"]


@ROOT_ONLY
def test_a_node_asks_a_runner_with_the_rights_of_its_user(mesh):
    mesh.dir.chmod(0o711)
    place = mesh.dir / "bin"
    place.mkdir()
    place.chmod(0o777)
    runner = noted(place / "ansible-runner", "echo 1.4.9")
    work = {"work-command": {"worktype": "run", "command": str(runner), "user": "nobody", "verifysignature": True}}
    node = restricted(mesh, [], work, *Pki(mesh.dir / "pki").signing_keys()[1], variables={"PGPASSWORD": "canary"})
    told(examine(node), "it is version 1.4.9", "pip install --upgrade")
    assert set((place / "ansible-runner.ran").read_text().split()) == {"65534"}
    assert "canary" not in (place / "ansible-runner.environment").read_text()


@ROOT_ONLY
def test_a_socket_that_may_not_be_used(mesh):
    node = alone(mesh, {"local-only": None})
    os.chmod(mesh.dir, 0o711)
    os.chmod(node.dir, 0o711)
    # Where everybody reaches it.
    program = mesh.dir / "meshctl"
    shutil.copy(MESHCTL, program)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "--socket", node.socket, "--json"]
    done = subprocess.run([*command, "doctor"], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    told(found, "Permission denied", f"ls -l {node.socket}", at="this host")
    assert done.returncode == 1 and [one["severity"] for one in found] == ["error", "not asked"], found


def offline(node, *args):
    """What is found by the files of a node that does not run, beside that."""
    found = doctor(node.socket, "--node-config", str(node.config), *args)
    return [one for one in found if one["where"] != "control socket"]


def test_a_port_that_is_taken(mesh):
    holder = mesh.node("holder", listen=True).start()
    node = configured(mesh, {"tcp-listener": {"port": mesh.ports["holder"], "bindaddr": "127.0.0.1"}})
    assert holder.answers()
    told(offline(node), f"127.0.0.1:{mesh.ports['holder']} is in use", "check with --running")


def test_a_configuration_that_is_wrong(mesh):
    node = configured(mesh, {"tcp-peer": {"address": "nohost"}})
    told(offline(node), "tcp-peer: address", "meshctl reload")
    node.directives[:] = [{"tls-client": {"name": "t", "rootcas": "/nonexistent/ca.pem"}}, {"local-only": None}]
    node.write_config()
    told(offline(node), "rootcas /nonexistent/ca.pem: cannot be read", "correct the configuration")
    node.directives[:] = [SAFE, {"local-only": None}]
    node.write_config()
    told(offline(node), "verifysignature: needs the directive", "correct the configuration")


def test_files_that_are_not_what_is_in_force(mesh):
    node = alone(mesh, {"local-only": None})
    assert examine(node) == []
    node.directives.append({"log-level": "debug"})
    node.write_config()
    told(examine(node), "its files have changed since it read them", "meshctl reload", "warning")
    node.config.write_text("- nonsense: 1\n")
    told(examine(node), "nonsense", "correct the configuration")


# The host.


def restricted(mesh, prefix, *directives, variables=None):
    """A started node behind a program that restricts it, or with other variables."""
    node = configured(mesh, {"local-only": None}, *directives)
    node.prefix, node.variables = list(prefix), variables or {}
    try:
        node.start()
    finally:
        node.prefix = []
    return node


def test_few_descriptors(mesh):
    node = restricted(mesh, ["prlimit", "--nofile=200:200"])
    told(examine(node), "limit of open files: the daemon may open 200 files", "LimitNOFILE")


def test_no_inotify(mesh):
    limit = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    if subprocess.run([*limit, "true"], capture_output=True).returncode != 0:
        pytest.skip("SKIPPED: this system lets nobody make a user namespace")
    told(examine(restricted(mesh, limit)), "no inotify instance is available", "fs.inotify.max_user_instances", "warning")


@ROOT_ONLY
@pytest.mark.parametrize("options, what, remedy, severity", [
    ("size=64m,noexec", "it is mounted noexec", "remount,exec", "warning"),
    ("size=4m", "/tmp: it is full", "find /tmp", "error"),
    ("size=64m,nr_inodes=600", "/tmp: it is full", "find /tmp", "error"),
])
def test_a_bad_tmp(mesh, options, what, remedy, severity):
    prefix = ["unshare", "--mount", "sh", "-euc", PRIVATE_TMP, "sh", str(mesh.dir), options]
    node = configured(mesh, {"local-only": None}, *WORK[1:])
    if "inodes" in options:
        prefix[prefix.index(PRIVATE_TMP)] = PRIVATE_TMP.replace("shift 2", "(cd /tmp && seq 595 | xargs touch) && shift 2")
    # Where the programs were built in /tmp, the new one hides them.
    node.program, node.prefix = shutil.copy(MESHD, mesh.dir / "meshd"), prefix
    node.start()
    node.prefix = []
    told(examine(node), what, remedy, severity)


@ROOT_ONLY
@pytest.mark.parametrize("options, change, what, remedy", [
    ("size=8m", "head -c 8100000 /dev/zero >filler || true", "less than the reserve", "meshctl work release"),
    ("size=64m,nr_inodes=400", "i=0; while touch f$i 2>/dev/null; do i=$((i+1)); done", "inodes are free", "meshctl work"),
    ("size=64m", 'mount --bind "$PWD" "$PWD" && mount -o remount,bind,ro "$PWD"', "Read-only file system", "remount,rw"),
])
def test_a_bad_disk(mesh, options, change, what, remedy):
    node = configured(mesh, {"local-only": None})
    node.datadir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "tmpfs", node.datadir], check=True)
    try:
        node.start()
        subprocess.run(["sh", "-c", change], cwd=node.datadir, check=True, capture_output=True)
        told(examine(node), what, remedy)
    finally:
        mesh.end()
        while subprocess.run(["umount", node.datadir], capture_output=True).returncode == 0:
            pass


def runner(mesh, script):
    """A node whose ansible-runner is this script, or which has none."""
    place = mesh.dir / "bin"
    place.mkdir()
    if script:
        (place / "ansible-runner").write_text(f"#!/bin/sh\n{script}\n")
        (place / "ansible-runner").chmod(0o755)
    variables = {"PATH": f"{place}:/usr/sbin:/usr/bin:/sbin:/bin"}
    return restricted(mesh, [], WORK[0], variables=variables)


@pytest.mark.parametrize("script, what, remedy, severity", [
    ("", 'there is no program "ansible-runner"', "install it", "error"),
    ("echo 1.4.9", "it is version 1.4.9", "pip install --upgrade", "error"),
    ("echo no module >&2; exit 1", "it does not print its version: no module", "pip install --force-reinstall", "error"),
    ("echo hello", 'cannot understand its version: "hello"', "ansible-runner", "warning"),
])
def test_runners(mesh, script, what, remedy, severity):
    if not script and shutil.which("ansible-runner", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        pytest.skip("SKIPPED: this host has an ansible-runner of its own")
    told(examine(runner(mesh, script)), what, remedy, severity)


# What is read from a tree of files.


@pytest.fixture
def tree(mesh):
    """A host on which all is well, as far as its files say: RHEL 9 with everything that it has to confine programs."""
    root = mesh.dir / "root"

    def put(path, text=""):
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    for place in ("/tmp", "/var/lib/meshd", "/sys/fs/cgroup/system.slice/firewalld.service",
                  "/sys/fs/cgroup/system.slice/fapolicyd.service", "/run/systemd/system", "/etc/systemd/system"):
        (root / place.lstrip("/")).mkdir(parents=True)
    put("/proc/sys/fs/inotify/max_user_watches", "65536\n")
    put("/sys/fs/selinux/enforce", "1")
    put("/var/log/audit/audit.log", denial(3 * 24 * 3600))
    put("/etc/fapolicyd/fapolicyd.conf", "permissive = 0\nnice_val = 14\n")
    put("/etc/fapolicyd/fapolicyd.trust", f"{MESHCTL} 1 0ab\n{MESHCTL.resolve()} 1 0ab\n{MESHD} 1 0ab\n")
    put("/etc/firewalld/firewalld.conf", "# comment\nDefaultZone=public\n")
    put("/usr/lib/firewalld/zones/public.xml", '<?xml version="1.0" encoding="utf-8"?>\n<zone>\n  <short>Public</short>\n'
        '  <service name="ssh"/>\n  <service name="meshd"/>\n  <forward/>\n</zone>\n')
    put("/etc/firewalld/services/meshd.xml", f'<?xml version="1.0"?>\n<service><port protocol="tcp" port="{PORT}"/></service>\n')
    put("/usr/lib/systemd/system/meshd.service", "[Service]\n")
    put("/usr/bin/podman")
    put("/etc/subuid", "root:1:2\nnobody:100000:65536\n")
    put("/etc/subgid", "nobody:100000:65536\n")
    put("/var/lib/systemd/linger/nobody")
    user = {"work-command": {"worktype": "cat", "command": "/usr/bin/cat", "user": "nobody"}}
    node = configured(mesh, {"tcp-listener": {"port": PORT, "bindaddr": "0.0.0.0", "tls": "server"}}, user)
    pki = Pki(mesh.dir / "pki")
    pki.issue("near", ["near"])
    node.directives[:0] = pki.profiles("near")
    node.write_config()
    node.root, node.put = root, put
    return node


def denial(age, comm="meshd"):
    """A record of the audit log, as RHEL 9 writes it, so many seconds old."""
    return (
        f'type=AVC msg=audit({int(time.time()) - age}.123:456): avc:  denied  {{ name_bind }} for  pid=1234 comm="{comm}" '
        f"src={PORT} scontext=system_u:system_r:init_t:s0 tcontext=system_u:object_r:unreserved_port_t:s0 "
        "tclass=tcp_socket permissive=0\n"
    )


def fapolicyd_denial():
    event = f"msg=audit({int(time.time())}.372:590)"
    return (
        f"type=FANOTIFY {event}: resp=2 fan_type=1 fan_info=3137 subj_trust=3 obj_trust=5\n"
        f"type=SYSCALL {event}: arch=c000003e syscall=59 success=no exit=-1 a0=1 ppid=1 pid=7 auid=1000 "
        'comm="meshd" exe="/usr/bin/meshd" subj=unconfined_t key=(null)\n'
    )


TREES = {
    "selinux": (lambda n: n.put("/var/log/audit/audit.log", denial(60)), f"SELinux: meshd may not name_bind tcp_socket {PORT}",
                "audit2allow", "error"),
    "fapolicyd denies": (lambda n: n.put("/var/log/audit/audit.log", fapolicyd_denial()), "fapolicyd: meshd was denied",
                         "fapolicyd-cli --file add", "error"),
    "fapolicyd does not know": (lambda n: n.put("/etc/fapolicyd/fapolicyd.trust"), "which is from no package",
                                "fapolicyd-cli --update", "warning"),
    "firewalld": (lambda n: n.put("/etc/firewalld/services/meshd.xml", "<service/>"), f"do not let in tcp port {PORT}",
                  f"firewall-cmd --permanent --add-port={PORT}/tcp", "warning"),
    "unit": (lambda n: n.put("/etc/systemd/system/meshd.service", "[Service]\n"), "it hides the unit of the package",
             "systemctl revert meshd.service", "warning"),
    "masked": (lambda n: (n.root / "etc/systemd/system/meshd.service").symlink_to("/dev/null"), "the unit is masked",
               "systemctl unmask meshd.service", "error"),
    "subuid": (lambda n: n.put("/etc/subuid", "root:1:2\n"), "user nobody: it has no range in /etc/subuid",
               "usermod --add-subuids", "warning"),
    "linger": (lambda n: (n.root / "var/lib/systemd/linger/nobody").unlink(), "user nobody: it does not linger",
               "loginctl enable-linger nobody", "warning"),
    "watches": (lambda n: n.put("/proc/sys/fs/inotify/max_user_watches", "64\n"), "only 64 directories can be watched",
                "fs.inotify.max_user_watches", "warning"),
    "audit log": (lambda n: (n.root / "var/log/audit/audit.log").unlink(), "SELinux: what was denied", "ausearch",
                  "not asked"),
}


def look(tree):
    return doctor("/nonexistent", "--root", str(tree.root), "--node-config", str(tree.config))


@ROOT_ONLY
def test_nothing_is_told_of_a_host_where_all_is_well(tree):
    assert look(tree) == []
    # Nor of one that has nothing of all this.
    for place in ("sys", "etc", "var/log", "run", "usr"):
        shutil.rmtree(tree.root / place)
    assert look(tree) == []


@ROOT_ONLY
@pytest.mark.parametrize("fault", TREES)
def test_faults_of_a_host(tree, fault):
    make, what, remedy, severity = TREES[fault]
    make(tree)
    found = look(tree)
    told(found, what, remedy, severity, at="this host")
    assert len(found) == 1, found


def test_there_are_at_least_25_faults():
    text = open(__file__).read()
    assert text.count("told(") - 2 + len(TREES) >= 25


def test_nobody_examines_another_node_without_a_right(mesh):
    """The question itself, from the mesh: refused to who brings no token, and no way to have another node asked."""
    mesh.node("far", listen=True)
    near = mesh.node("near", peers=["far"])
    mesh.start()
    with near.control() as stranger:
        assert stranger.ask({"command": "connect", "node": "far", "service": "control"}) == "Connecting"
        assert stranger.line() == "Receptor Control, node far"
        for token in ({}, {"signature": "x.y.z"}):
            answer = stranger.command({"command": "doctor", **token})
            assert answer["Refused"]["Cause"] == "no-key" and answer["Findings"] == [] and answer["NodeID"] == "far", answer
        with pytest.raises(harness.ControlError, match="doctor of another node over this connection is not allowed"):
            stranger.command({"command": "doctor", "node": "near"})
    assert mesh["far"].command({"command": "doctor"})["Findings"] == []
