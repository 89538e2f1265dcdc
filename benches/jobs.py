#!/usr/bin/env python3
"""Measure what a job costs, on a line control - hop - exec of processes on loopback.

    benches/jobs.py --bin meshd=target/dist/meshd [--bin go=OTHER] [--rounds 3] [--only latency,jobs]

Every binary gets the same configuration and the same requests over its control socket; with several, they take
turns and ratios against the last one are printed. Clients are processes of their own that write and read sockets
and nothing else, so that they do not limit what is measured; what they use is printed beside. Only the standard
library is used; all traffic stays on 127.0.0.1; every process that is started is ended by its process ID.
Figures, for each binary:

  local_ms, remote_ms     one `echo` at a time, submission until the end of its results: median and p99
  local_jobs, remote_jobs jobs per second at --clients clients: `cat` of a small payload, its output checked,
                          and released; with CPU milliseconds per job of each party
  results_mbs             256 MiB of a finished local unit's results, MB/s
  list_ms                 start until `work list` has answered with --units finished units on disk (ours only)
  slow_kib                memory that a node gains while a reader of a 10 GB output reads nothing for a while
"""
import argparse, json, multiprocessing, os, shutil, signal, socket, statistics, subprocess, sys
import tempfile, time

CLK = os.sysconf("SC_CLK_TCK")
GREETING = b"Receptor Control, node "


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Control:
    """A connection to a control socket, past its greeting."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(300)
        self.s.connect(path)
        self.buffer = b""
        hello = self.line()
        if not hello.startswith(GREETING):
            raise RuntimeError(f"bad greeting {hello!r}")

    def line(self):
        parts = [self.buffer]
        while b"\n" not in parts[-1]:
            parts.append(self.s.recv(1 << 18))
            if not parts[-1]:
                raise RuntimeError("connection closed")
        line, self.buffer = b"".join(parts).split(b"\n", 1)
        if line.startswith(b"ERROR"):
            raise RuntimeError(line.decode())
        return line

    def ask(self, line):
        self.s.sendall(line)
        return self.line()

    def rest(self):
        """What comes until the other side closes."""
        parts = [self.buffer]
        while more := self.s.recv(1 << 18):
            parts.append(more)
        return b"".join(parts)

    def close(self):
        self.s.close()


def command(path, line):
    c = Control(path)
    answer = c.ask(line)
    c.close()
    return json.loads(answer)


def submit(path, request, payload):
    c = Control(path)
    unit = c.ask(request).split(b" ID ", 1)[1].split(b".", 1)[0]
    c.s.sendall(payload)
    c.s.shutdown(socket.SHUT_WR)
    c.line()
    c.close()
    return unit


def results(path, unit):
    c = Control(path)
    c.ask(b"work results %s 0\n" % unit)
    output = c.rest()
    c.close()
    return output


def release(path, unit):
    c = Control(path)
    c.ask(b"work release %s\n" % unit)
    c.close()


def request(node, worktype, params=None):
    fields = {"command": "work", "subcommand": "submit", "node": node, "worktype": worktype}
    if params:
        fields["params"] = params
    return json.dumps(fields).encode() + b"\n"


def client(path, node, jobs, number, go, done):
    """One client of the throughput figure; says what went wrong, and the CPU seconds it used."""
    line, wrong = request(node, "cat"), []
    go.wait()
    before = sum(os.times()[:2])
    for i in range(jobs):
        payload = b"client %d job %d\n" % (number, i) * 5
        try:
            unit = submit(path, line, payload)
            output = results(path, unit)
            if output != payload:
                wrong.append(f"{unit}: {len(output)} bytes of {len(payload)}")
            release(path, unit)
        except (OSError, RuntimeError) as error:
            wrong.append(repr(error))
    done.put((wrong, sum(os.times()[:2]) - before))


def stat(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()


def cpu(pid, dead_children=False):
    fields = stat(pid)
    return sum(map(int, fields[11:15] if dead_children else fields[11:13])) / CLK


def children(pid):
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and stat(name)[1] == str(pid):
                found.append(int(name))
        except OSError:
            continue
    return found


def memory(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


class Mesh:
    """control - hop - exec, each a process of its own; control runs work too."""

    NAMES = ("control", "hop", "exec")

    def __init__(self, binary):
        self.binary, self.dir, self.procs = binary, tempfile.mkdtemp(prefix="jobs"), {}
        ports = [free_port() for _ in self.NAMES]
        for i, name in enumerate(self.NAMES):
            cfg = [
                {"node": {"id": name, "datadir": f"{self.dir}/data"}},
                {"log-level": "error"},
                {"control-service": {"service": "control", "filename": self.sock(name)}},
                {"tcp-listener": {"port": ports[i], "bindaddr": "127.0.0.1"}},
            ]
            if i > 0:
                cfg.append({"tcp-peer": {"address": f"127.0.0.1:{ports[i - 1]}"}})
            if name != "hop":
                for kind, program, params in (("echo", "echo", "hello"), ("cat", "cat", ""), ("sh", "sh", "")):
                    work = {"worktype": kind, "command": program, "params": params, "allowruntimeparams": True}
                    cfg.append({"work-command": work})
            with open(self.file(name), "w") as f:
                json.dump(cfg, f)
        for name in self.NAMES:
            self.start(name)
        self.wait(lambda: self.sees_exec(), 90)

    def file(self, name):
        return f"{self.dir}/{name}.yml"

    def sock(self, name):
        return f"{self.dir}/{name}.sock"

    def start(self, name):
        with open(f"{self.dir}/{name}.log", "a") as log:
            args = [self.binary, "--config", self.file(name)]
            self.procs[name] = subprocess.Popen(args, stdout=log, stderr=log, start_new_session=True)
        self.wait(lambda: os.path.exists(self.sock(name)) and command(self.sock(name), b"status\n"), 20)

    def sees_exec(self):
        status = command(self.sock("control"), b"status\n")
        adverts = status.get("Advertisements") or []
        seen = any(a["NodeID"] == "exec" and a.get("WorkCommands") for a in adverts)
        return seen and "exec" in (status.get("RoutingTable") or {})

    @staticmethod
    def wait(condition, limit):
        end = time.perf_counter() + limit
        while True:
            try:
                if condition():
                    return
            except (OSError, RuntimeError):
                pass
            if time.perf_counter() > end:
                raise SystemExit("the mesh does not come up")
            time.sleep(0.001)

    def end(self, name, how=signal.SIGTERM):
        proc = self.procs.pop(name)
        proc.send_signal(how)
        proc.wait(20)

    def stop(self):
        for name in list(self.procs):
            self.end(name)
        shutil.rmtree(self.dir, ignore_errors=True)


def latency(mesh, node, count):
    path, line, times = mesh.sock("control"), request(node, "echo"), []
    for _ in range(count):
        begun = time.perf_counter()
        unit = submit(path, line, b"")
        output = results(path, unit)
        times.append((time.perf_counter() - begun) * 1e3)
        if output != b"hello\n":
            raise RuntimeError(f"wrong output {output!r}")
        release(path, unit)
    times.sort()
    return statistics.median(times), times[min(count - 1, int(count * 0.99))]


def throughput(mesh, node, clients, jobs):
    """Jobs per second, and CPU milliseconds per job of every party."""
    context = multiprocessing.get_context("fork")
    go, done = context.Event(), context.SimpleQueue()
    each = max(1, jobs // clients)
    args = [(mesh.sock("control"), node, each, number, go, done) for number in range(clients)]
    procs = [context.Process(target=client, args=a, daemon=True) for a in args]
    for proc in procs:
        proc.start()
    daemons = {name: mesh.procs[name].pid for name in mesh.NAMES}
    spawners = children(daemons["exec" if node == "exec" else "control"])
    used = lambda: {n: cpu(p) for n, p in daemons.items()} | {
        "commands": sum(cpu(p, dead_children=True) for p in spawners)
    }
    before, begun = used(), time.perf_counter()
    go.set()
    ends = [done.get() for _ in procs]
    took = time.perf_counter() - begun
    parts = {name: (now - before[name]) * 1e3 / (each * clients) for name, now in used().items()}
    parts["clients"] = sum(c for _, c in ends) * 1e3 / (each * clients)
    wrong = [w for all_wrong, _ in ends for w in all_wrong]
    if wrong:
        print(f"   {len(wrong)} jobs went wrong: {wrong[:3]}", file=sys.stderr)
    for proc in procs:
        proc.join()
    return each * clients / took, parts


def local_results(mesh):
    path, size = mesh.sock("control"), 256 << 20
    unit = submit(path, request("localhost", "sh", f"-c 'head -c {size} /dev/zero'"), b"")
    mesh.wait(lambda: command(path, b"work status %s\n" % unit)["State"] >= 2, 60)
    c = Control(path)
    begun, count = time.perf_counter(), 0
    c.ask(b"work results %s 0\n" % unit)
    count, buffer = len(c.buffer), bytearray(1 << 18)
    while got := c.s.recv_into(buffer):
        count += got
    took = time.perf_counter() - begun
    if count != size:
        raise RuntimeError(f"{count} bytes of {size}")
    c.close()
    release(path, unit)
    return size / 1e6 / took


def listing(mesh, units):
    """Copies one finished unit's directory many times while the node is down, and starts it again."""
    path = mesh.sock("control")
    unit = submit(path, request("localhost", "echo"), b"").decode()
    results(path, unit.encode())
    mesh.end("control")
    root = f"{mesh.dir}/data/control"
    for number in range(units - 1):
        shutil.copytree(f"{root}/{unit}", f"{root}/{number:08x}")
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        mesh.start("control")
        c = Control(path)
        answer = c.ask(b"work list\n")
        times.append((time.perf_counter() - begun) * 1e3)
        c.close()
        answer = json.loads(answer)
        if len(answer) != units or any(u["State"] != 2 for u in answer.values()):
            raise RuntimeError(f"the list has {len(answer)} units of {units}, or not all are as they were")
        mesh.end("control")
    shutil.rmtree(root)
    mesh.start("control")
    return min(times)


def slow_reader(mesh):
    """The output is a hole of 10 GB, which a unit makes in no time."""
    path, pid = mesh.sock("control"), mesh.procs["control"].pid
    size = 10 << 30
    unit = submit(path, request("localhost", "sh", f"-c 'truncate -s {size} /proc/self/fd/1'"), b"")
    mesh.wait(lambda: command(path, b"work status %s\n" % unit)["State"] >= 2, 60)
    # What one ordinary reader of a finished unit brings in once and for all is no part of the figure.
    c = Control(path)
    c.ask(b"work results %s %d\n" % (unit, size - (4 << 20)))
    c.rest()
    c.close()
    before = memory(pid)
    readers = [Control(path) for _ in range(4)]
    highest = 0
    for c in readers:
        c.ask(b"work results %s 0\n" % unit)
    for _ in range(40):
        readers[0].s.recv(4096)
        highest = max(highest, memory(pid))
        time.sleep(0.025)
    for c in readers:
        c.close()
    release(path, unit)
    return max(0, highest - before) / len(readers)


def measure(binary, ours, a):
    want = a.only.split(",") if a.only else ["latency", "jobs", "results", "list", "slow"]
    found, mesh = {}, Mesh(binary)
    try:
        for node, where in (("localhost", "local"), ("exec", "remote")):
            if "latency" in want:
                latency(mesh, node, 3)
                found[f"{where}_ms"], found[f"{where}_p99_ms"] = latency(mesh, node, a.n if ours else a.n // 10)
            if "jobs" in want:
                rate, parts = throughput(mesh, node, a.clients, a.jobs if ours else a.jobs // 10)
                found[f"{where}_jobs"] = rate
                found |= {f"  {where} {name} cpu_ms": used for name, used in parts.items()}
        if "results" in want:
            found["results_mbs"] = local_results(mesh)
        if "slow" in want and ours:
            found["slow_kib"] = slow_reader(mesh)
        if "list" in want and ours:
            found["list_ms"] = listing(mesh, a.units)
    finally:
        mesh.stop()
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", action="append", required=True, help="NAME=PATH; the name go makes fewer jobs")
    ap.add_argument("--rounds", type=int, default=1)
    ap.add_argument("--clients", type=int, default=10)
    ap.add_argument("-n", type=int, default=100, help="jobs for each latency")
    ap.add_argument("--jobs", type=int, default=1000, help="jobs for each rate")
    ap.add_argument("--units", type=int, default=10_000)
    ap.add_argument("--only", help="latency,jobs,results,list,slow")
    a = ap.parse_args()
    bins = dict(b.partition("=")[::2] for b in a.bin)
    runs = {name: [] for name in bins}
    for _ in range(a.rounds):
        for name, path in bins.items():
            runs[name].append(measure(os.path.abspath(path), name != "go", a))
    keys = list(dict.fromkeys(key for name in bins for run in runs[name] for key in run))
    last = list(bins)[-1]
    print(f"{'':26}" + "".join(f"{name:>12}" for name in bins))
    for key in keys:
        value = {n: statistics.median([r[key] for r in runs[n] if key in r] or [float("nan")]) for n in bins}
        row = f"{key:26}" + "".join(f"{value[name]:12.2f}" for name in bins)
        if len(bins) > 1 and value[last]:
            row += "".join(f"   {value[name] / value[last]:.3f}" for name in bins if name != last)
        print(row)


if __name__ == "__main__":
    main()
