"""A server for the far end of proxies that echoes every byte at once, and a client for it."""

import contextlib
import socket
import threading


class Echo:
    """Echoes its input, and ends its direction when the other side has ended its own."""

    def __init__(self, path=None, port=0):
        if path is None:
            self.listener = socket.create_server(("127.0.0.1", port), backlog=128)
            self.port = self.listener.getsockname()[1]
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(path))
            self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, contextlib.suppress(OSError):
            while data := client.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def close(self):
        # Wakes the thread that waits in accept.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def receive(connection, count):
    """Receives that many bytes; fewer if the other side ends first."""
    received = bytearray()
    while len(received) < count and (data := connection.recv(65536)):
        received += data
    return bytes(received)


def alive(connection):
    """Whether bytes arrive and return."""
    try:
        connection.sendall(b"alive?")
        return receive(connection, 6) == b"alive?"
    except ConnectionError:
        return False


def exchange(connection, payload):
    """Sends and receives at the same time; returns what was received. Ends neither direction."""
    sender = threading.Thread(target=connection.sendall, args=(payload,))
    sender.start()
    received = receive(connection, len(payload))
    sender.join()
    return received
