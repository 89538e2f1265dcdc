"""Hooks of saved jobs: what a forge sends starts one, once, and what a stranger sends starts nothing and learns nothing."""

import hashlib
import hmac
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import web
from mesh import ANSIBLE_RUNNER, MESHCTL, command_type, environment, own_runner, until
from test_controller import ask, ended, is_ready, job

PATIENCE = 240
SECRET = "canary-of-a-hook-0123"
DEPLOY = """
module: debug
args: msg={{{{ version }}}}
inventory: "here ansible_connection=local\\n"
vars: {{version: {{}}, other: {{type: int, default: 1}}}}
hook:
  kind: {kind}
  secret_file: {secret}
  vars: {{version: /release/tag_name}}
  when: {{/ref: refs/heads/main}}
"""
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def hooks(mesh, tmp_path):
    """A hybrid node with a hook of each kind, and a job without one."""
    jobs, secret = tmp_path / "jobs.d", tmp_path / "secret"
    jobs.mkdir()
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    for kind in ("github", "gitlab", "token"):
        (jobs / f"{kind}.yml").write_text(DEPLOY.format(kind=kind, secret=secret))
    (jobs / "plain.yml").write_text("module: ping\n")
    settings = {"nodetype": "hybrid", "discovery": "enabled", "poll": "1s", "rundir": str(tmp_path), "jobs": str(jobs)}
    settings |= own_runner(command_type("own", str(ANSIBLE_RUNNER), "worker", runtime=True))
    page, client = web.directive(tmp_path, allow="read")
    control = mesh.node("control", extra=[{"work-controller": settings}, page])
    mesh.start()
    until("the instance to be ready", lambda: is_ready(control), PATIENCE)
    return control, client, secret


def body(version="v1", ref="refs/heads/main"):
    return json.dumps({"ref": ref, "release": {"tag_name": version}}).encode()


def signed(text, delivery, secret=SECRET):
    signature = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    return JSON | {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": delivery, "X-GitHub-Event": "push"}


def github(client, text, delivery, **headers):
    return client.post("/api/v1/hooks/github", text, headers=signed(text, delivery) | headers)


def test_a_delivery_starts_a_job_once_with_its_fields_as_plain_texts(hooks):
    control, client, _ = hooks
    words = "v1 $(id) `id` ; '\" \\ | --become -e @/etc/shadow { { !vault"
    first = github(client, body(words), "d-1")
    assert (first.status, first.json) == (202, {"started": True, "job": 1, "repeated": False, "why": None}), first.body
    for _ in range(2):
        again = github(client, body(words), "d-1")
        assert (again.status, again.json["job"], again.json["repeated"]) == (202, 1, True), again.body
    with ThreadPoolExecutor(8) as pool:
        both = list(pool.map(lambda _: github(client, body("v2"), "d-2"), range(8)))
    assert {one.json["job"] for one in both} == {2} and {one.status for one in both} == {202}, [one.body for one in both]
    assert github(client, body(ref="refs/heads/dev"), "d-3").json["why"] == "/ref is not what `when` says"
    assert github(client, body(), "d-4", **{"X-GitHub-Event": "ping"}).json["started"] is False
    for path, header in (("gitlab", {"X-Gitlab-Token": SECRET, "X-Gitlab-Event-UUID": "d-1"}),
                         ("token", {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "d-1"})):
        started = client.post(f"/api/v1/hooks/{path}", body(), headers=JSON | header)
        assert started.status == 202 and not started.json["repeated"], "another hook's IDs are its own"
    assert [one["id"] for one in ask(control, "job.list")["jobs"]] == [4, 3, 2, 1]
    done = ended(control, 1)
    assert (done["state"], done["launched_by"]) == ("successful", "hook:github"), done
    output = subprocess.run([MESHCTL, "--socket", control.socket, "job", "output", "1", "--text"], capture_output=True, text=True, env=environment(), timeout=60)
    told = output.stdout[output.stdout.index("{"):output.stdout.index("}\n") + 1]
    assert json.loads(told.replace("\n", ""))["msg"] == words, output
    shown = subprocess.run([MESHCTL, "--socket", control.socket, "saved", "show", "github"], capture_output=True, text=True, env=environment(), timeout=60)
    assert "POST /api/v1/hooks/github (github)" in shown.stdout and SECRET not in shown.stdout, shown


def test_who_proves_nothing_learns_nothing(hooks):
    control, client, secret = hooks
    text, started = body(), time.monotonic()
    wrong = [
        ("github", JSON), ("github", signed(text, "d", "wrong-secret-0123456")), ("github", signed(text + b" ", "d")),
        ("github", JSON | {"X-Gitlab-Token": SECRET}), ("gitlab", signed(text, "d")), ("gitlab", JSON | {"X-Gitlab-Token": SECRET[:-1]}),
        ("token", JSON | {"Authorization": "Bearer t-admin"}), ("plain", JSON | {"Authorization": f"Bearer {SECRET}"}),
        ("nothing", signed(text, "d")), ("..", signed(text, "d")),
    ]
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda one: client.post(f"/api/v1/hooks/{one[0]}", text, headers=one[1]), wrong))
    assert {(one.status, one.body) for one in answers} == {(401, answers[0].body)}, [(one.status, one.body) for one in answers]
    assert time.monotonic() - started > 1, "each waits as long"
    secret.chmod(0o644)
    assert github(client, text, "d").status == 401
    assert "others can read it" in control.log()
    secret.chmod(0o600)
    with ThreadPoolExecutor(40) as pool:
        flood = list(pool.map(lambda _: client.post("/api/v1/hooks/nothing", text, headers=JSON), range(40)))
    assert {one.status for one in flood} == {401, 429} and all(one.headers["Retry-After"] for one in flood if one.status == 429)
    assert ask(control, "job.list")["jobs"] == []
    assert SECRET not in control.log()


def test_a_hostile_body_starts_nothing(hooks):
    control, client, _ = hooks
    big = b'{"ref": "' + b"x" * (1 << 20) + b'"}'
    refused = github(client, big, "d")
    assert (refused.status, refused.code) == (413, "too_large")
    length = client.raw(b"POST /api/v1/hooks/github HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n" + b"x" * (2 << 20))
    assert length.split()[1] == b"413", length[:100]
    deep = b'{"ref": "refs/heads/main", "a": ' + b"[" * 400_000 + b"]" * 400_000 + b"}"
    wide = b'{"ref": "refs/heads/dev", "a": [' + b"0," * 400_000 + b"0]}"
    for text, why in [(deep, "not JSON, or too deep"), (b"ref=refs%2Fheads%2Fmain", "not JSON"), (b"", "not JSON"), (b"\xff\xfe{}", "not JSON"),
                      (body("{{ lookup('pipe', 'id') }}"), "Ansible would evaluate"), (body("{%raw%}"), "Ansible would evaluate"),
                      (body("a\0b"), "control characters"), (body("\x1b[2J"), "control characters"), (body(["v1"]), "version: it is not a text"),
                      (body(None), "missing: version")]:
        refused = github(client, text, "d")
        assert (refused.status, refused.code) == (400, "bad_request") and why in refused.json["error"]["message"], (text[:50], refused.body)
        assert "lookup" not in refused.json["error"]["message"], "no value is shown"
    assert github(client, wide, "d").json["started"] is False
    form = client.post("/api/v1/hooks/github", b"payload=%7B%7D", headers=signed(b"payload=%7B%7D", "d") | {"Content-Type": "application/x-www-form-urlencoded"})
    assert form.status == 400 and "application/json" in form.json["error"]["message"]
    assert client.post("/api/v1/hooks/github", body(), headers=signed(body(), "d") | {"Host": "evil.example"}).status == 421
    assert ask(control, "job.list")["jobs"] == []
    assert "lookup" not in control.log()
    assert github(client, body("v3"), "d").json["job"] == 1, "and the node goes on"


def test_a_hook_starts_so_many_jobs_and_then_waits(hooks):
    control, client, _ = hooks
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda at: github(client, body(), f"d-{at}"), range(60)))
    started = [one for one in answers if one.status == 202]
    late = [one for one in answers if one.status == 429]
    assert 30 <= len(started) < 60 and len(started) + len(late) == 60, [one.status for one in answers]
    assert late[-1].headers["Retry-After"] == "2" and "too many jobs" in late[-1].json["error"]["message"]
    assert client.post("/api/v1/hooks/gitlab", body(), headers=JSON | {"X-Gitlab-Token": SECRET}).status == 202, "others go on"
    until("room for one more", lambda: github(client, body(), "d-last").status == 202)
    assert job(control, 1)["launched_by"] == "hook:github"
