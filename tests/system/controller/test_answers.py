"""What a node answers, key by key: recorded answers of every operation of a controller and of the control commands whose
keys are our own. An answer may have more keys than its record; none goes, and none changes.

`RECORD_ANSWERS=1` writes the records (`tests/vectors/answers`) from the programs that are there.
"""

import json
import os
import pathlib
import re

import pytest

from client import ControlError
from mesh import own_runner, until
from test_controller import runner, stream

VECTORS = pathlib.Path(__file__).parents[2] / "vectors" / "answers"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
CHILD = re.compile(r"c[0-9a-f]{8}n(\d+)a(\d+)r[0-9a-f]{8}")
#: Their values differ from run to run; what they are does not.
VARYING = {
    "elapsed", "bytes", "SystemCPUCount", "SystemMemoryMiB", "Counters", "Tables", "RTT", "ProbeLoss", "QueuedBytes",
    "Session", "Time", "TimeStr", "PacketsIn", "PacketsOut", "BytesIn", "BytesOut", "Told", "Pid", "OutputFrom", "OutputStarts",
    "output_bytes", "size", "Address",
}


@pytest.fixture
def nodes(mesh, tmp_path):
    """A control node without a group of its own, and an execution node that discovery finds."""
    settings = {"discovery": "disabled", "heartbeat": "200ms", "ownerlostafter": "10s", "rundir": str(tmp_path), "poll": "1s"}
    mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    return mesh.start()


class Recorder:
    """Asks, and keeps each answer under a name."""

    def __init__(self, node, directory):
        self.node, self.directory, self.said, self.units = node, str(directory), {}, {}

    def shape(self, value, key=""):
        """The answer with its times, numbers and places replaced."""
        if key == "RTT" and value is None:
            # Not known yet.
            value = 0
        if key in VARYING and value is not None:
            if isinstance(value, dict):
                return {name: "VARIES" for name in value}
            return f"A {type(value).__name__.replace('float', 'number').replace('int', 'number')}"
        if isinstance(value, dict):
            return {self.units.get(name, name): self.shape(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [self.shape(one) for one in value]
        if isinstance(value, str):
            for unit, name in self.units.items():
                value = value.replace(unit, name)
            value = CHILD.sub(r"CHILD-\1-\2", TIME.sub("TIME", value)).replace(self.directory, "DIR")
            if key == "install":
                return "INSTALL"
            return "VERSION" if key in ("version", "Version") and value != "2.4.0" else value
        return value

    def command(self, record, line):
        try:
            answer = self.node.command(line)
        except ControlError as error:
            answer = {"ERROR": str(error)}
        self.said[record] = self.shape(answer)
        return answer

    def ask(self, record, op, /, **arguments):
        return self.command(record, {"command": "controller", "op": op, **arguments}).get("result")

    def until(self, what, op, condition, /, **arguments):
        def holds():
            answer = self.node.command({"command": "controller", "op": op, **arguments})
            return answer["ok"] and condition(answer["result"])

        until(what, holds, 60)

    def submit(self, name, header, **kwargs):
        with self.node.control() as client:
            answer = client.submit("control", "controller", stream(header, **kwargs))
        self.units[answer["unitid"]] = name
        return self.node.unit(answer["unitid"])["ExtraData"]["JobID"]


HEADER = {
    "name": "site", "key": "ci-1", "labels": {"team": "a"}, "forks": 3, "hosts": 7, "slice": [1, 2], "impact": 4,
    "groups": {"template": ["default"], "prevent_fallback": ["template"]}, "priority": 5, "exclusive": ["site"],
    "pending_timeout": "1h", "timeout": "90m", "output_limit": 1000000, "lost_after": "10m",
    "retry": {"max": 1, "on": ["lost", "error"], "unconfirmed": True},
    "runner": {"image": "quay.io/x/y:1", "pull": "missing", "isolation": False, "options": ["--network=none"], "keepalive": 30},
}


def instances(say):
    say.until("e1 to be found", "instance.list", lambda found: [one["name"] for one in found["found"]] == ["e1"], found=True)
    say.ask("found", "instance.list", found=True)
    say.until("control", "instance.get", lambda one: one["capacity"] > 0, name="control")
    say.ask("ping", "ping")
    say.node.command({"command": "controller", "op": "instance.enable", "name": "e1"})
    say.until("e1", "instance.get", lambda one: one["capacity"] > 0 and one["groups"], name="e1")
    say.ask("instances", "instance.list")
    say.ask("instances, none found", "instance.list", found=None)
    say.ask("instance", "instance.get", name="e1")
    say.ask("health that is not stored", "instance.health", name="e1", store=False)
    say.ask("a new instance", "instance.add", name="absent", node_type="execution", enabled=False)
    say.ask("a new hop", "instance.add", name="far", node_type="hop")
    say.ask("an instance that exists", "instance.add", name="absent")
    say.ask("a node type", "instance.add", name="b", node_type="control")
    say.ask("enabled", "instance.enable", name="absent")
    say.ask("disabled", "instance.disable", name="absent")
    say.ask("set", "instance.set", name="absent", capacity_adjustment=0.25, managed_by_policy=False)
    say.ask("health", "instance.health", name="absent")
    say.ask("ping with instances", "ping")
    say.ask("removed", "instance.remove", name="absent")
    say.ask("dead", "instance.remove", name="far", dead=True)
    say.ask("alive", "instance.remove", name="control", dead=True)
    say.ask("no instance", "instance.get", name="nobody")


def groups(say):
    settings = {"policy_instance_percentage": 50, "policy_instance_minimum": 1, "policy_instance_list": ["e1"], "max_concurrent_jobs": 3, "max_forks": 40}
    say.ask("a new group", "group.create", name="east", **settings)
    say.ask("a group that exists", "group.create", name="east")
    say.ask("a changed group", "group.set", name="east", policy_instance_percentage=0, policy_instance_list=[])
    say.ask("added", "group.add", name="east", instance="control")
    say.ask("taken out", "group.remove", name="east", instance="control")
    say.ask("pods of an ordinary group", "group.set", name="east", namespace="n")
    say.ask("pods elsewhere", "group.create", name="pods", is_container_group=True, cluster="nowhere", namespace="n", pod_spec_override="{}", registry="r")
    say.ask("a share", "group.set", name="east", policy_instance_percentage=101)
    say.ask("group", "group.get", name="default")
    say.ask("groups", "group.list")
    say.ask("policies that would run", "policy.run", dry_run=True)
    say.ask("policies", "policy.run")
    say.ask("no group", "group.get", name="nowhere")
    say.ask("a reserved group", "group.delete", name="default")
    say.ask("deleted group", "group.delete", name="east")


def jobs(say):
    say.ask("paused", "pause")
    stats = {"ok": {"web": 2, "db": 1}, "changed": {"web": 1}, "failures": {"db": 1}, "dark": {"gone": 1}, "skipped": {"web": 3}, "rescued": {"web": 1}, "ignored": {"web": 1}}
    number = say.submit("UNIT-1", HEADER, ident="a", lines=2, stats=stats, status="failed")
    say.until("what it waits for", "job.get", lambda one: "pause" in (one["explanation"] or ""), id=number)
    say.ask("a pending job", "job.get", id=number)
    say.ask("why it waits", "job.explain", id=number)
    second = say.submit("UNIT-2", {"depends_on": [number, {"key": "ci-1"}], "rerun": False})
    say.until("what it waits for", "job.get", lambda one: one["explanation"], id=second)
    say.ask("jobs", "job.list")
    say.ask("why another waits", "job.explain", id=second)
    say.ask("a cancelled job", "job.cancel", id=second)
    say.ask("resumed", "resume")
    say.until("its end", "job.get", lambda one: one["finished"] and one["output_bytes"] and one["attempts"][0]["ended"] and one["host_counts"], id=number)
    say.ask("a job that ended", "job.get", id=number)
    say.ask("why it ended", "job.explain", id=number)
    say.ask("hosts", "job.hosts", id=number)
    say.ask("a page of hosts", "job.hosts", id=number, **{"from": 1}, limit=1)
    every = {"state": ["failed"], "kind": ["job"], "name": "s", "group": "default", "node": "e1", "label": {"team": "a"}, "since": "2020-01-01T00:00:00Z", "until": "2120-01-01T00:00:00Z", "before": 1000, "limit": 5}
    say.ask("chosen jobs", "job.list", **every)
    say.ask("a page of jobs", "job.list", limit=1)
    say.ask("output", "job.output", id=number, **{"from": 3})
    say.ask("output of an attempt", "job.output", id=number, attempt=1, follow=True)
    say.ask("events", "job.events", id=number, host="web", failed=False)
    say.node.command({"command": "controller", "op": "pause"})
    again = say.ask("a job again", "job.rerun", id=number)
    hosts = say.ask("a job again on some hosts", "job.rerun", id=number, failed_hosts=True)
    say.node.command({"command": "controller", "op": "resume"})
    for name, one in [("a job again", again), ("a job again on some hosts", hosts)]:
        # It may have been explained before it was answered.
        say.said[name]["result"] |= {"unit": "NEW", "explanation": "A str"}
        say.until("its end", "job.get", lambda one: one["finished"], id=one["id"])
    unit = next(unit for unit, name in say.units.items() if name == "UNIT-1")
    until("the unit's end", lambda: say.node.unit(unit)["StateName"] == "Failed")
    say.command("status of a job's unit", f"work status {unit}")
    say.command("list of a job's unit", f"work list {unit}")
    # Its attempt is released first.
    until("it to be deleted", lambda: say.ask("deleted job", "job.delete", id=hosts["id"]) is not None)
    say.ask("no job", "job.get", id=999)
    say.ask("no such attempt", "job.output", id=number, attempt=7)
    say.ask("an attempt that is not lost", "job.confirm_lost", id=number, attempt=1)


def whole(say, directory):
    say.ask("cleanup", "cleanup")
    say.ask("backup", "backup", path=str(directory / "backup.db"))
    say.ask("clock", "clock.confirm")
    say.ask("the same backup", "backup", path=str(directory / "backup.db"))
    for name, asked in {
        "no operation": {},
        "an unknown operation": {"op": "job.fly"},
        "an operation that is a number": {"op": 3},
        "an argument too many": {"op": "ping", "loud": True},
        "an argument too few": {"op": "job.get"},
        "a number that is a text": {"op": "job.get", "id": "one"},
        "a name that is empty": {"op": "instance.get", "name": ""},
        "a flag that is a number": {"op": "instance.list", "found": 1},
        "a state that is none": {"op": "job.list", "state": ["asleep"]},
        "a kind that is none": {"op": "job.list", "kind": ["nap"]},
        "a time that is none": {"op": "job.list", "since": "yesterday"},
        "a label that is none": {"op": "job.list", "label": {"a": 1}},
        "a place below zero": {"op": "job.hosts", "id": 1, "from": -1},
        "a relative path": {"op": "backup", "path": "backup.db"},
        "an adjustment below zero": {"op": "instance.set", "name": "e1", "capacity_adjustment": -1},
    }.items():
        say.command(name, {"command": "controller", **asked})


def node(say):
    say.command("status", "status")
    say.command("parts of a status", {"command": "status", "requested_fields": ["Links", "Counters", "Tables", "NodeID"]})
    say.command("ping of a node", {"command": "ping", "target": "e1"})
    say.command("ping of nobody", {"command": "ping", "target": "nobody"})
    say.command("traceroute", {"command": "traceroute", "target": "e1"})
    say.command("loglevel", "loglevel")
    say.command("no unit", "work status nothing")
    with say.node.control() as client:
        unit = client.submit("e1", "ansible-runner", stream(None, ident="r"))["unitid"]
    say.units[unit] = "UNIT-5"
    until("its end", lambda: say.node.unit(unit)["State"] > 1)
    answer = say.node.unit(unit)
    say.units[answer["ExtraData"]["RemoteUnitID"]] = "UNIT-6"
    say.command("a unit elsewhere", f"work status {unit}")
    say.command("a unit elsewhere in a list", f"work list {unit}")


def difference(record, answer, path=""):
    """Where an answer lacks what its record has, or says something else."""
    if isinstance(record, dict) and isinstance(answer, dict):
        for key, value in record.items():
            if key not in answer:
                yield f"{path}.{key} is gone"
            else:
                yield from difference(value, answer[key], f"{path}.{key}")
    elif isinstance(record, list) and isinstance(answer, list) and len(record) == len(answer):
        for at, (one, other) in enumerate(zip(record, answer, strict=True)):
            yield from difference(one, other, f"{path}[{at}]")
    elif record != answer:
        yield f"{path} was {record!r} and is {answer!r}"


@pytest.mark.parametrize("part", [instances, groups, jobs, whole, node], ids=lambda part: part.__name__)
def test_answers_have_what_their_records_have(nodes, tmp_path, part):
    say = Recorder(nodes["control"], tmp_path)
    if part is not instances:
        instances(Recorder(nodes["control"], tmp_path))
    part(*([say, tmp_path] if part is whole else [say]))
    file = VECTORS / f"{part.__name__}.json"
    if "RECORD_ANSWERS" in os.environ:
        file.write_text(json.dumps(say.said, indent=1) + "\n")
    records = json.loads(file.read_text())
    assert len(records) >= 7 and records.keys() == say.said.keys()
    for name, record in records.items():
        if record.get("error", {}).get("code") == "bad_request":
            # It is said in words for people, which may become better.
            record["error"].pop("message")
        assert list(difference(record, say.said[name])) == [], name
