"""The alert rules of packaging/monitoring: each fires on scrapes of nodes that have the fault, and on no others; and the
dashboard beside them asks for what nodes tell.

Those on links that are down, certificates, reloads, disks, stores and waiting jobs are tried in `test_metrics.py`, beside what
else these tests look at.
"""

import http.server
import json
import pathlib
import re
import signal
import socket
import sqlite3
import subprocess
import threading

import pytest

import postgres
from mesh import ROOT, WORK, free_port, own_runner, until
from metrics import PROMTOOL, RULES, directive, fire, labels, needs_promtool, rules, scrape, value
from peer import Nat, Peer
from test_bad_config import KUBECONFIG
from test_controller import ask, runner
from test_controller_many import controller, keys, owned, runs, server  # noqa: F401
from test_controller_many import submit as submit_here

pytestmark = needs_promtool
needs_postgres = pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)")


def recorded(port, times, work):
    """So many scrapes, and what is done before each of them."""
    scrapes = []
    for _ in range(times):
        work()
        scrapes.append(scrape(port))
    return scrapes


def documented():
    """The labels of each metric, by docs/monitoring.md."""
    rows = re.findall(r"^\| (`(?:meshd|process)_.*?) \| (.*?) \|", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE)
    return {name: {*of.split(", ")} - {""} for names, of in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_page_lists_the_metrics_that_there_are():
    source = "".join(path.read_text() for path in (ROOT / "src" / "http").glob("*.rs"))
    assert documented().keys() == set(re.findall(r'"((?:meshd|process)_\w+)"', source))


def test_the_dashboard_and_the_rules_ask_for_metrics_and_labels_that_there_are(tmp_path):
    dashboard = json.loads((RULES.parent / "meshd.dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked = [(target["expr"], target.get("legendFormat", "")) for target in targets]
    asked += [(one["query"], "") for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert len(asked) > 20
    asked += [(rule["expr"], " ".join(rule["annotations"].values()).replace("$labels.", "")) for rule in rules().values()]
    there = documented()
    for expression, legend in asked:
        metrics = {re.sub("_bucket$", "", name) for name in re.findall(r"\b(?:meshd|process)_\w+", expression)}
        assert metrics and metrics <= there.keys(), expression
        labels = set(re.findall(r"(\w+)\s*=~?\"", expression) + re.findall(r"\{\{ *(\w+) *\}\}", legend))
        labels |= {label for by in re.findall(r"\bby \((.*?)\)", expression) for label in by.split(", ")}
        assert labels <= {"job", "instance", "le"}.union(*(there[name] for name in metrics)), (expression, legend)
    tried = [{"record": f"r{n}", "expr": re.sub(r"\$__\w+", "5m", target["expr"])} for n, target in enumerate(targets)]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": tried}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", "dashboard.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_is_tried_firing_and_quiet():
    here = pathlib.Path(__file__).parent
    text = "".join((here / name).read_text() for name in ("test_alerts.py", "test_metrics.py"))
    for alert in rules():
        calls = re.findall(rf'\bfire\(tmp_path, .*"{alert}", \d+, (\[.*)\)\n', text)
        assert [] != [call for call in calls if call != "[]"] and "[]" in calls, (alert, calls)


def test_a_link_that_loses_probes_fires(mesh, tmp_path):
    metrics, port = directive()
    far = free_port()
    mesh.add("hop", [{"udp-listener": {"port": far, "bindaddr": "127.0.0.1"}}])
    way = Nat(far)
    mesh.add("e1", [metrics, {"udp-peer": {"address": f"127.0.0.1:{way.port}"}}])
    mesh.start()
    loss = lambda text: value(text, "meshd_link_loss_ratio", peer="hop")  # noqa: E731
    # Each scrape is the one that showed it.
    well = until("a link without loss", lambda: loss(text := scrape(port)) == 0 and text)
    way.loses = 0.5
    lossy = until("lost probes", lambda: (loss(text := scrape(port)) or 0) > 0.2 and text, 90)
    assert value(lossy, "meshd_link_up", peer="hop") == 1
    fire(tmp_path, [well], "MeshdLinkLossy", 15, [])
    fire(tmp_path, [well, lossy], "MeshdLinkLossy", 15, [labels("MeshdLinkLossy", peer="hop")])
    fire(tmp_path, [well, lossy, well], "MeshdLinkLossy", 15, [])
    way.close()


def test_a_link_that_carries_less_than_is_sent_fires(mesh, tmp_path):
    """What one node sends, and another one forwards to a third that reads nothing."""
    metrics, port = directive()
    door = free_port()
    into = {"udp-server": {"port": door, "bindaddr": "127.0.0.1", "remotenode": "slow", "remoteservice": "sink"}}
    mesh.node("hop", listen=True, extra=[metrics])
    source = mesh.node("source", peers=["hop"], extra=[into])
    mesh.start()
    dropped = lambda: value(scrape(port), "meshd_link_dropped_total", peer="slow")  # noqa: E731
    with Peer(mesh.ports["hop"], "slow") as slow, socket.socket(type=socket.SOCK_DGRAM) as client:
        slow.introduce("hop")
        until("the route", lambda: "slow" in source.status()["RoutingTable"])
        well = scrape(port)

        def send(least):
            before = dropped()
            while dropped() - before < least:
                slow.update({"hop": 1.0})
                for _ in range(200):
                    client.sendto(b"x" * 1000, ("127.0.0.1", door))

        send(1)
        full = recorded(port, 18, lambda: send(100))
    fire(tmp_path, [well], "MeshdLinkDrops", 17, [])
    fire(tmp_path, full, "MeshdLinkDrops", 17, [labels("MeshdLinkDrops", peer="slow")])
    # A burst is none.
    fire(tmp_path, full[:4], "MeshdLinkDrops", 17, [])


def test_descriptors_that_are_nearly_all_open_fire(mesh, tmp_path):
    metrics, port = directive()
    node = mesh.node("n", extra=[metrics])
    node.prefix = ["prlimit", "--nofile=128:128"]
    node.start()
    well = scrape(port)
    assert value(well, "process_max_fds") == 128
    clients = []
    while value(few := scrape(port), "process_open_fds") <= 0.8 * 128:
        clients.append(node.control())
    for client in clients:
        client.close()
    fire(tmp_path, [well], "MeshdDescriptorsLow", 15, [])
    fire(tmp_path, [well, few], "MeshdDescriptorsLow", 15, [labels("MeshdDescriptorsLow")])
    closed = until("them to be closed", lambda: value(text := scrape(port), "process_open_fds") < 0.8 * 128 and text)
    fire(tmp_path, [few, few, closed], "MeshdDescriptorsLow", 15, [])


class ApiServer(http.server.BaseHTTPRequestHandler):
    """Of a cluster whose etcd is away."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 503, "reason": "ServiceUnavailable", "message": "etcd is away"}
        body = json.dumps(status).encode()
        self.send_response(503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = do_PATCH = answer

    def log_message(self, *_):
        pass


def test_an_api_server_that_fails_fires(mesh, tmp_path):
    metrics, port = directive()
    api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG.replace("https://127.0.0.1:1", f"http://127.0.0.1:{api.server_address[1]}"))
    pods = {"worktype": "pods", "authmethod": "kubeconfig", "kubeconfig": str(config), "namespace": "jobs", "image": "busybox"}
    node = mesh.node("n", work=[*WORK, {"work-kubernetes": pods}], extra=[metrics]).start()
    well = scrape(port)

    def requests():
        found = re.findall(r'meshd_kubernetes_requests_total\{verb="\w+",code="503"\} (\d+)', scrape(port))
        return sum(map(int, found))

    def ask_for_pods():
        before = requests()
        for _ in range(7):
            with node.control() as client:
                client.submit("n", "pods")
        until("requests", lambda: requests() - before >= 7)

    failing = recorded(port, 18, ask_for_pods)
    fire(tmp_path, [well], "MeshdKubernetesFails", 17, [])
    fire(tmp_path, failing, "MeshdKubernetesFails", 17, [labels("MeshdKubernetesFails", code="503")])
    fire(tmp_path, failing[:4], "MeshdKubernetesFails", 17, [])
    api.shutdown()


def test_more_series_than_fit_fire(mesh, tmp_path):
    metrics, port = directive()
    node = mesh.node("c", extra=[metrics, {"work-controller": {"rundir": str(tmp_path), **own_runner(runner("own"))}}]).start()
    until("the controller to be up", lambda: value(scrape(port), "meshd_controller_store_up") == 1)
    well = scrape(port)
    node.stop()
    [store] = node.datadir.rglob("*.db")
    with sqlite3.connect(store) as sql:
        columns = [name for _, name, *_ in sql.execute("PRAGMA table_info(grp)") if name != "name"]
        sql.execute(f"""
            WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 10000)
            INSERT INTO grp (name, {", ".join(columns)}) SELECT name || n, {", ".join(columns)} FROM grp, n WHERE name = 'default'""")
    node.start()
    crowded = until("many groups", lambda: (text := scrape(port)) and value(text, "meshd_series_left_out") and text, 120)
    fire(tmp_path, [well], "MeshdSeriesLeftOut", 2, [])
    fire(tmp_path, [well, crowded], "MeshdSeriesLeftOut", 2, [labels("MeshdSeriesLeftOut")])


def test_an_instance_that_is_unavailable_fires(mesh, tmp_path):
    metrics, port = directive()
    settings = {"discovery": "enabled", "heartbeat": "200ms", "lostafter": "1s", "rundir": str(tmp_path), "poll": "200ms"}
    mesh.node("c", listen=True, extra=[metrics, {"work-controller": settings | own_runner(runner("own"))}])
    e1 = mesh.node("e1", peers=["c"], work=[runner("ansible-runner")])
    mesh.start()
    state = lambda text, state: value(text, "meshd_controller_instances", type="execution", state=state) == 1 and text  # noqa: E731
    well = until("an instance", lambda: state(scrape(port), "ready"), 60)
    e1.stop()
    lost = until("the loss", lambda: state(scrape(port), "unavailable"), 60)
    fire(tmp_path, [well], "MeshdInstanceUnavailable", 15, [])
    fire(tmp_path, [well, lost], "MeshdInstanceUnavailable", 15, [labels("MeshdInstanceUnavailable", state="unavailable", type="execution")])
    fire(tmp_path, [well, lost, well], "MeshdInstanceUnavailable", 15, [])


@needs_postgres
def test_a_control_node_that_is_taken_for_lost_fires_there_and_at_its_heir(mesh, server, keys, tmp_path):  # noqa: F811
    ports, database = {}, server.database()
    mesh.node("hop", listen=True)
    for name in ("c1", "c2"):
        metrics, ports[name] = directive()
        mesh.node(name, peers=["hop"], extra=[metrics, *controller(server.url(database), keys, tmp_path)])
    mesh.node("e1", peers=["hop"], work=[runner("ansible-runner")])
    mesh.start()
    c1, c2 = mesh["c1"], mesh["c2"]
    until("an instance", lambda: any(one["name"] == "e1" and one["capacity"] > 0 for one in ask(c1, "instance.list")["instances"]), 60)
    _, number = submit_here(c1, ident="j", go=str(tmp_path / "go"))
    runs(c2, number)
    well = {name: scrape(port) for name, port in ports.items()}
    c1.stop(signal.SIGSTOP)
    owned(c2, number, "c2")
    c1.process.send_signal(signal.SIGCONT)
    fenced = until("a refused write", lambda: (text := scrape(ports["c1"])) and value(text, "meshd_controller_fenced_writes_total") and text)
    # It is counted once the jobs have their new owner.
    heir = until("a takeover", lambda: value(text := scrape(ports["c2"]), "meshd_controller_takeovers_total") and text)
    (tmp_path / "go").touch()
    fire(tmp_path, [well["c1"], fenced], "MeshdFenced", 3, [labels("MeshdFenced")])
    fire(tmp_path, [well["c2"], heir], "MeshdTakeover", 3, [labels("MeshdTakeover")])
    # Later it is history.
    fire(tmp_path, [well["c1"], fenced], "MeshdFenced", 30, [])
    fire(tmp_path, [well["c2"], heir], "MeshdTakeover", 30, [])
