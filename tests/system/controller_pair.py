"""Two control nodes with one PostgreSQL, and what can happen to them alone: the store dies, or is out of reach of one of
them; the mesh falls into halves; a wall clock is wrong.

The halves are c1, e1 and e3 at `hop`, and c2 and e2 at `hop2`. Owns the server, the ways to it, and the clocks.
"""

import pathlib
import random
import shutil
import signal
import struct
import subprocess
import threading
import time

import postgres
from controller_world import World, leave_out
from mesh import MESHCTL
from trust import run

SKEWED_CLOCK = pathlib.Path(__file__).with_name("skewed_clock.c")
#: Seconds by which a wall clock is wrong: less than what a token outlives, far more than any timer here.
SKEWS = (-20, -2, 2, 20)


class Pair(World):
    """Its control nodes take submissions and answer in turns."""

    HOPS = ("hop", "hop2")

    def __init__(self, mesh, rng):
        self.server, self.ways, self.clocks = postgres.Postgres(), {}, {}
        self.is_store_down = False
        #: Not the seed's: how often a client asks depends on time.
        self.turns, self.ticking = random.Random(0), threading.RLock()
        self.private, self.public = mesh.dir / "key", mesh.dir / "key.pub"
        run(MESHCTL, "key", "generate", "--type", "ed25519", "--private", self.private, "--public", self.public)
        self.shim = self.compile(mesh.dir / "skewed_clock.so")
        self.database = self.server.start().database()
        super().__init__(mesh, rng, controls=2)

    @staticmethod
    def compile(target):
        """The library that skews clocks; None where no C compiler is."""
        if shutil.which("cc") is None:
            leave_out("no clock is wrong, as there is no C compiler (cc)")
            return None
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", target, SKEWED_CLOCK], check=True, capture_output=True)
        return target

    def close(self):
        super().close()
        for way in self.ways.values():
            way.close()
        self.server.remove()

    # What the nodes are made of.

    def hop_of(self, name):
        return "hop2" if name in ("c2", "e2") else "hop"

    def store(self, name):
        self.ways[name] = postgres.Way(self.server.port)
        return self.server.url(self.database, self.ways[name].port)

    def surround(self, name):
        return [
            {"work-signing": {"privatekey": str(self.private)}},
            {"work-verification": {"publickey": str(self.public)}},
        ]

    def prepare(self, name):
        """Its clock."""
        if self.shim:
            clock = self.mesh.dir / f"{name}.clock"
            self.set_clock(clock, 0)
            self.clocks[name] = clock
            self.mesh[name].variables = {"LD_PRELOAD": str(self.shim), "SKEWED_CLOCK": str(clock)}

    # What clients do.

    def control(self):
        self.tick()
        up = [name for name in self.controls if name not in self.down | self.stopped]
        return self.mesh[self.turns.choice(up)] if up else super().control()

    def tick(self, seconds=0):
        # Clients that submit at once do this at once.
        with self.ticking:
            super().tick(seconds)

    # Faults.

    def own_fault(self, span):
        name = self.rng.choice(self.controls)
        match self.rng.choices(range(4), (2, 2, 2, 1))[0]:
            case 0:
                self.kill_store(span)
            case 1:
                self.cut_store(name, span)
            case 2:
                self.break_link("hop2", span, silently=self.rng.random() < 0.3)
            case _:
                self.skew(name, self.rng.choice(SKEWS), span)

    def kill_store(self, span):
        """PostgreSQL crashes; it keeps what it has committed."""
        if self.is_store_down:
            return
        self.note(f"kill PostgreSQL for {span} s")
        self.is_store_down = True
        self.server.stop(signal.SIGKILL)

        def start():
            self.server.start()
            self.is_store_down = False

        self.later(span, "start PostgreSQL", start)

    def cut_store(self, name, span):
        """One control node loses its store, and nothing else."""
        self.note(f"cut {name} from PostgreSQL for {span} s")
        event = self.begin("away", name)
        self.ways[name].cut()

        def heal():
            self.ways[name].heal()
            event[3] = time.time()

        self.later(span, f"heal {name} - PostgreSQL", heal)

    def restart(self, name, event):
        # Without its store a node ends at once, and is started again until the store is there.
        self.end_faults(("PostgreSQL", name))
        super().restart(name, event)

    def skew(self, name, seconds, span):
        """Its wall clock is wrong for a while; no timer and no other node may care."""
        if name not in self.clocks:
            return
        self.note(f"the clock of {name} is off by {seconds} s for {span} s")
        set_to = lambda seconds: self.set_clock(self.clocks[name], seconds)  # noqa: E731
        set_to(seconds)
        self.later(span, f"right the clock of {name}", lambda: set_to(0))

    @staticmethod
    def set_clock(clock, seconds):
        # In place, as it is mapped.
        with open(clock, "r+b" if clock.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))

    def end_faults(self, of=()):
        with self.ticking:
            super().end_faults(of)
