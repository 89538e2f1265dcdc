#!/usr/bin/env python3
"""Measure what flushes cost one job: a disk on which each takes some milliseconds longer (benches/slowdisk.c).

    benches/flushes.py --bin meshd=target/dist/meshd [--bin before=OTHER] [--slow-disk 5] [-n 50]
    benches/flushes.py --bin meshd=target/dist/meshd --draw

The line of benches/jobs.py, its files in memory, a remote `echo` with some stdin, one at a time. Programs take turns, job
by job. For each program and disk:

  echo   submission until the end of the results, ms: median and p90
  first  submission until the first byte of the results, ms: median and p90
  count  flushes of one job until its results end, on the control and the execution node
  row    the longest row of them in which each begins after the end of the one before: what the job can have waited for

--draw prints the flushes of one job in order, with when each began and ended: docs/performance.md has a drawing made of
it.
"""
import argparse, os, statistics, subprocess, tempfile, time

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
PAYLOAD = b"some stdin\n" * 8


def library(directory):
    path = f"{directory}/slowdisk.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, f"{HERE}/slowdisk.c", "-ldl"], check=True)
    return path


class SlowMesh(jobs.Mesh):
    """The line of three nodes, each flush longer by so many milliseconds."""

    def __init__(self, binary, library, ms, directory):
        self.log = f"{directory}/flushes{time.monotonic_ns()}"
        os.environ |= {"LD_PRELOAD": library, "SLOWDISK_MS": str(ms), "SLOWDISK_LOG": self.log}
        try:
            super().__init__(binary)
        finally:
            for name in ("LD_PRELOAD", "SLOWDISK_MS", "SLOWDISK_LOG"):
                del os.environ[name]

    def flushes(self, since, until):
        """Those that began between two times, in order: begin and end in ms after the first time, node, call and file."""
        found = []
        with open(self.log) as log:
            for line in log:
                begun, ended, _, call, path = line.rstrip("\n").split(" ", 4)
                at, end = (int(t) / 1e3 - since * 1e3 for t in (begun, ended))
                node, _, inner = path.removeprefix(f"{self.dir}/data/").partition("/")
                unit, _, name = inner.partition("/")
                what = name or (f"{unit and 'unit' or 'units'}/")
                if 0 <= at <= (until - since) * 1e3:
                    found.append((at, end, node, call, what))
        return sorted(found)


def echo(mesh):
    """One job: when it began, its first byte came and its results ended."""
    path, begun, first, output = mesh.sock("control"), time.monotonic(), None, b""
    unit = jobs.submit(path, jobs.request("exec", "echo"), PAYLOAD)
    c = jobs.Control(path)
    c.ask(b"work results %s 0\n" % unit)
    more = c.buffer or c.s.recv(1 << 16)
    while more:
        first = first or time.monotonic()
        output += more
        more = c.s.recv(1 << 16)
    ended = time.monotonic()
    c.close()
    if output != b"hello\n":
        raise RuntimeError(f"wrong output {output!r}")
    jobs.release(path, unit)
    return begun, first, ended


def in_a_row(flushes):
    """The most that can have waited for each other: the one that ends first, then of those that begin later, and so on."""
    last, count = -1.0, 0
    for begun, ended, *_ in sorted(flushes, key=lambda f: f[1]):
        if begun >= last:
            last, count = ended, count + 1
    return count


def draw(name, mesh):
    begun, first, ended = echo(mesh)
    print(f"{name}: first byte after {(first - begun) * 1e3:.1f} ms, end after {(ended - begun) * 1e3:.1f} ms")
    for at, end, node, call, what in mesh.flushes(begun, ended):
        print(f"  {at:6.1f} to {end:6.1f}  {node:8}{call:10}{what}")


def quantiles(times):
    return statistics.median(times), sorted(times)[min(len(times) - 1, int(len(times) * 0.9))]


def figures(mesh, runs):
    counted = []
    for begun, _, ended in runs:
        flushes = mesh.flushes(begun, ended)
        on = lambda node: sum(f[2] == node for f in flushes)
        counted.append((on("control"), on("exec"), in_a_row(flushes)))
    return {
        "echo": quantiles([(ended - begun) * 1e3 for begun, _, ended in runs]),
        "first": quantiles([(first - begun) * 1e3 for begun, first, _ in runs]),
        "count": [statistics.median(c) for c in list(zip(*counted))[:2]],
        "row": [statistics.median(c[2] for c in counted)],
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", action="append", required=True, help="NAME=PATH")
    ap.add_argument("--slow-disk", type=float, default=5, metavar="MS", help="how much longer each flush takes")
    ap.add_argument("-n", type=int, default=50, help="jobs for each figure")
    ap.add_argument("--draw", action="store_true", help="print the flushes of one job instead")
    a = ap.parse_args()
    bins = dict(b.partition("=")[::2] for b in a.bin)
    # Flushes of files in memory take no time of their own.
    tempfile.tempdir = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="flushes") as directory:
        slow, meshes = library(directory), {}
        try:
            for name, path in bins.items():
                for ms in [a.slow_disk] if a.draw else [0, a.slow_disk]:
                    mesh = meshes[name, ms] = SlowMesh(os.path.abspath(path), slow, ms, directory)
                    for _ in range(5):
                        echo(mesh)
            if a.draw:
                for (name, _), mesh in meshes.items():
                    draw(name, mesh)
                return
            runs = {which: [] for which in meshes}
            for _ in range(a.n):
                for which, mesh in meshes.items():
                    runs[which].append(echo(mesh))
            print(f"{'ms a flush':12}{'figure':8}" + "".join(f"{name:>16}" for name in bins) + "   ratio")
            for ms in [0, a.slow_disk]:
                of = {name: figures(meshes[name, ms], runs[name, ms]) for name in bins}
                # Without a time of their own none lie side by side.
                for key in ("echo", "first", "count", "row") if ms else ("echo", "first"):
                    row = "".join(f"{' '.join(f'{v:.1f}' for v in of[name][key]):>16}" for name in bins)
                    ratio = of[list(bins)[0]][key][0] / max(of[list(bins)[-1]][key][0], 0.001)
                    print(f"{ms:<12g}{key:8}{row}   {ratio:.2f}")
        finally:
            for mesh in meshes.values():
                mesh.stop()


if __name__ == "__main__":
    main()
