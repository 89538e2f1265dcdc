"""Hosts join a mesh by a token: one line on the control node, one on the new host, which makes its own key. Real programs
on hosts of namespaces; systemd and the package manager are stand-ins. docs/security.md names these tests beside the
threats that they show."""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import shlex
import subprocess
import threading
import time

import pytest

import booted
import conftest
import hosts as harness
from client import Control
from mesh import until
from test_joining import JOB, links

#: Hosts that join at once. BENCHMARKS.md has the figures of 500.
MANY = int(os.environ.get("ENROL_HOSTS", "40"))

pytestmark = pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces")


@pytest.fixture(scope="module")
def world(request):
    """`control`, with a controller, and hosts with the package. `b1` and `b2` do not reach `control` by themselves."""
    with conftest.scoped_mesh(request.node) as mesh:
        world = harness.Hosts(mesh, "control", "h1", "e1", "e2", "b1", "b2", "q1", "a1")
        for name in world.names:
            world[name].run("apt install ./meshd.deb")
        invited(world, "e1")
        world["control"].run("echo '- work-controller: {tlsclient: mesh}' >/etc/meshd/conf.d/20-controller.yml; systemctl restart meshd")
        for name in ("b1", "b2"):
            world[name].run(f"ip route add blackhole {world['control'].address}/32")
        yield world


def invited(world, node, *options, role="execution", peer="control.example.org"):
    """The line to paste."""
    said = world["control"].run(f"meshctl node invite {node} --role {role} --peer {peer} {' '.join(options)}")
    return said.strip().splitlines()[-1].strip()


def works(world, node):
    until(f"control to reach {node}", lambda: world["control"].try_to(f"meshctl ping --count 1 {node}").returncode == 0)
    assert "cpu_count" in world["control"].run(JOB.format(node, "--signwork"))


def test_a_host_joins_by_one_line_and_gets_jobs(world):
    control, e1 = world["control"], world["e1"]
    line = invited(world, "e1")
    assert re.fullmatch(r"meshctl install mesh:e1/[\w-]{22}/[\w-]{43}/control\.example\.org:27199", line), line
    pasted = time.monotonic()
    said = json.loads(e1.run(f"{line} --json"))
    assert (said["node"], said["linked"], said["error"], said["notes"]) == ("e1", ["control"], None, []), said
    works(world, "e1")
    print(f"a job ran {time.monotonic() - pasted:.2f} s after the line was pasted")
    until("e1 to be an instance", lambda: control.try_to("meshctl instance list -q").stdout.split() == ["control", "e1"])
    # A second time nothing changes, and the node is not restarted.
    pid = e1.file("/run/meshd.pid").read_text()
    said = json.loads(e1.run(f"{line} --json"))
    assert (said["changed"], said["linked"]) == (False, ["control"]) and e1.file("/run/meshd.pid").read_text() == pid


def test_the_key_is_made_on_the_host_and_stays_there(world):
    control, e1 = world["control"], world["e1"]
    assert e1.mode("/etc/meshd/tls/node.key") == ("0o640", 0, 990)
    assert not e1.file("/etc/meshd/tls/joining.key").exists()
    secret = e1.file("/etc/meshd/tls/node.key").read_text().splitlines()[1]
    found = control.try_to(f"grep -rl -- {shlex.quote(secret)} /etc /var/lib /run /home")
    assert found.stdout == "" and secret not in control.log() + e1.log()


def test_the_token_stands_nowhere_once_it_was_printed(world):
    line = invited(world, "e8")
    secret = line.split("/")[1]
    control = world["control"]
    assert control.try_to(f"grep -rl -- {secret} /etc /var/lib /run /home").stdout == "" and secret not in control.log()
    shown = control.run("meshctl node invites")
    assert re.search(r"^e8 +execution +control\.example\.org:27199 +open +0 of 1 ", shown, re.M), shown
    assert re.search(r"^e1 +execution +control\.example\.org:27199 +used +1 of 1 +10\.99\.0\.3 ", shown, re.M), shown
    assert control.run("meshctl node invites --revoke e8") == "The token for e8 is not valid any more.\n"
    assert "this is not a token for \"e8\" that is valid here" in world["e2"].fails(line)


def test_a_hop_takes_in_a_host_that_does_not_reach_the_control_node(world):
    control, h1, b1 = world["control"], world["h1"], world["b1"]
    said = h1.run(invited(world, "h1", "--host h1.example.org", role="hop"))
    assert "linked to control" in said, said
    assert control.address not in b1.run("ip route get 10.99.0.2") and "linked to h1" in b1.run(invited(world, "b1", peer="h1"))
    works(world, "b1")
    assert re.search(r"a node has joined node=\"b1\" from=\"10\.99\.0\.5 by h1\"", control.log()), control.log()[-1500:]


@pytest.mark.parametrize(("node", "peer"), [("b2", "wss://h1.example.org:8443/mesh"), ("q1", "quic://h1.example.org:8444")])
def test_every_listener_with_tls_takes_newcomers_in(world, node, peer):
    h1, host = world["h1"], world[node]
    listeners = "- ws-listener: {port: 8443, path: /mesh, tls: mesh}\n- quic-listener: {port: 8444, tls: mesh}\n"
    h1.run(f"printf -- '{listeners}' >/etc/meshd/conf.d/30-more.yml && meshctl reload")
    assert "linked to h1" in host.run(invited(world, node, peer=peer))
    works(world, node)


def test_a_token_is_good_for_one_host(world):
    line = invited(world, "e2")
    assert "linked to control" in world["e2"].run(line)
    # A host of another name, and the same token: the node that has it keeps it.
    thief = world["q1"].fails(f"systemctl stop meshd; mkdir /run/kept; mv /etc/meshd/conf.d/00-local.yml /etc/meshd/tls /run/kept; {line}")
    assert "the token for e2 is used up, at " in thief and " by 10.99.0.4" in thief, thief
    works(world, "e2")
    world["q1"].run("rm -rf /etc/meshd/tls; mv /run/kept/tls /etc/meshd/; mv /run/kept/00-local.yml /etc/meshd/conf.d/; systemctl start meshd")


def test_a_name_in_use_is_not_given_away(world):
    refused = world["control"].fails("meshctl node invite e2 --role execution --peer control.example.org")
    assert "e2 has already been added" in refused, refused


def test_a_host_that_is_another_node_says_so_and_the_token_stays_good(world):
    line = invited(world, "e7")
    assert "this host is e1, and would become e7" in world["e1"].fails(line)
    shown = world["control"].run("meshctl node invites")
    assert re.search(r"^e7 .* open +0 of 1 ", shown, re.M), shown
    world["control"].run("meshctl node invites --revoke e7")


def test_a_token_of_several_uses_takes_the_name_over(world):
    """As for a host that is installed anew by its boot server."""
    control, e2 = world["control"], world["e2"]
    control.run("meshctl node remove e2")
    line = invited(world, "e2", "--uses 2")
    serial = lambda: json.loads(e2.run("meshctl cert show --json /etc/meshd/tls/node.crt"))[0]["serial"]  # noqa: E731
    e2.run(f"systemctl stop meshd; rm -r /etc/meshd/tls; {line}")
    first = serial()
    e2.run(f"systemctl stop meshd; rm -r /etc/meshd/tls; {line}")
    assert serial() != first
    works(world, "e2")
    listed = subprocess.run(["openssl", "crl", "-in", control.file("/etc/meshd/ca/ca.crl"), "-noout", "-text"], capture_output=True, text=True)
    assert first.upper() in listed.stdout.replace(":", ""), listed
    assert "is used up" in e2.fails(f"systemctl stop meshd; rm -r /etc/meshd/tls; {line}")


def test_who_can_be_reached_says_what_is_wrong(world):
    e2 = world["e2"]
    good = invited(world, "e6", "--expires 1s")
    assert "this is not a whole token" in e2.fails(good[: good.rindex("/") - 3])
    other = re.sub(r"/[\w-]{22}/", f"/{'A' * 22}/", good)
    assert 'this is not a token for "e6" that is valid here' in e2.fails(f"rm -f /etc/meshd/conf.d/00-local.yml; {other}")
    until("the token to expire", lambda: re.search(r"^e6 .* expired ", world["control"].run("meshctl node invites"), re.M))
    assert "the token for e6 expired at" in e2.fails(good)


def test_the_key_of_the_authority_must_be_the_daemons_alone(world):
    control = world["control"]
    assert control.mode("/etc/meshd/ca") == ("0o700", 990, 990) and control.mode("/etc/meshd/ca/ca.key") == ("0o600", 990, 990)
    control.run("chmod 644 /etc/meshd/ca/ca.key")
    assert "others can read the authority's key (mode 644)" in control.fails("systemctl restart meshd")
    control.run("chmod 600 /etc/meshd/ca/ca.key; systemctl restart meshd")
    works(world, "e1")


def certificate(host):
    shown = json.loads(host.run("meshctl cert show --json /etc/meshd/tls/node.crt"))[0]
    return shown["serial"]


#: Gives certificates another life.
LIFETIME = "sed -i '/^    lifetime:/d; s/^    authority:/    lifetime: {}\\n&/' /etc/meshd/conf.d/50-enrolment.yml && meshctl reload"


def test_a_certificate_renews_itself_and_the_link_goes_on(world):
    """Of a life of 40 s, some 25 to 30 have passed then. Nothing restarts, and the next one is asked for in time."""
    control, b1 = world["control"], world["b1"]
    control.run(LIFETIME.format("40s"))
    control.run("meshctl node remove b1 --dead")
    b1.run("systemctl stop meshd; rm -rf /etc/meshd/tls; " + invited(world, "b1", peer="h1"))
    first, key, links_before = certificate(b1), b1.file("/etc/meshd/tls/node.key").read_text(), b1.log().count(" connected ")
    control.run(LIFETIME.format("8766h"))
    until("another certificate", lambda: certificate(b1) != first, 90)
    assert b1.file("/etc/meshd/tls/node.key").read_text() != key
    until("the profile to have it", lambda: "reloaded TLS files" in b1.log())
    assert not b1.file("/etc/meshd/tls/node.next").exists()
    assert b1.log().count(" connected ") == links_before and links(b1) == ["h1"]
    works(world, "b1")
    assert 'a certificate was renewed node="b1" from="itself by b1"' in control.log()
    b1.run("systemctl restart meshd")
    until("a link by the new certificate", lambda: links(b1) == ["h1"])


def test_a_renewal_waits_for_a_key_on_another_host(world):
    """On `e2`, where a file is carried and from where another one comes back."""
    control, b1, away = world["control"], world["b1"], world["e2"]
    here = control.file("/etc/meshd/ca/ca.crt").parent
    there = away.file("/etc/meshd").parent / "away"
    control.run(LIFETIME.format("50s"))
    control.run("meshctl node remove b1 --dead")
    b1.run("systemctl stop meshd; rm -rf /etc/meshd/tls; " + invited(world, "b1", peer="h1"))
    first = certificate(b1)
    shutil.copytree(here, there)
    refused = control.fails("sed -i 's/^    authority:/    offline: true\\n&/' /etc/meshd/conf.d/50-enrolment.yml && meshctl reload")
    assert "the authority's key must not be on this host: move it away" in refused, refused
    control.run("rm /etc/meshd/ca/ca.key && meshctl reload")
    try:
        assert "the authority's key is not there" in control.fails("meshctl node remove e1 --dead")
        waiting = lambda: json.loads(control.run("meshctl node pending --renewals --json"))["renewals"]  # noqa: E731
        one = until("the renewal to wait", waiting, 90)[0]
        assert (one["node"], one["state"], one["address"]) == ("b1", "waits", "itself by b1"), one
        assert "on the host with the authority's key, run" in control.run("meshctl node pending --renewals --out /etc/meshd/requests.json")
        shutil.copy(here.parent / "requests.json", there)
        signed = away.run("meshctl node sign /etc/away/requests.json --ca /etc/away --out /etc/away/answers.json")
        assert "b1: signed" in signed, signed
        shutil.copy(there / "answers.json", here.parent)
        assert control.run("meshctl node sign /etc/meshd/answers.json") == "b1: it gets the answer when it asks again\n"
        until("another certificate", lambda: certificate(b1) != first, 30)
        assert waiting()[0]["state"] == "signed"
        works(world, "b1")
    finally:
        shutil.copytree(there, here, dirs_exist_ok=True)
        control.run("rm -f /etc/meshd/ca/*.json; chown -R meshd:meshd /etc/meshd/ca; sed -i '/^    offline:/d' /etc/meshd/conf.d/50-enrolment.yml")
        control.run(LIFETIME.format("8766h"))


@pytest.fixture
def asking(world):
    """`a1` asks at the hop, in the background; what the command said is there once it has ended."""
    control, said = world["control"], []
    run = threading.Thread(target=lambda: said.append(world["a1"].try_to("meshctl install --ask h1.example.org --yes", 90)))
    control.run("sed -i 's/^    authority:/    ask: true\\n&/' /etc/meshd/conf.d/50-enrolment.yml && meshctl reload")
    run.start()
    try:
        yield said
    finally:
        run.join()
        control.run("sed -i '/^    ask:/d' /etc/meshd/conf.d/50-enrolment.yml && meshctl reload")


def pending(world):
    return json.loads(world["control"].run("meshctl node pending --json"))["pending"]


def test_without_a_token_a_person_compares_and_approves(world, asking):
    control, a1 = world["control"], world["a1"]
    one = until("the host to ask", lambda: next(iter(pending(world)), None))
    assert (one["node"], one["address"], one["asked_at"], one["state"]) == ("a1", "10.99.0.8 by h1", "h1.example.org:27199", "waits"), one
    assert re.fullmatch(r"([0-9A-Z]{4}-){4}[0-9A-Z]{4}", one["fingerprint"])
    refused = control.fails("meshctl node approve a1 --fingerprint AAAA-BBBB-CCCC-DDDD-EEEE")
    assert f"has another fingerprint ({one['fingerprint']})" in refused, refused
    assert control.run(f"meshctl node approve a1 --fingerprint {one['fingerprint']}").endswith("a1 is approved: it joins within some seconds\n")
    done = until("the host to have joined", lambda: next(iter(asking), None), 60)
    assert done.returncode == 0 and "linked to h1" in done.stdout, done
    assert f"with the fingerprint {one['fingerprint']}" in done.stderr, done
    works(world, "a1")
    assert not [path for path in a1.file("/etc/meshd/tls/node.crt").parent.iterdir() if path.name.startswith("joining")]


def test_nobody_asks_where_that_is_not_allowed_and_a_rejection_is_final(world, request):
    a1 = world["a1"]
    a1.run("systemctl stop meshd; rm -r /etc/meshd/tls /etc/meshd/conf.d/00-local.yml; apt install ./meshd.deb")
    assert "hosts without a token are not admitted here" in a1.fails("meshctl install --ask h1.example.org --name a2 --yes")
    asking = request.getfixturevalue("asking")
    until("the host to ask", lambda: [one for one in pending(world) if one["state"] == "waits"])
    world["control"].run("meshctl node reject a1")
    done = until("the host to be told", lambda: next(iter(asking), None), 60)
    assert done.returncode == 1 and "a1 was rejected" in done.stderr, done


def operation(world, op, **arguments):
    """What the controller answers to an operation at the control socket."""
    with contextlib.chdir(world["control"].file("/run/meshd")), Control("meshd.sock") as control:
        return control.command({"command": "controller", "op": op, **arguments})


def test_an_administrator_approves_without_a_shell(world, request):
    """By the operation behind the page's button, and whoever follows events sees what becomes of the host."""
    control, a1 = world["control"], world["a1"]
    control.run("meshctl node remove a1 --dead")
    control.run("setsid meshctl events --json --interval 0.2 >/run/events 2>&1 & echo $! >/run/events.pid")

    def events():
        told = [json.loads(line) for line in control.file("/run/events").read_text().splitlines() if line.startswith("{")]
        told = [one for one in told if one["node"] == "a1" and one["event"].startswith(("host.", "node.joined"))]
        return sorted((one["event"], one.get("from", ""), one.get("to", "")) for one in told)

    asking = request.getfixturevalue("asking")
    host = until("the host to ask", lambda: next((one for one in operation(world, "node.list")["result"]["hosts"] if one["state"] == "waits"), None))
    assert (host["node"], host["address"]) == ("a1", "10.99.0.8 by h1"), host
    until("the event", events)
    refused = operation(world, "node.approve", node="a1", fingerprint="AAAA-BBBB-CCCC-DDDD-EEEE")
    assert refused["error"]["code"] == "conflict" and "has another fingerprint" in refused["error"]["message"], refused
    done = operation(world, "node.approve", node="a1", fingerprint=host["fingerprint"])
    assert done["result"] == {"node": "a1", "act": "node.approve"}, done
    joined = until("the host to have joined", lambda: next(iter(asking), None), 60)
    assert joined.returncode == 0 and "linked to h1" in joined.stdout, joined
    works(world, "a1")
    ends = {one["node"]: one["ends"] for one in operation(world, "node.list")["result"]["nodes"]}
    assert {"control", "h1", "a1"} <= set(ends) and all(ends.values()), ends
    wanted = [("host.state", "", "waits"), ("host.state", "waits", "approved"), ("node.joined", "", "")]
    until("the events", lambda: events() == wanted)
    control.run("kill $(cat /run/events.pid)")


def test_the_audit_says_who_did_what_about_nodes(world):
    rows = json.loads(world["control"].run("meshctl controller audit --limit 1000 --json"))["rows"]
    rows = [(one["who"], one["op"], one["target"]) for one in rows if one["op"].startswith("node.")]
    for row in [
        ("unix:0", "node.invite", "e1"), ("host:10.99.0.3", "node.join", "e1"), ("unix:0", "node.uninvite", "e8"), ("unix:0", "node.remove", "e2"),
        ("host:10.99.0.5 by h1", "node.join", "b1"), ("host:itself by b1", "node.renew", "b1"), ("host:10.99.0.8 by h1", "node.ask", "a1"),
        ("unix:0", "node.approve", "a1"), ("unix:0", "node.reject", "a1"), ("host:10.99.0.8 by h1", "node.join", "a1"),
    ]:
        assert row in rows, (row, rows)
    # A host asks every few seconds; three times one has begun to. Nobody is there who was refused.
    assert len([row for row in rows if row[1] == "node.ask"]) == 3 and len([row for row in rows if row[1:] == ("node.join", "e1")]) == 1, rows
    assert not [row for row in rows if row[2] in ("a2", "e6", "e8") and row[0].startswith("host:")], rows


def revoked(host):
    """The serial numbers in the list of a host."""
    path = host.file("/etc/meshd/tls/ca.crl")
    shown = subprocess.run(["openssl", "crl", "-in", path, "-noout", "-text"], capture_output=True, text=True, check=True)
    return {number.lower() for number in re.findall(r"Serial Number: ([0-9A-F]+)", shown.stdout)}


def test_a_revoked_node_is_cut_off_everywhere_and_stays_so(world):
    """Of `b1`, which is linked to the hop alone. Then the authority is restored from a copy that does not know of it."""
    control, h1, b1, copy = world["control"], world["h1"], world["b1"], world.dir / "copy"
    serial, ca = certificate(b1), control.file("/etc/meshd/ca/ca.crt").parent
    until("a link", lambda: links(b1) == ["h1"])
    shutil.copytree(ca, copy)
    begun = time.monotonic()
    said = control.run("meshctl node remove b1 --revoke")
    assert "The nodes of the mesh get the new list over it" in said and "scp" not in said, said
    until("the link to be cut", lambda: "connection cut" in h1.log() and links(b1) == [])
    for name in ("control", "h1", "e1"):
        until(f"{name} to have the list", lambda: serial in revoked(world[name]))
    print(f"cut off and known to all {time.monotonic() - begun:.2f} s after the command was typed")
    # The authority is what it was before.
    for path in copy.rglob("*"):
        if path.is_file():
            there = ca / path.relative_to(copy)
            there.write_bytes(path.read_bytes())
    shutil.copy(copy / "ca.crl", control.file("/etc/meshd/tls/ca.crl"))
    control.run("systemctl restart meshd")
    until("the authority to know it again", lambda: serial in revoked(control), 60)
    assert "other nodes knew revoked certificates that the authority had forgotten" in control.log()
    until("all to have one list", lambda: len({world[name].file("/etc/meshd/tls/ca.crl").read_bytes() for name in ("control", "h1", "e1")}) == 1)
    assert "revoked" in until("b1 to be refused", lambda: re.search("revoked", h1.log()[-3000:]) and h1.log())


def issuer(host):
    return json.loads(host.run("meshctl cert show --json /etc/meshd/tls/node.crt"))[0]["issuer"]


def test_a_new_authority_takes_the_place_of_the_former_one(world):
    """`e1` is away when both begin to be trusted, and comes back among nodes whose certificates it cannot know."""
    control, h1, e1 = world["control"], world["h1"], world["e1"]
    show = lambda: json.loads(control.run("meshctl authority show --json"))  # noqa: E731
    assert show() == {"step": None, "waits_for": None}
    until("all to be linked", lambda: "control" in links(h1) and "e1" in links(control))
    links_before, former = h1.log().count(" connected "), issuer(h1)
    e1.run("systemctl stop meshd")
    assert control.run("meshctl authority rotate").startswith("Step 1 of 3: nodes learn to trust the new authority")
    waiting = lambda: {"control", "h1", "e1"} & set(show()["waits_for"])  # noqa: E731
    until("those that are there to trust it", lambda: waiting() == {"e1"})
    refused = control.try_to("meshctl authority rotate")
    assert refused.returncode == 1 and "do not yet: " in refused.stdout and "e1" in refused.stdout, refused
    assert control.run("meshctl authority rotate --force").startswith("Step 2 of 3: nodes get certificates of the new authority")
    until("those that are there to have certificates of it", lambda: waiting() == {"e1"}, 90)
    assert issuer(h1) != former and h1.log().count(" connected ") == links_before
    e1.run("systemctl start meshd")
    works(world, "e1")
    until("e1 to have one as well", lambda: waiting() == set(), 90)
    certificates = lambda host: host.file("/etc/meshd/tls/ca.crt").read_text().count("BEGIN")  # noqa: E731
    assert certificates(e1) == 2
    assert "the former authority is forgotten" in control.run("meshctl authority rotate --force")
    assert show() == {"step": None, "waits_for": None}
    until("all to have forgotten it", lambda: [certificates(host) for host in (control, h1, e1)] == [1, 1, 1])
    # All goes on with the new one: a host joins, another one is revoked.
    for name in ("control", "h1", "e1"):
        world[name].run("systemctl restart meshd")
    works(world, "e1")
    b2 = world["b2"]
    b2.run("systemctl stop meshd; rm -rf /etc/meshd/tls /etc/meshd/conf.d/00-local.yml; apt install ./meshd.deb")
    control.try_to("meshctl node remove b2 --dead")
    b2.run(invited(world, "b2", peer="h1"))
    serial = certificate(b2)
    control.run("meshctl node remove b2 --revoke")
    until("the link to be cut", lambda: links(b2) == [])
    for host in (control, h1, e1):
        until("the list to be there", lambda: serial in revoked(host))


def test_many_hosts_join_at_once(world):
    """Into trees of their own, all from one address, as behind a router: each gets its turn, and none is refused."""
    control, e1 = world["control"], world["e1"]
    names = [f"m{number}" for number in range(MANY)]
    said = control.run("\n".join(f"meshctl node invite {name} --role execution --peer control.example.org --expires 1h" for name in names), 600)
    lines = re.findall(r"meshctl install mesh:\S+", said)
    assert len(lines) == MANY
    pid = int(control.file("/run/meshd.pid").read_text())
    memory = lambda: int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) / 1024  # noqa: E731
    before, begun = memory(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(min(MANY, 100)) as pool:
        joined = list(pool.map(lambda line: e1.try_to(f"{line} --root /home/{line.split('/')[0].split(':')[1]} --json", 300), lines))
    took = time.monotonic() - begun
    print(f"{MANY} hosts joined in {took:.1f} s, with {memory() - before:.1f} MiB more")
    failed = [one for one in joined if one.returncode]
    assert not failed, failed[0]
    assert {json.loads(one.stdout)["node"] for one in joined} == set(names)
    shown = json.loads(control.run("meshctl node invites --json"))["invites"]
    assert {one["node"]: len(one["used"]) for one in shown if one["node"] in names} == dict.fromkeys(names, 1)


def test_behind_a_router_that_translates_addresses(world):
    """`b2` has an address of a private network then, and `e2` is its router."""
    control, b2, router = world["control"], world["b2"], world["e2"]
    translation = "table ip nat { chain out { type nat hook postrouting priority 100; ip saddr 10.98.0.0/24 masquerade; }; }"
    router.run(f"ip address add 10.98.0.1/24 dev eth0; sysctl -qw net.ipv4.ip_forward=1; nft '{translation}'")
    b2.run("systemctl stop meshd; rm -r /etc/meshd/tls /etc/meshd/conf.d/00-local.yml; apt install ./meshd.deb")
    b2.run("ip address flush dev eth0; ip address add 10.98.0.2/24 dev eth0; ip route add default via 10.98.0.1; ip route del blackhole 10.99.0.1")
    control.run("meshctl node remove b2 --dead")
    assert "linked to control" in b2.run(invited(world, "b2"))
    assert 'node="b2" from="10.99.0.4"' in control.log()
    works(world, "b2")


@pytest.mark.timeout(400)
def test_a_confined_service_of_a_real_systemd_renews_its_certificate(world, tmp_path):
    """A hop, whose unit lets the daemon write almost nowhere."""
    control = world["control"]
    line = invited(world, "box", role="hop", peer="10.99.0.1")
    with booted.machine(tmp_path) as box:
        box.write("/etc/meshd/conf.d/00-local.yml", harness.FIRST)
        control.run(f"ip link add box type veth peer name eth0 netns {box.init} && ip link set box master mesh up")
        address = "ip link set eth0 up && ip address add 10.99.0.99/24 dev eth0"
        subprocess.run(["nsenter", "-t", str(box.init), "-n", "sh", "-c", address], check=True)
        control.run(LIFETIME.format("40s"))
        said = json.loads(box.run("meshctl", "--json", "install", line.split()[-1], timeout=120).stdout)
        control.run(LIFETIME.format("8766h"))
        assert said["linked"] == ["control"] and box.show("meshd", "ProtectSystem") == "strict", said
        path = box.root / "etc/meshd/tls/node.crt"
        first, pid = path.read_bytes(), box.show("meshd", "MainPID")
        until("another certificate", lambda: path.read_bytes() != first, 90)
        assert box.show("meshd", "MainPID") == pid
        control.run("meshctl node remove e1 --revoke")
        until("the list of revoked certificates", lambda: (box.root / "etc/meshd/tls/ca.crl").read_bytes() == control.file("/etc/meshd/ca/ca.crl").read_bytes())
