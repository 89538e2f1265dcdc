"""Two control nodes with one PostgreSQL, and what can happen to them alone: something happens to the store; the mesh falls
into halves; the wall clock of one is wrong.

The halves are c1, e1 and e3 at `hop`, and c2 and e2 at `hop2`.
"""

import random
import threading

from clocks import Clock
from controller_store import Postgresql
from controller_world import World
from mesh import MESHCTL
from trust import run

#: Seconds by which a node's wall clock is wrong: less than what a token outlives, far more than any timer here.
SKEWS = (-20, -2, 2, 20)
#: How long PostgreSQL stands still: also for longer than a lease lasts.
PAUSES = (0.05, 0.5, 1.5, 4)


class Pair(World):
    """Its control nodes take submissions and answer in turns."""

    HOPS = ("hop", "hop2")
    KINDS = {"kill store": 4, "cut store": 4, "pause store": 3, "halves": 4, "skew": 2}

    def __init__(self, mesh, rng):
        self.clocks = {}
        #: Not the seed's: how often a client asks depends on time.
        self.turns, self.ticking = random.Random(0), threading.RLock()
        self.private, self.public = mesh.dir / "key", mesh.dir / "key.pub"
        run(MESHCTL, "key", "generate", "--type", "ed25519", "--private", self.private, "--public", self.public)
        super().__init__(mesh, rng, controls=2)

    # What the nodes are made of.

    def make_store(self):
        return Postgresql(self)

    def hop_of(self, name):
        return "hop2" if name in ("c2", "e2") else "hop"

    def surround(self, name):
        return [
            {"work-signing": {"privatekey": str(self.private)}},
            {"work-verification": {"publickey": str(self.public)}},
        ]

    def prepare(self, name):
        self.clocks[name] = Clock(self.mesh.dir, f"{name}.clock")
        self.mesh[name].variables = self.clocks[name].variables

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

    def own_fault(self, kind, span):
        name = self.rng.choice(self.controls)
        match kind:
            case "kill store":
                self.store.kill(span)
            case "cut store":
                self.store.cut(name, span)
            case "pause store":
                self.store.pause(self.rng.choice(PAUSES))
            case "halves":
                self.break_link("hop2", span, silently=self.rng.random() < 0.3)
            case "skew":
                self.skew(name, self.rng.choice(SKEWS), span)

    def links(self):
        """The halves as often as all others."""
        return [*super().links(), *["hop2"] * len(super().links())]

    def restart(self, name, event):
        # Without its store a node ends at once, and is started again until the store is there.
        self.end_faults(("PostgreSQL", name))
        super().restart(name, event)

    def skew(self, name, seconds, span):
        """Its wall clock is wrong for a while; no timer and no other node may care."""
        self.note(f"the clock of {name} is off by {seconds} s for {span} s")
        self.clocks[name].set(seconds)
        self.later(span, f"right the clock of {name}", lambda: self.clocks[name].set(0))

    def end_faults(self, of=()):
        with self.ticking:
            super().end_faults(of)
