"""A neighbour made of a socket, which speaks the wire protocol over TCP correctly or incorrectly, byte by byte; and
proxies to place between two neighbours.

Knows the bytes (docs/protocol.md#framing, docs/protocol.md#messages), not what is legal.
"""

import contextlib
import json
import random
import socket
import struct
import threading
import time

DATA, ROUTING, ADVERTISEMENT, REJECT = 0, 1, 2, 3


def frame(message):
    """A message in its TCP frame."""
    return struct.pack("<H", len(message)) + message


class Peer:
    """One connection to a node's listener."""

    def __init__(self, port, name="peer", timeout=60):
        self.name, self.sequence = name, 0
        self.epoch = int(time.time()) << 24
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.reader = self.socket.makefile("rb")
        self.update_count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.reader.close()
        self.socket.close()

    def raw(self, data):
        """Writes bytes; use `ended` to see whether the node closed the connection."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def send(self, kind, body=b""):
        """Sends one message; a body that is not bytes is sent as JSON."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.raw(frame(bytes([kind]) + body))

    def update(self, connections, **different):
        """A routing update of this peer."""
        self.sequence += 1
        self.send(
            ROUTING,
            {
                "NodeID": self.name,
                "UpdateID": f"{self.name[:4]:x<4}{self.sequence:04}",
                "UpdateEpoch": self.epoch,
                "UpdateSequence": self.sequence,
                "Connections": connections,
                "ForwardingNode": self.name,
                "SuspectedDuplicate": 0,
                **different,
            },
        )

    def receive(self):
        """The next message as (type, body), or None at the end of the connection."""
        with contextlib.suppress(ConnectionError):
            head = self.reader.read(2)
            if len(head) == 2:
                message = self.reader.read(struct.unpack("<H", head)[0])
                return message[0], message[1:]
        return None

    def wait_for(self, kind, seconds=60):
        """The next message of a type; fails if the connection ends or the time is up first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self.receive()
            assert message is not None, f"connection closed before a message of type {kind}"
            if message[0] == kind:
                return message[1]
        raise AssertionError(f"no message of type {kind} within {seconds} s")

    def introduce(self, node, cost=1.0):
        """The handshake of a well-behaved neighbour; returns once the node lists this peer."""
        self.update({node: cost})
        while self.name not in json.loads(self.wait_for(ROUTING))["Connections"]:
            self.update({node: cost})
        return self

    def ended(self, seconds=60):
        """Whether the node has closed the connection; its messages are discarded."""
        self.socket.settimeout(seconds)
        try:
            while self.receive() is not None:
                pass
        except TimeoutError:
            return False
        return True


class Door:
    """Listens on its own port, and passes each connection to `serve` in a new thread."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(near,), daemon=True).start()


class Proxy(Door):
    """A TCP proxy in front of a port, which can swallow all data in both directions without closing anything."""

    def __init__(self, target):
        self.target, self.swallowing, self.sockets, self.accepted = target, False, [], 0
        super().__init__()

    def serve(self, near):
        self.accepted += 1
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            return
        self.sockets += [near, far]
        threading.Thread(target=self.copy, args=(far, near), daemon=True).start()
        self.copy(near, far)

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.swallowing:
                    sink.sendall(data)
        # Bytes are missing on these connections: closing one end may close the other.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self):
        for one in [self.listener, *self.sockets]:
            one.close()


class Nat:
    """Relays datagrams between one client and a port. It can change the address that the port sees, and lose a
    part of what the client sends.
    """

    def __init__(self, target):
        self.target, self.client, self.moves, self.loses = ("127.0.0.1", target), None, 0, 0
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.front.bind(("127.0.0.1", 0))
        self.port = self.front.getsockname()[1]
        self.backs = []
        self.move()
        threading.Thread(target=self.outward, daemon=True).start()

    def move(self):
        """Uses another port from now on; data to the old ones is lost."""
        back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        back.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        back.bind(("127.0.0.1", 0))
        self.backs.append(back)
        threading.Thread(target=self.inward, args=(back,), daemon=True).start()
        self.moves += 1

    def outward(self):
        with contextlib.suppress(OSError):
            while True:
                data, self.client = self.front.recvfrom(65536)
                if random.random() >= self.loses:
                    self.backs[-1].sendto(data, self.target)

    def inward(self, back):
        with contextlib.suppress(OSError):
            while True:
                data = back.recv(65536)
                if back is self.backs[-1] and self.client:
                    self.front.sendto(data, self.client)

    def close(self):
        for one in [self.front, *self.backs]:
            one.close()


class HttpProxy(Proxy):
    """Opens a tunnel to one port of this machine, whatever host is requested; `asked` has the request lines."""

    def __init__(self, target):
        self.asked = []
        super().__init__(target)

    def serve(self, near):
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            data = near.recv(65536)
            if not data:
                return
            request += data
        self.asked.append(request.split(b"\r\n")[0].decode())
        near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        super().serve(near)
