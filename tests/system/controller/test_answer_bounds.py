"""Each question of docs/bounds.md, 24 times at once, while a stranger has filled the tables of the mesh and somebody with a
token those of the controller: its answer is within its bound, a small status is answered meanwhile, the node takes little
memory, and no link is lost.

OVERLOAD=full (tests/long/answers) fills tables as far as it goes, and has the bounds of a release build: MESHD_TEST_BINARIES=target/dist.
"""

import contextlib
import json
import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import metrics
from conftest import scoped_mesh
from mesh import MESHCTL, ROOT, environment, until
from peer import ADVERTISEMENT, frame
from test_controller import ask, is_ready, runner, stream
from test_overload import FULL, MIB, Flood, Watch
from test_web import control_settings
from web import directive

AT_ONCE = 24
#: Seconds until a small status is answered, whatever is asked beside it. Debug builds on a busy machine are far slower.
PROMPT = 0.25 if FULL else 3
ROOM = 200 * MIB
#: What 24 answers may take: with the smaller tables they take about 45 MiB. There it is the length of a list, and who asks often,
#: that fail without the bounds.
MORE = ROOM if FULL else ROOM / 2
NODES, LINKS, SERVICES = (400, 230, 20) if FULL else (80, 200, 5)
JOBS = 1000 if FULL else 250
#: Saved jobs.
SAVED = 5000
#: A page ends with the item that passes the bound.
PAGE = 1.25 * MIB

UNITS = {"KiB": 1024, "MiB": MIB}
ROW = re.compile(r"^\| (web|metrics|control|operation) \| (.*?) \| (\d+ [KM]iB|whole|stream) \|", re.MULTILINE)

MADE_UP = [f"made-up-{n:0>230}" for n in range(NODES)]
#: Those that list one another: a link counts if both of its ends list it.
LINKED = len(MADE_UP[:LINKS])

#: A letter of four bytes.
LETTER = "\U00010348"
LABELS = {"a": LETTER * 500, "b": LETTER * 500}


def table():
    """Questions by doors, each with its bound in bytes, or a word."""
    found = {}
    for door, questions, most in ROW.findall((ROOT / "docs" / "bounds.md").read_text()):
        number, _, unit = most.partition(" ")
        for question in re.findall(r"`([^`]+)`", questions):
            found[door, question] = int(number) * UNITS[unit] if unit else most
    assert len(found) > 50
    return found


TABLE = table()


def source(path, pattern):
    names = re.findall(pattern, (ROOT / path).read_text())
    assert len(names) > 10, path
    return names


def words(*commands):
    return lambda site: site.lines(commands)


def operation(op, **arguments):
    return lambda site: site.lines([{"command": "controller", "op": op, **(arguments | ({"id": site.job} if "id" in arguments else {}))}])


#: How those of the control service are asked which only look.
LOOKS = {
    ("control", "status"): words("status"),
    ("control", "work list"): words("work list"),
    ("control", "work status"): lambda site: site.lines([f"work status {site.unit}"]),
    ("control", "doctor"): words({"command": "doctor"}),
    ("control", "ping"): words("ping friend"),
    ("control", "traceroute"): words("traceroute friend"),
    ("control", "loglevel"): words("loglevel"),
    ("control", "node cache"): words("node cache"),
    ("control", "controller"): operation("ping"),
    ("control", "work results"): lambda site: site.lines([f"work results {site.unit}"]),
    ("operation", "job.list"): operation("job.list", limit=1000),
    ("operation", "job.count"): operation("job.count", search="a"),
    ("operation", "job.get"): operation("job.get", id=None),
    ("operation", "job.explain"): operation("job.explain", id=None),
    ("operation", "job.hosts"): operation("job.hosts", id=None, limit=1000),
    ("operation", "job.export"): operation("job.export"),
    ("operation", "notify.list"): operation("notify.list"),
    ("operation", "saved.list"): operation("saved.list"),
    ("operation", "saved.get"): operation("saved.get", name="app.js"),
    ("operation", "schedule.list"): operation("schedule.list"),
    ("operation", "instance.list"): operation("instance.list", found=True),
    ("operation", "instance.get"): operation("instance.get", name="control"),
    ("operation", "group.list"): operation("group.list"),
    ("operation", "group.get"): operation("group.get", name="default"),
    ("operation", "ping"): operation("ping"),
    ("operation", "node.list"): operation("node.list"),
    ("operation", "audit.list"): operation("audit.list", limit=1000),
    ("operation", "job.output"): operation("job.output", id=None),
    ("operation", "job.events"): operation("job.events", id=None),
}
#: What changes something is not repeated here, and its answer is small.
CHANGES = {
    "reload", "node forget", "link test", "connect", "work submit", "work start", "work adopt", "work cancel", "work release", "work disclaim",
    "work follow", "work stderr",
}


class Site:
    """The node that is asked, with its tables full."""

    def __init__(self, mesh, directory):
        web, self.web = directive(directory)
        # A node examines itself for up to 30 s, in turn.
        self.web.patience = 240
        scrape, self.scraped = metrics.directive()
        settings, jobs = control_settings(directory), directory / "jobs.d"
        settings["work-controller"]["jobs"] = str(jobs)
        jobs.mkdir()
        for n in range(SAVED):
            (jobs / f"j{n}.yml").write_text(f"module: ping\ndescription: {'x' * 500}\nschedule: {{every: 1h, enabled: false}}\n")
        # One name stands for all in a path.
        (jobs / "app.js.yml").write_text("module: ping\nvars:\n" + "".join(f"  v{n}: {{pattern: {'x' * 100}}}\n" for n in range(2000)))
        extra = [web, scrape, settings]
        self.node = mesh.node("control", listen=True, extra=extra)
        self.friend = mesh.node("friend", peers=["control"])
        mesh.start()
        until("the instance to be ready", lambda: is_ready(self.node), 110)
        ask(self.node, "pause")

    def lines(self, commands):
        """Sends these lines, and returns how many bytes the first answer has."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(240)
            client.connect(str(self.node.socket))
            with client.makefile("rb", 1 << 20) as answers:
                answers.readline()
                for command in commands:
                    client.sendall((command if isinstance(command, str) else json.dumps(command)).encode() + b"\n")
                answer = answers.readline()
                assert answer.endswith(b"\n") and not answer.startswith(b"ERROR"), answer[:300]
                return len(answer)

    def http(self, path, port=None, token="t-admin"):
        """The bytes of an answer; one that is refused for lack of room is asked for again."""
        if port:
            status, body, _ = metrics.get(port, path)
            return len(body) if status == 200 else 0
        while (answer := self.web.get(path, token)).status == 503 and answer.code == "busy":
            time.sleep(0.05)
        assert answer.status == 200, (path, answer.status, answer.body[:300])
        return len(answer.body)

    def question(self, door, question):
        if door in ("control", "operation"):
            return LOOKS.get((door, question))
        path = question.removeprefix("GET ").replace("{id}", str(self.job)).replace("{name}", "app.js")
        if door == "metrics":
            return lambda site: site.http(path, port=self.scraped)
        if path == "/api/v1/events":
            return lambda site: len(site.web.begin(path, "t-read").readline())
        if path in ("/api/v1/jobs", "/api/v1/links", "/api/v1/nodes"):
            # The one without a level, the other with one.
            query = "?limit=1000" if path.endswith("jobs") else ""
            return lambda site: max(site.http(path + query, token=token) for token in (None, "t-read"))
        return lambda site: site.http(path)

    def fill(self, stranger):
        node = self.node
        names = MADE_UP
        for name in names:
            links = {other: 1.0 for other in names[:LINKS] if other != name}
            stranger.raw(stranger.update_of(name, 1, links | {"stranger": 1.0}))
        stranger.all_taken_in("NewNodes", NODES)
        ad = {"Time": "2026-01-01T00:00:00Z", "ConnType": 1, "Tags": {"much": "x" * 200}, "WorkCommands": None, "Cancel": False}
        ads = (ad | {"NodeID": name, "Service": f"s{n}"} for name in names for n in range(SERVICES))
        stranger.raw(b"".join(frame(bytes([ADVERTISEMENT]) + json.dumps(one).encode()) for one in ads))
        stranger.all_taken_in("Advertisements", NODES * SERVICES)
        name = LETTER * 512

        def submit(_):
            answer = self.web.post("/api/v1/jobs", stream({"name": name, "labels": LABELS}, ident="x", lines=1), "t-operate")
            assert answer.status == 201, answer.body
            return answer.json

        with ThreadPoolExecutor(8) as pool:
            jobs = list(pool.map(submit, range(JOBS)))
        self.job, self.unit = jobs[0]["id"], jobs[0]["unit"]
        until("the latest job", lambda: ask(node, "job.list", limit=1)["jobs"][0]["id"] >= JOBS)

    def session(self):
        links = self.node.command({"command": "status", "requested_fields": ["Links"]})["Links"]
        return next((link["Session"] for link in links if link["NodeID"] == "friend"), None)


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    with scoped_mesh(request.node) as mesh:
        site = Site(mesh, tmp_path_factory.mktemp("bounds"))
        with Flood(site.node, "stranger") as stranger:
            site.fill(stranger)
            yield site


class Memory:
    """The most memory that a node has while others do something."""

    def __init__(self, node):
        self.node, self.most, self.over = node, node.rss(), threading.Event()
        self.thread = threading.Thread(target=self.look)

    def __enter__(self):
        self.thread.start()
        return self

    def look(self):
        while not self.over.wait(0.02):
            self.most = max(self.most, self.node.rss())

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def test_the_table_has_every_question(site):
    for path, methods in site.web.get("/api/v1/openapi.json").json["paths"].items():
        assert "get" not in methods or ("web", f"GET {path}") in TABLE, f"GET {path}"
    for name in source("src/rpc/request.rs", r'=> "([a-z ]+)",\n'):
        assert ("control", name) in TABLE, name
        assert ("control", name) in LOOKS or name in CHANGES, name
    for name in source("src/rpc/operation/mod.rs", r'\n    \w+ "([a-z._]+)" \w+\('):
        assert ("operation", name) in TABLE, name


@pytest.mark.timeout(600)
@pytest.mark.parametrize("one", [one for one in TABLE if one in LOOKS or one[0] in ("web", "metrics")], ids=" ".join)
def test_each_question_24_times_at_once(site, one):
    node, session, asked = site.node, site.session(), site.question(*one)
    # What is made once, such as connections to the store, and what the allocator keeps of one answer.
    size, before = asked(site), node.rss()
    with Memory(node) as memory, Watch(node, '{"command": "status", "requested_fields": ["NodeID"]}') as watch, ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(asked, [site] * AT_ONCE))
    site.web.close()
    slowest, plainly, more = max(watch.times), max(watch.plainly), memory.most - before
    print(f"{size / 1024:.0f} KiB; a small status {slowest * 1e3:.0f} ms, a plain process {plainly * 1e3:.0f} ms; {more / MIB:.0f} MiB more")
    assert site.session() == session, "the link is lost"
    assert slowest < max(PROMPT, 3 * plainly), f"a small status took {slowest:.2f} s"
    assert more < MORE, f"{more / MIB:.0f} MiB more"
    if isinstance(TABLE[one], int):
        assert size <= max(TABLE[one], PAGE if TABLE[one] == MIB else 0), f"{size} bytes"


def pages(site, path, query):
    """The lists of all pages."""
    found, next_one = [], ""
    while True:
        answer = site.web.get(f"/api/v1/{path}?{next_one}", "t-read")
        assert answer.status == 200 and len(answer.body) < PAGE, (answer.status, len(answer.body))
        found.append(answer.json[path])
        if not (after := answer.json["next"]):
            return found
        next_one = query(after)


def test_pages_lead_through_all_that_there_is(site):
    links = pages(site, "links", lambda ends: f"after={ends[0]}&after={ends[1]}")
    ends = [(link["a"], link["b"]) for page in links for link in page]
    assert len(links) > 1 and ends == sorted(set(ends))
    assert sum(min(pair).startswith("made-up") and max(pair).startswith("made-up") for pair in ends) == LINKED * (LINKED - 1) // 2
    nodes = pages(site, "nodes", lambda name: f"after={name}")
    names = [node["name"] for page in nodes for node in page]
    assert names == sorted({*MADE_UP, "control", "friend", "stranger"})
    jobs = pages(site, "jobs", lambda before: f"limit=1000&before={before}")
    numbers = [job["id"] for page in jobs for job in page]
    assert len(jobs) > 1 and numbers == sorted(set(numbers), reverse=True) and len(numbers) >= JOBS


def test_meshctl_reads_as_many_pages_as_it_was_asked_for(site):
    def listed(*more):
        told = subprocess.run([MESHCTL, "--socket", site.node.socket, "--json", "job", "list", *more], env=environment(), capture_output=True, timeout=120)
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    told = listed("--limit", "1000")
    assert len(told["jobs"]) >= JOBS and (told["next"] is None or len(told["jobs"]) == 1000)
    assert len(listed("--limit", str(JOBS - 10))["jobs"]) == JOBS - 10


def test_labels_have_a_bound_in_bytes(site):
    labels = {f"{n:02}": LETTER * 512 for n in range(32)}
    refused = site.web.post("/api/v1/jobs", stream({"labels": labels}, ident="x", lines=1), "t-operate")
    assert refused.status == 422 and b"together they may have at most 4096 bytes" in refused.body


def test_who_asks_often_delays_nobody_else(site):
    """A node of the mesh asks for everything many times at once: others come before most of its answers are made."""
    often, answered = 48, []
    with contextlib.ExitStack() as stranger:
        def connected(_):
            client = stranger.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(240)
            client.connect(str(site.friend.socket))
            answers = client.makefile("rb", 1 << 20)
            answers.readline()
            client.sendall(b"connect control control\n")
            assert answers.readline().startswith(b"Connecting") and answers.readline().startswith(b"Receptor Control")
            return client, answers

        def asks(client, answers):
            client.sendall(b"status\n")
            assert answers.readline().endswith(b"\n")
            answered.append(client)

        with ThreadPoolExecutor(often) as pool:
            clients = [connected(n) for n in range(often)]
            asking = [pool.submit(asks, *client) for client in clients]
            until("the first of them", lambda: answered, 110)
            assert metrics.get(site.scraped, "/metrics")[0] == 200
            assert site.http("/api/v1/links", token="t-read") and site.lines(["status"]) and ask(site.node, "job.list", limit=1000)["jobs"]
            assert len(answered) < often / 2, f"{len(answered)} came first"
            for one in asking:
                one.result()


def test_who_does_not_read_leaves_room_for_others(site):
    """Answers that nobody reads are dropped, or wait unmade; others are answered."""
    before = site.node.rss()
    with contextlib.ExitStack() as mute:
        for _ in range(100):
            client = mute.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", site.web.port))
            client.sendall(b"GET /api/v1/links HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert site.http("/api/v1/jobs?limit=1000", token="t-read") > 0
        assert site.http("/api/v1/nodes", token="t-read") > 0
        assert site.node.rss() - before < ROOM
