"""A hop made of sockets: it joins the listeners of two nodes, passes on what it gets, and does to datagrams what a test
says. It can write what any hop can write: a datagram in another's name, and a close of a QUIC connection that has just
begun, whose keys everybody on the way can compute (RFC 9001, section 5.2).

Knows the bytes (docs/protocol.md#messages), not what is legal.
"""

import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import struct
import threading
import time

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from peer import ADVERTISEMENT, DATA, ROUTING, frame

SALT = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")


def derive(secret, label, length):
    label = b"tls13 " + label
    info = struct.pack(">HB", length, len(label)) + label + b"\0"
    return hmac.new(secret, info + b"\1", hashlib.sha256).digest()[:length]


def connection_of(datagram):
    """The ID that a dialler's first packet makes up, and its own; None if the datagram begins with another packet."""
    if len(datagram) < 1200 or datagram[0] & 0xF0 != 0xC0 or datagram[1:5] != b"\0\0\0\1":
        return None
    ours, rest = datagram[6 : 6 + datagram[5]], datagram[6 + datagram[5] :]
    return ours, rest[1 : 1 + rest[0]]


def initial_close(first, code):
    """What a listener that refuses would answer to a dialler's first packet."""
    chosen, dialler = connection_of(first)
    secret = derive(hmac.new(SALT, chosen, hashlib.sha256).digest(), b"server in", 32)
    key, iv, mask_key = (derive(secret, b"quic " + name, length) for name, length in ((b"key", 16), (b"iv", 12), (b"hp", 16)))
    text = (b"\x1c" + struct.pack(">I", 0x80000000 | code) + b"\6\0").ljust(40, b"\0")
    number = b"\0\0\0\0"
    head = b"\xc3\0\0\0\1" + bytes([len(dialler)]) + dialler + b"\x08faked it\0" + struct.pack(">H", 0x4000 | len(number + text) + 16)
    sealed = AESGCM(key).encrypt(iv, text, head + number)
    mask = Cipher(algorithms.AES(mask_key), modes.ECB()).encryptor().update(sealed[:16])
    masked = bytes(a ^ b for a, b in zip(number, mask[1:5], strict=True))
    return bytes([head[0] ^ mask[0] & 0x0F]) + head[1:] + masked + sealed


class Side:
    """The link to one of the nodes, which is dialled until the hop ends."""

    def __init__(self, hop, name, port, context):
        self.hop, self.name, self.port, self.context = hop, name, port, context
        self.socket, self.lock = None, threading.Lock()

    def run(self):
        while not self.hop.over.wait(0.1):
            with contextlib.suppress(OSError, ssl.SSLError), socket.create_connection(("127.0.0.1", self.port), 10) as plain:
                self.socket = self.context.wrap_socket(plain) if self.context else plain
                self.socket.settimeout(None)
                self.hop.update(self)
                with self.socket.makefile("rb") as reader:
                    while len(head := reader.read(2)) == 2:
                        self.hop.on(self, reader.read(struct.unpack("<H", head)[0]))

    def send(self, message):
        with contextlib.suppress(OSError, ssl.SSLError), self.lock:
            if self.socket:
                self.socket.sendall(frame(message))


class Hop:
    """Between two nodes, which are named with the ports of their listeners."""

    def __init__(self, ports, context=None, name="hop"):
        self.name, self.over, self.lock = name, threading.Event(), threading.Lock()
        self.epoch, self.sequence, self.known = int(time.time()) << 24, 0, {}
        #: Is given each datagram with the side that it came from; does something else with it, and says so.
        self.policy = lambda _side, _message: False
        self.sides = [Side(self, *node, context) for node in ports.items()]
        for run in [side.run for side in self.sides] + [self.beat]:
            threading.Thread(target=run, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        for side in self.sides:
            with contextlib.suppress(OSError):
                side.socket.shutdown(socket.SHUT_RDWR)

    def beat(self):
        while not self.over.wait(3):
            for side in self.sides:
                self.update(side)

    def update(self, side):
        with self.lock:
            self.sequence += 1
            update = {
                "NodeID": self.name,
                "UpdateID": f"hp{self.sequence:06}",
                "UpdateEpoch": self.epoch,
                "UpdateSequence": self.sequence,
                "Connections": {side.name: 1.0 for side in self.sides},
                "ForwardingNode": self.name,
                "SuspectedDuplicate": 0,
            }
        side.send(bytes([ROUTING]) + json.dumps(update).encode())

    def is_news(self, key, version):
        with self.lock:
            known = self.known.get(key)
            self.known[key] = version if known is None else max(known, version)
            return known is None or known < version

    def on(self, side, message):
        (other,) = (other for other in self.sides if other is not side)
        if message[:1] == bytes([ROUTING]):
            update = json.loads(message[1:])
            if update["NodeID"] == side.name and self.name not in update["Connections"]:
                self.update(side)
            if update["NodeID"] != self.name and self.is_news(update["NodeID"], (update["UpdateEpoch"], update["UpdateSequence"])):
                other.send(bytes([ROUTING]) + json.dumps({**update, "ForwardingNode": self.name}).encode())
        elif message[:1] == bytes([ADVERTISEMENT]):
            ad = json.loads(message[1:])
            if self.is_news((ad["NodeID"], ad["Service"]), ad["Time"]):
                other.send(message)
        elif message[:1] == bytes([DATA]) and len(message) >= 36 and message[1] and message[20:26] != b"\1probe":
            if not self.policy(side, message):
                other.send(message[:1] + bytes([message[1] - 1]) + message[2:])


def answer_to(message, payload, services=None):
    """A datagram in the name of the one that a datagram was for."""
    source, sink = services or (message[28:36], message[20:28])
    return bytes([DATA, 30, 0, 0]) + message[12:20] + message[4:12] + source + sink + payload
