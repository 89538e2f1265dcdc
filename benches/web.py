#!/usr/bin/env python3
"""Measure what viewers of the page cost: one node of an idle mesh, watched by many, and the same node left alone.

    benches/web.py --bin target/dist/meshd [--nodes 200] [--viewers 20] [--seconds 60] [--most CPU% MIB]

A viewer does what the page does while it shows the mesh: it follows the events, and reads what is wrong, nodes and links
when it comes and every 30 s. Processor time is the watched daemon's own, memory what it has more after the watch than before. With --most it
fails beyond these. All nodes are processes on 127.0.0.1.
"""
import argparse, contextlib, hashlib, http.client, os, sys, threading, time

from nodes import Mesh, port

CLK = os.sysconf("SC_CLK_TCK")
TOKEN = "token-of-the-measurement"
EVERY = 30


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLK


class Viewer(threading.Thread):
    def __init__(self, http, until):
        super().__init__(daemon=True)
        self.port, self.until, self.reads, self.error = http, until, 0, None
        self.start()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/api/v1/" + path, headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {response.read(300)}")
        return response

    def run(self):
        try:
            self.get("session").read()
            events = self.get("events")
            threading.Thread(target=self.follow, args=(events,), daemon=True).start()
            while (left := self.until - time.monotonic()) > 0:
                for path in ("overview", "outages", "nodes", "links"):
                    self.get(path).read()
                self.reads += 1
                time.sleep(min(EVERY, left))
        except Exception as error:  # noqa: BLE001
            self.error = error

    def follow(self, events):
        # The node's end is the end of it.
        with contextlib.suppress(http.client.HTTPException, OSError):
            while time.monotonic() < self.until and events.read1(4096):
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--most", type=float, nargs=2, metavar=("CPU", "MIB"))
    arguments = parser.parse_args()
    mesh = Mesh(os.path.abspath(arguments.bin))
    try:
        tokens = mesh.dir + "/tokens"
        with open(os.open(tokens, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f"viewer read {hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
        # A hub, relays around it, and leaves behind those.
        relays = max(1, arguments.nodes // 20)
        parents = [port() for _ in range(relays + 1)]
        http = port()
        web = {"web": {"address": f"127.0.0.1:{http}", "tokens": tokens}}
        for n in range(arguments.nodes):
            above = None if n == 0 else 0 if n <= relays else n % relays + 1
            listener = [{"tcp-listener": {"port": parents[n], "bindaddr": "127.0.0.1"}}] if n <= relays else []
            peer = [{"tcp-peer": {"address": f"127.0.0.1:{parents[above]}"}}] if above is not None else []
            work = [{"work-command": {"worktype": "echo", "command": "echo"}}]
            mesh.node(f"n{n:03}", listener + peer + work + ([web] if n == 0 else [])).start(wait=n <= relays)
        watched = mesh.nodes["n000"]
        deadline = time.monotonic() + 300
        while len(watched.status()["RoutingTable"] or {}) < arguments.nodes - 1:
            if time.monotonic() > deadline:
                raise RuntimeError("the mesh does not come together")
            time.sleep(0.2)
        # Until what the start has left to say is said.
        time.sleep(20)
        used, memory = {}, {}
        for what in ("alone", "watched"):
            begun, before = time.monotonic(), (cpu(watched.p.pid), watched.rss())
            viewers = [Viewer(http, begun + arguments.seconds) for _ in range(arguments.viewers if what == "watched" else 0)]
            time.sleep(max(0, begun + arguments.seconds - time.monotonic()))
            used[what] = (cpu(watched.p.pid) - before[0]) / arguments.seconds * 100
            memory[what] = watched.rss() - before[1]
            failed = [viewer.error for viewer in viewers if viewer.error or not viewer.reads]
            print(f"{what}: {used[what]:.2f} % of a core, {memory[what]:+.1f} MiB, of {watched.rss():.1f}" + (f"; {len(failed)} viewers failed: {failed[0]}" if failed else ""), flush=True)
            if failed:
                sys.exit(1)
        more = used["watched"] - used["alone"], memory["watched"] - memory["alone"]
        print(f"{arguments.viewers} viewers of {arguments.nodes} nodes: {more[0]:.2f} % of a core, {more[1]:.1f} MiB")
        if arguments.most and (more[0] > arguments.most[0] or more[1] > arguments.most[1]):
            sys.exit(f"more than {arguments.most[0]} % or {arguments.most[1]} MiB")
    finally:
        mesh.close()


if __name__ == "__main__":
    main()
