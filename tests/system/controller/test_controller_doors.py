"""What each door of a control node lets its callers do: Unix socket, TCP with and without client certificate, mesh with and
without a token of the work-signing key.

`control` wants tokens; `open` has `verifysignature: false`. Tokens are as receptor's nodes make them, good for any request.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable

import pytest

import trust
from client import Control, ControlError
from conftest import scoped_mesh
from mesh import free_port, own_runner, until
from test_callers import Tls, Tunnel, service
from test_controller import ask, ended, job, runner, stream, wrote
from test_controller_operations import audited
from test_controller_projects import add_credential
from test_tokens import rs512

NO_TOKEN = "could not verify signature: signature is empty"
NO_CERTIFICATE = "operations need the Unix socket or a client certificate"
NOT_SERVED = "operations are not served over the mesh"
NOT_TRUSTED = "controller over this connection is not allowed"
IMAGE = {"image": "quay.io/team/ee"}


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """Two control nodes and their execution node, which is also the stranger. `friend` has the signing key."""
    with scoped_mesh(request.node) as mesh:
        pki = mesh.pki = trust.Pki(mesh.dir / "pki")
        pki.issue("control", ["control"])
        pki.issue("person", [])
        pki.issue("e1", ["e1"])
        signs, verifies = pki.signing_keys()
        credentials = mesh.dir / "credentials"
        credentials.mkdir()
        login = {"kind": "registry", "host": "quay.io", "username": "u", "password": "p"}
        add_credential(credentials, "private", **login)
        add_credential(credentials, "shared", **login, mesh=True)
        mesh.tcp = {"mutual": free_port(), "loopback": free_port(), "outside": free_port()}
        ports = [
            service("mutual", mesh.tcp["mutual"], tcptls="server"),
            service("loopback", mesh.tcp["loopback"], "127.0.0.1"),
            service("outside", mesh.tcp["outside"]),
            service("all", free_port(), "127.0.0.1", forward="all"),
        ]
        settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "poll": "1s", "credentials": str(credentials)}
        settings |= {"rundir": str(tmp_path_factory.mktemp("run")), **own_runner(runner("own"))}
        wants, opened = {"work-controller": settings}, {"work-controller": settings | {"verifysignature": False}}
        mesh.node("e1", listen=True, work=[runner("ansible-runner")])
        mesh.node("control", peers=["e1"], extra=[wants, *verifies, *pki.profiles("control"), *ports])
        mesh.node("open", peers=["e1"], extra=[opened])
        mesh.node("friend", peers=["e1"], extra=signs)
        mesh.start()
        for name in ("control", "open"):
            ready = lambda n=name: {one["name"]: one["capacity"] for one in ask(mesh[n], "instance.list")["instances"]}.get("e1")  # noqa: E731
            until(f"{name} to find e1 ready", ready, 60)
        yield mesh


@dataclasses.dataclass
class Door:
    """A way to a control node."""

    #: Opens a connection in a mesh.
    open: Callable
    #: Whether its requests have a token.
    signs: bool = False
    node: str = "control"
    #: Who a job of this door is launched by; None where none is taken.
    launched_by: str | None = None
    #: Whether its callers may operate and administrate.
    is_admin: bool = False
    #: Why an operation is refused: as the command's error, or in its answer.
    no_operation: str = ""

    def takes_jobs(self):
        return self.launched_by is not None

    def token(self, mesh):
        if not self.signs:
            return {}
        return {"signature": rs512(mesh.pki, {"exp": int(time.time()) + 3600, "aud": [self.node]}).decode()}

    def submit(self, mesh, worktype, payload):
        """A submission; returns its unit."""
        with self.open(mesh) as client:
            return client.submit(self.node, worktype, payload, **self.token(mesh))["unitid"]

    def unit(self, mesh, verb, unit):
        """A command about a unit; returns its answer, or all results."""
        request = {"command": "work", "subcommand": verb, "unitid": unit, **self.token(mesh)}
        with self.open(mesh) as client:
            if verb != "results":
                return client.command(request)
            client.ask({**request, "startpos": 0})
            return client.reader.read()


def tcp(port):
    return lambda mesh: Control(("127.0.0.1", mesh.tcp[port]))


def by_mesh(node, name="control"):
    return lambda mesh: Tunnel(mesh["e1"], node, name)


DOORS = {
    "Unix socket": Door(lambda mesh: mesh["control"].control(), launched_by=f"unix:{os.getuid()}", is_admin=True),
    "TCP, certificate": Door(lambda mesh: Tls(mesh.tcp["mutual"], mesh.pki, "person"), launched_by="cert:person", is_admin=True),
    "TCP, certificate of a node": Door(lambda mesh: Tls(mesh.tcp["mutual"], mesh.pki, "e1"), no_operation=NOT_TRUSTED),
    "loopback TCP": Door(tcp("loopback"), no_operation=NO_CERTIFICATE),
    "loopback TCP, token": Door(tcp("loopback"), signs=True, launched_by="tcp", no_operation=NO_CERTIFICATE),
    "TCP": Door(tcp("outside"), no_operation=NOT_TRUSTED),
    "TCP, token": Door(tcp("outside"), signs=True, launched_by="tcp", no_operation=NOT_TRUSTED),
    "mesh": Door(by_mesh("control"), no_operation=NOT_TRUSTED),
    "mesh, token": Door(by_mesh("control"), signs=True, launched_by="mesh", no_operation=NOT_TRUSTED),
    "mesh, trusted": Door(by_mesh("control", "all"), no_operation=NOT_SERVED),
    "mesh, trusted, token": Door(by_mesh("control", "all"), signs=True, launched_by="mesh", no_operation=NOT_SERVED),
    "mesh, open": Door(by_mesh("open"), node="open", launched_by="mesh", no_operation=NOT_TRUSTED),
}


@pytest.fixture(params=DOORS)
def door(request):
    return DOORS[request.param]


def names(node):
    """What a control node has: units and jobs."""
    return set(node.command("work list")), [one["id"] for one in ask(node, "job.list")["jobs"]]


@contextlib.contextmanager
def refuses(node, why):
    """A submission is refused for that reason, and leaves nothing."""
    before = names(node)
    with pytest.raises(ControlError) as error:
        yield
    assert why in str(error.value)
    # Children of jobs before may be on their way out.
    after = names(node)
    assert after[0] <= before[0] and after[1] == before[1], (before, after)


def test_who_may_submit_a_job_and_use_its_unit(nodes, door):
    node, go = nodes[door.node], nodes.dir / "never"
    if not door.takes_jobs():
        with refuses(node, NO_TOKEN):
            door.submit(nodes, "controller", stream())
        unit = DOORS["Unix socket"].submit(nodes, "controller", stream(ident="d"))
        ended(node, node.unit(unit)["ExtraData"]["JobID"])
        for verb in ("results", "cancel", "release", "force-release"):
            with pytest.raises(ControlError, match=NO_TOKEN):
                door.unit(nodes, verb, unit)
        return
    unit = door.submit(nodes, "controller", stream(ident="d"))
    assert door.unit(nodes, "results", unit).startswith(wrote("d", 3))
    until("the unit's end", lambda: door.unit(nodes, "status", unit)["StateName"] == "Succeeded")
    number = node.unit(unit)["ExtraData"]["JobID"]
    assert job(node, number)["launched_by"] == door.launched_by
    assert door.unit(nodes, "release", unit) == {"released": unit}
    unit = door.submit(nodes, "controller", stream(ident="c", go=str(go)))
    assert set(door.unit(nodes, "cancel", unit).values()) == {unit}
    assert ended(node, node.unit(unit)["ExtraData"]["JobID"])["state"] == "canceled"


def test_who_may_operate(nodes, door):
    node = nodes[door.node]
    unit = node.run(door.node, "controller", stream())[0]
    number = node.unit(unit)["ExtraData"]["JobID"]
    ended(node, number)
    before = audited(node)
    asked = [("ping", {}, None), ("job.list", {}, None), ("job.get", {"id": number}, None), ("job.rerun", {"id": number}, str(number))]
    asked += [("group.create", {"name": "doors"}, "doors"), ("group.delete", {"name": "doors"}, "doors")]
    for op, arguments, _ in asked:
        with door.open(nodes) as client:
            request = {"command": "controller", "op": op, **arguments}
            if door.is_admin:
                answer = client.command(request)
                assert answer["ok"], op
                if op == "job.rerun":
                    # Its child would come while another test looks whether anything does.
                    ended(node, answer["result"]["id"])
            elif door.no_operation == NOT_TRUSTED:
                with pytest.raises(ControlError, match=NOT_TRUSTED):
                    client.command(request)
            else:
                error = client.command(request)["error"]
                assert (error["code"], error["message"]) == ("refused", door.no_operation), op
    rows = [(door.launched_by, op, target) for op, _, target in asked if target] if door.is_admin else []
    assert audited(node)[len(before) :] == rows
    for op in ("job.output", "job.events"):
        with door.open(nodes) as client:
            client.send({"command": "controller", "op": op, "id": number})
            text = client.reader.readline() + (client.reader.read() if door.is_admin else b"")
        assert (b'"event"' in text) == door.is_admin, (op, text)


#: Headers that need admin rights, and why they are refused without.
ADMIN_ALONE = [
    ({"kind": "project_update"}, "this kind of job runs on the control node itself: it needs admin rights"),
    ({"kind": "system"}, "this kind of job runs on the control node itself: it needs admin rights"),
    ({"sync": {"url": "file:///nowhere"}}, "sync.url: a repository on the control node's own disk needs admin rights"),
    ({"runner": {**IMAGE, "registry": "private"}}, "credential private may not be used by callers over the mesh"),
]


def test_what_only_admins_may_submit(nodes, door):
    node = nodes[door.node]
    for header, why in ADMIN_ALONE:
        if not door.is_admin:
            with refuses(node, why if door.takes_jobs() else NO_TOKEN):
                door.submit(nodes, "controller", stream(header))
            continue
        unit = door.submit(nodes, "controller", stream(header))
        one = ended(node, node.unit(unit)["ExtraData"]["JobID"])
        # There is no such repository.
        assert one["state"] == ("failed" if "sync" in header else "successful"), one
        assert one["launched_by"] == door.launched_by


def test_who_may_name_a_credential_with_mesh(nodes, door):
    node, payload = nodes[door.node], stream({"runner": {**IMAGE, "registry": "shared"}})
    if not door.takes_jobs():
        with refuses(node, NO_TOKEN):
            door.submit(nodes, "controller", payload)
        return
    unit = door.submit(nodes, "controller", payload)
    assert ended(node, node.unit(unit)["ExtraData"]["JobID"])["state"] == "successful"


def test_a_token_is_good_for_this_node_alone(nodes):
    """Nobody has the control node submit elsewhere in its own name."""
    token = DOORS["mesh, token"].token(nodes)
    for node, worktype in (("open", "controller"), ("e1", "ansible-runner")):
        before = set(nodes[node].command("work list"))
        with Tunnel(nodes["e1"], "control") as client, pytest.raises(ControlError, match="work submit to another node over this connection is not allowed"):
            client.submit(node, worktype, stream(), **token)
        assert set(nodes[node].command("work list")) <= before
    # One for another node is good for nothing here.
    other = rs512(nodes.pki, {"exp": int(time.time()) + 3600, "aud": ["open"]}).decode()
    with refuses(nodes["control"], "token audience did not match node ID"), Tunnel(nodes["e1"], "control") as client:
        client.submit("control", "controller", stream(), signature=other)


def test_a_node_with_the_key_submits_and_follows_a_job(nodes):
    friend, control = nodes["friend"], nodes["control"]
    unit, output = friend.run("control", "controller", stream(ident="f"), signwork="true")
    assert output.startswith(wrote("f", 3))
    until("the unit's end", lambda: friend.unit(unit)["StateName"] == "Succeeded")
    last = ask(control, "job.list")["jobs"][0]
    assert (last["state"], last["launched_by"]) == ("successful", "mesh"), last
    # Without its signature it is a stranger.
    unsigned = [(stream(), {}, NO_TOKEN)]
    for payload, more, why in unsigned + [(stream(header), {"signwork": "true"}, why) for header, why in ADMIN_ALONE]:
        with friend.control() as client, pytest.raises(ControlError, match=why):
            client.submit("control", "controller", payload, **more)
    assert ask(control, "job.list")["jobs"][0]["id"] == last["id"]
    friend.release_all()


@pytest.mark.parametrize("owner", ["Unix socket", "TCP, token"])
def test_who_has_no_token_sees_nothing_of_a_job_or_its_child(nodes, door, owner):
    """Also through a port whose clients count as the operator elsewhere, and of a job of another client of the same port."""
    if door.takes_jobs():
        return
    node = nodes["control"]
    unit = DOORS[owner].submit(nodes, "controller", stream(ident="o", go="/nowhere/at/all"))
    number = node.unit(unit)["ExtraData"]["JobID"]
    child = until("its child", lambda: (one := job(node, number))["state"] == "running" and one["attempts"][0]["unit"])
    # An attempt is a unit of its execution node alone, for the operator too.
    unknown = f"unknown work unit {child}"
    with pytest.raises(ControlError, match=NO_TOKEN):
        door.unit(nodes, "status", unit)
    for verb in ("status", "results", "force-release"):
        with pytest.raises(ControlError, match=unknown):
            door.unit(nodes, verb, child)
    with door.open(nodes) as client:
        listed = client.command({"command": "work", "subcommand": "list"})
    assert not {unit, child} & set(listed), listed
    for of, why in ((unit, NO_TOKEN), (child, unknown)):
        with door.open(nodes) as client, pytest.raises(ControlError, match=why):
            client.command({"command": "work", "subcommand": "list", "unitid": of})
    known = set(node.command("work list"))
    assert unit in known and child not in known
    assert job(node, number)["state"] == "running"
    ask(node, "job.cancel", id=number)
    assert ended(node, number)["state"] == "canceled"
