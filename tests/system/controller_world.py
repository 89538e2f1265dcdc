"""The mesh of the controller's faults: control nodes, a hop and execution nodes whose links pass relays, and everything
that is done to them.

Each fault notes itself with its time, what it keeps from whom, and until when, so that the model in
`controller_model.py` can tell what it may excuse. Knows no job but by its processes.
"""

import bisect
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings

from client import ControlError
from controller_store import Sqlite
from mesh import command_type, own_runner, until
from peer import Proxy

STAND_IN = pathlib.Path(__file__).with_name("stand_in_runner.py")
#: Seconds. The suite's own deadlines are generous, the product's timers short.
HEARTBEAT, LOST_AFTER, OWNER_LOST_AFTER = 0.2, 1.5, 1.0
#: Bytes of the disks that get full.
DISK = 96 << 20
#: How long a fault lasts.
SPANS = (0, 0.05, 0.3, 1, 2.5)
#: How long a partition lasts: for several times as long as anybody waits here, and in a long run for more than a minute.
PARTITION, LONG_PARTITION = 5, 65


class Relay(Proxy):
    """A link that can break, stay broken, or swallow what passes."""

    def __init__(self, target):
        self.is_broken = False
        super().__init__(target)

    def serve(self, near):
        if self.is_broken:
            near.close()
        else:
            super().serve(near)

    def copy(self, source, sink):
        # It may have been broken while this connection was made, which `cut` has not seen then.
        if self.is_broken:
            source.close()
            sink.close()
        else:
            super().copy(source, sink)

    def cut(self):
        """Closes what is open; ends see it at once."""
        for one in list(self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.sockets.clear()


class World:
    """The nodes and the faults."""

    HOPS = ("hop",)
    #: The kinds of faults that only this world has, and how often each is chosen.
    KINDS = {}

    def __init__(self, mesh, rng, controls=1, executions=3):
        self.mesh, self.rng = mesh, rng
        self.controls = [f"c{n}" for n in range(1, controls + 1)]
        self.executions = [f"e{n}" for n in range(1, executions + 1)]
        self.diary = mesh.dir / "diary"
        self.diary.mkdir()
        self.began = time.time()
        #: Lines of what was done, for a failure's message.
        self.history = []
        #: What may excuse a job: [kind, node or unit, from, to]; `to` is None while it lasts.
        self.events = []
        #: What ends the faults that last: (when, words, action), by time.
        self.ends = []
        self.down, self.stopped, self.relays = set(), set(), {}
        #: How long partitions last; the link that is cut or silent now, and until when.
        self.partition_span, self.apart = PARTITION, (None, 0)
        #: Those that learn that the store has lost commits.
        self.jobs = []
        self.store = self.make_store()
        if not self.store.clock.variables:
            leave_out("no clock is wrong, as there is no C compiler (cc)")
        mesh.variables["STAND_IN_CPUS"] = "2"
        mesh.node("hop", listen=True)
        for name in self.HOPS[1:]:
            self.relays[name] = Relay(mesh.ports["hop"])
            mesh.node(name, listen=True, peers=[self.relays[name].port])
        for name in self.controls:
            settings = {
                "discovery": "enabled",
                "store": self.store.url(name),
                # Every 5 s housekeeping looks for units that the store has forgotten.
                "payloadretention": "50s",
                "heartbeat": f"{HEARTBEAT}s",
                "ownerlostafter": f"{OWNER_LOST_AFTER}s",
                "lostafter": f"{LOST_AFTER}s",
                "poll": "500ms",
                "rundir": str(mesh.dir),
                **own_runner(self.runner("own")),
            }
            self.attach(name, [], [{"work-controller": settings}, *self.surround(name)])
            self.prepare(name)
        for name in self.executions:
            self.attach(name, [self.runner("ansible-runner")], [])
        self.small = [self.controls[0], self.executions[-1]] if os.geteuid() == 0 else []
        if not self.small:
            leave_out("no disk gets full, as only root can mount a small one")
        for name in self.small:
            mesh[name].datadir.mkdir()
            place = ["-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(mesh[name].datadir)]
            subprocess.run(["mount", *place], check=True)
        mesh.start()
        self.await_ready()

    def attach(self, name, work, extra):
        self.relays[name] = Relay(self.mesh.ports[self.hop_of(name)])
        self.mesh.node(name, peers=[self.relays[name].port], work=work, extra=extra)

    # What others may want otherwise.

    def hop_of(self, _name):
        """The hop that a node is attached to."""
        return "hop"

    def make_store(self):
        return Sqlite(self, self.controls[0])

    def surround(self, _name):
        """More directives of a control node."""
        return []

    def prepare(self, name):
        """What a control node needs before it starts. Here its clock is the store's."""
        self.mesh[name].variables = self.store.clock.variables

    def own_fault(self, kind, span):
        """A fault of one of its own kinds."""

    @staticmethod
    def runner(name):
        directive = command_type(name, sys.executable, f"-I {STAND_IN} worker", runtime=True)
        directive["work-command"]["cancelgrace"] = "300ms"
        return directive

    # What clients do.

    def control(self):
        """A control node that answers; one is restarted if none does."""
        for name in self.controls:
            if name not in self.down | self.stopped:
                return self.mesh[name]
        self.end_faults(self.controls)
        return self.mesh[self.controls[0]]

    def ask(self, op, **arguments):
        """The result of an operation."""
        answer = self.answer(op, **arguments)
        assert answer["ok"], (op, arguments, answer)
        return answer["result"]

    def answer(self, op, **arguments):
        """The answer to an operation, which may be that there is no such thing; others are asked for again."""

        def answer():
            with contextlib.suppress(OSError, ControlError):
                answer = self.control().command({"command": "controller", "op": op, **arguments}, timeout=20)
                if answer["ok"] or answer["error"]["code"] in ("not_found", "conflict", "bad_request"):
                    return answer

        return until(f"an answer to {op} {arguments}", answer)

    def await_ready(self):
        """Until every node that runs jobs is ready. Those whose check failed are checked on demand, as an operator would."""

        def ready():
            instances = {one["name"]: one for one in self.ask("instance.list")["instances"]}
            wanted = [*self.controls, *self.executions]
            late = [name for name in wanted if instances.get(name, {}).get("capacity", 0) == 0]
            for name in late:
                if name in instances and instances[name]["reachable"]:
                    self.ask("instance.health", name=name)
            return not late

        until("every instance to be ready", ready, 90, pause=0.2)

    # Time, notes, and excuses.

    def note(self, text):
        self.history.append(f"{time.time() - self.began:8.3f} {text}")

    def begin(self, kind, where):
        self.events.append([kind, where, time.time(), None])
        return self.events[-1]

    def excuses(self, kinds, where, start, end):
        """Since when something of these kinds kept one of these from working, between two times; None if nothing did."""
        found = [
            since
            for kind, there, since, to in self.events
            if kind in kinds and there in where and since <= end and (to is None or to >= start)
        ]
        return min(found, default=None)

    def later(self, seconds, text, action):
        bisect.insort(self.ends, (time.time() + seconds, text, action), key=lambda end: end[0])

    def tick(self, seconds=0):
        """Lets time pass, and ends the faults that are due."""
        deadline = time.time() + seconds
        while True:
            while self.ends and self.ends[0][0] <= time.time():
                _, text, action = self.ends.pop(0)
                self.note(text)
                action()
            left = min([deadline, *(end[0] for end in self.ends[:1])]) - time.time()
            if time.time() >= deadline:
                return
            time.sleep(max(left, 0))

    def end_faults(self, of=()):
        """Ends all faults that last, or those of these nodes, at once."""
        chosen = [end for end in self.ends if not of or end[1].split()[1] in of]
        self.ends = [end for end in self.ends if end not in chosen]
        for _, text, action in chosen:
            self.note(text)
            action()

    # Faults. Each takes the node's name and how long it lasts.

    def kill(self, name, span, wipe=False):
        """SIGKILL to the daemon; its jobs run on."""
        self.note(f"kill {name} for {span} s{', and its disk is lost' if wipe else ''}")
        event = self.begin("away", name)
        self.resume(name)
        self.mesh[name].stop(signal.SIGKILL)
        if wipe:
            # A machine that is installed again: what ran on it has ended.
            self.events.append(["wiped", name, time.time(), None])
            self.end_processes(name)
            until("its disk to be empty", lambda: self.wipe(self.mesh[name].datadir))
        self.down.add(name)
        self.later(span, f"start {name}", lambda: self.restart(name, event))

    @staticmethod
    def wipe(place):
        """Deletes what is there, but not the place, which may be a mount. Says whether it is empty."""
        found = list(place.iterdir()) if place.exists() else []
        for one in found:
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)
        return not found

    def restart(self, name, event):
        if name in self.down:
            since = time.time()
            self.mesh[name].start()
            self.store.started(name, since)
            self.down.discard(name)
        event[3] = time.time()
        for other in self.events:
            if other[0] in ("wiped", "dead") and other[1] == name and other[3] is None:
                other[3] = time.time()

    def stop(self, name, span, is_whole=False):
        """SIGSTOP: it answers nothing, and its links stay open. So it is with its jobs if the whole machine stands still."""
        if name in self.down | self.stopped:
            return self.tick(0.05)
        self.note(f"stop {name}{' and its jobs' if is_whole else ''} for {span} s")
        event = self.begin("away", name)
        self.mesh[name].process.send_signal(signal.SIGSTOP)
        if is_whole:
            self.signal_jobs(name, signal.SIGSTOP)
        self.stopped.add(name)
        self.later(span, f"continue {name}", lambda: self.resume(name, event))

    def resume(self, name, event=None):
        if name in self.stopped:
            self.mesh[name].process.send_signal(signal.SIGCONT)
            self.signal_jobs(name, signal.SIGCONT)
            self.stopped.discard(name)
        if event:
            event[3] = time.time()

    def partition(self):
        """Something is out of reach for long, amid all other faults."""
        span = self.partition_span
        if self.apart[0]:
            return self.tick(0.05)
        name, silently = self.rng.choice(self.links()), self.rng.random() < 0.5
        self.end_faults((name,))
        self.break_link(name, span, silently, "end the partition of")
        self.apart = (name, time.time() + span)

    def is_apart(self):
        return time.time() < self.apart[1]

    def links(self):
        """What may be out of reach."""
        return [*self.controls, *self.executions]

    def break_link(self, name, span, silently, end="heal"):
        """The node's link to the hop is closed and refused, or swallows everything."""
        relay = self.relays[name]
        if name == self.apart[0]:
            return self.tick(0.05)
        self.note(f"{'silence' if silently else 'cut'} the link of {name} for {span} s")
        event = self.begin("away", name)
        relay.swallowing, relay.is_broken = silently, not silently
        if not silently:
            relay.cut()

        def heal():
            relay.swallowing = relay.is_broken = False
            relay.cut()
            event[3] = time.time()
            if name == self.apart[0]:
                self.apart = (None, 0)

        self.later(span, f"{end} {name}", heal)

    def fill(self, span):
        """A disk is full."""
        if not self.small:
            return self.tick(0.05)
        name = self.rng.choice(self.small)
        if name in self.down:
            # A node that is installed again on a full disk does not start, and says why.
            return self.tick(0.05)
        self.note(f"fill the disk of {name} for {span} s")
        event = self.begin("full", name)
        filler = self.filler(name)
        with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, DISK)
        with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

        def free():
            self.make_room(name)
            event[3] = time.time()

        self.later(span, f"empty {name}", free)

    def filler(self, name):
        return self.mesh[name].datadir / "filler"

    def make_room(self, name):
        self.filler(name).unlink(missing_ok=True)

    def forget(self, since):
        """The store has lost what it has committed since then."""
        for job in self.jobs:
            job.forget(since)

    def units(self, name):
        """The children that a node's disk shows."""
        place = self.mesh[name].datadir / name
        with contextlib.suppress(OSError):
            return sorted(one.name for one in place.iterdir() if one.name.startswith("c") and (one / "status").exists())
        return []

    def processes(self, name, unit=None):
        """The processes of a node's units, or of one; the keeper of a unit, which knows its command, comes first."""
        mark = f"MESHD_UNIT_DIR={self.mesh[name].unit_dir(unit) if unit else self.mesh[name].datadir / name}"
        found = []
        for pid in self.mesh.processes():
            with contextlib.suppress(OSError):
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                if any(one == mark or one.startswith(f"{mark}/") for one in environ):
                    found.append(pid)
        return sorted(found)

    def kill_process(self, name):
        """SIGKILL to a process of a unit."""
        units = [unit for unit in self.units(name) if "n" in unit]
        if not units:
            return self.tick(0.02)
        unit = self.rng.choice(units)
        pids = self.processes(name, unit)
        self.note(f"kill one of {len(pids)} processes of {unit} on {name}")
        self.events.append(["killed", unit, time.time(), time.time()])
        for pid in pids[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_node(self, name, span):
        """The machine dies: its daemon and its jobs. An operator sees it and says so."""
        self.kill(name, 3600)
        self.ends.pop()
        event = self.begin("dead", name)
        self.end_processes(name)
        self.note(f"declare {name} dead")
        with contextlib.suppress(AssertionError):
            self.ask("instance.remove", name=name, dead=True)
        away = next(one for one in reversed(self.events) if one[0] == "away" and one[1] == name)

        def back():
            self.restart(name, away)
            event[3] = time.time()

        self.later(span, f"start {name}", back)

    def signal_jobs(self, name, number):
        """To all jobs of a node."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end_processes(self, name):
        """SIGKILL to all jobs of a node."""
        self.signal_jobs(name, signal.SIGKILL)
        until("its processes to be gone", lambda: not self.processes(name))

    def strangers_release(self, name):
        """A client that knows nothing of jobs releases all units of an execution node."""
        if name in self.down | self.stopped:
            return self.tick(0.02)
        self.note(f"a stranger releases all units of {name}")
        event = self.begin("released", name)
        with contextlib.suppress(OSError, ControlError):
            for unit in self.mesh[name].command("work list", timeout=10):
                with contextlib.suppress(ControlError):
                    self.mesh[name].command(f"work release {unit}", timeout=15)
        event[3] = time.time()

    def strangers_refused(self):
        """A client that cancels and releases all children on a control node is refused."""
        control = self.control()
        self.note(f"a stranger cancels and releases all children of {control.name}")
        with contextlib.suppress(OSError):
            units = control.command("work list")
            for unit in (unit for unit in units if is_child(unit) and "n" in unit):
                for verb in ("cancel", "release"):
                    try:
                        done = control.command(f"work {verb} {unit}")
                    except ControlError as refused:
                        text = str(refused)
                        assert "belongs to job" in text or "unknown work unit" in text or "closed" in text, text
                    else:
                        # One that the controller has released meanwhile counts as done.
                        gone = unit not in control.command("work list")
                        assert gone, f"a stranger's {verb} of {unit} was not refused: {done}"

    def left(self):
        """Everything on execution nodes that belongs to a unit, and children on control nodes."""
        left = {}
        for name in self.executions:
            left[name] = [*self.mesh[name].command("work list"), *self.units(name), *self.processes(name)]
        for name in self.controls:
            left[name] = [unit for unit in self.mesh[name].command("work list") if is_child(unit)]
        return {name: units for name, units in left.items() if units}

    def close(self):
        for relay in self.relays.values():
            relay.close()
        self.store.close()
        for name in self.small:
            subprocess.run(["umount", "--lazy", str(self.mesh[name].datadir)], check=True)


def leave_out(what):
    """Says aloud that there is a kind of fault that cannot be made here; where nothing may be missing, that is a failure."""
    assert os.environ.get("CI") != "true", what
    warnings.warn(f"SKIPPED: {what}", stacklevel=2)


def is_child(unit):
    """Whether a unit belongs to an attempt or a health check: c, 8 hex digits of the install ID, n or h."""
    return len(unit) > 10 and unit[0] == "c" and unit[9] in "nh"
