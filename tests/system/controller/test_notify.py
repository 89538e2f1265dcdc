"""Notices about jobs that have ended: to a real HTTP server that fails at first, to a command, and beside endpoints that are dead."""

import hashlib
import hmac
import http.server
import json
import signal
import subprocess
import threading

import pytest

import metrics
from mesh import MESHCTL, environment, until
from test_controller import ask, submit

SECRET = "canary-of-notices"
PROBE = "module: ping\ninventory: 'here,'\nnotify: {named: [canceled]}\n"


class Server:
    """Answers the first posts to a path with 500, and keeps the others: path, signature, ID, body."""

    def __init__(self, fails):
        self.got, self.tries, self.fails, outer = [], 0, fails, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.tries += 1
                if outer.fails:
                    outer.fails -= 1
                    return self.answer(500, b"not now")
                outer.got.append((self.path, self.headers["X-Meshd-Signature"], self.headers["X-Meshd-Delivery"], body))
                self.answer(200, b"thanks")

            def answer(self, status, text):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def jobs(self, path):
        return [json.loads(body)["job"]["id"] for at, _, _, body in self.got if at == path]


@pytest.fixture
def server():
    server = Server(fails=3)
    yield server
    server.server.shutdown()


def cancelled(control):
    _, number = submit(control)
    ask(control, "job.cancel", id=number)
    return number


def test_every_notice_arrives_though_the_endpoint_fails_and_the_node_is_killed(mesh, tmp_path, server):
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "jobs.d").mkdir()
    (tmp_path / "jobs.d" / "probe.yml").write_text(PROBE)
    hook = {"url": f"{server.url}/all?token=canary-url", "allowlocal": True, "events": ["canceled"], "secretfile": str(tmp_path / "secret")}
    targets = {
        "hook": hook,
        "named": {**hook, "url": f"{server.url}/named", "jobs": "named"},
        "dead": {"url": "http://127.0.0.1:9/", "allowlocal": True, "events": "canceled"},
        "near": {"url": f"{server.url}/near", "events": ["canceled"]},
        "cmd": {"command": "sh -c 'grep -o \"event\\\":\\\"[a-z]*\" >&2'"},
        "bad": {"command": "sh -c 'echo broken >&2; exit 3'"},
    }
    settings = {"rundir": str(tmp_path), "jobs": str(tmp_path / "jobs.d"), "notify": targets}
    listener, port = metrics.directive()
    control = mesh.node("control", extra=[{"work-controller": settings}, listener])
    mesh.start()

    def meshctl(*words, check=0):
        done = subprocess.run([MESHCTL, "--socket", control.socket, *words], capture_output=True, text=True, env=environment(), timeout=60)
        assert done.returncode == check, done
        return done.stdout

    stands = lambda: {one["name"]: one for one in json.loads(meshctl("--json", "notify", "list"))["targets"]}  # noqa: E731
    ask(control, "pause")
    until("the targets to begin", lambda: all(one["cursor"] is not None for one in ask(control, "notify.list")["targets"]))
    assert meshctl("notify", "test", "cmd").strip() == 'delivered: exit status: 0: event":"test'
    assert "not delivered: exit status: 3: broken" in meshctl("notify", "test", "bad", check=1)
    assert "one of this machine" in meshctl("notify", "test", "near", check=1)
    assert "not now" in meshctl("notify", "test", "hook", check=1)
    assert server.got == [] and server.fails == 2

    first = [cancelled(control) for _ in range(3)]
    until("the endpoint to be tried", lambda: server.fails < 2)
    control.restart(signal.SIGKILL)
    ask(control, "pause")
    probe = json.loads(meshctl("--json", "saved", "start", "probe"))["id"]
    ask(control, "job.cancel", id=probe)
    jobs = [*first, probe, cancelled(control)]
    until("all notices", lambda: len(set(server.jobs("/all?token=canary-url"))) == len(jobs), 60)
    got = server.jobs("/all?token=canary-url")
    assert list(dict.fromkeys(got)) == jobs, "in their order, and each at least once"
    until("the notice of the saved job", lambda: server.jobs("/named"), 60)
    assert set(server.jobs("/named")) == {probe}
    for _, signature, delivery, body in server.got:
        assert signature == "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        notice = json.loads(body)
        assert (notice["id"], notice["event"], notice["job"]["state"]) == (delivery, "canceled", "canceled")

    until("the dead one to be behind", lambda: stands()["dead"]["behind"] >= len(jobs) - 1)
    now = stands()
    assert now["hook"]["behind"] == 0 and now["hook"]["error"] is None and now["hook"]["delivered"]
    assert now["dead"]["failing_since"] and now["dead"]["error"] and "one of this machine" in now["near"]["error"]
    assert now["cmd"]["behind"] == 0 and now["cmd"]["delivered"] is None, "a cancelled job is none of its events"
    told = metrics.scrape(port)
    count = lambda target, result: metrics.value(told, "meshd_controller_notices_total", target=target, result=result)  # noqa: E731
    assert count("hook", "delivered") >= 1 and count("dead", "failed") >= 1
    said = subprocess.run([MESHCTL, "--socket", control.socket, "doctor"], capture_output=True, text=True, env=environment(), timeout=60)
    assert "no notice could be delivered since" in said.stdout, said
    shown = control.log() + json.dumps([now, told, ask(control, "audit.list")])
    assert SECRET not in shown and "canary-url" not in shown
    assert "notify.test" in json.dumps(ask(control, "audit.list"))
