"""`events-sink`: events and the audit reach a receiver that goes away and comes back, whatever happens to the node meanwhile."""

import contextlib
import json
import signal
import socket
import socketserver
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import metrics
from mesh import MESHCTL, MESHD, environment, free_port, until
from test_controller import ask
from trust import Pki

TOKEN = "canary-of-a-sink"
PATIENCE = 60


class Receiver:
    """Takes lines over TCP with TLS on the same port each time, and keeps them all."""

    def __init__(self, port, pki):
        self.port, self.lines = port, []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pki.path("sink.crt"), pki.path("sink.key"))
        self.server = None

    def start(self):
        receiver, open_ones = self, []

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                try:
                    with receiver.context.wrap_socket(self.request, server_side=True) as stream:
                        open_ones.append(stream)
                        # A line that does not end is none.
                        receiver.lines.extend(json.loads(line) for line in stream.makefile("rb") if line.endswith(b"\n"))
                except (OSError, ValueError):
                    pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True

        self.open_ones, self.server = open_ones, Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for stream in self.open_ones:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)


def told(lines):
    """Lines by their numbers, each once, without holes. A repeated line is the same line."""
    by_id = {}
    for line in lines:
        assert by_id.setdefault(line["id"], line) == line
    numbers = sorted(line["seq"] for line in by_id.values())
    assert numbers == list(range(len(numbers))), numbers
    return list(by_id.values())


def audited(lines):
    # After a crash a row may be told again under another number.
    return sorted({(line["audit"]["id"], line["audit"]["op"]) for line in lines if "audit" in line})


def events(lines, kind):
    return [line["event"] for line in lines if line.get("event", {}).get("event") == kind]


def settings(tmp_path, sink):
    scrape, port = metrics.directive()
    controller = {"work-controller": {"nodetype": "control", "rundir": str(tmp_path), "poll": "1s"}}
    return [controller, scrape, {"events-sink": sink}], port


def reload(node):
    done = subprocess.run([MESHCTL, "--socket", node.socket, "reload"], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done


def diagnosis(node):
    done = subprocess.run([MESHCTL, "--socket", node.socket, "doctor"], capture_output=True, text=True, env=environment(), timeout=60)
    return done.stdout


def test_every_line_arrives_although_the_receiver_and_the_node_go_away(mesh, tmp_path):
    pki = Pki(tmp_path / "pki")
    pki.issue("sink", [])
    receiver = Receiver(free_port(), pki)
    receiver.start()
    profile = {"tls-client": {"name": "siem", "rootcas": str(pki.path("ca.crt"))}}
    extra, scrape = settings(tmp_path, {"address": f"tcp+tls://localhost:{receiver.port}", "tls": "siem"})
    node = mesh.node("control", extra=[profile, *extra])
    mesh.start()
    ops = []

    def act(count):
        for _ in range(count):
            ops.extend(["pause", "resume"])
            ask(node, "pause")
            ask(node, "resume")
        reload(node)

    def has_all():
        return [op for _, op in audited(told(receiver.lines))] == ops

    act(2)
    until("the first lines", lambda: has_all() and events(receiver.lines, "reload"), PATIENCE)
    receiver.stop()
    act(3)
    until("lines to wait", lambda: metrics.value(metrics.scrape(scrape), "meshd_sink_waiting_bytes") > 0)
    until("two reloads on disk", lambda: sum(b'"reload"' in line for file in node.dir.rglob("*.jsonl") for line in file.read_bytes().splitlines()) == 2)
    node.restart(signal.SIGKILL)
    act(2)
    assert not has_all()
    until("the doctor to tell", lambda: "events-sink: no event could be sent since" in diagnosis(node))
    receiver.start()
    until("all lines", lambda: has_all() and len(events(told(receiver.lines), "reload")) == 3, PATIENCE)
    receiver.stop()
    receiver.start()
    act(1)
    until("the lines after a connection that was lost without a word", has_all, PATIENCE)
    assert len(events(told(receiver.lines), "gap")) == 2, "the beginning of each process"
    assert "events-sink" not in diagnosis(node)
    assert {line["node"] for line in receiver.lines} == {"control"}
    page = metrics.scrape(scrape)
    assert metrics.value(page, "meshd_sink_lost_total") == 0 and metrics.value(page, "meshd_sink_sent_total") > 0
    assert "cannot send events to the sink" in node.log()
    receiver.stop()


def test_http_confirms_each_batch_and_the_token_is_shown(mesh, tmp_path):
    lines, refused = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_known = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.headers["Content-Type"] == "application/x-ndjson"
            is_taken = is_known and len(refused) >= 2
            (lines if is_taken else refused).extend(json.loads(line) for line in body.splitlines())
            self.send_response(204 if is_taken else 503 if is_known else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    extra, scrape = settings(tmp_path, {"address": f"http://127.0.0.1:{server.server_port}/in", "tokenfile": str(token), "what": ["audit"]})
    node = mesh.node("control", extra=extra)
    mesh.start()
    for op in ("pause", "resume", "pause", "resume"):
        ask(node, op)
    until("all lines", lambda: len(lines) == 4, PATIENCE)
    assert [op for _, op in audited(told(lines))] == ["pause", "resume", "pause", "resume"] and refused
    assert not any("event" in line for line in lines)
    until("nothing to wait", lambda: metrics.value(metrics.scrape(scrape), "meshd_sink_waiting_bytes") == 0)
    node.restart()
    ask(node, "pause")
    until("the next line", lambda: len(lines) == 5, PATIENCE)
    told(lines)
    assert "it answers 503" in node.log() and TOKEN not in node.log()
    server.shutdown()


@pytest.mark.parametrize(("sink", "code", "why"), [
    ({"address": "udp://h:1"}, 1, "write tcp+tls://HOST:PORT"),
    ({"address": "tcp://localhost"}, 1, "write tcp+tls://HOST:PORT"),
    ({"address": "https://me:pw@h/"}, 1, "write tcp+tls://HOST:PORT"),
    ({"address": "https://h/"}, 1, "this address needs `tls`"),
    ({"address": "tcp://127.0.0.1:1", "tokenfile": "/t"}, 1, "`tokenfile` goes with HTTP"),
    ({"address": "tcp://127.0.0.1:1", "buffer": 5}, 1, "the buffer needs at least"),
    ({"address": "tcp://127.0.0.1:1", "what": ["jobs"]}, 1, "it is events or audit"),
    ({"address": "http://192.0.2.1/"}, 0, "cross the network in the clear"),
])
def test_a_check_names_what_is_wrong(tmp_path, sink, code, why):
    config = tmp_path / "c.yml"
    config.write_text(json.dumps([{"node": {"id": "a", "datadir": str(tmp_path)}}, {"local-only": {}}, {"events-sink": sink}]))
    done = subprocess.run([MESHD, "check", config], capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, why in done.stdout + done.stderr) == (code, True), done
