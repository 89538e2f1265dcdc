#!/usr/bin/env python3
"""One link over a long way, between `control` and `exec` in two network namespaces of their own: every IP packet is held
for --ms each way, lost with --loss, sent at --rate through --buffer ms of queue. Needs root, cc, iproute2 and TUN.

    benches/wan.py --bin meshd=target/dist/meshd [--bin go=OTHER] --ms 50 --mb 100 [--backend tcp|udp|quic|ws]
                   [--loss 0.005] [--rate MBIT --buffer MS] [--tcp cubic|bbr] [--hop] [--rounds 3] [--json]
                   [--only echo,many,thousand,bare,out,in,project,ping,status,fair,outage,long] [--minutes 10]

Figures of each program: first echo, median echo, 50 at once; `thousand`: ten clients with 100 echoes each, the time of
one; output and payload of --mb MB (MB/s); with `bare` what a plain TCP connection reaches over the same link, in turn with
them; `project`: an ansible-runner stream of about --mb MB and then the same with one file changed and other times of files: seconds of an
echo and of each, and the bytes that left the control node for each; `ping`: mesh ping alone and beside bulk (median and
p99); `status`: the slowest of `work status` and `work cancel` of remote units beside bulk; `fair`: the share of a plain TCP stream that runs beside the program's bulk; `outage`: 5 s without any packet in the
middle of a job's output, and how long after it bytes come again; `long`: such an outage every 30 s for --minutes, one
job's output after the other. What the link lost and dropped is printed at the end.
"""
import argparse, atexit, base64, hashlib, io, json, os, random, re, statistics, sys, threading, time, zipfile
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from nodes import *

HERE = os.path.dirname(os.path.realpath(__file__))
A, B = "10.231.0.1", "10.231.0.2"


class Link:
    def __init__(self, dir, ms, loss, rate, buffer, mtu, tcp, seed=7):
        self.a, self.b = f"wan{os.getpid()}a", f"wan{os.getpid()}b"
        exe = dir + "/wanlink"
        subprocess.run(["cc", "-O2", "-o", exe, HERE + "/wanlink.c"], check=True)
        for n in (self.a, self.b):
            subprocess.run(["ip", "netns", "add", n], check=True)
        atexit.register(self.close)
        rate = int(rate * 125000)
        self.p = subprocess.Popen([exe, self.a, self.b, str(int(ms * 1000)), str(loss), str(rate), str(int(rate * buffer / 1000) or 1 << 30), str(seed)], stdout=subprocess.PIPE, text=True)
        if self.p.stdout.readline().strip() != "ready":
            raise RuntimeError("no link")
        for n, addr in ((self.a, A), (self.b, B)):
            for c in (f"link set lo up", f"addr add {addr}/30 dev wan0", f"link set wan0 mtu {mtu} up txqueuelen 10000"):
                subprocess.run(["ip", "-n", n, *c.split()], check=True)
            # What hosts of our users have: CUBIC (a namespace inherits this machine's choice, and may take only what the
            # machine lets everybody take), and buffers that do not limit.
            subprocess.run(["sh", "-c", "sysctl -qw net.ipv4.tcp_allowed_congestion_control=\"$(sysctl -n net.ipv4.tcp_available_congestion_control)\""], check=True)
            for k in (f"net.ipv4.tcp_congestion_control={tcp}", "net.ipv4.tcp_rmem=4096 131072 67108864", "net.ipv4.tcp_wmem=4096 131072 67108864"):
                subprocess.run(["ip", "netns", "exec", n, "sysctl", "-qw", k], check=True)

    def inside(self, n):
        return ["ip", "netns", "exec", n]

    def close(self):
        if self.p:
            self.p.send_signal(signal.SIGTERM)
            self.counts = self.p.communicate()[0].strip()
            self.p = None
            for n in (self.a, self.b):
                subprocess.run(["ip", "netns", "del", n], capture_output=True)


def stream(mb, job):
    """What ansible-runner would write of a project of so many MB, for a job: one file and all times are the job's own."""
    z, r = io.BytesIO(), random.Random(1)
    with zipfile.ZipFile(z, "w", zipfile.ZIP_STORED) as archive:
        for n in range(mb * 4):
            body = r.randbytes(250_000)
            archive.writestr(zipfile.ZipInfo(f"project/roles/r{n}/files/data", (2026, 11, 30, 12, job, 0)), body if n else random.Random(job).randbytes(250_000))
    z = z.getvalue()
    return b'{"kwargs": {"n": %d}}\n{"zipfile": %d}\n' % (job, len(z)) + base64.b64encode(z) + b'{"eof": true}\n'


def kept(dir):
    """Bytes of pieces that are kept below this directory."""
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(dir) if "/.pieces/" in at for name in names if len(name) == 64)


SINK = "import socket\ns=socket.create_server(('{a}',9999))\nc,_=s.accept()\nn=0\nwhile b:=c.recv(1<<18): n+=len(b)\nc.sendall(b'.')\n"
SEND = "import socket,time,sys\ns=socket.create_connection(('{a}',9999));n=int(float(sys.argv[1])*1e6);t=time.time();b=bytes(1<<17)\nwhile n>0:\n    s.sendall(b[:n]); n-=len(b)\ns.shutdown(1); s.recv(1); print(time.time()-t)\n"


def bare(link, mb):
    """MB/s of a plain TCP connection, exec to control."""
    q = subprocess.Popen([*link.inside(link.a), sys.executable, "-c", SINK.format(a=A)]); time.sleep(0.4)
    r = subprocess.run([*link.inside(link.b), sys.executable, "-c", SEND.format(a=A), str(mb)], capture_output=True, text=True)
    q.wait(20)
    return mb / float(r.stdout)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--backend", default="tcp"); ap.add_argument("--loss", type=float, default=0); ap.add_argument("--bin", action="append", required=True)
    ap.add_argument("--ms", type=float, default=50); ap.add_argument("--mb", type=int, default=100); ap.add_argument("--rate", type=float, default=0, help="Mbit/s, 0: none")
    ap.add_argument("--buffer", type=float, default=100, help="ms"); ap.add_argument("--mtu", type=int, default=1500); ap.add_argument("--tcp", default="cubic", help="the kernel's congestion control: cubic, bbr, reno"); ap.add_argument("--json", action="store_true")
    ap.add_argument("--only", default="echo,many,out,in,bare"); ap.add_argument("--rounds", type=int, default=1); ap.add_argument("--minutes", type=float, default=10)
    ap.add_argument("--hop", action="store_true", help="control has a short way to a hop, which has the long one")
    a = ap.parse_args()
    only = a.only.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for spec in a.bin:
        name, bin = spec.split("=")
        bin = os.path.abspath(bin)
        m = Mesh(bin)
        link = Link(m.dir, a.ms, a.loss, a.rate, a.buffer, a.mtu, a.tcp)
        f = {"program": name, "backend": a.backend, "rtt_ms": 2 * a.ms, "loss": a.loss, "rate_mbit": a.rate, "tcp": a.tcp, **({"hop": True} if a.hop else {})}
        try:
            tl = []
            if a.backend == "quic":
                subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", m.dir + "/control.key", "-out", m.dir + "/control.crt", "-days", "3", "-subj", "/CN=control",
                                "-addext", f"subjectAltName=IP:{A}," + ",".join(f"otherName:1.3.6.1.4.1.2312.19.1;UTF8:{name}" for name in ("control", "hop")), "-addext", "basicConstraints=critical,CA:FALSE"], check=True, capture_output=True)
                tl = [{"tls-client": {"name": "c", "insecureskipverify": True}}, {"tls-server": {"name": "s", "cert": m.dir + "/control.crt", "key": m.dir + "/control.key"}}]
            pl = 27199
            address = f"ws://{A}:{pl}/" if a.backend == "ws" else f"{A}:{pl}"
            near = tl[1:] + [{f"{a.backend}-listener": {"port": pl, "bindaddr": A, **({"tls": "s"} if tl else {})}}]
            if a.hop:
                m.node("hop", near + [{"tcp-listener": {"port": pl + 1, "bindaddr": A}}], prefix=link.inside(link.a)).start()
                near = [{"tcp-peer": {"address": f"{A}:{pl + 1}"}}]
            c = m.node("control", near, prefix=link.inside(link.a)).start()
            m.node("exec", tl[:1] + [{f"{a.backend}-peer": {"address": address, **({"tls": "c"} if tl else {})}}, {"work-command": {"worktype": "echo", "command": "echo", "params": "hi"}}, {"work-command": {"worktype": "sum", "command": "sha256sum"}}, {"work-command": {"worktype": "sleep", "command": "sleep", "params": "600"}},
                            {"work-command": {"worktype": "out", "command": "head", "params": f"-c {a.mb * 1000000} /dev/zero"}}], prefix=link.inside(link.b)).start()
            m.converge()
            s = c.sock
            med = lambda g: statistics.median(g() for _ in range(a.rounds))

            def out():
                t = time.time(); n = len(results(s, submit(s, "exec", "out"), timeout=400)); f["exact"] = f.get("exact", True) and n == a.mb * 1000000
                return n / 1e6 / (time.time() - t)

            def inn():
                d = random.Random(1).randbytes(a.mb * 1000000)
                t = time.time(); r = results(s, submit(s, "exec", "sum", d), timeout=400); f["exact"] = f.get("exact", True) and r.split()[0].decode() == hashlib.sha256(d).hexdigest()
                return len(d) / 1e6 / (time.time() - t)

            def pings(seconds):
                end, got = time.time() + seconds, []
                while time.time() < end:
                    with Control(s) as k:
                        t = time.time(); r = k.cmd("ping exec")
                        if r.get("Success"):
                            got.append((time.time() - t) * 1000)
                    time.sleep(0.02)
                got.sort()
                return [round(got[len(got) // 2], 1), round(got[int(len(got) * 0.99)], 1)] if got else None
            if "echo" in only:
                lat = []
                for _ in range(7):
                    t = time.time(); results(s, submit(s, "exec", "echo")); lat.append((time.time() - t) * 1000)
                f["first_echo_ms"], f["echo_ms"] = round(lat[0]), round(statistics.median(lat[1:]))
            if "many" in only:
                def many():
                    t = time.time(); th = [threading.Thread(target=lambda: results(s, submit(s, "exec", "echo"))) for _ in range(50)]; [x.start() for x in th]; [x.join() for x in th]
                    return (time.time() - t) * 1000
                f["fifty_ms"] = round(med(many))
            if "thousand" in only:
                def hundred():
                    for _ in range(100):
                        results(s, submit(s, "exec", "echo"))

                def thousand():
                    t = time.time(); th = [threading.Thread(target=hundred) for _ in range(10)]; [x.start() for x in th]; [x.join() for x in th]
                    return (time.time() - t) * 10
                f["of_thousand_ms"] = round(med(thousand), 1)
            if "bare" in only:
                f["bare_mbs"] = round(med(lambda: bare(link, a.mb)), 2)
            if "out" in only:
                f["out_mbs"] = round(med(out), 2)
            if "in" in only:
                f["in_mbs"] = round(med(inn), 2)
            if "project" in only:
                def left():
                    stats = subprocess.run([*link.inside(link.a), "cat", "/sys/class/net/wan0/statistics/tx_bytes"], check=True, capture_output=True, text=True)
                    return int(stats.stdout)

                def job(number):
                    d = stream(a.mb, number); before = left()
                    t = time.time(); r = results(s, submit(s, "exec", "sum", d), timeout=1200); t = time.time() - t
                    f["exact"] = f.get("exact", True) and r.split()[0].decode() == hashlib.sha256(d).hexdigest()
                    return {"seconds": round(t, 2), "mb": round(len(d) / 1e6, 1), "sent_mb": round((left() - before) / 1e6, 2)}
                t = time.time(); results(s, submit(s, "exec", "echo")); f["project_none_s"] = round(time.time() - t, 2)
                f["project_first"] = job(1)
                end = time.time() + 60
                while kept(m.dir) < a.mb * 990_000 and time.time() < end:
                    time.sleep(0.2)
                f["project_second"], f["project_third"] = job(2), job(3)
            if "ping" in only:
                f["ping_idle_ms"] = pings(3)
                th = threading.Thread(target=out); th.start(); time.sleep(1); f["ping_bulk_ms"] = pings(5); th.join()
            if "status" in only:
                units = [submit(s, "exec", "sleep") for _ in range(6)]
                th = threading.Thread(target=out); th.start(); time.sleep(1.5); slowest = 0
                for u in units:
                    for line in (f"work status {u}", f"work cancel {u}"):
                        with Control(s) as k:
                            t = time.time(); k.cmd(line); slowest = max(slowest, time.time() - t)
                th.join(); f["status_cancel_slowest_s"] = round(slowest, 2)
            if "fair" in only:
                th = threading.Thread(target=out); th.start(); time.sleep(2); b = bare(link, max(2, a.rate / 8 * 8 * 0.3 if a.rate else 50)); th.join()
                f["plain_tcp_beside_mbs"] = round(b, 2)
            def outages(count, every):
                """Cuts the link for 5 s so many times; how long after each end the next byte of an output came."""
                up, late, jobs = [None], [], 0

                def cut():
                    for _ in range(count):
                        time.sleep(every - 5); link.p.send_signal(signal.SIGUSR1); time.sleep(5); link.p.send_signal(signal.SIGUSR2); up[0] = time.time()
                th = threading.Thread(target=cut); th.start()
                while th.is_alive() or jobs == 0:
                    u = submit(s, "exec", "out"); k = Control(s, 120); k.raw(f"work results {u} 0"); n = 0
                    while b := k.f.read1(1 << 18):
                        n += len(b)
                        if up[0]:
                            late.append(time.time() - up[0]); up[0] = None
                    f["exact"] = f.get("exact", True) and n == a.mb * 1000000; jobs += 1
                th.join()
                return {"jobs": jobs, "outages": count, "after_s": [round(x, 2) for x in late]}
            if "outage" in only:
                f["outage"] = outages(1, 6)
            if "long" in only:
                f["long"] = outages(int(a.minutes * 2), 30)
        finally:
            m.close()
            link.close()
        try:
            f["link"] = {k: {x: v[x] for x in ("lost", "dropped")} for k, v in json.loads(link.counts).items()}
        except ValueError:
            pass
        print(json.dumps(f) if a.json else ", ".join(f"{k} {v}" for k, v in f.items()), flush=True)


main()
