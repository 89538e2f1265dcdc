#!/usr/bin/env python3
"""Measure whole meshes of processes of any receptor-compatible binary on loopback.

    benches/mesh.py --bin meshd=target/dist/meshd [--bin go=OTHER] [--graph 100] [--ring 30]

Every binary gets the same version-1 configuration. Only the standard library is used; all traffic stays on
127.0.0.1; every process that is started is ended by its process ID. Figures, for each binary in turn:

  graph N   a random graph, two uplinks for each node, nodes started one after the other
    full_s        last start until every node has a route to every other
    rss_mib       resident memory of a node, mean and largest, once all is quiet
    idle_ms_s     CPU milliseconds a node uses per second, mean over ten quiet seconds
    status_ms     time of a `status` of the first node, median of 20
  ring N    a ring
    gone_s        SIGKILL of a node until no other node has a route to it, or a link with it
"""
import argparse, json, os, random, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

CLK = os.sysconf("SC_CLK_TCK")


def free_port(taken=set()):
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        if port not in taken:
            taken.add(port)
            return port


class Mesh:
    """Nodes n0, n1, …; each dials the earlier ones that `uplinks` names for it."""

    def __init__(self, binary, uplinks, pause=0.0):
        self.dir = tempfile.mkdtemp(prefix="mesh")
        self.size = len(uplinks)
        self.ports = [free_port() for _ in uplinks]
        self.procs, self.controls = [], {}
        for i, peers in enumerate(uplinks):
            cfg = [
                {"node": {"id": f"n{i}", "datadir": f"{self.dir}/data"}},
                {"log-level": "error"},
                {"control-service": {"service": "control", "filename": self.sock(i)}},
                {"tcp-listener": {"port": self.ports[i], "bindaddr": "127.0.0.1"}},
            ]
            cfg += [{"tcp-peer": {"address": f"127.0.0.1:{self.ports[p]}"}} for p in peers]
            path = f"{self.dir}/n{i}.yml"
            with open(path, "w") as f:
                json.dump(cfg, f)
            log = open(f"{self.dir}/n{i}.log", "w")
            self.procs.append(subprocess.Popen([binary, "--config", path], stdout=log, stderr=log))
            log.close()
            time.sleep(pause)

    def sock(self, i):
        return f"{self.dir}/n{i}.sock"

    def status(self, i, fields=("RoutingTable", "KnownConnectionCosts")):
        """A node's status over a connection that is kept; None while the node does not answer."""
        try:
            if i not in self.controls:
                s = socket.socket(socket.AF_UNIX)
                s.settimeout(20)
                s.connect(self.sock(i))
                f = s.makefile("rwb")
                f.readline()
                self.controls[i] = (s, f)
            _, f = self.controls[i]
            f.write(json.dumps({"command": "status", "requested_fields": list(fields)}).encode() + b"\n")
            f.flush()
            return json.loads(f.readline())
        except (OSError, ValueError):
            self.controls.pop(i, None)
            return None

    def wait(self, what, condition, limit, nodes=None):
        """Seconds until the condition holds for the status of each node, or None."""
        start, left = time.perf_counter(), list(nodes or range(self.size))
        while left:
            for i in list(left):
                status = self.status(i)
                if status and condition(status):
                    left.remove(i)
                else:
                    break
            if time.perf_counter() - start > limit:
                print(f"   {what}: {len(left)} of {self.size} nodes not after {limit} s", file=sys.stderr)
                return None
            time.sleep(0.005)
        return time.perf_counter() - start

    def cpu(self, i):
        with open(f"/proc/{self.procs[i].pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / CLK

    def rss(self, i):
        with open(f"/proc/{self.procs[i].pid}/status") as f:
            return next(int(l.split()[1]) / 1024 for l in f if l.startswith("VmRSS"))

    def stop(self):
        for p in self.procs:
            if p.poll() is None:
                p.terminate()
        for p in self.procs:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def graph(binary, size, seed, limit, settle):
    rng = random.Random(seed)
    mesh = Mesh(binary, [rng.sample(range(i), min(i, 2)) for i in range(size)])
    try:
        out = {"full_s": mesh.wait("full tables", lambda s: len(s["RoutingTable"]) == size - 1, limit)}
        time.sleep(settle)
        before, t = [mesh.cpu(i) for i in range(size)], time.perf_counter()
        time.sleep(10)
        took = time.perf_counter() - t
        used = [(mesh.cpu(i) - b) * 1000 / took for i, b in enumerate(before)]
        out["idle_ms_s"] = statistics.mean(used)
        rss = [mesh.rss(i) for i in range(size)]
        out["rss_mib"], out["rss_max_mib"] = statistics.mean(rss), max(rss)
        times = []
        for _ in range(20):
            t = time.perf_counter()
            mesh.status(0)
            times.append((time.perf_counter() - t) * 1000)
        out["status_ms"] = statistics.median(times)
        return out
    finally:
        mesh.stop()


def ring(binary, size, limit):
    uplinks = [[i - 1] if i else [] for i in range(size)]
    uplinks[-1].append(0)
    mesh = Mesh(binary, uplinks)
    try:
        if mesh.wait("full tables", lambda s: len(s["RoutingTable"]) == size - 1, limit) is None:
            return {}
        time.sleep(3)
        victim = size // 2
        others = [i for i in range(size) if i != victim]
        for i in others:
            mesh.status(i)
        mesh.procs[victim].send_signal(signal.SIGKILL)
        mesh.procs[victim].wait()
        name = f"n{victim}"
        gone = lambda s: name not in s["RoutingTable"] and not any(name in peers for peers in s["KnownConnectionCosts"].values())
        return {"gone_s": mesh.wait("the dead node is gone", gone, 60, others)}
    finally:
        mesh.stop()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", action="append", required=True, help="NAME=PATH or PATH")
    ap.add_argument("--graph", type=int, default=0, metavar="N")
    ap.add_argument("--ring", type=int, default=0, metavar="N")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--limit", type=float, default=60, help="seconds to wait for full tables")
    ap.add_argument("--settle", type=float, default=5, help="seconds of quiet before idle figures are taken")
    a = ap.parse_args()
    for spec in a.bin:
        name, _, path = spec.partition("=")
        path = os.path.abspath(path or name)
        rows = {}
        if a.graph:
            rows.update({f"graph {a.graph} {k}": v for k, v in graph(path, a.graph, a.seed, a.limit, a.settle).items()})
        if a.ring:
            rows.update({f"ring {a.ring} {k}": v for k, v in ring(path, a.ring, a.limit).items()})
        for key, value in rows.items():
            print(f"{name:10} {key:24} " + ("never" if value is None else f"{value:10.3f}"), flush=True)


if __name__ == "__main__":
    main()
