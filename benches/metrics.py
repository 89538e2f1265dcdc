#!/usr/bin/env python3
"""Measure what a scrape costs: a node with about 10,000 series, scraped once a second, and the same node left alone.

    benches/metrics.py --bin target/dist/meshd [--types 205] [--seconds 30]

Each of the work types has run a unit that succeeded and one that failed, which makes 49 series. Processor time is the
daemon's own, of both its modes; that of the client is not in it. All traffic stays on 127.0.0.1.
"""
import argparse, os, time, urllib.request

from nodes import Control, Mesh, port

CLK = os.sysconf("SC_CLK_TCK")


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLK


def rss(pid):
    return next(int(line.split()[1]) / 1024 for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--types", type=int, default=205)
    parser.add_argument("--seconds", type=int, default=30)
    arguments = parser.parse_args()
    mesh = Mesh(arguments.bin)
    try:
        http = port()
        types = [{"work-command": {"worktype": f"t{n}", "command": "sh", "params": "-c", "allowruntimeparams": True}} for n in range(arguments.types)]
        node = mesh.node("n", [{"local-only": None}, {"metrics": {"address": f"127.0.0.1:{http}"}}, *types])
        node.start()
        for n in range(arguments.types):
            for script in ("true", "false"):
                run(node, f"t{n}", script)
        read = lambda: urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics").read()  # noqa: E731
        text = read()
        series = sum(not line.startswith(b"#") for line in text.splitlines())
        for what in ("idle", "scraped", "idle", "scraped"):
            begun, slowest, used = time.monotonic(), 0, cpu(node.p.pid)
            for n in range(arguments.seconds):
                if what == "scraped":
                    start = time.monotonic()
                    read()
                    slowest = max(slowest, time.monotonic() - start)
                time.sleep(max(0, begun + n + 1 - time.monotonic()))
            used = (cpu(node.p.pid) - used) / arguments.seconds
            print(f"{what}: {used:.2%} of a core, {rss(node.p.pid):.1f} MiB"
                  + (f", {series} series, {len(text) / 1e3:.0f} kB, slowest {slowest * 1e3:.1f} ms" if slowest else ""), flush=True)
    finally:
        mesh.close()


def run(node, work_type, script):
    with Control(node.sock) as control:
        control.raw({"command": "work", "subcommand": "submit", "node": "localhost", "worktype": work_type, "params": script})
        control.s.shutdown(1)
        control.f.readline()
    # Until it has ended: nothing of it is to be measured.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with Control(node.sock) as control:
            units = control.cmd("work list").values()
        if all(unit["State"] in (2, 3) for unit in units):
            return
        time.sleep(0.01)
    raise RuntimeError("a unit does not end")


if __name__ == "__main__":
    main()
