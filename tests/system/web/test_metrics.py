"""The directive `metrics`: what a scrape tells, who gets one, what probes are told, and alert rules on faults that are real."""

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import time

import pytest

import postgres
from mesh import MESHCTL, MESHD, PATIENCE, ROOT, WORK, environment, free_port, own_runner, until
from metrics import check, directive, fire, get, labels, needs_promtool, scrape, series, trusting, value
from test_controller import ask, ended, runner, submit
from test_controller_failures import small_disk
from test_controller_many import controller, keys, server  # noqa: F401
from test_controller_many import submit as submit_here
from test_disk_reserve import leave
from trust import Pki

MIB = 1 << 20


def meshctl(node, *arguments):
    return subprocess.run([MESHCTL, "--socket", node.socket, *arguments], capture_output=True, text=True, timeout=60,
                          env=environment())


def change(node, name, settings):
    """Changes a directive of a node's configuration, or takes it out."""
    directives = json.loads(node.config.read_text())
    directives = [one for one in directives if name not in one] + ([{name: settings}] if settings is not None else [])
    node.config.write_text(json.dumps(directives))


@needs_promtool
def test_a_scrape_tells_of_links_work_and_the_controller(mesh, tmp_path):
    metrics, port = directive()
    settings = {"discovery": "enabled", "heartbeat": "200ms", "rundir": str(tmp_path), "poll": "200ms", "payloadretention": "10s"}
    control = mesh.node("control", listen=True, work=WORK, extra=[metrics, {"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    mesh.start()
    until("an instance", lambda: any(one["name"] == "e1" and one["capacity"] > 0 for one in ask(control, "instance.list")["instances"]), 60)
    _, number = submit(control, ident="j", lines=3)
    # A controller that is slow to answer has no numbers in that scrape.
    kept = lambda: value(scrape(port), "meshd_controller_payload_bytes")  # noqa: E731
    until("the payload to be counted", lambda: (kept() or 0) > 0)
    ended(control, number)
    control.run("localhost", "cat", b"x")
    text = until("the job to be counted", lambda: (text := scrape(port)) and value(
        text, "meshd_controller_jobs_finished_total", kind="job", state="successful") == 1 and text)
    check(text)
    assert value(text, "meshd_link_up", peer="e1") == 1
    assert value(text, "meshd_link_sent_bytes_total", peer="e1") > 100
    assert value(text, "meshd_mesh_routes") == value(text, "meshd_mesh_table_size", kind="routes") == 1
    assert value(text, "meshd_mesh_events_total", kind="sessions_established") == 1
    assert value(text, "meshd_work_units", type="cat", state="Succeeded") == 1
    assert value(text, "meshd_work_start_seconds_count", type="cat") == 1
    assert value(text, "meshd_work_run_seconds_count", type="cat", state="Succeeded") == 1
    assert value(text, "meshd_controller_store_up") == 1
    assert value(text, "meshd_controller_instances", type="execution", state="ready") == 1
    assert value(text, "meshd_controller_instance_capacity", instance="e1") > 0
    assert value(text, "meshd_controller_start_delay_seconds_count") == 1
    assert value(text, "meshd_controller_pass_seconds_count") > 0
    assert value(text, "meshd_controller_store_seconds_count", op="write") > 0
    assert value(text, "meshd_controller_events_total") == 3
    assert value(text, "meshd_controller_output_bytes") > 0
    until("the payload to be deleted", lambda: kept() == 0)
    assert value(text, "meshd_work_disk_free_bytes") > 0
    assert value(text, "meshd_config_last_reload_successful") == 1
    assert value(text, "meshd_build_info", version=control.status()["Version"]) == 1
    assert 0 < value(text, "process_cpu_seconds_total") < 1000
    assert abs(value(text, "process_start_time_seconds") - time.time()) < 600
    assert value(text, "process_resident_memory_bytes") > MIB
    assert value(text, "process_open_fds") < value(text, "process_max_fds")
    assert value(text, "meshd_series_left_out") == 0
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in series(text)}
    page = (ROOT / "docs" / "monitoring.md").read_text()
    missing = {name for name in names if f"`{name}" not in page}
    assert not missing, f"docs/monitoring.md does not say what these mean: {missing}"


def test_only_what_is_there_is_answered_and_only_to_who_reads(mesh):
    metrics, port = directive()
    node = mesh.node("n", extra=[metrics]).start()
    assert get(port, "/healthz")[:2] == (200, "ok\n")
    assert get(port, "/metrics?collect[]=x")[0] == 200
    for path in ("/", "/metrics/", "/debug/pprof", "//metrics", "/healthz/.."):
        assert get(port, path)[0] == 404, path
    status, _, headers = get(port, "/metrics", method="POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert get(port, "/metrics", method="HEAD")[:2] == (200, "")

    def told(request):
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(request)
            answer = b""
            while data := client.recv(65536):
                answer += data
        return answer.split(b"\r\n")[0]

    assert told(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n").split()[1][:1] == b"4"
    assert told(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100 + b"\r\n").split()[1] == b"431"
    # A name that a foreign page had lead here; a probe knows addresses, or gives none.
    for path in (b"/metrics", b"/readyz", b"http://evil.example/metrics"):
        for host in (b"evil.example", b"127.0.0.1.evil.example:%d" % port, b"[::1].evil.example", b"[localhost]", b""):
            assert told(b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n").split()[1] == b"421", (path, host)
        for host in (b"Host: 192.0.2.7\r\n", b"Host: [2001:db8::1]:27190\r\n", b"Host: localhost:1\r\n", b""):
            answer = told(b"GET " + path + b" HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
            assert answer.split()[1] == (b"421" if b"evil" in path else b"200"), (path, host)
    # What follows a body that nobody reads is no request.
    assert told(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 10) == b"HTTP/1.1 200 OK"
    assert told(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").split()[1:2] in ([b"400"], [])
    # One host has so many connections, and the others' share is not touched. Those from before have left their places.
    until("those from before to be gone", lambda: established(port) == 0)
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(100)]
    try:
        until("the others to be closed", lambda: sum(map(_is_closed, silent)) == 100 - 32)
        # They take nothing from who asks.
        assert [get(port, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
    finally:
        for one in silent:
            one.close()
    until("it to answer", lambda: _answers(port))
    node.stop()


def _is_closed(client):
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _answers(port):
    try:
        return get(port, "/healthz")[0] == 200
    except OSError:
        return False


def established(port):
    """How many connections there are to a port of this machine, by the end that has the port."""
    rows = [line.split()[1:4] for line in open("/proc/net/tcp")][1:]
    return sum(local.endswith(f":{port:04X}") and state == "01" for local, _, state in rows)


def threads(node):
    return len(os.listdir(f"/proc/{node.process.pid}/task"))


def test_a_token_and_tls_guard_the_names_and_probes_need_neither(mesh, tmp_path):
    pki = Pki(mesh.dir / "pki")
    pki.issue("web", ["n"])
    token = tmp_path / "token"
    token.write_text("s3cret-1\n")
    token.chmod(0o600)
    port = free_port()
    pair = {"name": "web", "cert": str(pki.path("web.crt")), "key": str(pki.path("web.key"))}
    metrics = {"address": f"127.0.0.1:{port}", "tls": "web", "tokenfile": str(token)}
    node = mesh.node("n", extra=[{"tls-server": pair}, {"metrics": metrics}]).start()
    trust = trusting(pki.path("ca.crt"))

    def ask_(path, token=None):
        return get(port, path, token, trust, scheme="https")[0]

    assert [ask_("/healthz"), ask_("/readyz"), ask_("/metrics"), ask_("/metrics", "s3cret-1")] == [200, 200, 401, 200]
    assert ask_("/metrics", "s3cret-2") == 401
    text = get(port, "/metrics", "s3cret-1", trust, scheme="https")[1]
    end = ssl._ssl._test_decode_cert(str(pki.path("web.crt")))["notAfter"]
    assert value(text, "meshd_certificate_not_after_seconds", kind="tls-server", profile="web") == ssl.cert_time_to_seconds(end)
    with pytest.raises((OSError, http.client.HTTPException)):
        get(port, "/healthz")
    # A new token counts at once.
    token.write_text("s3cret-2")
    assert (ask_("/metrics", "s3cret-1"), ask_("/metrics", "s3cret-2")) == (401, 200)
    token.chmod(0o644)
    assert ask_("/metrics", "s3cret-2") == 503
    checked = subprocess.run([MESHD, "check", "--running", node.config], capture_output=True, text=True, env=environment(), timeout=60)
    assert checked.returncode == 1 and "others can read it" in checked.stdout, checked
    assert "s3cret" not in node.log() + checked.stdout
    node.stop()
    node.spawn()
    assert node.process.wait(PATIENCE) == 1
    node.logged("metrics on", "others can read it")


def test_an_address_in_use_fails_the_start_and_the_check(mesh):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        node = mesh.node("n", extra=[{"metrics": {"address": address}}])
        checked = subprocess.run([MESHD, "check", node.config], capture_output=True, text=True, env=environment(), timeout=60)
        assert checked.returncode == 1 and f"metrics on {address}: {address} is in use" in checked.stdout, checked.stdout
        node.spawn()
        assert node.process.wait(PATIENCE) == 1
        node.logged(f"failed to start metrics on {address}")


def test_without_the_directive_nothing_listens_and_a_reload_brings_it(mesh):
    node = mesh.node("n").start()
    before = threads(node)
    port = free_port()
    change(node, "metrics", {"address": f"127.0.0.1:{port}"})
    assert node.command("reload")["Success"] is True
    assert get(port, "/healthz")[0] == 200
    other = free_port()
    change(node, "metrics", {"address": f"127.0.0.1:{other}"})
    assert node.command("reload")["Success"] is True
    assert get(other, "/healthz")[0] == 200 and not _answers(port)
    change(node, "metrics", None)
    assert node.command("reload")["Success"] is True
    assert not _answers(other)
    # Those that wait for files end when they have nothing to do.
    until("its threads to end", lambda: threads(node) <= before + 4)


@needs_promtool
def test_a_link_that_is_down_stays_and_fires(mesh, tmp_path):
    metrics, port = directive()
    hop = mesh.node("hop", listen=True)
    mesh.node("n", peers=["hop", free_port()], extra=[metrics])
    mesh.start()
    unknown = next(peer for (name, labels), _ in series(scrape(port)).items() for _, peer in labels if name == "meshd_link_up" and peer != "hop")
    assert unknown.startswith("tcp 127.0.0.1:")
    up = scrape(port)
    assert (value(up, "meshd_link_up", peer="hop"), value(up, "meshd_link_up", peer=unknown)) == (1, 0)
    hop.stop()
    down = until("the link to be down", lambda: (text := scrape(port)) and value(text, "meshd_link_up", peer="hop") == 0 and text)
    check(down)
    assert value(down, "meshd_links", state="down") == 2
    fire(tmp_path, [up], "MeshdLinkDown", 10, [labels("MeshdLinkDown", peer=unknown)])
    fire(tmp_path, [up, down], "MeshdLinkDown", 4, [])
    fire(tmp_path, [up, down], "MeshdLinkDown", 10, [labels("MeshdLinkDown", peer="hop"), labels("MeshdLinkDown", peer=unknown)])
    hop.start()
    until("the link to be back", lambda: value(scrape(port), "meshd_link_up", peer="hop") == 1)


@needs_promtool
def test_a_reload_that_fails_and_a_certificate_that_ends_fire(mesh, tmp_path):
    pki = Pki(mesh.dir / "pki")
    pki.issue("old", ["n"], end=3)
    pki.issue("new", ["n"], end=100)
    metrics, port = directive()
    pair = lambda name: {"name": name, "cert": str(pki.path(f"{name}.crt")), "key": str(pki.path(f"{name}.key"))}  # noqa: E731
    node = mesh.node("n", extra=[metrics, {"tls-server": pair("old")}, {"tls-server": pair("new")}]).start()
    good, before = node.config.read_text(), scrape(port)
    ending = labels("MeshdCertificateEnds", kind="tls-server", profile="old")
    fire(tmp_path, [before], "MeshdCertificateEnds", 2, [ending])
    fire(tmp_path, [before], "MeshdReloadFailed", 10, [])
    node.config.write_text(good.replace("tls-server", "tls-sever"))
    assert node.command("reload")["Success"] is False
    failed = scrape(port)
    assert value(failed, "meshd_config_last_reload_successful") == 0
    fire(tmp_path, [before, failed], "MeshdReloadFailed", 10, [labels("MeshdReloadFailed")])
    node.config.write_text(good)
    assert node.command("reload")["Success"] is True
    assert value(scrape(port), "meshd_config_last_reload_successful") == 1
    node.config.write_text(good.replace("old.", "new."))
    assert node.command("reload")["Success"] is True
    fire(tmp_path, [before, scrape(port)], "MeshdCertificateEnds", 2, [])


@needs_promtool
@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
def test_a_disk_that_is_nearly_full_fires(mesh, tmp_path):
    metrics, port = directive()
    node = mesh.node("small", work=WORK, extra=[metrics])
    with small_disk(node, "100m"):
        node.start()
        before = scrape(port)
        leave(node, 4 * MIB)
        low = scrape(port)
        fire(tmp_path, [before], "MeshdDiskLow", 10, [])
        fire(tmp_path, [before, low], "MeshdDiskLow", 10, [labels("MeshdDiskLow")])
        mesh.end()


@needs_promtool
@pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)")
def test_probes_and_alerts_tell_that_the_store_is_away_and_that_jobs_wait(mesh, server, keys, tmp_path):  # noqa: F811
    metrics, port = directive()
    extra = [metrics, *controller(server.url(server.database()), keys, tmp_path)]
    node = mesh.node("c1", extra=extra).start()
    health = until("it to be ready", lambda: (answer := get(port, "/readyz"))[0] == 200 and json.loads(answer[1]))
    assert set(health) == {"status", "node_id", "links", "work_units", "uptime_seconds"}
    assert (health["status"], health["node_id"], health["links"]) == ("ready", "c1", 0)
    done = until("the same by meshctl", lambda: (done := meshctl(node, "health")).returncode == 0 and done)
    assert re.fullmatch(r"ready: 0 links, \d+ work units, up \d+ s\n", done.stdout), done
    node.logged("the lease is valid")
    ask(node, "pause")
    submit_here(node, ident="waits")
    # A controller that is slow to answer has no numbers in that scrape.
    time_ = lambda text: value(text, "meshd_controller_pending_oldest_seconds") or 0  # noqa: E731
    first = until("a job to wait", lambda: time_(scrape(port)))
    waiting = until("it to wait longer", lambda: (text := scrape(port)) and time_(text) > first + 1 and text)
    assert value(waiting, "meshd_controller_jobs", state="pending", kind="job") == 1
    fire(tmp_path, [waiting], "MeshdJobsWait", 10, [])
    fire(tmp_path, growing(waiting, 60), "MeshdJobsWait", 40, [labels("MeshdJobsWait")])
    before = until("the store to answer", lambda: (text := scrape(port)) and value(text, "meshd_controller_store_up") == 1 and text)
    server.pause()
    try:
        away = until("it to be unready", lambda: (answer := get(port, "/readyz"))[0] == 503 and json.loads(answer[1]))
        assert away["status"] == "store away"
        assert get(port, "/healthz")[0] == 200
        assert meshctl(node, "health").returncode == 1
        assert json.loads(meshctl(node, "--json", "health").stdout)["status"] == "store away"
        text = scrape(port)
        check(text)
        fire(tmp_path, [before], "MeshdStoreAway", 10, [])
        fire(tmp_path, [before, text], "MeshdStoreAway", 10, [labels("MeshdStoreAway")])
    finally:
        server.resume()
    until("it to be ready again", lambda: get(port, "/readyz")[0] == 200)
    until("the same by meshctl", lambda: meshctl(node, "health").returncode == 0)
    node.stop()
    assert meshctl(node, "health").returncode == 69


def growing(text, minutes):
    """The scrapes of the next minutes, in which the oldest job waits on."""
    oldest = value(text, "meshd_controller_pending_oldest_seconds")
    return [re.sub(r"(?m)^(meshd_controller_pending_oldest_seconds) .*$", rf"\1 {oldest + 60 * n}", text) for n in range(minutes)]
