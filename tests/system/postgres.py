"""PostgreSQL for the tests: Debian's programs, in a temporary directory, as an unprivileged user, on 127.0.0.1.

Owns the server's processes and files, a way to it that a test can cut, and a pooler before it. Knows nothing about what is
stored.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading

from mesh import free_port, until

NOBODY = 65534
PGBOUNCER = pathlib.Path("/usr/sbin/pgbouncer")


def programs():
    """The directory of the newest version's programs; None if there is none."""
    found = [path for path in pathlib.Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    return max(found, key=lambda path: int(path.parent.name), default=None)


class Postgres:
    """One server, which is not started yet."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="meshd-postgres-"))
        self.port, self.process, self.databases, self.variables = free_port(), None, 0, {}
        #: Servers refuse to run as root.
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if self.user:
            os.chown(self.dir, NOBODY, NOBODY)
        initdb = [programs() / "initdb", "-U", "meshd", "--auth=trust", "--no-sync", "-E", "UTF8", "-D", self.dir / "data"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=self.dir, timeout=60, **self.user)

    def start(self):
        """Starts it, and waits until it answers."""
        command = [programs() / "postgres", "-D", self.dir / "data", "-p", str(self.port), "-k", self.dir]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=100"]

        def answers():
            # After a crash the former one's processes may still have its memory for a moment; a server ends then.
            if self.process is None or self.process.poll() is not None:
                with open(self.dir / "log", "ab") as log:
                    surroundings = {"cwd": self.dir, "env": {**os.environ, **self.variables}, **self.user}
                    self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **surroundings)
            return self.sql("SELECT 1", check=False).returncode == 0

        until("PostgreSQL to answer", answers, 60)
        return self

    def stop(self, number=signal.SIGINT):
        """Ends it: SIGINT cuts all connections, SIGKILL is a crash of all its processes at once."""
        if self.process is not None and self.process.poll() is None:
            if number == signal.SIGKILL:
                self.pause()
                self.signal(number)
            self.process.send_signal(number)
            self.process.wait(60)

    def processes(self):
        """The one that makes the others comes first."""
        first = self.process.pid
        with contextlib.suppress(OSError):
            return [first, *map(int, pathlib.Path(f"/proc/{first}/task/{first}/children").read_text().split())]
        return []

    def signal(self, number):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pause(self):
        """All its processes stand still when this returns."""

        def stands_still():
            self.signal(signal.SIGSTOP)
            stats = [pathlib.Path(f"/proc/{pid}/stat") for pid in self.processes()]
            with contextlib.suppress(OSError):
                return all(stat.read_text().rpartition(")")[2].split()[0] in "TZ" for stat in stats)

        until("PostgreSQL to stand still", stands_still)

    def resume(self):
        self.signal(signal.SIGCONT)

    def copy(self, place):
        """What is stored now, as a crash would leave it."""
        self.pause()
        try:
            subprocess.run(["cp", "-a", self.dir / "data", place], check=True)
        finally:
            self.resume()

    def put_back(self, place):
        """It crashes, and what was copied is all that is left."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.dir / "data")
        os.rename(place, self.dir / "data")
        (self.dir / "data" / "postmaster.pid").unlink(missing_ok=True)

    def sql(self, statement, database="postgres", check=True, port=None):
        command = [programs() / "psql", "-h", "127.0.0.1", "-p", str(port or self.port), "-U", "meshd", "-d", database, "-Atc", statement]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60)

    def database(self):
        """The name of a new, empty database."""
        self.databases += 1
        self.sql(f"CREATE DATABASE meshd{self.databases}")
        return f"meshd{self.databases}"

    def require_password(self, database, password):
        """From now on clients over TCP need the password for this database."""
        self.sql(f"ALTER USER meshd PASSWORD '{password}'")
        rules = self.dir / "data" / "pg_hba.conf"
        rules.write_text(f"host {database} all 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.sql("SELECT pg_reload_conf()")

    def dump(self, database):
        """All that is stored in it, as SQL."""
        command = [programs() / "pg_dump", "-h", self.dir, "-p", str(self.port), "-U", "meshd", "-d", database]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def url(self, database, port=None):
        return f"postgresql://meshd@127.0.0.1:{port or self.port}/{database}?sslmode=disable"

    def remove(self):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


class Pooler:
    """PgBouncer before a server: each transaction may get another connection of those that all clients share."""

    def __init__(self, server):
        self.port = free_port()
        settings = server.dir / "pgbouncer.ini"
        lines = ["[databases]", f"* = host=127.0.0.1 port={server.port} user=meshd", "[pgbouncer]", "listen_addr = 127.0.0.1"]
        lines += [f"listen_port = {self.port}", "unix_socket_dir =", "auth_type = any", "pool_mode = transaction"]
        settings.write_text("\n".join(lines) + "\n")
        with open(server.dir / "log", "ab") as log:
            self.process = subprocess.Popen([PGBOUNCER, settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **server.user)
        until("PgBouncer to answer", lambda: server.sql("SELECT 1", port=self.port, check=False).returncode == 0)

    def close(self):
        self.process.kill()
        self.process.wait()


class Way:
    """A TCP way to a port, which can be cut and healed. While it is cut, connections end at once."""

    def __init__(self, target):
        self.target, self.is_cut, self.links = target, False, set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.links |= {near, far}
            # It may have been cut while this connection was made, which `cut` has not seen then.
            if self.is_cut:
                near.close()
                far.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    @staticmethod
    def carry(one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                other.sendall(piece)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.is_cut = True
        for link in list(self.links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self.links = set()

    def heal(self):
        self.is_cut = False

    def close(self):
        self.cut()
        self.listener.close()
