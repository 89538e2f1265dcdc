"""A client of the control service that does exactly what a test says, and waits no longer than that.

receptorctl and meshctl have tests of their own. This client exists for what they cannot do: payloads that break off,
slow readers, several commands on one connection.
"""

import io
import json
import socket
import time


class ControlError(Exception):
    """The node answered `ERROR: ...`."""


class Bounded(io.RawIOBase):
    """What a socket receives, until a deadline. A time limit of the socket itself holds for one piece only."""

    def __init__(self, socket, seconds):
        self.socket, self.seconds = socket, seconds
        self.restart()

    def restart(self):
        self.deadline = time.monotonic() + self.seconds

    def readable(self):
        return True

    def readinto(self, buffer):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the answer did not end within {self.seconds} s")
        self.socket.settimeout(left)
        try:
            return self.socket.recv_into(buffer)
        finally:
            self.socket.settimeout(self.seconds)


class Control:
    """One connection. `where` is a path or a (host, port) pair. Each answer ends within `timeout` seconds, a line like a
    stream."""

    def __init__(self, where, timeout=60):
        unix = isinstance(where, str)
        self.socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(where)
            self.greet(timeout)
        except BaseException:
            self.socket.close()
            raise

    def greet(self, timeout):
        """Begins to read from the socket."""
        self.bounded = Bounded(self.socket, timeout)
        self.reader = io.BufferedReader(self.bounded, 1 << 16)
        self.greeting = self.line()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.reader.close()
        self.socket.close()

    def line(self):
        """The next line, without its end; ControlError if it is an error, or if there is none."""
        self.bounded.restart()
        text = self.reader.readline().decode()
        if not text.endswith("\n"):
            raise ControlError(f"connection closed after {text!r}")
        if text.startswith("ERROR: "):
            raise ControlError(text[7:-1])
        return text[:-1]

    def send(self, line):
        text = line if isinstance(line, str) else json.dumps(line)
        self.socket.sendall(text.encode() + b"\n")

    def ask(self, line):
        self.send(line)
        return self.line()

    def command(self, line):
        """Sends one command, words or a dict; returns its JSON answer."""
        return json.loads(self.ask(line))

    def begin(self, node, worktype, **params):
        """Begins a submission; returns the unit's ID, which precedes the payload."""
        request = {"command": "work", "subcommand": "submit", "node": node, "worktype": worktype, **params}
        text = self.ask(request)
        start, end = "Work unit created with ID ", ". Send stdin data and EOF."
        assert text.startswith(start) and text.endswith(end), text
        return text[len(start) : -len(end)]

    def submit(self, node, worktype, payload=b"", **params):
        """A whole submission; returns the answer after the payload."""
        unit = self.begin(node, worktype, **params)
        self.socket.sendall(payload)
        self.socket.shutdown(socket.SHUT_WR)
        answer = json.loads(self.line())
        assert answer["unitid"] == unit, answer
        return answer

    def results(self, unit, start=0):
        """A reader of a unit's stdout, from a position to the stream's end."""
        text = self.ask(f"work results {unit} {start}")
        assert text == f"Streaming results for work unit {unit}", text
        return self.reader
