#!/usr/bin/env python3
"""Measure jobs of the controller, on a line control - hop - exec of processes on loopback.

    benches/controller.py [--bin target/dist/meshd] [--rounds 3] [--only start,rate,idle,output,saturated] [--postgresql]
                          [--slow-disk 5]

A native stand-in for ansible-runner, compiled here, speaks the runner's stream. Beside each figure stands that of a plain
`work submit` of the same program over the same mesh in the same run. With --postgresql two control nodes share a database
that is started for it, and clients ask both in turns. With --slow-disk each flush of every node takes so many milliseconds
longer (benches/slowdisk.c). Figures:

  start   from the beginning of a submission to the first instruction of the runner on `exec`, milliseconds
  rate    jobs per second at --clients clients that submit, read all of the output, and release
  idle    memory of a control node with and without the controller, MiB
  output  memory that 1 GB of one job's output adds to the control node at its highest, MiB
  saturated  a hybrid alone on this machine, as full of jobs of 5 busy threads as its capacity allows: milliseconds of a
             submission, and of `meshctl job cancel` of 100 jobs that wait. Nothing plain stands beside these. All
             processes are in one group of processors (cgroup v1), as those of a service are; without that, the kernel
             gives each session its share (sched_autogroup_enabled), and niceness means nothing between sessions
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/system"), str(ROOT / "benches")]

from flushes import library  # noqa: E402
from jobs import command, release, results, submit  # noqa: E402
from mesh import Mesh, command_type, until  # noqa: E402
from postgres import Postgres  # noqa: E402

RUNNER = ROOT / "target/stand-in-runner"
#: What makes the disks of nodes slow, if they are to be.
SLOW_DISK = {}


def stream(**kwargs):
    lines = [{"kwargs": {"ident": "bench", "playbook": "site.yml", **kwargs}}, {"eof": True}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def request(node, worktype, **params):
    return json.dumps({"command": "work", "subcommand": "submit", "node": node, "worktype": worktype, **params}).encode() + b"\n"


HEADER = json.dumps({"controller": 1, "name": "site.yml"})
PLAIN, PAYLOAD = request("exec", "ansible-runner"), stream()


def job(path):
    """The request for a job on the control node behind this socket, as `meshctl job run` sends it."""
    return request(pathlib.Path(path).parent.name, "controller", header=HEADER)


def build(program, with_controller=True, database=None):
    """control (or two) - hop - exec."""
    mesh = Mesh()
    mesh.variables |= SLOW_DISK
    work = [command_type(name, str(RUNNER), "worker", runtime=True) for name in ("local", "ansible-runner")]
    mesh.node("hop", listen=True, program=program, level="error")
    names = ["control", "other"] if database else ["control"]
    for name in names:
        store = {"store": database} if database else {}
        directive = [{"work-controller": {"discovery": "enabled", "rundir": str(mesh.dir), **store}}] if with_controller else []
        mesh.node(name, peers=["hop"], work=work[:1], extra=directive, program=program, level="error")
    mesh.node("exec", peers=["hop"], work=work[1:], program=program, level="error")
    mesh.start()
    if with_controller:
        until("all instances to be ready", lambda: ready(mesh["control"]) == len(names) + 1, 60)
    return mesh, [str(mesh[name].socket) for name in names]


def ready(node):
    answer = node.command({"command": "controller", "op": "instance.list"})
    return sum(one["capacity"] > 0 for one in answer["result"]["instances"])


def starts(path, line, count):
    """Milliseconds from the beginning of a submission to the runner's."""
    times = []
    for _ in range(count):
        asked = time.time_ns()
        unit = submit(path, line, PAYLOAD)
        output = results(path, unit)
        times.append((json.loads(output.split(b"\n", 1)[0])["began"] - asked) / 1e6)
        release(path, unit)
    return sorted(times)


def client(path, line, count, go, done):
    wrong = []
    go.wait()
    for _ in range(count):
        try:
            unit = submit(path, line, PAYLOAD)
            if not results(path, unit).endswith(b'{"eof": true}\n'):
                wrong.append(f"{unit}: its output is not whole")
            release(path, unit)
        except (OSError, RuntimeError) as error:
            wrong.append(repr(error))
    done.put(wrong)


def rate(paths, line_of, clients, count):
    """Jobs per second."""
    context = multiprocessing.get_context("fork")
    go, done = context.Event(), context.SimpleQueue()
    each = max(1, count // clients)
    asked = [paths[n % len(paths)] for n in range(clients)]
    processes = [context.Process(target=client, args=(p, line_of(p), each, go, done), daemon=True) for p in asked]
    for process in processes:
        process.start()
    begun = time.perf_counter()
    go.set()
    wrong = [text for _ in processes for text in done.get()]
    took = time.perf_counter() - begun
    if wrong:
        raise SystemExit(f"{len(wrong)} jobs went wrong: {wrong[:3]}")
    return each * clients / took


def highest(node, reset=False):
    """The node's highest memory since the last reset, MiB."""
    process = pathlib.Path(f"/proc/{node.process.pid}")
    if reset:
        (process / "clear_refs").write_text("5")
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def idle(program, with_controller):
    mesh, _ = build(program, with_controller)
    try:
        return mesh["control"].rss() / (1 << 20)
    finally:
        mesh.end()
        mesh.remove()


def output(mesh, path, line, size):
    """(MiB that a job's output adds at the highest, seconds)"""
    before = highest(mesh["control"], reset=True)
    begun = time.perf_counter()
    unit = submit(path, line, stream(bytes=size))
    until("the job's end", lambda: command(path, b"work status %s\n" % unit)["State"] >= 2, 600, 0.2)
    took = time.perf_counter() - begun
    grown = highest(mesh["control"]) - before
    status = command(path, b"work status %s\n" % unit)
    if status["StdoutSize"] < size or status["State"] != 2:
        raise SystemExit(f"{status['StdoutSize']} bytes of {size}: {status['Detail']}")
    release(path, unit)
    return grown, took


def ask(node, op, **arguments):
    answer = node.command({"command": "controller", "op": op, **arguments})
    assert answer["ok"], answer
    return answer["result"]


def in_one_group_of_processors():
    """This process, and all that it starts. Returns whether that was possible."""
    group = pathlib.Path("/sys/fs/cgroup/cpu/meshd-bench")
    try:
        group.mkdir(exist_ok=True)
        (group / "tasks").write_text(str(os.getpid()))
    except OSError as error:
        print(f"not in one group of processors: {error}", file=sys.stderr)
        return False
    return True


def saturated(program, count):
    """(sorted milliseconds of submissions, milliseconds of a cancel of 100 jobs, jobs that run)"""
    mesh = Mesh()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    runner = f"{RUNNER} worker --cpus={os.cpu_count()} --memory={memory}"
    settings = {"nodetype": "hybrid", "runner": runner, "rundir": str(mesh.dir)}
    node = mesh.node("control", extra=[{"work-controller": settings}], program=program, level="error")
    mesh.start()
    try:
        until("the instance to be ready", lambda: ready(node) == 1, 60)
        path = str(node.socket)
        line, busy = job(path), stream(spin=5)
        while not (waits := ask(node, "job.list", state=["pending"], limit=1)["jobs"]) or "capacity" not in waits[0]["explanation"]:
            submit(path, line, busy)
            time.sleep(0.05)
        running = lambda: len(ask(node, "job.list", state=["running"], limit=1000)["jobs"])  # noqa: E731
        until("all that were placed to run", lambda: not ask(node, "job.list", state=["waiting"])["jobs"], 60)
        took = []
        for _ in range(count):
            begun = time.perf_counter()
            submit(path, line, busy)
            took.append((time.perf_counter() - begun) * 1000)
        pending = [str(one["id"]) for one in ask(node, "job.list", state=["pending"], limit=100)["jobs"]]
        assert len(pending) == 100, pending
        begun = time.perf_counter()
        words = ["meshctl", "--socket", path, "job", "cancel", *pending]
        subprocess.run(words, executable=program, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        cancelled = (time.perf_counter() - begun) * 1000
        return sorted(took), cancelled, running()
    finally:
        mesh.end()
        mesh.remove()


def measure(program, a, want):
    found = {}
    if "saturated" in want:
        took, cancelled, running = saturated(program, a.n)
        found[f"submission among {running} jobs, ms, median"] = [(statistics.median(took), 0)]
        found[f"submission among {running} jobs, ms, p99"] = [(took[int(a.n * 0.99)], 0)]
        found[f"cancel of 100 pending among {running} jobs, ms"] = [(cancelled, 0)]
    if not {"start", "rate", "idle", "output"} & set(want):
        return found
    if "idle" in want and not a.postgresql:
        found["idle MiB"] = [(idle(program, True), idle(program, False))]
    server = Postgres().start() if a.postgresql else None
    mesh, paths = build(program, True, server and server.url(server.database()))
    try:
        if "start" in want:
            starts(paths[0], PLAIN, 3), starts(paths[0], job(paths[0]), 3)
            pairs = [starts(paths[0], line, a.n) for line in (job(paths[0]), PLAIN)]
            found["start ms, median"] = [tuple(map(statistics.median, pairs))]
            found["start ms, p99"] = [tuple(times[int(a.n * 0.99)] for times in pairs)]
        if "rate" in want:
            rate(paths, job, a.clients, a.clients)
            found["jobs/s"] = [(rate(paths, job, a.clients, a.jobs), rate(paths, lambda _: PLAIN, a.clients, a.jobs))]
        if "output" in want:
            for line in (job(paths[0]), PLAIN):
                output(mesh, paths[0], line, 20_000_000)
            pairs = [output(mesh, paths[0], line, a.bytes) for line in (job(paths[0]), PLAIN)]
            found["output MiB"] = [tuple(grown for grown, _ in pairs)]
            found["output s"] = [tuple(took for _, took in pairs)]
    finally:
        mesh.end()
        mesh.remove()
        if server:
            server.remove()
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", default=ROOT / "target/dist/meshd", type=pathlib.Path)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--clients", type=int, default=10)
    ap.add_argument("-n", type=int, default=100, help="submissions for `start`")
    ap.add_argument("--jobs", type=int, default=500, help="jobs for `rate`")
    ap.add_argument("--bytes", type=int, default=1_000_000_000)
    ap.add_argument("--only", default="start,rate,idle,output")
    ap.add_argument("--postgresql", action="store_true")
    ap.add_argument("--slow-disk", type=int, default=0, help="milliseconds that each flush takes longer")
    a = ap.parse_args()
    if "saturated" in a.only:
        in_one_group_of_processors()
    RUNNER.parent.mkdir(exist_ok=True)
    subprocess.run(["rustc", "--edition", "2024", "-O", "-o", RUNNER, ROOT / "benches/stand_in/runner.rs"], check=True)
    if a.slow_disk:
        log = RUNNER.parent / "slowdisk.log"
        SLOW_DISK.update(LD_PRELOAD=library(RUNNER.parent), SLOWDISK_MS=str(a.slow_disk), SLOWDISK_LOG=str(log))
    runs = {}
    for _ in range(a.rounds):
        for name, pairs in measure(a.bin, a, a.only.split(",")).items():
            runs.setdefault(name, []).extend(pairs)
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores, {os.uname().release}\n")
    print("| | controller | plain `work submit` | ratio |\n|---|---|---|---|")
    for name, pairs in runs.items():
        ours, plain = (statistics.median(side) for side in zip(*pairs))
        beside = f"{plain:.1f} | {ours / plain:.2f}" if plain else " | "
        print(f"| {name} | {ours:.1f} ({min(p[0] for p in pairs):.1f} to {max(p[0] for p in pairs):.1f}) | {beside} |")


if __name__ == "__main__":
    main()
