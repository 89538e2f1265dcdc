"""Several control nodes with one PostgreSQL: c1 and c2 behind a hop, with two execution nodes."""

import json
import math
import shutil
import signal
import sys
import time

import pytest

import postgres
import trust
from client import ControlError
from clocks import Clock
from mesh import MESHCTL, Mesh, own_runner, until
from test_controller import STAND_IN, ask, command_type, ended, job, stream, wrote
from trust import run

pytestmark = pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)")

#: A busy machine may keep a node from its store for two seconds.
TIMERS = {"heartbeat": "200ms", "ownerlostafter": "4s", "lostafter": "10s", "poll": "500ms"}
NODES = ("c1", "c2", "e1", "e2")


@pytest.fixture(scope="module")
def server():
    """Its clock can be set, where there is a C compiler."""
    server = postgres.Postgres()
    server.clock = Clock(server.dir)
    server.variables = server.clock.variables
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    private, public = tmp_path_factory.mktemp("keys") / "key", tmp_path_factory.mktemp("keys") / "pub"
    run(MESHCTL, "key", "generate", "--type", "ed25519", "--private", private, "--public", public)
    return private, public


def runner(name):
    return command_type(name, sys.executable, f"{STAND_IN} worker", runtime=True)


def controller(url, keys, rundir, **more):
    settings = {"store": url, "discovery": "enabled", "rundir": str(rundir), **TIMERS, **own_runner(runner("own")), **more}
    private, public = keys
    return [
        {"work-controller": settings},
        {"work-signing": {"privatekey": str(private)}},
        {"work-verification": {"publickey": str(public)}},
    ]


@pytest.fixture
def site(mesh, server, keys, tmp_path, request):
    """c1 and c2 - hop - e1 and e2. c1 reaches the database by `mesh.way`, which can be cut."""
    database = server.database()
    mesh.way, mesh.database = postgres.Way(server.port), database
    saved = tmp_path / "jobs.d"
    saved.mkdir()
    more = {"jobs": str(saved), **getattr(request, "param", {})}
    pki = trust.Pki(tmp_path / "pki") if "peertlsserver" in more else None
    mesh.node("hop", listen=True)
    for name, port in (("c1", mesh.way.port), ("c2", server.port)):
        extra = controller(server.url(database, port), keys, tmp_path, **more)
        if pki:
            pki.issue(name, [name])
            extra += pki.profiles(name)
        mesh.node(name, peers=["hop"], extra=extra)
    for name in ("e1", "e2"):
        mesh.node(name, peers=["hop"], work=[runner("ansible-runner")])
    for node in mesh.nodes.values():
        node.spawn()
    for node in mesh.nodes.values():
        until(f"{node.name} to answer", node.answers, 60)

    def ready():
        found = {one["name"] for one in ask(mesh["c1"], "instance.list")["instances"] if one["capacity"] > 0 and one["reachable"]}
        return found >= set(NODES) and all(seen(mesh, name, of) for name in ("c1", "c2") for of in NODES)

    until("all instances to be ready and seen", ready, 60)
    yield mesh
    mesh.way.close()


def seen(mesh, name, of):
    return of in mesh[name].status()["RoutingTable"] or of == name


def submit(node, header=None, **kwargs):
    """Submits a job; returns its unit and number."""
    with node.control() as client:
        answer = client.submit(node.name, "controller", stream(header, **kwargs))
    assert answer["result"] == "Job Started", answer
    return answer["unitid"], node.unit(answer["unitid"])["ExtraData"]["JobID"]


def runs(node, number):
    return until(f"job {number} to run", lambda: (one := job(node, number))["state"] == "running" and one)


def owned(node, number, owner, seconds=30):
    return until(f"{owner} to own job {number}", lambda: (one := job(node, number))["controller_node"] == owner and one, seconds)


def unit_of(node, number):
    """The unit of a job on a node."""
    units = node.command("work list")
    return next((unit for unit, one in units.items() if (one.get("ExtraData") or {}).get("JobID") == number), None)


def shows(node, unit, state="Succeeded"):
    until(f"unit {unit} to show {state}", lambda: node.unit(unit)["StateName"] == state, 60)
    return node.results(unit)


def is_whole(output, ident, lines=3):
    assert output.startswith(wrote(ident, lines)) and output.endswith(b'{"eof": true}\n'), output
    assert output.count(b'"starting"') == 1, output


def clean(mesh, *names, checks=True):
    """No unit of a child is left anywhere. Without `checks` those of health checks may be: a lost node's are its to release."""

    def left(name):
        units = mesh[name].command("work list").items()
        return [unit for unit, one in units if one["WorkType"] != "controller" and (checks or unit[9] != "h")]

    for name in names:
        until(f"{name} to have no children", lambda n=name: not left(n), 60)


def test_any_control_node_takes_jobs_and_answers_and_fetches_output(site):
    c1, c2 = site["c1"], site["c2"]
    jobs = [(node, f"{node.name}-{n}", *submit(node, ident=f"{node.name}-{n}")) for n in range(4) for node in (c1, c2)]
    for node, ident, unit, number in jobs:
        one = ended(c2 if node is c1 else c1, number)
        assert (one["state"], len(one["attempts"]), one["controller_node"]) == ("successful", 1, node.name), one
        is_whole(shows(node, unit), ident)
        assert one["attempts"][0]["work_type"] == "ansible-runner", one
        other = c2 if node is c1 else c1
        for part in ({}, {"attempt": 1}, {"follow": True}):
            line, text = streamed(other, "job.output", id=number, **part)
            assert (text, line["size"]) == (node.results(unit), len(text)), part
        assert streamed(other, "job.output", id=number, **{"from": 10})[1] == node.results(unit)[10:]
        assert streamed(other, "job.output", id=number, **{"from": 10**9})[1] == b""
        counters = [json.loads(event)["counter"] for event in streamed(other, "job.events", id=number, **{"from": 2})[1].splitlines()]
        assert counters == [2, 3], counters
        assert "has no attempt 7" in streamed(other, "job.output", id=number, attempt=7)["message"]
    lists = [ask(node, "job.list", limit=50)["jobs"] for node in (c1, c2)]
    assert [one["id"] for one in lists[0]] == [one["id"] for one in lists[1]] and len(lists[0]) == 8
    # The second unit of a job is on another control node: its output comes from the first one's.
    first, number = submit(c1, {"key": "twice"}, ident="k")
    second, same = submit(c2, {"key": "twice"}, ident="other")
    assert number == same
    is_whole(shows(c1, first), "k")
    is_whole(shows(c2, second), "k")
    # A cancel by the other control node reaches the owner.
    unit, number = submit(c1, ident="c", go="/nonexistent")
    runs(c2, number)
    ask(c2, "job.cancel", id=number)
    assert ended(c1, number)["state"] == "canceled"
    shows(c1, unit, "Canceled")
    clean(site, *NODES)
    # Strangers get nothing of it: neither a node without the key, nor one that is no control node.
    for line in ({"node": "e1", "install": "x", "job": number, "verb": "output", "from": 0, "follow": False, "token": "x.y.z"}, {}):
        tunnel = site["e1"].control()
        tunnel.send({"command": "connect", "node": "c1", "service": "ctrlpeer"})
        assert "Connecting" in tunnel.line()
        tunnel.send(line)
        if line:
            answer = json.loads(tunnel.line())
            assert "token" in answer["refused"] and answer["missing"] is False, answer
        else:
            with pytest.raises(ControlError, match="connection closed"):
                tunnel.line()
        tunnel.close()


def test_what_was_to_be_released_on_a_dead_node_is_released_though_its_job_was_taken_over(site, tmp_path):
    c1, c2, go = site["c1"], site["c2"], tmp_path / "go"
    unit, number = submit(c1, {"retry": {"max": 1}}, ident="r", go=str(go))
    dead = site[runs(c1, number)["execution_node"]]
    dead.stop(signal.SIGKILL)
    ask(c2, "instance.remove", name=dead.name, dead=True)
    until("the second attempt", lambda: len(job(c2, number)["attempts"]) == 2 and runs(c2, number))
    c1.stop(signal.SIGSTOP)
    owned(c2, number, "c2")
    c1.process.send_signal(signal.SIGCONT)
    c1.logged("the node lost its lease and took a new one")
    dead.start()
    until("the first attempt to be released", lambda: dead.command("work list") == {}, 60)
    go.touch()
    assert ended(c2, number)["state"] == "successful"
    shows(c1, unit)
    clean(site, *NODES)


def test_output_is_followed_through_another_control_node_while_its_own_is_there(site, tmp_path):
    c1, c2, go = site["c1"], site["c2"], tmp_path / "go"
    unit, number = submit(c1, ident="o", lines=5, go=str(go))
    runs(c2, number)
    with c2.control() as client:
        client.send({"command": "controller", "op": "job.output", "id": number, "follow": True})
        assert json.loads(client.line())["ok"]
        go.touch()
        followed = client.reader.read()
    assert followed == shows(c1, unit)
    is_whole(followed, "o", 5)
    c1.stop(signal.SIGKILL)
    until("c2 to miss it", lambda: not seen(site, "c2", "c1"))
    answer = streamed(c2, "job.output", id=number)
    assert answer["code"] == "owner_away" and "control node c1 cannot be reached" in answer["message"], answer


def streamed(node, op, **arguments):
    """The line before a stream, and all of the stream; or the error."""
    with node.control() as client:
        client.send({"command": "controller", "op": op, **arguments})
        answer = json.loads(client.line())
        return (answer["result"], client.reader.read()) if answer["ok"] else answer["error"]


@pytest.mark.parametrize("site", [{"peertlsserver": "server", "peertlsclient": "client"}], indirect=True)
def test_control_nodes_ask_each_other_over_mutual_tls(site):
    c1, c2 = site["c1"], site["c2"]
    first, number = submit(c1, {"key": "tls"}, ident="k")
    second, same = submit(c2, {"key": "tls"}, ident="other")
    assert number == same
    is_whole(shows(c1, first), "k")
    is_whole(shows(c2, second), "k")
    unit, number = submit(c1, ident="o")
    whole = shows(c1, unit)
    assert streamed(c2, "job.output", id=number)[1] == whole
    # Who has no certificate of theirs does not even get to speak.
    tunnel = site["e1"].control()
    tunnel.send({"command": "connect", "node": "c1", "service": "ctrlpeer"})
    with pytest.raises(ControlError):
        tunnel.line()
        tunnel.send({"node": "e1", "install": "x", "job": number, "verb": "payload", "from": 0, "token": "x.y.z"})
        tunnel.line()
    tunnel.close()
    clean(site, *NODES)


def test_a_job_runs_again_on_a_control_node_that_does_not_have_its_payload(site):
    c1, c2 = site["c1"], site["c2"]
    unit, number = submit(c1, ident="first", padding="x" * 300_000)
    is_whole(shows(c1, unit), "first")
    again = ask(c2, "job.rerun", id=number)
    one = ended(c2, again["id"])
    assert (one["state"], one["controller_node"]) == ("successful", "c2"), one
    is_whole(shows(c2, unit_of(c2, again["id"])), "first")
    second = ask(c2, "job.rerun", id=again["id"])
    assert ended(c2, second["id"])["state"] == "successful"
    c1.stop(signal.SIGKILL)
    # Children of the jobs before may be on their way out.
    units = lambda: {unit for unit, one in c2.command("work list").items() if one["WorkType"] == "controller"}  # noqa: E731
    before = units()
    until("c2 to miss it", lambda: not seen(site, "c2", "c1"))
    refused = c2.command({"command": "controller", "op": "job.rerun", "id": number})["error"]
    assert refused["code"] == "owner_away" and "control node c1 cannot be reached" in refused["message"], refused
    assert units() == before, "nothing is left of it"
    c1.start()
    until("c1 to answer", lambda: ask(c1, "ping")["store"]["up"])
    ask(c1, "job.delete", id=number)
    assert c2.command({"command": "controller", "op": "job.rerun", "id": number})["error"]["code"] == "not_found"
    clean(site, *NODES)


def test_a_lost_owner_is_taken_over_and_follows_when_it_is_back(site, tmp_path):
    c1, c2, go = site["c1"], site["c2"], tmp_path / "go"
    jobs = [(f"t{n}", *submit(c1, ident=f"t{n}", lines=30, go=str(go))) for n in range(3)]
    for _, _, number in jobs:
        runs(c2, number)
    for name in ("e1", "e2"):
        ask(c2, "instance.disable", name=name)
    held, pending = submit(c1, ident="p")
    c1.stop(signal.SIGKILL)
    for _, _, number in jobs:
        owned(c2, number, "c2")
    for name in ("e1", "e2"):
        ask(c2, "instance.enable", name=name)
    waits = lambda: job(c2, pending)["explanation"] == "waiting for a control node that holds its payload"  # noqa: E731
    until("the job without payload to wait", waits)
    assert [check["ok"] for check in ask(c2, "job.explain", id=pending)["checks"] if check["check"] == "payload"] == [False]
    go.touch()
    for ident, _, number in jobs:
        one = ended(c2, number)
        assert (one["state"], len(one["attempts"]), one["controller_node"]) == ("successful", 1, "c2"), one
        is_whole(shows(c2, unit_of(c2, number)), ident, 30)
    clean(site, "c2", "e1", "e2", checks=False)
    c1.start()
    for ident, unit, number in jobs:
        is_whole(shows(c1, unit), ident, 30)
        assert job(c1, number)["controller_node"] == "c2"
    one = ended(c2, pending)
    assert (one["state"], one["controller_node"]) == ("successful", "c1"), one
    is_whole(shows(c1, held), "p")
    clean(site, *NODES)


def test_a_job_that_was_not_sent_is_asked_for_and_waits_for_its_payload(site):
    c1, c2, e1 = site["c1"], site["c2"], site["e1"]
    ask(c1, "instance.disable", name="e2")
    e1.stop(signal.SIGSTOP)
    unit, number = submit(c1, ident="w")
    until("it to be placed", lambda: job(c2, number)["state"] == "waiting")
    c1.stop(signal.SIGKILL)
    owned(c2, number, "c2")
    e1.process.send_signal(signal.SIGCONT)
    # A start goes out in one piece, so that it may have been on its way to e1 over a stream that was open.
    state = until("e1 to say whether it has got it", lambda: (state := job(c2, number)["state"]) != "waiting" and state)
    if state == "pending":
        assert [unit for unit in e1.command("work list") if f"n{number}a" in unit] == []
    # It comes back, and sends nothing of what it had begun.
    c1.start()
    one = ended(c2, number)
    expected = ("c1", ["not_accepted", "successful"]) if state == "pending" else ("c2", ["successful"])
    assert (one["controller_node"], [attempt["outcome"] for attempt in one["attempts"]]) == expected, one
    is_whole(shows(c1, unit), "w")
    clean(site, *NODES)


def test_a_job_on_the_lost_control_node_itself_fails_and_is_cancelled_there(site, tmp_path):
    c1, c2 = site["c1"], site["c2"]
    _, number = submit(c1, {"kind": "system"}, ident="s", go=str(tmp_path / "never"))
    assert runs(c2, number)["execution_node"] == "c1"
    c1.stop(signal.SIGKILL)
    one = ended(c2, number)
    assert (one["state"], one["controller_node"]) == ("failed", "c2"), one
    c1.start()
    clean(site, "c1", "c2")


@pytest.mark.parametrize("site", [{"onloss": "fail"}], indirect=True)
def test_with_onloss_fail_the_jobs_of_a_lost_owner_fail(site, tmp_path):
    c1, c2 = site["c1"], site["c2"]
    unit, number = submit(c1, ident="f", go=str(tmp_path / "never"))
    runs(c2, number)
    c1.stop(signal.SIGKILL)
    one = ended(c2, number)
    assert (one["state"], one["explanation"]) == ("failed", "its control node was lost"), one
    clean(site, "c2", "e1", "e2", checks=False)
    c1.start()
    until("the unit's end", lambda: c1.unit(unit)["StateName"] == "Failed")


def test_what_only_a_lost_disk_held_fails_when_its_node_is_declared_dead(site, tmp_path):
    c1, c2, go = site["c1"], site["c2"], tmp_path / "go"
    _, running = submit(c1, ident="d", go=str(go))
    runs(c2, running)
    for name in ("e1", "e2"):
        ask(c2, "instance.disable", name=name)
    _, pending = submit(c1, ident="x")
    c1.stop(signal.SIGKILL)
    until("its disk to be empty", lambda: shutil.rmtree(c1.datadir, ignore_errors=True) or not c1.datadir.exists())
    owned(c2, running, "c2")
    go.touch()
    assert ended(c2, running)["state"] == "successful"
    is_whole(shows(c2, unit_of(c2, running)), "d")
    assert job(c2, pending)["state"] == "pending"
    ask(c2, "instance.remove", name="c1", dead=True)
    one = ended(c2, pending)
    assert (one["state"], one["explanation"]) == ("failed", "its payload was lost with c1"), one


def test_a_control_node_that_is_cut_from_the_store_stands_down(site, tmp_path):
    c1, c2, go = site["c1"], site["c2"], tmp_path / "go"
    unit, number = submit(c1, ident="n", lines=20, go=str(go))
    runs(c1, number)
    site.way.cut()
    until("c1 to stand down", lambda: "the lease is not renewed" in c1.log())
    until("its store to be away", lambda: ask(c1, "ping")["store"]["up"] is False)
    owned(c2, number, "c2")
    with c1.control() as client:
        late = client.submit("c1", "controller", stream(ident="late"))
    assert late["result"] == "Job Submitted", late
    go.touch()
    one = ended(c2, number)
    assert (one["state"], len(one["attempts"])) == ("successful", 1), one
    is_whole(shows(c2, unit_of(c2, number)), "n", 20)
    site.way.heal()
    is_whole(shows(c1, unit), "n", 20)
    is_whole(shows(c1, late["unitid"]), "late")
    assert ask(c1, "ping")["store"]["up"] is True
    c1.logged("the node lost its lease and took a new one")
    clean(site, *NODES)


def test_a_control_node_that_starts_without_its_store_takes_submissions_and_works_once_it_is_there(site, server, tmp_path):
    c1, go = site["c1"], tmp_path / "go"
    unit, number = submit(c1, ident="b", lines=20, go=str(go))
    runs(c1, number)
    server.stop(signal.SIGKILL)
    c1.stop(signal.SIGKILL)
    c1.start()
    c1.logged("the controller is waiting for its store")
    store = until("it to say why", lambda: (store := ask(c1, "ping")["store"])["error"] and store)
    assert store["up"] is False and "the store is away" in store["error"], store
    assert c1.command({"command": "controller", "op": "job.list"})["error"]["code"] == "store_away"
    with c1.control() as client:
        late = client.submit("c1", "controller", stream(ident="late"))
    assert late["result"] == "Job Submitted", late
    with c1.control() as client:
        unwanted = client.submit("c1", "controller", stream(ident="unwanted"))
    assert c1.command(f"work force-release {unwanted['unitid']}") == {"released": unwanted["unitid"]}
    with c1.control() as client, pytest.raises(ControlError, match="unknown key"):
        client.submit("c1", "controller", stream({"nonsense": 1}))
    go.touch()
    server.start()
    is_whole(shows(c1, late["unitid"]), "late")
    is_whole(shows(c1, unit), "b", 20)
    one = ended(c1, number)
    assert (one["state"], len(one["attempts"])) == ("successful", 1), one
    assert ask(c1, "ping")["store"]["up"] is True
    assert len(ask(c1, "job.list")["jobs"]) == 2, "what was released was never a job"
    clean(site, *NODES)


def test_without_the_store_running_jobs_go_on_and_submissions_wait(site, server, tmp_path):
    go = tmp_path / "go"
    before = [(node, f"b{n}", *submit(node, ident=f"b{n}", lines=20, go=str(go))) for n, node in enumerate((site["c1"], site["c2"]))]
    for node, _, _, number in before:
        runs(node, number)
    # Checks of health may have units as well.
    of_jobs = lambda name: {unit for unit in site[name].command("work list") if unit[9] == "n"}  # noqa: E731
    children = {name: of_jobs(name) for name in ("e1", "e2")}
    server.stop(signal.SIGKILL)
    waiting = []
    for node in (site["c1"], site["c2"]):
        until("it to stand down", lambda n=node: "the lease is not renewed" in n.log())
        with node.control() as client:
            answer = client.submit(node.name, "controller", stream(ident=f"late-{node.name}"))
        assert answer["result"] == "Job Submitted", answer
        waiting.append((node, f"late-{node.name}", answer["unitid"]))
        refused = node.command({"command": "controller", "op": "job.list"})
        assert refused["error"]["code"] == "store_away", refused
    c1 = site["c1"]
    with c1.control() as client:
        cancelled = client.submit("c1", "controller", stream(ident="cancelled"))["unitid"]
    with c1.control() as client:
        refused = client.submit("c1", "controller", stream({"groups": {"launch": ["default"], "template": ["nowhere"]}}))["unitid"]
    assert c1.command(f"work cancel {cancelled}") == {"cancel pending": cancelled}
    assert all(of_jobs(name) <= children[name] for name in children), "nothing was placed"
    go.touch()
    finished = lambda: all(one["StateName"] == "Succeeded" for name in children for one in site[name].command("work list").values())  # noqa: E731
    until("the children to end", finished)
    server.start()
    for node, ident, unit, number in before:
        is_whole(shows(node, unit), ident, 20)
        one = ended(node, number)
        assert (one["state"], len(one["attempts"]), one["controller_node"]) == ("successful", 1, node.name), one
    for node, ident, unit in waiting:
        is_whole(shows(node, unit), ident)
    until("the cancelled one to end", lambda: c1.unit(cancelled)["StateName"] == "Canceled")
    assert not job(c1, c1.unit(cancelled)["ExtraData"]["JobID"])["attempts"]
    until("the refused one to end", lambda: c1.unit(refused)["StateName"] == "Failed")
    assert c1.unit(refused)["Detail"].startswith("there is no group nowhere"), c1.unit(refused)
    clean(site, *NODES)


def test_of_two_processes_with_one_node_id_the_later_one_works(site, server, keys, tmp_path):
    c1, go = site["c1"], tmp_path / "go"
    unit, number = submit(c1, ident="held", go=str(go))
    runs(c1, number)
    elsewhere = Mesh()
    try:
        extra = controller(server.url(site.database), keys, tmp_path)
        twin = elsewhere.node("c1", extra=extra).start()
        until("the first one to stop", lambda: ask(c1, "ping")["store"]["up"] is False)
        assert "has a newer lease" in ask(c1, "ping")["store"]["error"]
        with c1.control() as client, pytest.raises(ControlError, match="has a newer lease"):
            client.submit("c1", "controller", stream())
        own = next(one for one in ask(c1, "ping")["nodes"] if one["node"] == "c1")
        assert (own["node_state"], own["capacity"]) == ("unavailable", 0) and "has a newer lease" in own["errors"][-1], own
        assert ask(twin, "ping")["store"]["up"] is True
        until("a ping, as the node goes on", lambda: c1.reaches("e1"))
    finally:
        elsewhere.end()
        elsewhere.remove()
    until("it to work again", lambda: ask(c1, "ping")["store"]["up"], 60)
    go.touch()
    assert ended(c1, number)["state"] == "successful", "what ran meanwhile was lost to nobody"
    is_whole(shows(c1, unit), "held")
    assert ended(c1, submit(c1, ident="again")[1])["state"] == "successful"


@pytest.fixture
def go_site(mesh, server, keys, tmp_path, receptor):
    """c1 and c2 - hop - go, a Go node. Its runner keeps a list of its starts."""
    database, mesh.starts = server.database(), tmp_path / "starts"
    script = f"""-c 'echo "$*" >> {mesh.starts}; exec {sys.executable} {STAND_IN} "$@"' sh worker"""
    mesh.node("hop", listen=True)
    for name in ("c1", "c2"):
        extra = controller(server.url(database), keys, tmp_path, lostafter="60s")
        mesh.node(name, peers=["hop"], extra=extra)
    mesh.node("go", peers=["hop"], work=[command_type("ansible-runner", "sh", script, runtime=True)], program=receptor)
    for node in mesh.nodes.values():
        node.start()
    mesh.wait_for_routes()
    wanted = {"c1", "c2", "go"}
    ready = lambda: {one["name"] for one in ask(mesh["c2"], "instance.list")["instances"] if one["capacity"] > 0} >= wanted  # noqa: E731
    until("all instances to be ready", ready, 90)
    until("the units of health checks to go", lambda: mesh["go"].command("work list") == {}, 60)
    return mesh


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_over", [False, True], ids=["runs", "has ended"])
def test_a_job_on_a_go_node_is_taken_over_and_runs_once(go_site, tmp_path, is_over):
    """Receptor 1.4.9 gives the child an ID of its own, which is in the store before the child can start."""
    c1, c2, theirs, gate = go_site["c1"], go_site["c2"], go_site["go"], tmp_path / "gate"
    unit, number = submit(c1, ident="g", lines=5, go=str(gate), cwd=True)
    child = runs(c2, number)["attempts"][0]["unit"]
    if is_over:
        c2.process.send_signal(signal.SIGSTOP)
    c1.stop(signal.SIGKILL)
    if is_over:
        gate.touch()
        until("the child to end", lambda: [one["State"] for one in theirs.command("work list").values()] == [2], 60)
        c2.process.send_signal(signal.SIGCONT)
    owned(c2, number, "c2", 60)
    taken = until("a unit of the job on c2", lambda: unit_of(c2, number), 60)
    until("its output", lambda: c2.unit(taken)["StdoutSize"] > 0, 60)
    gate.touch()
    one = ended(c2, number, 90)
    assert (one["state"], len(one["attempts"]), one["controller_node"]) == ("successful", 1, "c2"), one
    c1.start()
    for node, shown in ((c2, taken), (c1, unit)):
        output = shows(node, shown)
        assert output.endswith(b'{"eof": true}\n') and output.count(b'"starting"') == 1 and b"g 5" in output, output
    assert len([line for line in go_site.starts.read_text().splitlines() if child in line]) == 1
    clean(go_site, "c1", "c2")
    until("the Go node to have no units", lambda: theirs.command("work list") == {}, 60)


def test_no_step_of_the_databases_clock_loses_anybody(site, server, tmp_path):
    if not server.variables:
        pytest.skip("there is no C compiler (cc)")
    c1, c2, go = site["c1"], site["c2"], tmp_path / "go"
    running = [(node, *submit(node, ident=node.name, go=str(go))) for node in (c1, c2)]
    for node, _, number in running:
        runs(node, number)
    _, waiting = submit(c1, {"depends_on": [running[0][2]], "pending_timeout": "30m"}, ident="w")

    def beat_and_look():
        """Each control node has looked at the other one several times by this clock."""
        times = {"c1": set(), "c2": set()}

        def looked():
            for one in ask(c1, "instance.list")["instances"]:
                assert one["node_state"] == "ready", one
                times.get(one["name"], set()).add(one["last_seen"])
            return all(len(seen) > 4 for seen in times.values())

        until("both to have looked", looked, 60)

    try:
        for seconds in (60, 0, 3600, 3660, 0, -3600, 60, -60, 86400, 0, 60, 120, 180, 0):
            server.clock.set(seconds)
            beat_and_look()
            for node, _, number in running:
                one = job(node, number)
                assert (one["state"], one["controller_node"], len(one["attempts"])) == ("running", node.name, 1), (seconds, one)
            assert job(c1, waiting)["state"] == "pending", seconds
    finally:
        server.clock.set(0)
    go.touch()
    for node, unit, number in running:
        one = ended(node, number)
        assert (one["state"], one["controller_node"], len(one["attempts"])) == ("successful", node.name, 1), one
        is_whole(shows(node, unit), node.name)
    assert ended(c1, waiting)["state"] == "successful"
    clean(site, *NODES)


def test_a_control_node_whose_clock_is_wrong_blames_no_other(site, tmp_path):
    c1, c2 = site["c1"], site["c2"]
    clock = Clock(tmp_path)
    clock.set(-90)
    c2.variables = clock.variables
    c2.restart()
    beats = set()

    def has_looked():
        instances = {one["name"]: one for one in ask(c1, "instance.list")["instances"]}
        blamed = {name: one["errors"] for name, one in instances.items() if name != "c2" and one["errors"]}
        assert not blamed, blamed
        if seen(site, "c2", "e1"):
            beats.add(instances["c2"]["last_seen"])
        return len(beats) > 10

    until("c2 to have looked at the others often", has_looked, 60)


@pytest.mark.timeout(400)
def test_each_time_of_a_schedule_starts_one_job_on_whichever_control_node(site, server, tmp_path):
    if not server.clock.variables:
        pytest.skip("there is no C compiler to make the database's clock wrong")
    c1, c2 = site["c1"], site["c2"]
    (tmp_path / "jobs.d" / "tick.yml").write_text('module: ping\nschedule: {cron: "*/4 * * * *", zone: Europe/Berlin}\n')
    for node in (c1, c2):
        run(MESHCTL, "--socket", node.socket, "reload")

    def schedule(node):
        one, = ask(node, "schedule.list")["schedules"]
        return one

    def started():
        return ask(c2, "job.list", saved="tick")["jobs"]

    ahead = 0

    def to_next_tick():
        nonlocal ahead
        now = time.time()
        ahead = math.ceil((int(now + ahead) // 240 + 1) * 240 - now) + 1
        server.clock.set(ahead)

    def pass_time(count):
        """Until just behind the next tick by the clock of the store; then there are so many jobs."""
        to_next_tick()
        until(f"{count} jobs", lambda: len(started()) >= count, 90)
        last = until("it to be noted", lambda: (last := schedule(c2)["last"]) and last["job"] == started()[0]["id"] and last)
        ended(c2, last["job"])

    # Both have looked: nothing of the past is made up for.
    until("the schedule to begin", lambda: "tick" in server.sql("SELECT name FROM meshd.document WHERE kind = 'schedule'", site.database).stdout)
    assert len(schedule(c1)["next"]) == 5 and schedule(c1)["last"] is None and not started()
    try:
        pass_time(1)
        c1.stop(signal.SIGKILL)
        pass_time(2)
        c1.start()
        pass_time(3)
        run(MESHCTL, "--socket", c1.socket, "schedule", "pause", "tick")
        to_next_tick()
        assert schedule(c2)["paused"]
        run(MESHCTL, "--socket", c2.socket, "schedule", "resume", "tick")
        pass_time(4)
        jobs = started()
        keys = [job(c2, one["id"])["key"] for one in jobs]
        ticks = sorted(int(key.removeprefix("meshd/schedule/tick/")) for key in keys)
        assert len(set(ticks)) == 4 and all(tick % 240_000 == 0 for tick in ticks), ticks
        assert ticks[1] - ticks[0] == ticks[2] - ticks[1] == 240_000 and ticks[3] - ticks[2] == 480_000, ticks
        assert {one["launched_by"] for one in jobs} == {"schedule:tick"}
        assert {"schedule.pause", "schedule.resume"} <= {row["op"] for row in ask(c2, "audit.list")["rows"]}
    finally:
        server.clock.set(0)
