"""Two hosts and a router between them that translates addresses, each a network namespace:

    outside 192.0.2.1 --- 192.0.2.9 router 10.98.0.1 --- 10.98.0.2 inside

The router forgets who sent datagrams 30 s after the last one, and gives its translations ports by chance, so that one
that was forgotten is noticed. Both hosts can lose packets and change their addresses. Needs root, iproute2 and nft.
"""

import os
import shutil
import subprocess

OUTSIDE = "192.0.2.1"
#: What the router remembers of datagrams, in seconds: as many routers do, and as the kernel does of what has no answer.
MEMORY = 30
TRANSLATION = 'table ip translation { chain out { type nat hook postrouting priority 100; oifname "outer" masquerade random; }; }'


def missing():
    """What is needed and not here."""
    if os.geteuid() != 0:
        return "root"
    return next((program for program in ("ip", "tc", "nft") if not shutil.which(program)), None)


class Routed:
    """The three namespaces; `mbit` is what the router carries in each direction."""

    def __init__(self, mbit=40):
        self.names = {part: f"meshd{os.getpid()}-{part}" for part in ("outside", "router", "inside")}
        self.addresses = {"outer": 9, "eth0": 2}
        try:
            self.make(mbit)
        except BaseException:
            self.close()
            raise

    def make(self, mbit):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True, text=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        for host, port in (("outside", "outer"), ("inside", "inner")):
            self.run("router", f"ip link add {port} type veth peer name eth0 netns {self.names[host]}")
        self.run("outside", f"ip link set eth0 up && ip address add {OUTSIDE}/24 dev eth0")
        self.run("inside", "ip link set eth0 up && ip address add 10.98.0.2/24 dev eth0 && ip route add default via 10.98.0.1")
        self.run("router", f"""
            ip link set outer up && ip address add 192.0.2.9/24 dev outer
            ip link set inner up && ip address add 10.98.0.1/24 dev inner
            for port in outer inner; do tc qdisc add dev $port root tbf rate {mbit}mbit burst 64kb latency 100ms; done
            sysctl -qw net.ipv4.ip_forward=1 net.netfilter.nf_conntrack_udp_timeout={MEMORY} net.netfilter.nf_conntrack_udp_timeout_stream={MEMORY}
            nft '{TRANSLATION}'""")

    def prefix(self, host):
        """What stands before a command that shall run there."""
        return ["ip", "netns", "exec", self.names[host]]

    def run(self, host, script):
        """Runs a script there; what it prints."""
        done = subprocess.run([*self.prefix(host), "sh", "-euc", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (host, script, done)
        return done.stdout

    def translations(self, protocol="udp"):
        """As which addresses and ports the router's hosts are seen outside."""
        of_link = (line.split() for line in self.run("router", "cat /proc/net/nf_conntrack").splitlines() if protocol in line)
        # The second address and port of either kind belong to the answers.
        seen = lambda words, key: [word for word in words if word.startswith(key)][1].split("=")[1]  # noqa: E731
        return {f"{seen(words, 'dst=')}:{seen(words, 'dport=')}" for words in of_link if f"dst={OUTSIDE}" in words}

    def renumber_router(self):
        """The router has another address outside, and what it translated to the old one is forgotten."""
        self.renumber("router", "outer", "192.0.2")

    def renumber_inside(self):
        """The host behind the router has another address."""
        self.renumber("inside", "eth0", "10.98.0")
        self.run("inside", "ip route replace default via 10.98.0.1")

    def renumber(self, host, port, net):
        self.addresses[port] += 1
        self.run(host, f"ip address flush dev {port} && ip address add {net}.{self.addresses[port]}/24 dev {port}")

    def lose_first(self, count, protocol, port):
        """The host outside loses the first packets for a port of its own."""
        syn = "tcp flags & (syn | ack) == syn" if protocol == "tcp" else ""
        rule = f"{protocol} dport {port} {syn} limit rate 1/day burst {count} packets counter drop"
        self.run("outside", f"nft 'table ip losses {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}'")

    def lost(self):
        """How many of them were lost."""
        words = self.run("outside", "nft list table ip losses").split()
        return int(words[words.index("counter") + 2])

    def close(self):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
