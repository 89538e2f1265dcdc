"""Logs with fields: one filter follows a job over all nodes that have a part in it. Who floods a node does not fill its log."""

import contextlib
import json
import os
import re
import socket
import threading

import pytest

from mesh import command_type, free_port, own_runner, until
from peer import Peer
from test_controller import ask, ended, runner, submit


def site(mesh, tmp_path, log):
    settings = {"discovery": "enabled", "heartbeat": "200ms", "rundir": str(tmp_path), "poll": "200ms"}
    mesh.node("control", listen=True, extra=[{"log-format": log}, {"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")], extra=[{"log-format": log}])
    return mesh


def run_one(mesh):
    """Runs a job; its number and the unit of its attempt."""
    control = mesh["control"]
    until("an instance", lambda: any(one["name"] == "e1" and one["capacity"] > 0 for one in ask(control, "instance.list")["instances"]), 60)
    _, number = submit(control, ident="j", lines=3)
    one = ended(control, number)
    return number, one["attempts"][0]["unit"]


def test_a_job_s_number_and_unit_stand_in_the_lines_of_every_node(mesh, tmp_path):
    number, unit = run_one(site(mesh, tmp_path, "json").start())

    def lines(name):
        # The last one may be half written.
        whole, _, _ = mesh[name].log().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    for name in ("control", "e1"):
        of_job = until(f"lines of the job on {name}", lambda name=name: [
            line for line in lines(name) if line.get("job") == number and line.get("state") == "Succeeded" and line.get("unit") == unit])
        assert all(line["level"] == "info" and line["time"].endswith("Z") for line in of_job)
    # The job's own unit as well, which is on the control node alone: it ends after the job has, so its line may come last.
    until("a line of the job's own unit", lambda: any(
        line.get("job") == number and line.get("work_type") == "controller" for line in lines("control")))


class Journal:
    """Takes entries as the journal does."""

    def __init__(self, path):
        path.parent.mkdir(parents=True)
        self.socket, self.entries = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), []
        self.socket.bind(str(path))
        path.chmod(0o777)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while data := self.socket.recv(1 << 20):
            entry = {}
            while data:
                name, _, data = data.partition(b"\n")
                size = int.from_bytes(data[:8], "little")
                entry[name.decode()], data = data[8:8 + size].decode(), data[9 + size:]
            self.entries.append(entry)


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
def test_the_journal_gets_fields_and_standard_output_nothing(mesh, tmp_path):
    site(mesh, tmp_path, "journald")
    run = mesh.dir / "run"
    journal = Journal(run / "systemd" / "journal" / "socket")
    for node in mesh.nodes.values():
        node.prefix = ["unshare", "--mount", "sh", "-c", f"mount --bind {run} /run && exec \"$@\"", "sh"]
    number, unit = run_one(mesh.start())
    found = until("both nodes' lines", lambda: (lines := [
        one for one in journal.entries if one.get("MESHD_JOB") == str(number) and one.get("MESHD_UNIT") == unit and one["MESHD_STATE"] == "Succeeded"
    ]) and len(lines) == 2 and lines)
    assert all(one["PRIORITY"] == "6" and one["SYSLOG_IDENTIFIER"] == "meshd" and unit in one["MESSAGE"] for one in found)
    assert "INFO" not in mesh["control"].log()


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
def test_where_no_journal_listens_lines_are_for_people(mesh):
    node = mesh.node("n", extra=[{"log-format": "journald"}])
    (mesh.dir / "run").mkdir()
    node.prefix = ["unshare", "--mount", "sh", "-c", f"mount --bind {mesh.dir / 'run'} /run && exec \"$@\"", "sh"]
    node.start()
    node.logged("INFO ready node=n")


def test_who_floods_a_node_gets_some_of_its_lines_with_short_fields_and_a_count(mesh):
    port, many = free_port(), 1500
    proxy = {"tcp-server": {"bindaddr": "127.0.0.1", "port": port, "remotenode": "nowhere", "remoteservice": "x"}}
    node = mesh.node("n", listen=True, extra=[proxy]).start()
    with Peer(mesh.ports["n"], "evil") as evil:
        evil.introduce("n")
        # The log quotes what it cannot read.
        for _ in range(many):
            evil.update("x" * 15_000)
        for _ in range(many):
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as client:
                client.recv(1)

        def counted(kind):
            """Lines of a kind that were written, and those that were left out as far as that was told."""
            log = node.log()
            told = re.findall(rf'WARN lines left out: .* left_out=(\d+) like="{kind} \w+=.*"', log)
            return log.count(f"WARN {kind} "), sum(map(int, told))

        # Messages of a neighbour come faster than anything else.
        for kind, at_once in (("message dropped", 10), ("proxy connection refused", 500)):
            until(f"the count of {kind}", lambda kind=kind: sum(counted(kind)) == many, 60)
            assert at_once <= counted(kind)[0] < at_once + many / 6, counted(kind)
    assert max(map(len, re.findall(r"x+", node.log()))) <= 256
    # The node's other lines are written as before.
    node.stop()
    node.logged("INFO stopping")


def test_no_name_reads_as_a_field_or_as_what_a_terminal_obeys(mesh):
    node = mesh.node("n", listen=True).start()
    forged = "a cost=7.0 session=#9 peer=b"
    for name, shown in ((forged, f'"{forged}"'), ("x\u2028y\u202e\u2066\U000e0041", r"x\u{2028}y\u{202e}\u{2066}\u{e0041}")):
        with Peer(mesh.ports["n"], name) as peer:
            peer.introduce("n")
            node.logged(f" peer={shown} cost=1.0\n")
    assert not set(node.log()) & set("\u2028\u202e\u2066\U000e0041")


def test_each_error_of_a_failed_reload_has_a_line_and_a_long_path_hides_no_advice(mesh):
    node = mesh.node("n", listen=True, work=[command_type("sh", "sh", "-c", runtime=True)])
    deep = node.dir / ("d" * 200)
    deep.mkdir()
    node.config = deep / "c.yml"
    node.write_config()
    node.start()
    node.logged("docs/security.md says which lines close a mesh")
    node.directives += [{f"no-such-{number}": {}} for number in range(20)]
    node.write_config()
    assert node.command("reload")["Success"] is False
    for number in range(20):
        node.logged(f"no-such-{number}")
