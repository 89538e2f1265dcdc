"""A command of a command service that cannot be killed delays neither a reload nor the stop.

A process that waits in the kernel for a dead file system looks to its parent like one whose end a debugger has not
passed on. The test uses the latter: killed, but never reaped.
"""

import contextlib
import ctypes
import os
import pathlib

import pytest

from mesh import PATIENCE, until

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
                node.logged("has not ended: it is left behind")
                node.status()
            else:
                node.stop(seconds=PATIENCE)
        finally:
            # The tracer takes its end; after that its parent sees it.
            os.waitpid(command, os.WNOHANG | WALL)
