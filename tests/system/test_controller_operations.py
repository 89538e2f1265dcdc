"""What operators ask of a control node: output and events as streams, reruns, retention, controller-admin, backups."""

import contextlib
import json
import subprocess
import sys

import pytest

from client import ControlError
from mesh import MESHCTL, RECEPTORCTL, command_type, environment, until
from test_controller import RUNNER, ask, ended, job, runner, stream, submit, wrote


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory):
    """A hybrid node by itself, whose history is short."""
    from conftest import scoped_mesh

    with scoped_mesh(request.node) as mesh:
        rundir = tmp_path_factory.mktemp("run")
        settings = {"nodetype": "hybrid", "discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "poll": "1s", "rundir": str(rundir)}
        settings |= {"requiretls": False, "cleanupevery": "0s"}
        mesh.node("control", work=[runner("local"), runner("ansible-runner")], extra=[{"work-controller": settings}])
        mesh.start()
        until("the instance to be ready", lambda: ask(mesh["control"], "instance.get", name="control")["capacity"] > 0, 60)
        yield mesh["control"]


@contextlib.contextmanager
def streamed(node, op, **arguments):
    """The line before a stream, and the file to read the rest from."""
    with node.control() as client:
        client.send({"command": "controller", "op": op, **arguments})
        answer = json.loads(client.line())
        assert answer["ok"], answer
        yield answer["result"], client


def output(node, number, **arguments):
    with streamed(node, "job.output", id=number, **arguments) as (_, rest):
        return rest.reader.read()


def test_output_and_events_of_a_running_job_are_followed_to_its_end(alone, tmp_path):
    go = tmp_path / "go"
    _, number = submit(alone, ident="s", lines=5, go=str(go))
    until("it to print", lambda: b'"s 5"' in output(alone, number))
    with streamed(alone, "job.output", id=number) as (line, rest):
        there = rest.reader.read()
        assert (line["from"], line["size"]) == (0, len(there))
        assert b'"s 5"' in there and b'"eof"' not in there, "it ends at what there was"
    with streamed(alone, "job.output", id=number, follow=True, **{"from": 10}) as (_, all_of_it), streamed(alone, "job.events", id=number, follow=True, **{"from": 3}) as (_, events):
        go.touch()
        followed, picked = all_of_it.reader.read(), events.reader.read()
    whole = until("the output", lambda: (text := alone.results(job(alone, number)["unit"])).endswith(b'{"eof": true}\n') and text)
    assert whole.startswith(wrote("s", 5)) and followed == whole[10:]
    assert [json.loads(line)["counter"] for line in picked.splitlines()] == [3, 4, 5]
    assert all(line in whole for line in picked.splitlines())
    with streamed(alone, "job.output", id=number, attempt=1) as (line, rest):
        assert rest.reader.read() == whole and line["size"] == len(whole)
    with streamed(alone, "job.events", id=number, failed=True) as (_, rest):
        assert rest.reader.read() == b""
    with alone.control() as client:
        for arguments, code in [({"id": number, "attempt": 2}, "not_found"), ({"id": 999}, "not_found"), ({"id": number, "from": -1}, "bad_request"), ({"id": number, "x": 1}, "bad_request")]:
            client.send({"command": "controller", "op": "job.output", **arguments})
            assert json.loads(client.line())["error"]["code"] == code, arguments
