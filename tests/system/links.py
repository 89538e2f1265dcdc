"""Links of every kind as directives, and lines of nodes joined by one kind.

Knows how both implementations are configured to listen and to dial.
"""

import mesh as harness
from mesh import free_port

#: Kinds of links that both implementations have: (backend, mutual TLS).
SHARED = {"tcp": ("tcp", False), "tcp-mtls": ("tcp", True), "udp": ("udp", False), "ws": ("ws", False), "wss-mtls": ("ws", True)}
#: All kinds that meshd has.
OWN = {**SHARED, "quic-mtls": ("quic", True)}
LINE = ("control", "hop", "execution")


def listener(kind, port, host="127.0.0.1"):
    backend, tls = OWN[kind]
    options = {"bindaddr": host, "port": port, **({"tls": "server"} if tls else {})}
    return {f"{backend}-listener": options}


def peer(kind, port, host="127.0.0.1"):
    backend, tls = OWN[kind]
    address = f"{host}:{port}"
    if backend == "ws":
        address = f"{'wss' if tls else 'ws'}://{address}/"
    return {f"{backend}-peer": {"address": address, **({"tls": "client"} if tls else {})}}


def joined(kind, dials):
    """Directives that join LINE; `dials(left, right)` says whether the left one of two dials."""
    links = {name: [] for name in LINE}
    for left, right in zip(LINE, LINE[1:], strict=False):
        port = free_port()
        dialer, other = (left, right) if dials(left, right) else (right, left)
        links[other].append(listener(kind, port))
        links[dialer].append(peer(kind, port))
    return links


def start(mesh, directives, programs, service=None):
    """Starts LINE, listeners first: a Go node that was refused waits for 5 s."""
    only_listens = lambda name: any("-peer" in key for one in directives[name] for key in one)  # noqa: E731
    for name in sorted(LINE, key=only_listens):
        mesh.add(name, [{"log-level": "info"}, *directives[name]], programs[name], service)
    return mesh.start()


def work_types():
    """`cat` for everybody, and `safecat` for signed work."""
    safe = {"worktype": "safecat", "command": "cat", "verifysignature": True}
    return [harness.command_type("cat", "cat"), {"work-command": safe}]
