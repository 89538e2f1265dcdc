#!/usr/bin/env python3
"""Measure one relay of any receptor-compatible binary on loopback: frames per second, and pings past bulk.

    benches/relay.py --bin meshd=target/dist/meshd [--bin go=OTHER] [--seconds 5] [--frame 1400]

Only the standard library is used; all traffic stays on 127.0.0.1; every process started is ended by its process ID.
Figures, for each binary in turn:

  relay: two neighbours that this script plays over raw sockets, data frames of one size from one to the other
    kframes_s       thousands of frames a second that came out on the other side
    kframes_core_s  the same per second of CPU that the relay used
    mb_core         megabytes per second of CPU
    plain_mb_s      the same bytes between two sockets of this script with nothing in between: the machine's limit
  ping: control - neighbour, asked through the control socket
    idle_p50_us, idle_p99_us    with nothing else on the link
    bulk_p50_us, bulk_p99_us    while a TCP proxy over the same link is kept full
    control_p50_us              a request of the same size that needs no neighbour: what asking itself costs
    plain_idle_*, plain_bulk_*  a short question and its answer between two processes of this script over a
                                socket, alone and while two pairs of others keep one socket each full: as many
                                busy processes as the bulk stream through the mesh has
"""
import argparse, json, os, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time

from mesh import CLK, free_port

# Names with their hashes as the wire carries them.
SOURCE, SINK = ("a", 0xBD6EFBA9EB78E61F), ("peer", 0xAD8BBBC7F2B8B249)
HOPS_TO_LIVE = 30
DATA, ROUTING = 0, 1


class Node:
    def __init__(self, binary, directory, name, entries):
        self.port, self.path = free_port(), f"{directory}/{name}.sock"
        config = [
            {"node": {"id": name, "datadir": f"{directory}/data"}},
            {"log-level": "error"},
            {"control-service": {"service": "control", "filename": self.path}},
            {"tcp-listener": {"port": self.port, "bindaddr": "127.0.0.1"}},
        ]
        with open(f"{directory}/{name}.yml", "w") as f:
            json.dump(config + entries, f)
        with open(f"{directory}/{name}.log", "w") as log:
            self.process = subprocess.Popen([binary, "--config", f.name], stdout=log, stderr=log)

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / CLK

    def control(self):
        def connect():
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(20)
            try:
                s.connect(self.path)
            except OSError:
                s.close()
                return None
            f = s.makefile("rwb")
            f.readline()
            return f

        return until("the control socket", connect)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def until(what, condition, limit=30):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    sys.exit(f"{what}: not within {limit} s")


def ask(control, line):
    control.write(line.encode() + b"\n")
    control.flush()
    return json.loads(control.readline())


def framed(message):
    return struct.pack("<H", len(message)) + message


def connected(port):
    try:
        return socket.create_connection(("127.0.0.1", port))
    except ConnectionRefusedError:
        return None


def neighbour(port, name, relay):
    """A session with the relay as the node `name`, after the handshake."""
    s = until("the listener", lambda: connected(port))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    epoch = int(time.time()) << 24
    for sequence in (1, 2):
        update = {
            "NodeID": name, "UpdateID": f"{name[:4]:x<4}{os.urandom(2).hex()}", "UpdateEpoch": epoch,
            "UpdateSequence": sequence, "Connections": {relay: 1.0}, "ForwardingNode": name, "SuspectedDuplicate": 0,
        }
        s.sendall(framed(bytes([ROUTING]) + json.dumps(update).encode()))
    return s


def drain(s, count):
    buffer = bytearray(1 << 20)
    try:
        while got := s.recv_into(buffer):
            count[0] += got
    except OSError:
        pass


def push(source, sink, block, seconds):
    """Sends the block over and over; the bytes a second that arrived, and the time it took."""
    count = [0]
    reader = threading.Thread(target=drain, args=(sink, count))
    reader.start()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        source.sendall(block)
    took, arrived = time.perf_counter() - start, count[0]
    sink.shutdown(socket.SHUT_RD)
    source.close()
    reader.join()
    return arrived, took


def relay(binary, frame, seconds):
    directory = tempfile.mkdtemp(prefix="relay")
    node = Node(binary, directory, "hop", [])
    try:
        control = node.control()
        source, sink = neighbour(node.port, SOURCE[0], "hop"), neighbour(node.port, SINK[0], "hop")
        threading.Thread(target=drain, args=(source, [0]), daemon=True).start()
        until("both neighbours", lambda: len(ask(control, "status")["Connections"]) == 2)
        header = bytes([DATA, HOPS_TO_LIVE, 0, 0]) + struct.pack(">QQ", SOURCE[1], SINK[1]) + b"fromhere" + b"to-there"
        message = framed(header + bytes(frame - len(header)))
        used = node.cpu()
        arrived, took = push(source, sink, message * ((1 << 18) // len(message)), seconds)
        used = node.cpu() - used
        frames = arrived / len(message)
        yield "kframes_s", frames / took / 1e3
        yield "kframes_core_s", frames / used / 1e3
        yield "mb_core", arrived / used / 1e6
        listener = socket.create_server(("127.0.0.1", 0))
        plain = socket.create_connection(listener.getsockname())
        arrived, took = push(plain, listener.accept()[0], message * ((1 << 18) // len(message)), seconds / 2)
        yield "plain_mb_s", arrived / took / 1e6
    finally:
        node.stop()
        shutil.rmtree(directory, ignore_errors=True)


def percentiles(control, line, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        answer = ask(control, line)
        times.append((time.perf_counter() - start) * 1e6)
        if answer.get("Success") is False:
            sys.exit(f"{line}: {answer}")
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


def ping(binary, count):
    directory = tempfile.mkdtemp(prefix="ping")
    listener = socket.create_server(("127.0.0.1", 0))
    far = Node(binary, directory, "far", [
        {"tcp-client": {"address": f"127.0.0.1:{listener.getsockname()[1]}", "service": "bulk"}}])
    entrance = free_port()
    near = Node(binary, directory, "near", [
        {"tcp-peer": {"address": f"127.0.0.1:{far.port}"}},
        {"tcp-server": {"port": entrance, "bindaddr": "127.0.0.1", "remotenode": "far", "remoteservice": "bulk"}}])
    try:
        control = near.control()
        until("a route", lambda: "far" in ask(control, "status")["RoutingTable"])
        yield "control_p50_us", percentiles(control, "ping near", count)[0]
        yield from zip(("idle_p50_us", "idle_p99_us"), percentiles(control, "ping far", count))
        bulk = socket.create_connection(("127.0.0.1", entrance))
        # In processes of their own, so that this one's interpreter lock is not what is measured.
        sender = os.fork()
        if sender == 0:
            signal.alarm(120)
            block = bytes(1 << 18)
            try:
                while True:
                    bulk.sendall(block)
            finally:
                os._exit(0)
        receiver = os.fork()
        if receiver == 0:
            signal.alarm(120)
            drain(listener.accept()[0], [0])
            os._exit(0)
        try:
            percentiles(control, "ping far", count // 4)
            yield from zip(("bulk_p50_us", "bulk_p99_us"), percentiles(control, "ping far", count))
        finally:
            for child in (sender, receiver):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    finally:
        near.stop()
        far.stop()
        shutil.rmtree(directory, ignore_errors=True)


def forked(work, *sockets):
    """A process that does this with these sockets until it is killed."""
    child = os.fork()
    if child:
        for s in sockets:
            s.close()
        return child
    signal.alarm(120)
    try:
        work(*sockets)
    finally:
        os._exit(0)


def echo(s):
    while got := s.recv(4096):
        s.sendall(got)


def fill(s):
    block = bytes(1 << 18)
    while True:
        s.sendall(block)


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ends


def plain(count):
    """What the machine alone makes of the same: no node is involved."""
    asking, answering = pair()
    children = [forked(echo, answering)]

    def times():
        took = []
        for _ in range(count):
            start = time.perf_counter()
            asking.sendall(b"ping far\n")
            asking.recv(4096)
            took.append((time.perf_counter() - start) * 1e6)
        took.sort()
        return took[count // 2], took[count * 99 // 100]

    try:
        yield from zip(("plain_idle_p50_us", "plain_idle_p99_us"), times())
        for _ in range(2):
            source, sink = pair()
            children += [forked(fill, source), forked(lambda s: drain(s, [0]), sink)]
        times()
        yield from zip(("plain_bulk_p50_us", "plain_bulk_p99_us"), times())
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", action="append", required=True, help="NAME=PATH or PATH")
    ap.add_argument("--seconds", type=float, default=5)
    ap.add_argument("--frame", type=int, default=1400, help="bytes of a frame, without its length")
    ap.add_argument("--pings", type=int, default=1000)
    a = ap.parse_args()
    for key, value in plain(a.pings):
        print(f"{'machine':10} {key:18} {value:12.1f}", flush=True)
    for spec in a.bin:
        name, _, path = spec.partition("=")
        path = os.path.abspath(path or name)
        for figures in (relay(path, a.frame, a.seconds), ping(path, a.pings)):
            for key, value in figures:
                print(f"{name:10} {key:18} {value:12.1f}", flush=True)


if __name__ == "__main__":
    main()
