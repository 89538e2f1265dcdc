"""The directive `web`: who may ask for what, and what is answered."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from mesh import MESHCTL, MESHD, ROOT, VENV, environment, free_port, own_runner, until
from test_controller import ask, ended, job, runner, stream, submit, wrote
from test_metrics import change, established, threads
from trust import Pki
from web import LEVELS, Client, bearer, directive, events, token_line

#: What each path needs. `here` is what a client of this machine gets without a token.
ROUTES = {
    ("GET", "/"): "nothing", ("GET", "/page/index.html"): "nothing", ("GET", "/api/v1/session"): "nothing",
    ("GET", "/api/v1/status"): "here", ("GET", "/api/v1/nodes"): "here", ("GET", "/api/v1/links"): "here",
    ("GET", "/api/v1/outages"): "here",
    ("GET", "/api/v1/instances"): "here", ("GET", "/api/v1/groups"): "here", ("GET", "/api/v1/jobs"): "here",
    ("GET", "/api/v1/counts"): "here", ("GET", "/api/v1/overview"): "here",
    ("GET", "/api/v1/jobs/1"): "read", ("GET", "/api/v1/jobs/1/explain"): "read", ("GET", "/api/v1/jobs/1/output"): "read",
    ("GET", "/api/v1/jobs/1/events"): "read", ("GET", "/api/v1/doctor"): "read", ("GET", "/api/v1/events"): "read",
    ("GET", "/api/v1/saved"): "read", ("GET", "/api/v1/saved/nothing"): "read", ("POST", "/api/v1/saved/nothing/start"): "operate",
    ("POST", "/api/v1/hooks/nothing"): "nothing", ("GET", "/api/v1/jobs/export"): "read",
    ("GET", "/api/v1/schedules"): "read", ("POST", "/api/v1/schedules/nothing/pause"): "admin",
    ("POST", "/api/v1/schedules/nothing/resume"): "admin",
    ("POST", "/api/v1/session/end"): "read",
    ("POST", "/api/v1/jobs"): "operate", ("POST", "/api/v1/jobs/1/cancel"): "operate", ("POST", "/api/v1/jobs/1/rerun"): "operate",
    ("POST", "/api/v1/instances/nobody/enable"): "admin", ("POST", "/api/v1/instances/nobody/disable"): "admin",
    ("GET", "/api/v1/enrolment"): "admin", ("POST", "/api/v1/enrolment/nobody/approve"): "admin", ("POST", "/api/v1/enrolment/nobody/reject"): "admin",
}
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
       "base-uri 'none'; frame-ancestors 'none'")


def control_settings(rundir):
    settings = {"nodetype": "hybrid", "discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "rundir": str(rundir), "requiretls": False, "poll": "1s"}
    return {"work-controller": settings | own_runner(runner("own"))}


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    """A hybrid node with the page, and its client."""
    from conftest import scoped_mesh

    directory = tmp_path_factory.mktemp("web")
    web, client = directive(directory)
    with scoped_mesh(request.node) as mesh:
        control = mesh.node("control", listen=True, work=[runner("ansible-runner")], extra=[web, control_settings(directory)])
        mesh.node("e1", peers=["control"])
        mesh.start()
        until("the instance to be ready", lambda: ask(control, "instance.get", name="control")["capacity"] > 0, 60)
        client.mesh, client.node, client.directory = mesh, control, directory
        yield client


def status(client, method, path, token=None, headers=None):
    """The status of an answer, whose body may go on for ever."""
    connection = client.connection()
    connection.request(method, path, body=b"" if method == "POST" else None, headers=bearer(token) | (headers or {}))
    answer = connection.getresponse()
    connection.close()
    return answer.status, answer.headers


def test_each_path_needs_its_level_and_nothing_else_is_there(site):
    for (method, path), needs in ROUTES.items():
        for level in ("none", *LEVELS):
            code, headers = status(site, method, path, f"t-{level}" if level != "none" else None)
            order = ("nothing", "here", "none", *LEVELS)
            is_let_in = order.index(needs) <= order.index(level)
            expected = "let in" if is_let_in else 401 if level == "none" else 403
            assert ("let in" if code not in (401, 403) else code) == expected, (method, path, level, code)
            assert headers["Content-Security-Policy"] == CSP and headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == ("no-cache" if path == "/" or path.startswith("/page/") else "no-store")
            assert headers["Referrer-Policy"] == "no-referrer" and headers["Cross-Origin-Opener-Policy"] == "same-origin"
        other = {"GET": "POST", "POST": "GET"}[method]
        if (other, path) not in ROUTES and path != "/api/v1/session":
            refused = site.ask(other, path, token="t-admin")
            assert (refused.status, refused.code) == (405, "method_not_allowed"), path
            assert method in refused.headers["Allow"]
    for method, path in [("POST", "/"), ("DELETE", "/api/v1/jobs/1"), ("PUT", "/api/v1/jobs"), ("OPTIONS", "/api/v1/jobs")]:
        assert site.ask(method, path, token="t-admin").code == "method_not_allowed"
    for path in ("//", "/api", "/api/v1/", "//api/v1/nodes", "/api//v1/nodes", "/api/v1/nodes/", "/api%2fv1/nodes", "/api/v1/%6eodes",
                 "/api/v1/../v1/nodes", "/page/", "/page/..%2fmod.rs", "/page/%2e%2e", "/metrics", "/api/v1/jobs/1%2foutput", "/api/v1/jobs/x"):
        assert site.get(path, "t-admin").status == 404, path
    assert site.ask("HEAD", "/").status == 200
    for name in ("Forwarded", "X-Forwarded-Proto", "X-Real-IP", "CF-Connecting-IP"):
        assert site.get("/api/v1/nodes", **{name: "192.0.2.1"}).status == 401, "it is of another machine"
    assert site.raw(b"GET /api/v1/nodes HTTP/1.0\r\nHost: localhost\r\n\r\n").split()[1] == b"401", "so may this be"
    assert site.get("/api/v1/nodes", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert site.get("/", **{"Sec-Fetch-Site": "cross-site"}).status == 200, "a link may lead here"
    for wrong in ("t-nobody", "x" * 8000, "t-read,t-admin"):
        refused = site.get("/api/v1/nodes", wrong)
        assert (refused.status, refused.code, refused.headers["WWW-Authenticate"]) == (401, "unauthorized", "Bearer"), wrong
    assert site.raw(b"GET /api/v1/jobs/1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer t-admin\r\nAuthorization: Bearer x\r\n\r\n").startswith(b"HTTP/1.1 401")


def test_a_foreign_name_leads_nowhere(site):
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1.nip.io", "127.0.0.2", "localhost.", "", "a@localhost", "localhost, evil.example", "localhost:x"):
        refused = site.get("/", Host=host)
        assert (refused.status, refused.code) == (421, "misdirected"), host
    for host in ("localhost", "LOCALHOST:1", f"127.0.0.1:{site.port}"):
        assert site.get("/", Host=host).status == 200, host
    for request in (b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
                    b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n"):
        first = site.raw(request + b"Connection: close\r\n\r\n").split(b"\r\n")[0]
        assert first.split()[1] == b"421", (request, first)


def test_a_page_signs_in_and_only_the_own_page_makes_changes(site):
    assert site.get("/api/v1/session").json == {"node": "control", "version": site.node.status()["Version"], "who": None, "level": "none",
                                               "controller": True, "form_token": None, "allow": "admin", "has_tokens": True}
    began = time.monotonic()
    assert site.post("/api/v1/session", {"token": "t-nobody"}).status == 401
    assert 0.9 < time.monotonic() - began < 30
    for body in (b"", b"{}", b'{"token": 1}', b'{"token": "t-admin", "x": 1}', b"[]"):
        assert site.post("/api/v1/session", body).code == "bad_request", body
    assert site.post("/api/v1/session", b" " * 100_000).code == "too_large"
    assert site.post("/api/v1/session", {"token": "t-admin"}, headers={"Origin": "http://evil.example"}).code == "forbidden"
    answer = site.post("/api/v1/session", {"token": "t-operate"}, headers={"Origin": f"http://127.0.0.1:{site.port}"})
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert (answer.status, answer.body, set(attributes)) == (204, b"", {"Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=43200"})
    assert len(cookie.partition("=")[2]) == 43
    session = site.get("/api/v1/session", Cookie=f"other=1; {cookie}").json
    assert (session["who"], session["level"]) == ("operate", "operate")
    good = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{site.port}", "X-Form-Token": session["form_token"]}
    cancel = "/api/v1/jobs/999/cancel"
    assert site.post(cancel, headers=good).code == "not_found"
    for header, values in {"Origin": (None, "null", "http://evil.example", f"http://localhost:{site.port}", "http://127.0.0.1", f"https://127.0.0.1:{site.port + 1}"),
                           "X-Form-Token": (None, "", session["form_token"][:-1], "x")}.items():
        for value in values:
            headers = {name: text for name, text in (good | {header: value}).items() if text is not None}
            assert (site.post(cancel, headers=headers).code) == "forbidden", (header, value)
    # The token of another session is another one.
    other_cookie, other = site.sign_in("t-operate")
    assert site.post(cancel, headers=good | {"X-Form-Token": other["X-Form-Token"]}).code == "forbidden"
    # A token in a header is nothing that a browser adds by itself.
    assert site.post(cancel, token="t-operate").code == "not_found"
    assert site.post(cancel, headers=good | bearer("t-read")).code == "forbidden"
    assert site.post("/api/v1/session/end", headers={"Cookie": cookie}).code == "forbidden"
    gone = site.post("/api/v1/session/end", headers=good)
    assert gone.status == 204
    name = cookie.partition("=")[0]
    taken = [one.split("; ") for one in gone.headers.get_all("Set-Cookie")]
    assert [(one[0], "Path=/" in one, "Max-Age=0" in one) for one in taken] == [(f"__Host-{name}=", True, True), (f"{name}=", True, True)]
    assert site.get("/api/v1/session", Cookie=cookie).json["level"] == "none"
    assert site.post(cancel, headers=good).status == 401
    assert site.get("/api/v1/session", **other_cookie).json["level"] == "operate"


def test_a_token_that_is_gone_or_changed_ends_what_it_began(site):
    file = site.directory / "tokens"
    before = file.read_text()
    file.write_text(before + token_line("guest", "operate", "g-1"))
    try:
        cookie, _ = site.sign_in("g-1")
        follower = socket.create_connection(("127.0.0.1", site.port), 60)
        follower.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer g-1\r\n\r\n")
        # It is let in before the token changes.
        told = follower.recv(65536)
        assert told.startswith(b"HTTP/1.1 200"), told
        assert site.get("/api/v1/session", **cookie).json["who"] == "guest"
        file.write_text(before + token_line("guest", "read", "g-1"))
        assert site.get("/api/v1/session", **cookie).json["who"] is None
        assert site.get("/api/v1/session", "g-1").json["level"] == "read"
        file.write_text(before)
        assert site.get("/api/v1/session", "g-1").status == 401
        with follower:
            told += b"".join(iter(lambda: follower.recv(65536), b""))
        assert not told.endswith(b"0\r\n\r\n"), "it is cut"
        # Also of what it has sent a half of.
        file.write_text(before + token_line("guest", "operate", "g-1"))
        whole = stream({"name": "half"}, ident="h", lines=1)
        with socket.create_connection(("127.0.0.1", site.port), 60) as client:
            head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer g-1\r\nContent-Length: {len(whole)}\r\n\r\n"
            # A unit is made once the header is there.
            half = whole.index(b"\n") + 10
            client.sendall(head.encode() + whole[:half])
            jobs = lambda: [one for one in site.node.command("work list").values() if one["WorkType"] == "controller" and one["StateName"] == "Pending"]  # noqa: E731
            until("the unit to be there", jobs)
            file.write_text(before)
            client.sendall(whole[half:])
            assert client.makefile("rb").readline().split()[1] == b"401"
        assert not [one for one in ask(site.node, "job.list", name="half")["jobs"]]
        # Who has a good one is told nothing of a file that is wrong.
        file.chmod(0o644)
        refused = site.get("/api/v1/nodes", "t-admin")
        assert refused.status == 503 and str(file) not in refused.body.decode()
        assert site.get("/api/v1/nodes").status == 200, "who shows none needs no file"
    finally:
        file.chmod(0o600)
        file.write_text(before)
    # A pipe stands for what does not answer.
    kept = file.rename(file.with_suffix(".kept"))
    os.mkfifo(file, 0o600)
    try:
        assert {site.get("/api/v1/nodes", "t-admin").status for _ in range(8)} == {503}
    finally:
        file.unlink()
        kept.rename(file)
    assert site.get("/api/v1/nodes", "t-admin").status == 200
    assert "g-1" not in site.node.log() and "t-admin" not in site.node.log()


def web_token(*words, code=0):
    done = subprocess.run([MESHCTL, "--json", "web", "token", *words], capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout or done.stderr)


def test_meshctl_makes_tokens_lists_and_removes_them(site):
    file = ("--file", str(site.directory / "tokens"))
    before = (site.directory / "tokens").read_text()
    try:
        made = web_token("add", "anna", "--level", "operate", *file)
        session = site.get("/api/v1/session", made["token"]).json
        assert (session["who"], session["level"]) == ("anna", "operate")
        assert {"name": "anna", "level": "operate"} in web_token("list", *file)["tokens"]
        assert "there is a token anna already" in web_token("add", "anna", *file, code=1)["error"]
        assert web_token("remove", "anna", *file) == {"removed": "anna"}
        assert site.get("/api/v1/session", made["token"]).status == 401
        assert "no token anna" in web_token("remove", "anna", *file, code=1)["error"]
        assert made["token"] not in site.node.log()
    finally:
        (site.directory / "tokens").write_text(before)


def test_the_demo_serves_its_page_until_it_is_interrupted(tmp_path):
    # A runner that is killed with its node leaves a file.
    wrapped, there, usual = tmp_path / "ansible-runner", tmp_path / "tmp", environment()
    wrapped.write_text(f'#!/bin/sh\nmktemp >/dev/null && exec "{VENV}/bin/ansible-runner" "$@"\n')
    wrapped.chmod(0o755)
    there.mkdir()
    variables = usual | {"TMPDIR": str(there), "PATH": f"{tmp_path}:{usual['PATH']}"}
    demo = subprocess.Popen([MESHCTL, "demo", "--web"], stdout=subprocess.PIPE, text=True, env=variables)
    try:
        told = "".join(itertools.takewhile(lambda line: not line.startswith("The mesh stays"), demo.stdout))
        address, token = re.findall(r"http://127.0.0.1:(\d+)/\n.*sign in with the token (\S+)\n", told)[-1]
        client = Client(int(address))
        assert client.get("/").status == 200 and client.get("/api/v1/session", token).json["level"] == "admin"
        assert len(client.get("/api/v1/jobs", token).json["jobs"]) == 6
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0
        assert list(there.iterdir()) == []
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)
            demo.wait(60)


def test_the_mesh_is_told_with_its_links(site):
    told = until("the instance", lambda: (some := site.get("/api/v1/nodes").json["nodes"]) and len(some) == 2 and some[0]["instance"] == "ready" and some)
    nodes = {one["name"]: one for one in told}
    own, far = nodes["control"], nodes["e1"]
    assert (own["own"], own["reachable"], own["next_hop"], own["cost"], own["neighbours"]) == (True, True, None, 0, ["e1"])
    assert (far["own"], far["reachable"], far["next_hop"], far["cost"]) == (False, True, "e1", 1)
    assert own["instance"] == "ready" and "controller" in own["work_types"] and "control" in own["services"] and own["last_advertised"]
    link = until("both ends to say", lambda: (one := site.get("/api/v1/links").json["links"]) and len(one[0]["figures"]) == 2 and one)[0]
    assert (link["a"], link["b"], link["cost_ab"], link["cost_ba"]) == ("control", "e1", 1, 1)
    for figure, name in zip(sorted(link["figures"], key=lambda one: one["from"]), ("control", "e1"), strict=True):
        assert figure["from"] == name and figure["transport"] == "tcp" and figure["bytes_in"] > 0 and figure["loss"] == 0, figure
    told = site.get("/api/v1/status").json
    assert told["NodeID"] == "control" and told["Health"]["status"] == "ready" and "Peers" in told and "CertificatesEnding" in told
    findings = site.get("/api/v1/doctor", "t-read").json["findings"]
    assert all({"what", "where", "severity", "remedy"} <= set(one) for one in findings)


def test_another_node_is_examined_by_a_request_that_this_one_signs(mesh, tmp_path):
    signing, verification = Pki(tmp_path / "pki").signing_keys()
    web, client = directive(tmp_path)
    mesh.node("near", listen=True, extra=[*signing, web])
    mesh.node("far", peers=["near"], extra=verification)
    mesh.node("keyless", peers=["near"])
    mesh.start()
    until("the nodes", lambda: all(mesh["near"].reaches(name) for name in ("far", "keyless")))
    asked = lambda node, token="t-read": client.get(f"/api/v1/doctor?node={node}", token)  # noqa: E731
    assert asked("far").json == {"findings": []}
    mesh["far"].directives.append({"tcp-peer": {"address": f"127.0.0.1:{free_port()}"}})
    mesh["far"].write_config()
    assert mesh["far"].command("reload")["Success"]
    found = until("what is wrong with far", lambda: asked("far").json["findings"])
    assert all(one["remedy"].startswith("far says: ") for one in found) and any("tcp-peer" in one["where"] for one in found), found
    own = client.get("/api/v1/doctor", "t-read").json["findings"]
    assert asked("near").json["findings"] == own and not any("says:" in (one["remedy"] or "") for one in own), own
    for node, status, why in (("keyless", 422, "it has no key to verify who asks"), ("nowhere", 404, "no route to node nowhere")):
        answer = asked(node)
        assert answer.status == status and answer.json["error"]["message"].startswith(f"{node} was not examined: "), answer.body
        assert why in answer.json["error"]["message"] and f"on the host of {node}: meshctl doctor" in answer.json["error"]["message"], answer.body
    assert asked("").code == "not_found" and asked("far", None).code == "unauthorized"


def test_a_node_of_receptor_is_not_examined_and_the_api_says_so(mesh, tmp_path, receptor):
    web, client = directive(tmp_path)
    near = mesh.node("near", listen=True, extra=[web])
    mesh.node("other", peers=["near"], program=receptor)
    mesh.start()
    until("a route", lambda: near.reaches("other"))
    answer = client.get("/api/v1/doctor?node=other", "t-read")
    assert answer.status == 422 and "other was not examined: it is a receptor node" in answer.json["error"]["message"], answer.body


def test_links_of_nodes_under_a_tls_profile_have_figures(mesh, tmp_path):
    pki = Pki(tmp_path / "pki")
    web, client = directive(tmp_path)
    settings = control_settings(tmp_path)
    settings["work-controller"]["tlsclient"] = "client"
    for name, more in (("control", {"listen": True, "extra": [web, settings]}), ("e1", {"peers": ["control"]})):
        pki.issue(name, [name])
        node = mesh.node(name, **more)
        node.directives += pki.profiles(name)
        node.service = {"tls": "server"} if name == "e1" else {}
        node.write_config()
    mesh.start()
    until("what e1 offers", lambda: [one["services"] for one in client.get("/api/v1/nodes").json["nodes"] if one["name"] == "e1"] == [["control"]])
    link = until("both ends to say", lambda: (one := client.get("/api/v1/links").json["links"]) and len(one[0]["figures"]) == 2 and one)[0]
    assert sorted(one["from"] for one in link["figures"]) == ["control", "e1"]


def test_the_controller_answers_as_to_its_operators(site):
    control = site.node
    unit, number = submit(control, {"name": "labelled", "labels": {"team": "x"}}, ident="l", lines=3)
    ended(control, number)
    # The unit, which has the output, ends after the job.
    until("the unit's end", lambda: control.unit(unit)["StateName"] == "Succeeded")
    for path, op, more in (("instances", "instance.list", {}), ("groups", "group.list", {}), (f"jobs/{number}", "job.get", {"id": number}),
                           (f"jobs/{number}/explain", "job.explain", {"id": number})):
        # A heartbeat may come between the two answers.
        until(f"the same answer to {op}", lambda: site.get(f"/api/v1/{path}", "t-read").json == ask(control, op, **more))
    labels = lambda token: [one["labels"] for one in site.get("/api/v1/jobs?name=labelled", token).json["jobs"]]  # noqa: E731
    assert (labels("t-read"), labels(None)) == ([{"team": "x"}], [{}])
    found = lambda query: [one["id"] for one in site.get(f"/api/v1/jobs?{query}").json["jobs"]]  # noqa: E731
    assert number in found("state=successful&state=failed&kind=job&node=control&limit=50")
    until("no job to run", lambda: found("state=running&state=pending") == [])
    assert found(f"before={number}&name=labelled") == []
    for query in ("limit=x", "limit=1&limit=2", "state=nonsense", "label=x", "since=yesterday", "unknown=1", "limit=-1"):
        assert site.get(f"/api/v1/jobs?{query}").code == "bad_request", query
    whole = site.get(f"/api/v1/jobs/{number}/output", "t-read")
    assert whole.body.startswith(wrote("l", 3)) and whole.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert site.get(f"/api/v1/jobs/{number}/output?from=10&follow=true", "t-read").body == whole.body[10:]
    lines = site.get(f"/api/v1/jobs/{number}/events?from=2", "t-read")
    assert [json.loads(line)["counter"] for line in lines.body.splitlines()] == [2, 3]
    assert lines.headers["Content-Type"] == "application/x-ndjson"
    for path in ("999", "999/output", "999/events", "999/explain"):
        assert site.get(f"/api/v1/jobs/{path}", "t-read").code == "not_found", path
    assert site.get(f"/api/v1/jobs/{number}/output?from=-1", "t-read").code == "bad_request"


def test_a_job_is_submitted_followed_cancelled_and_repeated(site, tmp_path):
    go = tmp_path / "go"
    made = site.post("/api/v1/jobs", stream({"name": "by web", "key": "web-1"}, ident="w", lines=4, go=str(go)), "t-operate")
    assert made.status == 201, made.body
    number = made.json["id"]
    assert job(site.node, number)["launched_by"] == "web:operate" and site.node.unit(made.json["unit"])["WorkType"] == "controller"
    follower = site.begin(f"/api/v1/jobs/{number}/output?follow=true", "t-read", timeout=60)
    assert b'"starting"' in follower.readline()
    go.touch()
    rest = follower.read()
    assert b'"w 4"' in rest and rest.endswith(b'{"eof": true}\n')
    assert ended(site.node, number)["state"] == "successful"
    again = site.post(f"/api/v1/jobs/{number}/rerun", b'{"failed_hosts": false}', "t-operate").json
    assert again["id"] != number and ended(site.node, again["id"])["state"] == "successful"
    # What it may not submit it cannot have run again.
    unit = site.post("/api/v1/jobs", stream({"kind": "system", "name": "not for all"}, ident="s", lines=1), "t-admin").json
    assert ended(site.node, unit["id"])["state"] == "successful"
    refused = site.post(f"/api/v1/jobs/{unit['id']}/rerun", token="t-operate")
    assert (refused.status, refused.code) == (422, "refused") and "admin" in refused.json["error"]["message"], refused.body
    again = site.post(f"/api/v1/jobs/{unit['id']}/rerun", token="t-admin").json["id"]
    assert ended(site.node, again)["state"] == "successful"
    for body in (b"[]", b'{"failed": true}', b'{"failed_hosts": 1}'):
        assert site.post(f"/api/v1/jobs/{number}/rerun", body, "t-operate").code == "bad_request", body
    # The page's own way, with chunks.
    cookie, form = site.sign_in("t-operate")
    body = stream(ident="c", go=str(tmp_path / "never"))
    pieces = (body[at:at + 7] for at in range(0, len(body), 7))
    made = site.post("/api/v1/jobs", pieces, headers=cookie | form)
    assert made.status == 201, made.body
    until("it to run", lambda: job(site.node, made.json["id"])["state"] == "running")
    assert site.post(f"/api/v1/jobs/{made.json['id']}/cancel", headers=cookie | form).json["cancel_requested"] is True
    assert ended(site.node, made.json["id"])["state"] == "canceled"
    assert site.post(f"/api/v1/jobs/{made.json['id']}/cancel", token="t-operate").status in (200, 409)
    assert site.post("/api/v1/instances/e1/disable", token="t-admin").json["enabled"] is False
    assert site.post("/api/v1/instances/e1/enable", headers={}, token="t-admin").json["enabled"] is True
    assert site.post("/api/v1/instances/no%2Fsuch/enable", token="t-admin").code == "not_found"
    who = {(row["who"], row["op"]) for row in ask(site.node, "audit.list")["rows"]}
    assert {("web:operate", "job.cancel"), ("web:operate", "job.rerun"), ("web:admin", "instance.disable")} <= who, who


def test_what_is_no_job_leaves_nothing_and_kinds_need_their_level(site):
    # Health checks and children come and go.
    units_of_jobs = lambda: {unit for unit, one in site.node.command("work list").items() if one["WorkType"] == "controller"}  # noqa: E731
    # What has ended may still be written to.
    listed = lambda: [one["id"] for one in ask(site.node, "job.list")["jobs"]]  # noqa: E731
    units, jobs = units_of_jobs(), listed()
    for body, why in [(b"", "the stream ends"), (b"hello\n", "the first line is neither a header"), (stream({"nonsense": 1}), "unknown key `nonsense`"),
                      (b'{"kwargs": {}}\n', "the stream ends after"), (b"hello\n" + b"x" * 3_000_000, "the first line is neither a header")]:
        refused = site.post("/api/v1/jobs", body, "t-operate")
        assert (refused.status, refused.code) == (422, "refused") and why in refused.json["error"]["message"], refused.body
    refused = site.post("/api/v1/jobs", stream({"kind": "system"}), "t-operate")
    assert refused.code == "refused", refused.body
    # One that breaks off half way, behind its header.
    half = stream()[: stream().index(b"\n") + 10]
    for tail in (b"Content-Length: 1000\r\n\r\n" + half, b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b" % (len(half) + 1, half)):
        with socket.create_connection(("127.0.0.1", site.port), 60) as client:
            client.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t-operate\r\n" + tail)
            until("the unit to be there", lambda: units_of_jobs() - units)
        until("nothing to be left", lambda: units_of_jobs() <= units)
    assert listed() == jobs


def test_events_are_told_as_they_happen_and_again_to_who_comes_back(site):
    answer = site.begin("/api/v1/events", "t-read", timeout=60)
    assert answer.headers["Content-Type"] == "text/event-stream"
    told = of_the_mesh(answer)
    site.mesh["e1"].stop()
    kinds = list(itertools.islice(told, 2))
    assert {kind for _, kind, _ in kinds} == {"link.down", "node.lost"}, kinds
    assert kinds[0][2] | {"time": 0} == {"seq": kinds[0][0], "time": 0, "node": "control", "event": "link.down", "peer": "e1"}
    again = of_the_mesh(site.begin("/api/v1/events", "t-read", **{"Last-Event-ID": str(kinds[0][0])}))
    assert next(again) == kinds[1]
    site.mesh["e1"].start()
    back = list(itertools.islice(told, 2))
    assert {kind for _, kind, _ in back} == {"link.up", "node.seen"}, back
    assert list(itertools.islice(again, 2)) == back
    numbers = [seq for seq, _, _ in kinds + back]
    assert numbers == sorted(set(numbers))
    gap = next(events(site.begin("/api/v1/events", "t-read", **{"Last-Event-ID": "7"})))
    assert gap[1] == "gap" and gap[0] >= back[1][0], gap
    assert site.get("/api/v1/events", "t-read", **{"Last-Event-ID": "x"}).code == "bad_request"
    fresh = events(site.begin("/api/v1/events", "t-read"))
    _, number = submit(site.node, ident="e")
    seen = next(one for one in fresh if one[2].get("job") == number)
    assert seen[1] == "job.state" and seen[2]["node"] in ("", "control"), seen


def of_the_mesh(answer):
    return (one for one in events(answer) if one[1].startswith(("link.", "node.")))


def connections(client):
    """How many the node has there."""
    return established(client.port)


def test_only_so_many_follow_and_one_that_does_not_read_is_dropped(site, tmp_path):
    _, number = submit(site.node, ident="big", lines=200_000)
    assert ended(site.node, number, 120)["state"] == "successful"
    site.close()
    until("those of earlier tests to be gone", lambda: connections(site) == 0)
    size = int(job(site.node, number)["output_bytes"])
    assert size > 8_000_000, size
    rss = site.node.rss()
    silent = []
    for _ in range(8):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", site.port))
        client.sendall(f"GET /api/v1/jobs/{number}/output HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t-read\r\n\r\n".encode())
        silent.append(client)
    until("them to be taken", lambda: connections(site) == 8)
    until("them to be dropped", lambda: connections(site) == 0, 60)
    assert site.node.rss() - rss < 40 << 20
    for client in silent:
        client.close()
    following = [site.begin("/api/v1/events", "t-read") for _ in range(32)]
    assert {one.status for one in following} == {200}
    for refused in (site.get("/api/v1/events", "t-read"), site.get(f"/api/v1/jobs/{number}/output", "t-read")):
        assert (refused.status, refused.code) == (429, "too_many"), "nobody has more than he leaves to others"
    assert site.get("/api/v1/nodes").status == 200
    assert site.begin("/api/v1/events", "t-admin").status == 200
    site.close()
    until("room", lambda: status(site, "GET", "/api/v1/events", "t-read")[0] == 200)


def test_requests_that_are_none_and_clients_that_take_all_they_can(site):
    def first(request):
        return site.raw(request).split(b"\r\n")[0].split()[1:2]

    host = b"Host: localhost\r\n"
    assert first(b"GET / HTTP/1.1\r\n" + host + b"X: " + b"x" * 100_000 + b"\r\n\r\n")[0][:1] == b"4"
    assert first(b"GET / HTTP/1.1\r\n" + host + b"X: y\r\n" * 100 + b"\r\n") == [b"431"]
    assert first(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + host + b"\r\n")[0][:1] == b"4"
    # Two requests in one, whichever of the two lengths somebody believes.
    inner = b"GET /api/v1/session HTTP/1.1\r\n" + host + b"\r\n"
    for head in (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                 b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Transfer-Encoding: identity, chunked\r\n",
                 b"Transfer-Encoding : chunked\r\n", b"Content-Length: +5\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"):
        answer = site.raw(b"POST /api/v1/jobs/1/cancel HTTP/1.1\r\n" + host + head + b"\r\n0\r\n\r\n" + inner)
        assert b'"form_token"' not in answer, (head, answer)
    assert site.raw(b"GET / HTTP/1.1\r\n" + host + b"Content-Length: 100\r\n\r\n" + inner).count(b"HTTP/1.1 ") == 1
    sessions = [site.post("/api/v1/session", {"token": "t-read"}).headers["Set-Cookie"].split(";")[0] for _ in range(40)]
    levels = [site.get("/api/v1/session", Cookie=one).json["level"] for one in sessions]
    assert levels == ["none"] * 8 + ["read"] * 32, "one token has so many sessions"
    # Wrong tokens are delayed, and only so many at a time: good ones are not held up by them.
    codes = []
    guesses = [threading.Thread(target=lambda: codes.append(site.get("/api/v1/session", "wrong").status)) for _ in range(40)]
    for one in guesses:
        one.start()
    began = time.monotonic()
    assert site.get("/api/v1/session", "t-read").status == 200 and time.monotonic() - began < 20
    for one in guesses:
        one.join()
    assert set(codes) == {401, 429} and len(codes) == 40, codes
    silent = [socket.create_connection(("127.0.0.1", site.port), 60) for _ in range(200)]
    try:
        until("no more to be taken", lambda: connections(site) == 128)
    finally:
        for one in silent:
            one.close()
    until("it to answer", lambda: _answers(site))


def _answers(client):
    with contextlib.suppress(OSError):
        return client.get("/").status == 200
    return False


def test_the_page_is_kept_by_a_browser_for_as_long_as_it_is_the_same(site):
    page = site.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8" and page.body == site.get("/page/index.html").body
    tag = page.headers["ETag"]
    same = site.get("/", **{"If-None-Match": tag})
    assert (same.status, same.body, same.headers["ETag"]) == (304, b"", tag)
    assert site.get("/", **{"If-None-Match": '"x"'}).body == page.body
    assert site.get("/page/nothing.js").code == "not_found"


def test_without_a_controller_there_are_no_jobs_and_without_the_directive_nothing_listens(mesh, tmp_path):
    web, client = directive(tmp_path, allow="operate", tokens=())
    node = mesh.node("n").start()
    before = threads(node)
    assert not _answers(client)
    change(node, "web", {name: value for name, value in web["web"].items() if name != "tokens"})
    assert node.command("reload")["Success"] is True
    session = client.get("/api/v1/session").json
    assert (session["controller"], session["allow"]) == (False, "operate")
    for path in ("instances", "groups", "jobs"):
        refused = client.get(f"/api/v1/{path}")
        assert (refused.status, refused.json["error"]) == (404, {"code": "not_found", "message": "this node is not a control node"})
    assert client.get("/api/v1/events").status == 401 and client.get("/api/v1/session", "x").status == 401
    # A proxy on this machine does not make its clients ones of this machine.
    assert client.get("/api/v1/nodes").status == 200
    assert client.get("/api/v1/nodes", **{"X-Forwarded-For": "192.0.2.1"}).status == 401
    change(node, "web", None)
    assert node.command("reload")["Success"] is True
    assert not _answers(client)
    # Those that wait for files end when they have nothing to do.
    until("its threads to end", lambda: threads(node) <= before + 4)


def test_what_allow_says_is_the_most(mesh, tmp_path):
    web, client = directive(tmp_path, allow="read")
    mesh.node("n", extra=[web, control_settings(tmp_path)]).start()
    assert client.get("/api/v1/session", "t-admin").json["level"] == "read"
    refused = client.post("/api/v1/jobs", stream(), "t-admin")
    assert (refused.code, "`allow` of this node's web is read" in refused.body.decode()) == ("forbidden", True), refused.body


def test_a_certificate_is_as_good_as_a_token_and_a_cookie_stays_within_tls(mesh, tmp_path):
    pki = Pki(mesh.dir / "pki")
    for name, nodes in {"server": ["n"], "alice": [], "e1": ["e1"]}.items():
        pki.issue(name, nodes)
    pair = {"name": "web", "cert": str(pki.path("server.crt")), "key": str(pki.path("server.key")), "clientcas": str(pki.path("ca.crt"))}
    web, client = directive(tmp_path, tls="web", clientlevel="operate", hosts=["127.0.0.1", "mesh.example:443"])
    node = mesh.node("n", extra=[{"tls-server": pair}, web, control_settings(tmp_path)]).start()
    plain = ssl.create_default_context(cafile=pki.path("ca.crt"))
    shown = ssl.create_default_context(cafile=pki.path("ca.crt"))
    shown.load_cert_chain(pki.path("alice.crt"), pki.path("alice.key"))
    assert client.raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", timeout=60)[:5] != b"HTTP/"
    nobody, alice = Client(client.port, plain), Client(client.port, shown)
    assert nobody.get("/api/v1/session").json["who"] is None
    session = alice.get("/api/v1/session").json
    assert (session["who"], session["level"]) == ("alice", "operate")
    cancel = "/api/v1/jobs/1/cancel"
    form = {"Origin": f"https://127.0.0.1:{client.port}", "X-Form-Token": session["form_token"]}
    assert alice.post(cancel).code == "forbidden" and alice.post(cancel, headers=form).status in (404, 503)
    assert alice.post(cancel, headers=form | {"Origin": f"http://127.0.0.1:{client.port}"}).code == "forbidden"
    assert nobody.post(cancel, headers=form).code == "unauthorized"
    cookie = nobody.post("/api/v1/session", {"token": "t-admin"}).headers["Set-Cookie"]
    level = lambda *cookies: nobody.get("/api/v1/session", Cookie="; ".join(cookies)).json["level"]  # noqa: E731
    own = cookie.split(";")[0]
    assert cookie.startswith("__Host-meshd-session-") and "; Secure" in cookie and level(own) == "admin"
    # Another server of this host can set one without the prefix, also with a session of its own.
    planted = nobody.post("/api/v1/session", {"token": "t-read"}).headers["Set-Cookie"].split(";")[0].removeprefix("__Host-")
    assert level(planted, own) == "admin" and level(planted) == "none"
    assert nobody.get("/", Host="mesh.example:443").status == 200 and nobody.get("/", Host="localhost").status == 421
    made = until("the controller", lambda: (one := alice.post("/api/v1/jobs", stream(ident="a"), headers=form)).status == 201 and one)
    assert until("a number", lambda: node.unit(made.json["unit"])["ExtraData"].get("JobID"))
    number = node.unit(made.json["unit"])["ExtraData"]["JobID"]
    assert job(node, number)["launched_by"] == "web:cert:alice"


def test_the_certificate_of_a_node_is_nobodys_level(mesh, tmp_path):
    pki = Pki(mesh.dir / "pki")
    for name, nodes in {"n": ["n"], "alice": [], "bob": [], "e1": ["e1"]}.items():
        pki.issue(name, nodes)
    pair = {"name": "web", "cert": str(pki.path("n.crt")), "key": str(pki.path("n.key")), "clientcas": str(pki.path("ca.crt"))}
    web, client = directive(tmp_path, tls="web", clientlevel="admin", hosts=["127.0.0.1"])
    node = mesh.node("n", extra=[{"tls-server": pair}, web]).start()

    def levels():
        found = {}
        for name in ("alice", "bob", "e1"):
            shown = ssl.create_default_context(cafile=pki.path("ca.crt"))
            shown.load_cert_chain(pki.path(f"{name}.crt"), pki.path(f"{name}.key"))
            found[name] = Client(client.port, shown).get("/api/v1/session").json["level"]
        return found

    def checked():
        return subprocess.run([MESHD, "check", node.config], capture_output=True, text=True, env=environment(), timeout=60).stdout

    assert levels() == {"alice": "admin", "bob": "admin", "e1": "none"}
    assert "and that names no node" in checked()
    web["web"]["clientnames"] = ["alice", "e1"]
    change(node, "web", web["web"])
    assert node.command("reload")["Success"] is True
    until("the names to count", lambda: levels() == {"alice": "admin", "bob": "none", "e1": "admin"})
    assert "and that names no node" not in checked()


def test_who_is_silent_shuts_nobody_out(site):
    """Places are for answers: whoever comes with a request gets one, however many say nothing."""
    site.close()
    silent = []
    try:
        for _ in range(40):
            silent += [socket.create_connection(("127.0.0.1", site.port), 60) for _ in range(10)]
            silent[-1].sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert site.get("/").status == 200 and site.get("/api/v1/nodes", "t-read").status == 200
        # Nor is a request without its body one.
        for _ in range(150):
            silent.append(socket.create_connection(("127.0.0.1", site.port), 60))
            silent[-1].sendall(f"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nContent-Length: 9\r\n\r\n".encode())
        assert all(site.get("/").status == 200 for _ in range(5))
        # One whose answer goes on is not silent.
        told = events(site.begin("/api/v1/events", "t-admin"))
        silent += [socket.create_connection(("127.0.0.1", site.port), 60) for _ in range(200)]
        submit(site.node, ident="told")
        assert next(one for one in told if one[1] == "job.state")
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize(("settings", "why"), [
    ({"address": "0.0.0.0:1"}, "other hosts reach this address"),
    ({"address": "0.0.0.0:1", "tokens": "/x"}, "other hosts reach this address"),
    ({"clientlevel": "read"}, "give `tls`"),
    ({"allow": "none"}, "`allow` is read, operate or admin"),
    ({"allow": "root"}, "a level must be none, read, operate or admin"),
    ({"hosts": ["http://x"]}, "write a name or an address"),
    ({"tokens": "/nowhere/tokens"}, "tokens /nowhere/tokens: No such file"),
])
def test_what_is_wrong_with_the_directive_is_told_before_the_start(mesh, settings, why):
    node = mesh.node("n", extra=[{"web": {"address": f"127.0.0.1:{free_port()}"} | settings}])
    checked = subprocess.run([MESHD, "check", node.config], capture_output=True, text=True, env=environment(), timeout=60)
    assert checked.returncode == 1 and why in checked.stdout + checked.stderr, checked
    node.spawn()
    assert node.process.wait(60) == 1
    node.logged(why)


def test_the_manual_names_every_path(site):
    page = (ROOT / "docs" / "web.md").read_text()
    for method, path in ROUTES:
        shown = path.replace("/1", "/ID").replace("nobody", "NAME").replace("index.html", "NAME").replace("nothing", "NAME")
        assert f"`{method} {shown.removeprefix('/api/v1/')}" in page or f"`{method} {shown}" in page, (method, shown)
