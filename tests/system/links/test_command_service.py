"""Commands of a command service that do not end, or end all at once, delay nobody.

A process that waits in the kernel for a dead file system looks to its parent like one whose end a debugger has not
passed on. The test uses the latter: killed, but never reaped.
"""

import contextlib
import ctypes
import os
import pathlib
import socket
import struct
import time

import pytest

from mesh import PATIENCE, free_port, until
from test_overload import Watch

PTRACE_SEIZE, WALL = 0x4206, 0x40000000


def ptrace(request, pid):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return libc.ptrace(request, pid, None, None)


def sleeping(pid):
    """The child of a process that runs `sleep`."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        # Threads and other children may end meanwhile.
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if pathlib.Path(f"/proc/{child}/comm").read_text() == "sleep\n":
                    return int(child)
    return None


@pytest.mark.parametrize("ending", ["reload", "stop"])
def test_a_command_that_does_not_end_delays_nothing(mesh, ending):
    service = {"command-service": {"service": "term", "command": "sleep 1000"}}
    node = mesh.add("us", ["local-only", service]).start()
    with node.control() as control:
        control.send("connect us term")
        assert control.line().startswith("Connecting")
        command = until("the command", lambda: sleeping(node.process.pid))
        if ptrace(PTRACE_SEIZE, command) != 0:
            pytest.skip(f"SKIPPED: processes cannot be traced here: {os.strerror(ctypes.get_errno())}")
        try:
            if ending == "reload":
                node.directives = ["local-only"]
                node.write_config()
                assert node.command("reload", timeout=PATIENCE) == {"Success": True}
                node.logged("has not ended, leaving it behind")
                node.status()
            else:
                node.stop(seconds=PATIENCE)
        finally:
            # The tracer takes its end; after that its parent sees it.
            os.waitpid(command, os.WNOHANG | WALL)


def test_terminals_are_bounded_and_end_together(mesh):
    """Each has four children that ignore the hang-up. A status takes no longer while all of them are killed."""
    port = free_port()
    service = {"command-service": {"service": "term", "command": "sh"}}
    entrance = {"bindaddr": "127.0.0.1", "port": port, "remotenode": "localhost", "remoteservice": "term"}
    node = mesh.add("us", ["local-only", service, {"tcp-server": entrance}]).start()
    with contextlib.ExitStack() as stack:
        terminals = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(100)]
        for terminal in terminals:
            with contextlib.suppress(OSError):
                terminal.sendall(b"trap '' HUP; for i in 1 2 3 4; do sleep 1001 & done; echo rea''dy; wait\n")
        served = sum(is_ready(terminal) for terminal in terminals)
        for terminal in terminals:
            # Closed by a reset: an end alone would let a command say more.
            terminal.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    begun = time.monotonic()
    with Watch(node) as watch:
        until("all to end", lambda: not any(name(pid) in {"sh", "sleep"} for pid in mesh.processes()), 90)
    longest, plainly = max(watch.times), max(watch.plainly)
    print(f"{served} terminals ended in {time.monotonic() - begun:.1f} s, the longest status took {longest:.1f} s")
    assert served == 32, "all come from one neighbour"
    assert longest < max(2, 1.5 * plainly)


def name(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return None


def is_ready(terminal):
    """Whether a terminal's command runs; others are refused."""
    said = b""
    with contextlib.suppress(OSError):
        while b"ready" not in said and (more := terminal.recv(4096)):
            said += more
    return b"ready" in said
