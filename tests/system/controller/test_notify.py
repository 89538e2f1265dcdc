"""Notices about jobs that have ended: to a real HTTP server that fails at first or for long, over TLS, through a proxy, to a
command, beside endpoints that are dead, and from two control nodes with one store.
"""

import hashlib
import hmac
import http.server
import json
import signal
import ssl
import subprocess
import threading
import time

import pytest

import metrics
import postgres
from mesh import MESHCTL, environment, until
from peer import HttpProxy
from test_controller import ask, stream
from trust import Pki

SECRET = "canary-of-notices"
PROBE = "module: ping\ninventory: 'here,'\nnotify: {named: [canceled]}\n"


class Server:
    """Answers the first posts with 500, and keeps the others: path, signature, ID, body. Each takes so many seconds."""

    def __init__(self, fails=0, context=None, takes=0):
        self.got, self.tries, self.fails, outer = [], 0, fails, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.tries += 1
                time.sleep(takes)
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
        self.port = self.server.server_port
        if context:
            # The handshake is the thread's that serves the connection.
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
            self.server.handle_error = lambda *_: None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.port}"

    def jobs(self, path):
        return [json.loads(body)["job"]["id"] for at, _, _, body in self.got if at == path]


@pytest.fixture
def server():
    server = Server(fails=3)
    yield server
    server.server.shutdown()


def cancelled(control):
    with control.control() as client:
        unit = client.submit(control.name, "controller", stream())["unitid"]
    number = until("its job", lambda: control.unit(unit)["ExtraData"]["JobID"])
    ask(control, "job.cancel", id=number)
    return number


def begun(*controls):
    """Starts no job, and waits until each target has its place."""
    for control in controls:
        ask(control, "pause")
    until("the targets to begin", lambda: all(one["cursor"] is not None for one in ask(controls[0], "notify.list")["targets"]))


def in_order(server, path):
    """The jobs in the order of their first notices, each once."""
    return list(dict.fromkeys(server.jobs(path)))


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
    begun(control)
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
    assert in_order(server, "/all?token=canary-url") == jobs, "in their order, and each at least once"
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


def target(url, **more):
    return {"url": url, "events": ["canceled"], **more}


def test_notices_go_over_tls_by_a_profile_and_through_the_proxy_of_the_environment(mesh, tmp_path):
    pki = Pki(tmp_path / "pki")
    pki.issue("control", ["control"])
    names = ["dnsname=localhost", "dnsname=hooks.invalid"]
    pki.cert("makereq", "commonname=hook", "bits=2048", *names, "outreq=hook.req", "outkey=hook.key")
    pki.cert("signreq", "req=hook.req", "cacert=ca.crt", "cakey=ca.key", "outcert=hook.crt", "verify=true")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pki.path("ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pki.path("hook.crt"), pki.path("hook.key"))
    plain, secured = Server(), Server(context=context)
    towards_plain, towards_secured = HttpProxy(plain.port), HttpProxy(secured.port)
    mesh.variables |= {"http_proxy": f"http://127.0.0.1:{towards_plain.port}", "https_proxy": f"http://127.0.0.1:{towards_secured.port}"}
    here = f"https://localhost:{secured.port}"
    targets = {
        "direct": target(f"{here}/direct", allowlocal=True, tlsclient="client"),
        "proxied": target("https://hooks.invalid/proxied", tlsclient="client"),
        "clear": target("http://hooks.invalid/clear"),
        "nobody": target(f"{here}/nobody", allowlocal=True, tlsclient="bare"),
        "stranger": target(f"{here}/stranger", allowlocal=True),
        "metadata": target("http://169.254.169.254/metadata"),
    }
    profiles = [pki.profiles("control")[1], {"tls-client": {"name": "bare", "rootcas": str(pki.path("ca.crt"))}}]
    control = mesh.node("control", extra=[*profiles, {"work-controller": {"rundir": str(tmp_path), "notify": targets}}])
    mesh.start()
    begun(control)
    jobs = [cancelled(control) for _ in range(3)]
    until("all notices", lambda: all(in_order(server, path) == jobs for server, path in ((secured, "/direct"), (secured, "/proxied"), (plain, "/clear"))), 60)
    assert set(towards_secured.asked) == {"CONNECT hooks.invalid:443 HTTP/1.1"} and set(towards_plain.asked) == {"CONNECT hooks.invalid:80 HTTP/1.1"}

    def errors():
        return {one["name"]: one["error"] for one in ask(control, "notify.list")["targets"] if one["failing_since"]}

    until("the others to fail", lambda: set(errors()) == {"nobody", "stranger", "metadata"}, 60)
    assert "certificate" in errors()["stranger"].lower() and "one of this machine" in errors()["metadata"], errors()
    assert {path for path, *_ in secured.got} == {"/direct", "/proxied"} and {path for path, *_ in plain.got} == {"/clear"}
    for server in (plain, secured):
        server.server.shutdown()
    for proxy in (towards_plain, towards_secured):
        proxy.close()


def test_an_endpoint_that_fails_for_long_gets_all_notices_in_their_order(mesh, tmp_path):
    server = Server(fails=1 << 30)
    settings = {"rundir": str(tmp_path), "notify": {"hook": target(f"{server.url}/hook", allowlocal=True)}}
    control = mesh.node("control", extra=[{"work-controller": settings}])
    mesh.start()
    begun(control)
    jobs = []

    def further_try():
        if len(jobs) <= server.tries:
            jobs.append(cancelled(control))
        return server.tries >= 7

    # With pauses of 1 s that grow by half these take some 20 s.
    until("seven tries", further_try, 120)
    one, = ask(control, "notify.list")["targets"]
    assert one["failing_since"] and "500" in one["error"] and one["behind"] >= len(jobs) - 1 > 6 and server.got == []
    server.fails = 0
    until("all notices", lambda: in_order(server, "/hook") == jobs, 120)
    assert server.jobs("/hook") == jobs, "nothing was killed, so each came once"
    one, = ask(control, "notify.list")["targets"]
    assert one["failing_since"] is None and one["dropped"] == 0
    server.server.shutdown()


@pytest.fixture(scope="module")
def database():
    server = postgres.Postgres()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)")
def test_two_control_nodes_share_a_target(mesh, database, tmp_path):
    # Slow, so that the other one looks while a notice is under way.
    server, name = Server(takes=0.3), database.database()
    settings = {
        "store": database.url(name, database.port), "rundir": str(tmp_path), "discovery": "enabled", "heartbeat": "200ms",
        "ownerlostafter": "4s", "poll": "500ms", "notify": {"hook": target(f"{server.url}/hook", allowlocal=True)},
    }
    mesh.node("hop", listen=True)
    c1, c2 = (mesh.node(name, peers=["hop"], extra=[{"work-controller": settings}]) for name in ("c1", "c2"))
    mesh.start()
    begun(c1, c2)
    jobs = [cancelled(node) for _ in range(5) for node in (c1, c2)]
    until("all notices", lambda: len(in_order(server, "/hook")) == len(jobs), 60)
    assert server.jobs("/hook") == jobs, "each once, in their order, whoever ended it"
    # One that is killed may leave a notice half delivered, which the other one repeats once the claim is over.
    c1.stop(signal.SIGKILL)
    jobs += [cancelled(c2) for _ in range(3)]
    until("the notices of the one that is left", lambda: in_order(server, "/hook") == jobs, 120)
    c1.start()
    begun(c1)
    jobs += [cancelled(node) for node in (c1, c2)]
    until("the last notices", lambda: in_order(server, "/hook") == jobs, 120)
    assert {json.loads(body)["control_node"] for *_, body in server.got} <= {"c1", "c2"}
    server.server.shutdown()
