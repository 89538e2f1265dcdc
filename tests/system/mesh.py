"""Nodes as processes: their configurations, ports, logs, start and end.

Owns every process that it starts and everything that these leave behind (jobs outlive their node by design), and ends
them by process ID. Knows how to wait for conditions, and nothing about the purpose of a test.
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from client import Control, ControlError

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = pathlib.Path(os.environ.get("MESHD_TEST_VENV", ROOT / ".venv"))
BINARIES = pathlib.Path(os.environ.get("MESHD_TEST_BINARIES", ROOT / "target" / "debug"))
MESHD = BINARIES / "meshd"
MESHCTL = BINARIES / "meshctl"
RECEPTORCTL = VENV / "bin" / "receptorctl"
#: Each supported release of the client; the one that is not pinned has an environment of its own.
RECEPTORCTLS = {"1.6.9": RECEPTORCTL, "1.4.9": VENV / "receptorctl-1.4.9" / "bin" / "receptorctl"}
ANSIBLE_RUNNER = VENV / "bin" / "ansible-runner"
#: In the environment of every process of a mesh, so that all of them can be found.
MARK = "MESHD_TEST_DIR"
PATIENCE = 30.0
#: Until a node's runner has told its size: a machine that is busy fails a health check, which is repeated after half a minute.
HEALTHY = 110.0
#: As many processes of pytest may run side by side: each takes ports of its own.
WORKERS = 4


def until(what, condition, seconds=PATIENCE, pause=0.02):
    """Waits until condition() returns something true, and returns that; fails with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        last = condition()
        if last:
            return last
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}; last seen: {last!r}")
        time.sleep(pause)


def files(directory):
    """The files below a directory, also while others come and go; those that it names may be gone by then."""
    for place, _, names in os.walk(directory):
        yield from (pathlib.Path(place, name) for name in names)


#: The ports that were given last.
GIVEN = collections.deque(maxlen=200)


def free_port():
    """A free port of 127.0.0.1.

    It lies below those that the kernel gives to connections and to listeners on port 0, and below those of the tests'
    clusters: one of those could be gone when the node starts. Tests that run beside these take others, and none is given
    twice before the first one can be in use.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    while True:
        port = random.randrange(12_000 + worker, 26_000, WORKERS)
        if port in GIVEN:
            continue
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams, contextlib.suppress(OSError):
            stream.bind(("127.0.0.1", port))
            datagrams.bind(("127.0.0.1", port))
            GIVEN.append(port)
            return port


def running(pid):
    """Whether there is such a process, and it has not ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def environment(**more):
    """The environment of nodes and clients: the tools of the virtual environment come first."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RECEPTOR", "ANSIBLE", "MESHD"))}
    return {**clean, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}", "ANSIBLE_LOCALHOST_WARNING": "false", **more}


def command_type(name, command, params="", runtime=False):
    """A work-command directive."""
    kind = {"worktype": name, "command": command, "params": params, "allowruntimeparams": runtime}
    return {"work-command": kind}


def own_runner(directive):
    """The settings by which a controller runs the command of a work-command directive on its own node."""
    kind = directive["work-command"]
    limits = {"runnerlimits": {"cancelgrace": kind["cancelgrace"]}} if "cancelgrace" in kind else {}
    return {"runner": f"{kind['command']} {kind['params']}", **limits}


#: The work types that AWX configures, and two small commands for the tests.
WORK = [
    command_type("ansible-runner", "ansible-runner", "worker", runtime=True),
    command_type("cat", "cat"),
    command_type("sh", "sh", "-c", runtime=True),
]


class Node:
    """A node: a process of meshd or of the Go implementation, named by `program`."""

    def __init__(self, mesh, name, program, directives, service=None):
        self.mesh, self.name, self.program = mesh, name, program
        #: More parameters of the control service.
        self.service = service or {}
        #: More of its environment.
        self.variables = {}
        #: Words before the program, such as `ip netns exec NAME`.
        self.prefix = []
        self.dir = mesh.dir / name
        self.dir.mkdir()
        self.socket = self.dir / "s"
        self.datadir = self.dir / "data"
        self.logfile = self.dir / "log"
        self.config = self.dir / "c.yml"
        self.directives = directives
        self.process = None
        self.write_config()

    @property
    def is_go(self):
        return pathlib.Path(self.program).resolve() != MESHD.resolve()

    def write_config(self):
        """Writes the configuration. JSON is YAML."""
        own = [
            {"node": {"id": self.name, "datadir": str(self.datadir)}},
            {"control-service": {"service": "control", "filename": str(self.socket), **self.service}},
        ]
        self.config.write_text(json.dumps(own + self.directives, indent=1))

    def spawn(self):
        """Starts the process without waiting for it."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        with open(self.logfile, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, str(self.program), "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**{MARK: str(self.mesh.dir)}, **self.mesh.variables, **self.variables),
                start_new_session=True,
            )
        return self

    def start(self):
        """Starts the process and waits until its control service answers."""
        self.spawn()
        until(f"{self.name} to answer", self.answers)
        return self

    def answers(self):
        assert self.process.poll() is None, f"{self.name} ended: {self.log()[-2000:]}"
        with contextlib.suppress(OSError, ControlError, ValueError):
            with self.control(timeout=5) as control:
                return control.command("status")["NodeID"] == self.name
        return False

    def stop(self, number=signal.SIGTERM, seconds=PATIENCE):
        """Ends the process with a signal and waits for its end; its jobs continue."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired as slow:
            self.process.kill()
            self.process.wait(seconds)
            raise AssertionError(f"{self.name} did not end within {seconds} s of {number!r}") from slow

    def restart(self, number=signal.SIGTERM):
        self.stop(number)
        return self.start()

    def control(self, timeout=60):
        """A new connection to the control service."""
        return Control(str(self.socket), timeout)

    def command(self, line, timeout=60):
        """Runs one command on its own connection."""
        with self.control(timeout) as control:
            return control.command(line)

    def status(self):
        return self.command("status")

    def reaches(self, target):
        """Whether a ping to the node is answered now; one that is lost while routes settle is not awaited."""
        with contextlib.suppress(OSError):
            return self.command({"command": "ping", "target": target}, timeout=1).get("Success") is True
        return False

    def unit(self, unit):
        return self.command(f"work status {unit}")

    def run(self, node, worktype, payload=b"", **params):
        """Submits a unit, and returns (unit, stdout) once its stream has ended."""
        with self.control(300) as control:
            unit = control.submit(node, worktype, payload, **params)["unitid"]
        return unit, self.results(unit)

    def results(self, unit, start=0):
        with self.control(300) as control:
            return control.results(unit, start).read()

    def release_all(self):
        """Releases every unit and waits until the list is empty; a Go node takes a little longer."""
        for unit in self.command("work list"):
            with contextlib.suppress(ControlError):
                self.command(f"work release {unit}")
        until(f"{self.name} to have no units", lambda: self.command("work list") == {})

    def log(self):
        """What it has logged; the daemon writes its lines a little later than it acts."""
        return self.logfile.read_text(errors="replace") if self.logfile.exists() else ""

    def logged(self, *parts, since=0):
        """Waits until all these are in the log, or in what follows its first `since` characters."""
        until(f"{parts} in the log of {self.name}", lambda: all(part in self.log()[since:] for part in parts))

    def rss(self):
        """Resident memory of the daemon in bytes, without its children."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{self.name} has no memory")

    def unit_dir(self, unit):
        return self.datadir / self.name / unit

    def read_payloads(self):
        """The payloads of running units. Their files are removed once they are read, but still open."""
        payloads = {}
        for descriptor in pathlib.Path("/proc").glob("[0-9]*/fd/0"):
            with contextlib.suppress(OSError):
                file = os.readlink(descriptor)
                if file.startswith(f"{self.datadir / self.name}/") and "/stdin" in file:
                    payloads[file] = descriptor.read_bytes()
        return list(payloads.values())


class Mesh:
    """Nodes that belong together, in one short temporary directory."""

    def __init__(self):
        # Socket paths are limited to 107 bytes, which a test runner's own directories may exceed.
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="meshd-t-"))
        self.nodes, self.variables, self.ports = {}, {}, {}

    def node(self, name, listen=False, peers=(), work=(), extra=(), program=MESHD, level="info"):
        """Adds a node. Peers are names of listening nodes, or ports."""
        directives = [{"log-level": level}, *work, *extra]
        if listen:
            self.ports[name] = free_port()
            directives.append({"tcp-listener": {"bindaddr": "127.0.0.1", "port": self.ports[name]}})
        for peer in peers:
            port = self.ports[peer] if isinstance(peer, str) else peer
            directives.append({"tcp-peer": {"address": f"127.0.0.1:{port}"}})
        if not listen and not peers:
            directives.append({"local-only": None})
        self.nodes[name] = Node(self, name, program, directives)
        return self.nodes[name]

    def add(self, name, directives, program=MESHD, service=None):
        """Adds a node with these directives, apart from those that every node has."""
        self.nodes[name] = Node(self, name, program, directives, service)
        return self.nodes[name]

    def __getitem__(self, name):
        return self.nodes[name]

    def start(self):
        """Starts all nodes in the order in which they were added, and waits until each reaches all others."""
        for node in self.nodes.values():
            node.start()
        self.wait_for_routes()
        return self

    def wait_for_routes(self, seconds=60):
        for node in self.nodes.values():
            for other in self.nodes:
                until(f"{node.name} to reach {other}", lambda n=node, o=other: n.reaches(o), seconds)

    def processes(self):
        """Every process with this mesh's mark, even if its parent has ended."""
        mark, found = f"{MARK}={self.dir}".encode(), []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def end(self):
        """Ends the nodes, then every job that outlived them."""
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.process.kill()
                node.process.wait()

        def gone():
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.processes()

        until("the jobs' processes to end", gone)

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def logs(self):
        return {name: node.log() for name, node in self.nodes.items()}

    def check_sane(self):
        """Checks after every test that no meshd node panicked."""
        for node in self.nodes.values():
            if not node.is_go:
                assert "panicked" not in node.log(), f"{node.name} panicked:\n{node.log()[-3000:]}"


def line(mesh, work=WORK, level="info", programs=(MESHD, MESHD, MESHD)):
    """control - hop - execution."""
    control, hop, execution = programs
    mesh.node("hop", listen=True, program=hop, level=level)
    mesh.node("control", peers=["hop"], work=work, program=control, level=level)
    mesh.node("execution", peers=["hop"], work=work, program=execution, level=level)
    return mesh
