"""The store of a world's control nodes, and what can happen to it: its clock is set, its last commits are lost as when a
standby takes over that had not got them; and PostgreSQL dies, stands still, or is out of reach of one control node.

Owns the history of its clock, by which the times that it shows become true ones. Knows nothing of jobs.
"""

import contextlib
import datetime
import pathlib
import shutil
import signal
import time

import postgres
from clocks import Clock
from mesh import until

#: Seconds by which its clock is set.
STEPS = (-3600, 3600)


class Store:
    """What both kinds have in common."""

    def __init__(self, world, clock):
        self.world, self.clock = world, clock
        #: Seconds by which its clock is ahead, and since when it shows that.
        self.ahead, self.steps = 0, [(0, 0)]
        #: An older copy of it, while what is committed will be lost.
        self.older = None

    def true(self, shown):
        """When it was that the store said this."""
        at = datetime.datetime.fromisoformat(shown.replace("Z", "+00:00")).timestamp()
        ends = [since for since, _ in self.steps[1:]] + [time.time()]
        # A transaction has the time at which it began.
        fits = [at - ahead for (since, ahead), end in zip(self.steps, ends, strict=True) if since - 1 <= at - ahead <= end + 1]
        assert fits, f"the store's clock never showed {shown}: {self.steps}"
        return fits[-1]

    def step(self, span):
        """Its clock is an hour ahead or behind for a while. It decides nothing about leases, jobs and instances."""
        if not self.clock.variables or self.ahead or not self.is_up():
            return self.world.tick(0.05)
        ahead = self.world.rng.choice(STEPS)
        self.world.note(f"the store's clock is ahead by {ahead} s for {span} s")
        self.set_clock(ahead)
        self.world.later(span, "right the store's clock", lambda: self.set_clock(0))

    def set_clock(self, ahead):
        self.clock.set(ahead)
        self.ahead = ahead

    def lose_commits(self, span):
        """What it commits within that time is lost."""
        if self.older or not self.is_up():
            return self.world.tick(0.05)
        self.world.note(f"the store will lose what it commits within {span} s")
        self.older, since = self.world.mesh.dir / "older", time.time()
        self.copy()

        def lose():
            self.put_back()
            self.older = None
            self.world.forget(since)

        self.world.later(span, "lose the store's last commits", lose)


class Sqlite(Store):
    """A file of the only control node, which is started again whenever its clock is set: it has the time from then on."""

    def __init__(self, world, name):
        super().__init__(world, Clock(world.mesh.dir, "store.clock"))
        self.name = name

    def url(self, _name):
        return "sqlite"

    def started(self, name, since):
        """A node was started then."""
        if name == self.name and self.ahead != self.steps[-1][1]:
            self.steps.append((since, self.ahead))

    def set_clock(self, ahead):
        super().set_clock(ahead)
        self.world.kill(self.name, 0)

    @property
    def place(self):
        return self.world.mesh[self.name].datadir / self.name / ".controller"

    def is_up(self):
        """One that is about to be opened would have another time than it is known to have."""
        if self.name in self.world.down | self.world.stopped:
            return False
        return self.world.ask("ping")["store"]["up"]

    def copy(self):
        process = self.world.mesh[self.name].process
        process.send_signal(signal.SIGSTOP)
        # Each thread stops by itself. None begins or ends once all have.
        threads = pathlib.Path(f"/proc/{process.pid}/task")
        state = lambda thread: (thread / "stat").read_text().rpartition(")")[2].split()[0]  # noqa: E731

        def stands_still():
            with contextlib.suppress(OSError):
                return all(state(thread) == "T" for thread in threads.iterdir())

        until("it to stand still", stands_still)
        shutil.copytree(self.place, self.older)
        process.send_signal(signal.SIGCONT)

    def put_back(self):
        self.world.kill(self.name, 0)
        self.world.make_room(self.name)
        shutil.rmtree(self.place)
        shutil.move(self.older, self.place)

    def close(self):
        pass


class Postgresql(Store):
    """A server of the world's own, with a way to it for each control node."""

    def __init__(self, world):
        self.server, self.ways, self.is_down = postgres.Postgres(), {}, False
        super().__init__(world, Clock(self.server.dir))
        self.server.variables = self.clock.variables
        self.database = self.server.start().database()

    def url(self, name):
        self.ways[name] = postgres.Way(self.server.port)
        return self.server.url(self.database, self.ways[name].port)

    def started(self, name, since):
        pass

    def is_up(self):
        return not self.is_down

    def set_clock(self, ahead):
        super().set_clock(ahead)
        self.steps.append((time.time(), ahead))

    def copy(self):
        self.server.copy(self.older)

    def put_back(self):
        self.server.put_back(self.older)
        if not self.is_down:
            self.server.start()

    def close(self):
        for way in self.ways.values():
            way.close()
        self.server.remove()

    def kill(self, span):
        """It crashes, and keeps what it has committed."""
        if self.is_down:
            return
        self.world.note(f"kill PostgreSQL for {span} s")
        self.is_down = True
        self.server.stop(signal.SIGKILL)

        def start():
            self.server.start()
            self.is_down = False

        self.world.later(span, "start PostgreSQL", start)

    def pause(self, span):
        """All of it stands still, and no client gets an answer meanwhile."""
        if self.is_down:
            return
        self.world.note(f"PostgreSQL stands still for {span} s")
        self.server.pause()
        self.world.tick(span)
        self.server.resume()

    def cut(self, name, span):
        """One control node loses its store, and nothing else."""
        self.world.note(f"cut {name} from PostgreSQL for {span} s")
        event = self.world.begin("away", name)
        self.ways[name].cut()

        def heal():
            self.ways[name].heal()
            event[3] = time.time()

        self.world.later(span, f"heal {name} - PostgreSQL", heal)
