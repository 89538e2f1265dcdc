"""A node that the page can be tried with: it answers what the API promises, for a mesh of any size, and does on request
what a real mesh does by accident. It owns that mesh and its jobs; no job runs, and nothing of the product is in it but the
files of the page.

Started by hand it serves a mesh to look at: python tests/browser/stand_in.py [NODES [JOBS]], of 3, 8, 30, 200 or 1000 nodes.
"""

import contextlib
import datetime
import http.server
import json
import pathlib
import re
import secrets
import socket
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "src" / "http" / "page"
#: A part of what the page submits, which is the node's own.
PLUGIN = ROOT / "src" / "controller" / "pack" / "no_terminal.py"
#: Places of nodes in meshes of some sizes, as src/http/web/layout.rs has written them: x, y, and the number of the parent.
PLACES = json.loads((pathlib.Path(__file__).parent / "places.json").read_text())
#: A proxy may serve the page below a path.
PREFIX = "/some/proxy/"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".py": "text/plain; charset=utf-8"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LEVELS = ["none", "read", "operate", "admin"]
STATES = ["successful", "successful", "failed", "successful", "canceled", "error"]
#: What whoever may name a node, a job or a host could write.
HOSTILE = '<img src=x onerror="window.hurt=1">\u202egnp.exe\u0007\u001b]0;x\u0007"\'&' + "a\u0301" * 3 + "e" + "\u0301" * 60 + "W" * 200


def now(ago=0):
    return datetime.datetime.fromtimestamp(time.time() - ago, datetime.UTC).isoformat().replace("+00:00", "Z")


def name(number):
    """Forty characters, as long as names of hosts are."""
    return f"execution-node-{number:03}.eu-west-1.example.org"


class Refused(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code = status, code


class Mesh:
    """A hub, relays around it, and leaves behind those. The hub is a control node."""

    def __init__(self, size, jobs=0, hostile=False, saved=60):
        self.changed, self.size = threading.Condition(), size
        self.names = [name(number) for number in range(size)]
        if hostile:
            self.names[-1] = HOSTILE
        self.own = self.names[0]
        parent = lambda number: 0 if number < 10 else number % 9 + 1
        self.links = {tuple(sorted((self.names[parent(number)], self.names[number]))) for number in range(1, size)}
        self.links |= {tuple(sorted((self.names[n], self.names[n + 1]))) for n in range(1, min(9, size - 1))}
        self.disabled = set(self.names[5:6])
        #: Links that broke, and since when.
        self.broken = {}
        self.job_count = jobs
        self.job_name = HOSTILE if hostile else None
        #: What is otherwise than by default with a job.
        self.changes = {jobs: {"state": "pending", "execution_node": None, "started": None, "finished": None, "rc": None}} if jobs else {}
        self.outputs = {}
        self.events = []
        self.submission = None
        #: How many saved jobs there are, schedules that are paused, and the variables of each start.
        self.saved_count, self.paused, self.starts = saved, {"backup-00002"}, []
        #: The number of the last job of each saved job.
        self.started = {"deploy": 1, "backup-00001": 5}
        self.is_full = False
        #: Hosts that ask to become nodes.
        self.asking = {"A1B2-C3D4-E5F6-G7H8-J9K0": name(901), "Z1Y2-X3W4-V5T6-S7R8-Q9P0": HOSTILE if hostile else name(902)}

    def is_reachable(self, node):
        return node == self.own or any(node in link for link in self.links)

    def places(self):
        """Where a node puts the nodes; one that comes later stands below all others."""
        known = [(x, y, None if parent is None else self.names[parent]) for x, y, parent in PLACES[str(self.size)]]
        bottom = max(y for _, y, _ in known)
        return known + [(0, bottom + 60 * at, self.own) for at in range(1, len(self.names) - self.size + 1)]

    def nodes(self):
        return [{
            "name": node, "own": node == self.own, "reachable": self.is_reachable(node),
            "next_hop": None if node == self.own else node, "cost": None if node == self.own else 1.0,
            "neighbours": sorted({a if b == node else b for a, b in self.links if node in (a, b)}),
            "work_types": ["ansible-runner", "cat"], "services": ["control"], "last_advertised": now(20), "instance": "ready",
            "x": x, "y": y, "parent": parent,
        } for node, (x, y, parent) in zip(self.names, self.places(), strict=True)]

    def figures(self):
        lossy = self.names[2] if len(self.names) > 2 else None
        return [{
            "a": a, "b": b, "cost_ab": 1.0, "cost_ba": 1.0,
            "figures": [{"from": end, "transport": "tcp", "rtt_seconds": 0.00153 + at / 1000, "loss": 0.02 if b == lossy else 0.0,
                         "queued_bytes": 0, "dropped": 0, "bytes_in": 123_456 * at, "bytes_out": 654_321 * at, "asked": now(5)}
                        for end in (a, b)] if at % 7 != 5 else [],
        } for at, (a, b) in enumerate(sorted(self.links))]

    def instances(self):
        return [{
            "name": node, "node_type": "hybrid" if node == self.own else "execution", "node_state": "unavailable" if at % 37 == 17 else "ready",
            "enabled": node not in self.disabled, "managed_by_policy": True, "draining": False, "reachable": self.is_reachable(node), "why": None,
            "capacity": 57, "usual_jobs": 9, "cpu_capacity": 16, "mem_capacity": 57, "cpu": 4.0, "memory": 8 << 30, "capacity_adjustment": 1.0,
            "consumed_capacity": at * 7 % 58, "remaining_capacity": 57 - at * 7 % 58, "jobs_running": at % 4, "groups": ["default", "east"],
            "version": "2.4.0", "uuid": None, "errors": ["the health check failed: no runner"] if at % 37 == 17 else [],
            "last_seen": now(3), "last_health_check": now(300),
        } for at, node in enumerate(self.names)]

    def enrolment(self):
        return {"authority": True,
                "hosts": [{"node": node, "address": f"10.9.8.{at} by {self.names[-1]}", "fingerprint": fingerprint, "since": now(90), "state": "waits"}
                          for at, (fingerprint, node) in enumerate(self.asking.items())],
                "invites": [{"node": name(903), "role": "execution", "used": 1, "uses": 5, "expires": now(-3000)}],
                "nodes": [{"node": node, "role": "execution", "ends": now(-86400 * (at * 9 + 5))} for at, node in enumerate(self.names)]}

    def decide(self, node, fingerprint, word):
        if self.asking.get(fingerprint) != node:
            raise Refused(409, "conflict", f"the host that calls itself {node} has another fingerprint")
        del self.asking[fingerprint]
        self.tell("host.state", node, **{"from": "waits", "to": f"{word.removesuffix('e')}ed"})
        return {"node": node, "act": f"node.{word}"}

    def groups(self):
        group = {"reserved": False, "is_container_group": False, "policy_instance_percentage": 0, "policy_instance_minimum": 0, "policy_instance_list": [],
                 "capacity": 570, "consumed_capacity": 112, "remaining_capacity": 458, "jobs_running": 7, "max_concurrent_jobs": 20, "max_forks": 0,
                 "cluster": None, "namespace": None, "pod_spec_override": None, "registry": None}
        members = [{"name": node, "origin": "percentage"} for node in self.names]
        return [{"name": "default", **group, "members": members}, {"name": "east", **group, "members": members[:2]},
                {"name": "pods", **group, "is_container_group": True, "cluster": "kube", "members": []}]

    def job(self, number):
        ended = self.job_count - number > 20
        state = STATES[number % len(STATES)] if ended else "running"
        return {
            "id": number, "key": None, "kind": "job", "name": self.job_name or f"site-{number % 5}.yml", "state": state, "priority": 0, "controller_node": self.own,
            "execution_node": self.names[number % len(self.names)], "instance_group": "default", "attempt": 1, "impact": 6, "hosts": 12, "forks": 5,
            "created": now((self.job_count - number) * 60 + 30), "started": now((self.job_count - number) * 60 + 20),
            "finished": now((self.job_count - number) * 60) if ended else None, "elapsed": 75.0, "cancel_requested": False,
            "explanation": "2 hosts failed" if state == "failed" else "", "events": 40, "rc": 2 if state == "failed" else 0 if ended else None,
            "labels": {}, "launched_by": "unix:0", "playbook": f"site-{number % 5}.yml", "module": None, "limit": None, "tags": None, "skip_tags": None, "check": False,
            "rerun_of": None, **self.changes.get(number, {}),
        }

    def fail(self, number):
        """The job fails as a playbook does: at a task on two hosts, of which the first one is ignored, and at an unreachable one."""
        number, begin = int(number), "fatal: [web%d]: FAILED! => {\"msg\": \"non-zero return code\"}"
        lines = [f"TASK [Step {at}] ***\nok: [web1]" for at in range(60)]
        lines += [f"{begin % 1}\n...ignoring", "TASK [Configure the application server] ***"]
        self.outputs[number] = bytearray().join(map(event, lines))
        offset = len(self.outputs[number])
        lines = [begin % 2, begin % 5, "fatal: [db2]: UNREACHABLE! => {\"msg\": \"no route\"}", *[f"ok: [web{at}]" for at in range(30)],
                 "PLAY RECAP ***\nweb2 : ok=1 failed=1"]
        self.outputs[number] += bytearray().join(map(event, lines))
        message = "non-zero return code"
        failure = {"line": f"3 of 8 hosts failed: web2, web5: {self.job_name or 'Configure the application server'}: {message}; db2 unreachable",
                   "tasks": [{"task": self.job_name or "Configure the application server", "hosts": ["web2", "web5"], "count": 2, "message": message, "offset": offset},
                             {"task": "Gathering Facts", "hosts": ["db2"], "count": 1, "message": "no route", "offset": None}]}
        self.changes[number] = {"state": "failed", "finished": now(), "rc": 2, "explanation": "the playbook failed", "failure": failure,
                                "name": self.job_name or "nightly patch of all web servers in " + "region-" * 30}
        self.tell("job.state", self.own, job=number, to="failed")

    def overview(self):
        links = self.figures()
        count = lambda **query: self.counts({key: value.split() for key, value in query.items()})  # noqa: E731
        day = now(86400)
        waiting, states = count(state="pending waiting"), count(since=day)["states"]
        return {"nodes": {"all": len(self.names), "out_of_reach": sum(not self.is_reachable(node) for node in self.names)},
                "links": {"all": len(links), "lossy": sum(any(one["loss"] > 0 for one in link["figures"]) for link in links), "one_sided": 0, "broken": len(self.broken)},
                "jobs": {"waiting": sum(waiting["states"].values()), "oldest": waiting["oldest"], "running": count(state="running")["states"].get("running", 0),
                         "successful": states.get("successful", 0), "failed": states.get("failed", 0) + states.get("error", 0)}}

    def counts(self, query):
        # Of some of them, since a hundred thousand take their time here.
        found = self.jobs({"since": [now(100_000)], **query, "limit": ["3000"]})["jobs"]
        states = {}
        for job in found:
            states[job["state"]] = states.get(job["state"], 0) + 1
        return {"states": states, "oldest": {key: found[-1][key] for key in ("id", "created")} if found else None}

    def jobs(self, query):
        since, search = query.get("since", [""])[0], query.get("search", [""])[0].lower()
        if "saved" in query:
            number = self.started.get(query["saved"][0])
            return {"jobs": [self.job(number)] if number else [], "next": None}
        limit, before = int(query.get("limit", ["50"])[0]), int(query.get("before", ["0"])[0]) or self.job_count + 1
        found = []
        for number in range(before - 1, 0, -1):
            job = self.job(number)
            if job["created"] < since:
                break
            texts = [job["name"], job["playbook"], job["explanation"], job.get("failure", {}).get("line", "")]
            if not any(search in text.lower() for text in texts):
                # As a node does, which looks at so many at a time.
                if before - number >= 5000:
                    return {"jobs": found, "next": number}
                continue
            wanted = {"execution_node": query.get("node"), "instance_group": query.get("group"), "state": query.get("state"), "kind": query.get("kind")}
            if all(some is None or job[key] in some for key, some in wanted.items()) and job["name"].startswith(query.get("name", [""])[0]):
                if len(found) == limit:
                    return {"jobs": found, "next": found[-1]["id"]}
                found.append(job)
        return {"jobs": found, "next": None}

    def saved(self):
        """All saved jobs by name: one with each kind of variable, one that is broken, and many with a schedule."""
        plain = {"description": None, "runs": "site.yml", "source": "https://git.example/site.git", "hash": "00112233445566ff", "fault": None}
        broken = f"/etc/meshd/jobs.d/broken.yml:3: playbok: unknown key, did you mean playbook? {self.job_name or ''}"
        all = {f"backup-{at:05}": {**plain, "description": "The nightly backup"} for at in range(self.saved_count)}
        all["broken"] = {"description": None, "runs": None, "source": None, "hash": None, "fault": broken}
        all["deploy"] = {**plain, "description": self.job_name or "Rolls out a version of the site"}
        return {name: {"name": name, **one} for name, one in sorted(all.items())}

    def saved_page(self, query, key, rows):
        after, limit = query.get("after", [""])[0], int(query["limit"][0])
        behind = [one for one in rows if one["name"] > after]
        return {key: behind[:limit], "next": behind[limit - 1]["name"] if len(behind) > limit else None}

    def saved_job(self, name):
        if name not in self.saved():
            raise Refused(404, "not_found", f"there is no saved job {name} on this control node")
        kind = {"type": "text", "description": None, "default": None, "choices": [], "pattern": None, "secret": False}
        one = {
            "version": {**kind, "description": self.job_name or "the tag to roll out", "pattern": r"v\d+(\.\d+)*"},
            "target": {**kind, "choices": ["test", "prod"], "default": "test"}, "region": {**kind, "choices": ["east", "west"]},
            "batch": {**kind, "type": "int", "default": 2}, "share": {**kind, "type": "number"}, "dry": {**kind, "type": "bool", "default": True},
            "fast": {**kind, "type": "bool"}, "hosts": {**kind, "type": "json", "default": ["web1"]},
            "notes": {**kind, "default": "one\ntwo"}, "empty": {**kind, "default": ""}, "password": {**kind, "secret": True},
        }
        return {**self.saved()[name], "revision": "main", "inventory": ["inventories/prod"], "limit": None, "tags": ["deploy"], "skip_tags": [],
                "extra_vars": ["colour"], "vars": one if name == "deploy" else {}, "header": {"controller": 1}}

    def schedules(self):
        return [self.schedule(name) for name in self.saved() if name.startswith("backup")]

    def schedule(self, name):
        skipped = {"tick": now(90_000), "why": "the job before has not ended"}
        return {"name": name, "rule": "30 2 * * 1-5", "zone": "Europe/Berlin", "overlap": "skip", "missed": "skip", "enabled": True,
                "paused": name in self.paused, "next": [now(-86_400 * at) for at in range(1, 6)], "last": {"tick": now(3600), "job": 5}, "skipped": skipped}

    def start_saved(self, name, given):
        version = given.get("version", "")
        if name == "deploy" and not re.fullmatch(r"v\d+(\.\d+)*", version):
            raise Refused(422, "refused", f"{name}: version: it does not match v\\d+(\\.\\d+)*")
        self.starts.append(given)
        self.job_count += 1
        self.started[name] = self.job_count
        self.changes[self.job_count] = {"labels": {"meshd/saved": name}}
        self.tell("job.state", self.own, job=self.job_count, to="running")
        return {"id": self.job_count, "unit": "abc", "hash": "00112233445566ff"}

    def job_detail(self, number):
        if not 0 < number <= self.job_count:
            raise Refused(404, "not_found", f"there is no job {number}")
        job = self.job(number)
        counts = {"ok": 9, "changed": 3, "failures": 0, "dark": 0, "skipped": 1, "rescued": 0, "ignored": 0}
        hosts = {f"web{at}.example": dict(counts) for at in range(10)} | {(self.job_name or "db.example"): counts | {"failures": 1}}
        attempt = {"n": 1, "node": job["execution_node"], "unit": "cbf9bc2cbn42a1r5152d53f", "work_type": "ansible-runner", "placed": now(90),
                   "started": now(80), "ended": job["finished"], "outcome": job["state"] if job["finished"] else None, "confirmed": True, "detail": None}
        return job | {"header": {"sync": {"url": "https://git.example/other.git"}}, "unit": "abc", "attempts": [attempt] if job["started"] else [], "host_stats": hosts if job["finished"] else {},
                      "host_counts": {"hosts": 11, "failed": 1, "unreachable": 0, "kept": 11} if job["finished"] else None, "depends_on": [],
                      "output_bytes": len(self.output(number)), "output_hash": None, "output_on": [], "output_lost": None, "payload_until": None,
                      "revision": None, "silent": None}

    def explain(self, number):
        job = self.job_detail(number)
        instances = [{"name": node, "ok": False, "why": "capacity", "needs": 21, "remaining": 9, "capacity": 30, "jobs_running": 1} for node in self.names[:3]]
        group = {"name": "east", "level": "template", "ok": False, "why": "capacity", "jobs_running": 1, "max_concurrent_jobs": 0, "forks_running": 21,
                 "max_forks": 0, "held_by": [{"job": 1, "node": self.own, "impact": 21}], "instances": instances}
        waits = job["state"] == "pending"
        return {"id": number, "state": job["state"], "summary": "waiting for capacity in east" if waits else "Running",
                "checks": [{"check": "paused", "ok": False, "detail": "an operator paused the controller"}] if waits else [],
                "groups": [group] if waits else [], "queue": {"place": 1, "of": 4} if waits else None, "silent": None}

    def output(self, number):
        return self.outputs.setdefault(number, bytearray(event("\x1b[0;32mok: [web1.example]\x1b[0m")))

    def doctor(self, node):
        if node not in self.names or not self.is_reachable(node):
            raise Refused(404, "not_found", f"{node} was not examined: no route to node {node}; on the host of {node}: meshctl doctor")
        if node != self.own:
            return [{"what": "its clock is wrong", "where": "clock", "severity": "error", "remedy": f"{node} says: systemctl restart chronyd"}]
        return [{"at": "this node", "what": "the disk of /var/lib/meshd has 3 % left", "where": "datadir", "severity": "warning", "remedy": "delete what is not needed there"},
                {"at": "this node", "what": "no answer", "where": "tcp-peer 10.0.0.9:27199", "severity": "error", "remedy": "open the port on the firewall of 10.0.0.9"},
                {"at": "this node", "what": "its clock", "where": "", "severity": "not asked", "remedy": None}]

    # What can happen. Each is told to whoever follows the events.

    def tell(self, kind, node, **more):
        with self.changed:
            self.events.append({"seq": len(self.events) + 1, "time": now(), "node": node, "event": kind, **more})
            self.changed.notify_all()

    def fill(self):
        """Nobody else may follow events."""
        self.is_full = True

    def outages(self):
        lost = [node for node in self.names if not self.is_reachable(node)]
        links = [{"a": a, "b": b, "since": since, "why": "it ended" if self.own in (a, b) else None} for (a, b), since in sorted(self.broken.items())]
        since = min(self.broken.values(), default=None)
        outages = [{"lost": lost[:1], "behind": lost[1:], "links": [], "since": since}] if lost else []
        return {"outages": outages, "broken_links": links, "has_more": False}

    def cut(self, a, b):
        ends = (self.names[int(a)], self.names[int(b)])
        self.links.discard(ends)
        self.broken[ends] = now()
        self.tell("link.down", self.names[int(a)], peer=self.names[int(b)])

    def mend(self, a, b):
        self.links.add((self.names[int(a)], self.names[int(b)]))
        self.broken.pop((self.names[int(a)], self.names[int(b)]), None)
        self.tell("link.up", self.names[int(a)], peer=self.names[int(b)])

    def join(self, node):
        self.links.add(tuple(sorted((self.names[0], node))))
        self.names.append(node)
        self.tell("node.seen", node)

    def print(self, job, text, times="1"):
        with self.changed:
            self.output(int(job)).extend(event(text) * int(times))
            self.changed.notify_all()

    def play(self, job, hosts, tasks, first="0", size="1"):
        """The tasks of a play from one number up to another, on so many hosts. Each result has so many letters."""
        hosts, tasks, made = int(hosts), int(tasks), []
        say = lambda event, **data: made.append(runner_event(event, play="Web servers", play_uuid="p1", **data))  # noqa: E731
        if first == "0":
            say("playbook_on_start")
            say("playbook_on_play_start")
        for task in range(int(first), tasks):
            about = {"task_uuid": f"t{task}", "task": f"Step {task}", "name": f"web : Step {task}"}
            say("playbook_on_task_start", **about)
            for host in range(hosts):
                kind = TASK_ENDS.get((task, host), ("runner_on_ok", {}))
                res = {"changed": task == 1, "msg": "x" * int(size), "task": task, "host": host, **kind[1].get("res", {})}
                say("runner_on_start", host=f"web{host}", **about)
                say(kind[0], host=f"web{host}", **about, **{**kind[1], "res": res})
        with self.changed:
            self.output(int(job)).extend(b"".join(made))
            self.changed.notify_all()

    def recap(self, job, hosts, lost):
        """The end of a play, of whose hosts one was not reached."""
        with self.changed:
            self.output(int(job)).extend(runner_event("playbook_on_stats", processed={f"web{at}": 1 for at in range(int(hosts))}, dark={lost: 1}))
            self.changed.notify_all()

    def enable(self, node, enabled):
        (self.disabled.discard if enabled else self.disabled.add)(node)
        self.tell("instance.state", node, to="ready" if enabled else "ready, disabled")
        return next(one for one in self.instances() if one["name"] == node)

    def end(self, job, state="successful"):
        self.changes[int(job)] = {"state": state, "finished": now(), "rc": 0}
        self.tell("job.state", self.own, job=int(job), to=state)


def event(text):
    """A line of the runner's stream."""
    return json.dumps({"uuid": "u", "counter": 1, "event": "runner_on_ok", "stdout": text, "start_line": 0, "end_line": 1}).encode() + b"\n"


#: How a task ends on a host, by their numbers, where it is otherwise than well.
TASK_ENDS = {
    (2, 1): ("runner_on_failed", {"ignore_errors": True}), (2, 2): ("runner_on_skipped", {}), (3, 3): ("runner_on_unreachable", {}),
    (4, 4): ("runner_on_failed", {"res": {"msg": HOSTILE}}), (4, 5): ("runner_on_ok", {"res": {"censored": "the output has been hidden"}}),
}


def runner_event(kind, **data):
    return json.dumps({"uuid": "u", "counter": 1, "event": kind, "stdout": "", "start_line": 0, "end_line": 0, "event_data": data}).encode() + b"\n"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.answer(self.get)

    def do_POST(self):
        self.answer(self.change)

    def answer(self, what):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        self.query = urllib.parse.parse_qs(url.query)
        with contextlib.suppress(OSError):
            try:
                if not url.path.startswith(PREFIX):
                    raise Refused(404, "not_found", "there is nothing outside of the path")
                result = what(url.path.removeprefix(PREFIX))
            except Refused as error:
                return self.send(error.status, {"error": {"code": error.code, "message": str(error)}})
            if result is not NotImplemented:
                self.send(200, result)

    def send(self, status, result, kind="application/json", **headers):
        body = result if isinstance(result, bytes) else json.dumps(result).encode()
        self.head(status, {"Content-Type": kind, "Content-Length": len(body), **headers})
        self.wfile.write(body)

    def head(self, status, headers):
        self.send_response(status)
        for key, value in {**HEADERS, **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()

    @property
    def mesh(self):
        return self.server.mesh

    def session(self):
        """(name, level, form token) of whoever asks."""
        found = re.search(r"session=(\w+)", self.headers.get("Cookie", ""))
        return self.server.sessions.get(found and found[1], (None, "none", None))

    def need(self, level):
        if LEVELS.index(self.session()[1]) < LEVELS.index(level):
            raise Refused(401 if self.session()[1] == "none" else 403, "unauthorized", "sign in first")

    def get(self, path):
        if not path.startswith("api/v1/"):
            file = PLUGIN if path == f"page/{PLUGIN.name}" else PAGE / (path.removeprefix("page/") if path else "index.html")
            if not file.is_file() or file.parent not in (PAGE, PLUGIN.parent):
                raise Refused(404, "not_found", "there is no such file")
            self.send(200, file.read_bytes(), TYPES[file.suffix], **{"Cache-Control": "no-cache"})
            return NotImplemented
        mesh, path = self.mesh, path.removeprefix("api/v1/").split("/")
        match path:
            case ["session"]:
                who, level, form = self.session()
                return {"node": mesh.own, "version": "0.1.0", "who": who, "level": level, "controller": True, "form_token": form, "allow": "admin", "has_tokens": True}
            case ["nodes"]:
                return {"nodes": mesh.nodes()}
            case ["links"]:
                return {"links": mesh.figures()}
            case ["outages"]:
                return mesh.outages()
            case ["instances"]:
                return {"instances": mesh.instances(), "found": 0}
            case ["groups"]:
                return {"groups": mesh.groups()}
            case ["jobs"]:
                return mesh.jobs(self.query)
            case ["counts"]:
                return mesh.counts(self.query)
            case ["overview"]:
                return mesh.overview()
        self.need("read")
        match path:
            case ["enrolment"]:
                self.need("admin")
                return mesh.enrolment()
            case ["doctor"]:
                return {"findings": mesh.doctor(self.query.get("node", [mesh.own])[0])}
            case ["events"]:
                return self.follow_events()
            case ["saved"]:
                faults = [] if "after" in self.query else ["/etc/meshd/jobs.d/Upper.yml: the name must be lower case"]
                return {"faults": faults, **mesh.saved_page(self.query, "saved", mesh.saved().values())}
            case ["saved", name]:
                return mesh.saved_job(urllib.parse.unquote(name))
            case ["schedules"]:
                return mesh.saved_page(self.query, "schedules", mesh.schedules())
            case ["jobs", number]:
                return mesh.job_detail(int(number))
            case ["jobs", number, "explain"]:
                return mesh.explain(int(number))
            case ["jobs", number, "output"]:
                return self.follow_output(int(number), int(self.query["from"][0]), self.query.get("follow") == ["true"])
        raise Refused(404, "not_found", "there is nothing of that name")

    def begin_stream(self, kind):
        self.close_connection = True
        self.head(200, {"Content-Type": kind, "Connection": "close"})

    def follow_events(self):
        if self.mesh.is_full:
            raise Refused(429, "too_many", "too many clients follow something here")
        self.begin_stream("text/event-stream")
        told = len(self.mesh.events)
        self.wfile.write(b": here\n\n")
        while not self.server.is_over:
            with self.mesh.changed:
                self.mesh.changed.wait_for(lambda: len(self.mesh.events) > told or self.server.is_over, 15)
                new, told = self.mesh.events[told:], len(self.mesh.events)
            for one in new:
                self.wfile.write(f"id: {one['seq']}\nevent: {one['event']}\ndata: {json.dumps(one)}\n\n".encode())
        return NotImplemented

    def follow_output(self, number, at, follow):
        self.begin_stream("text/plain")
        while not self.server.is_over:
            with self.mesh.changed:
                ended = self.mesh.job(number)["finished"] is not None
                new = bytes(self.mesh.output(number)[at:])
                if not new and follow and not ended:
                    self.mesh.changed.wait(1)
            at += len(new)
            self.wfile.write(new)
            if not new and (ended or not follow):
                break
        return NotImplemented

    def change(self, path):
        path = path.removeprefix("api/v1/").split("/")
        origin = f"http://{self.headers['Host']}"
        if self.headers.get("Origin") != origin:
            raise Refused(403, "forbidden", "another page asks")
        if path == ["session"]:
            return self.sign_in()
        if self.headers.get("X-Form-Token") != self.session()[2]:
            raise Refused(403, "forbidden", "there is no form token")
        mesh = self.mesh
        match path:
            case ["session", "end"]:
                self.server.sessions = {key: one for key, one in self.server.sessions.items() if one != self.session()}
                self.head(204, {"Set-Cookie": "session=; Max-Age=0; HttpOnly; SameSite=Strict"})
                return NotImplemented
            case ["jobs"]:
                self.need("operate")
                mesh.submission = self.body
                mesh.job_count += 1
                mesh.tell("job.state", mesh.own, job=mesh.job_count, to="running")
                self.send(201, {"id": mesh.job_count, "unit": "abc"})
                return NotImplemented
            case ["jobs", number, "cancel"]:
                self.need("operate")
                mesh.end(number, "canceled")
                return mesh.job(int(number))
            case ["jobs", _, "rerun"]:
                self.need("operate")
                mesh.job_count += 1
                return mesh.job(mesh.job_count)
            case ["saved", name, "start"]:
                self.need("operate")
                return mesh.start_saved(name, json.loads(self.body)["vars"])
            case ["schedules", name, "pause" | "resume" as word]:
                self.need("admin")
                (mesh.paused.add if word == "pause" else mesh.paused.discard)(name)
                return mesh.schedule(name)
            case ["enrolment", node, "approve" | "reject" as word]:
                self.need("admin")
                return mesh.decide(urllib.parse.unquote(node), json.loads(self.body)["fingerprint"], word)
            case ["instances", node, "enable" | "disable" as word]:
                self.need("admin")
                return mesh.enable(urllib.parse.unquote(node), word == "enable")
        raise Refused(404, "not_found", "there is nothing of that name")

    def sign_in(self):
        level = json.loads(self.body)["token"]
        if level not in LEVELS[1:]:
            raise Refused(401, "unauthorized", "there is no such token")
        key = secrets.token_hex(16)
        self.server.sessions[key] = (f"anna-{level}", level, secrets.token_hex(16))
        self.head(204, {"Set-Cookie": f"session={key}; HttpOnly; SameSite=Strict"})
        return NotImplemented

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """One life of the node: its sessions end with it, its mesh does not."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, mesh, port=0):
        self.mesh, self.sessions, self.is_over, self.open = mesh, {}, False, set()
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.open.discard(request)
        super().shutdown_request(request)

    def drop(self):
        """Ends all connections, as a network does."""
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def end(self):
        self.is_over = True
        self.shutdown()
        self.server_close()
        self.drop()


class Node:
    """A node that can be restarted."""

    def __init__(self, *mesh, **more):
        self.mesh = Mesh(*mesh, **more)
        self.server = Server(self.mesh)
        self.port = self.server.server_address[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}{PREFIX}"

    def stop(self):
        self.server.end()

    def start(self):
        self.server = Server(self.mesh, self.port)

    def drop(self):
        self.server.drop()


class Remote(http.server.ThreadingHTTPServer):
    """Does to a node what a test in the browser asks for: POST /WORD with a JSON list of arguments."""

    daemon_threads = True

    def __init__(self, node):
        class Asked(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                words = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                word = self.path.removeprefix("/")
                getattr(node if hasattr(node, word) else node.mesh, word)(*words)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Asked)
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


if __name__ == "__main__":
    shown = Node(*map(int, sys.argv[1:] or ["30", "1000"]))
    print(f"{shown.url} (tokens: read, operate, admin)", flush=True)
    threading.Event().wait()
