"""The directive `web` from outside: its configuration with tokens, and a client of the API that sends what a test says."""

import contextlib
import hashlib
import http.client
import json
import socket
import ssl

from mesh import free_port

LEVELS = ("read", "operate", "admin")


def token_line(name, level, token):
    return f"{name} {level} {hashlib.sha256(token.encode()).hexdigest()}\n"


def directive(directory, allow="admin", tokens=LEVELS, **settings):
    """A `web` directive on a free port, and a client. The token of a level is `t-LEVEL`."""
    port = free_port()
    file = directory / "tokens"
    file.write_text("".join(token_line(level, level, f"t-{level}") for level in tokens))
    file.chmod(0o600)
    return {"web": {"address": f"127.0.0.1:{port}", "allow": allow, "tokens": str(file), **settings}}, Client(port)


class Answer:
    def __init__(self, answer):
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """The code of a refusal."""
        return self.json["error"]["code"]


class Client:
    """Asks on a new connection each time."""

    def __init__(self, port, context=None, patience=30):
        #: Seconds for which an answer is waited for.
        self.port, self.context, self.patience = port, context, patience
        #: Connections whose answers go on.
        self.begun = []

    def close(self):
        """Leaves all answers that have begun."""
        while self.begun:
            with contextlib.suppress(OSError):
                self.begun.pop().shutdown(socket.SHUT_RDWR)

    def connection(self, timeout=None):
        timeout = timeout or self.patience
        if self.context:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def begin(self, path, token=None, timeout=30, **headers):
        """The answer to a GET, whose body is yet to be read."""
        connection = self.connection(timeout)
        connection.request("GET", path, headers=bearer(token) | headers)
        self.begun.append(connection.sock)
        return connection.getresponse()

    def get(self, path, token=None, **headers):
        return self.ask("GET", path, token=token, headers=headers)

    def post(self, path, body=b"", token=None, headers=None):
        return self.ask("POST", path, body, token, headers)

    def ask(self, method, path, body=None, token=None, headers=None):
        connection = self.connection()
        try:
            connection.request(method, path, body=json.dumps(body) if isinstance(body, dict) else body,
                               headers=bearer(token) | (headers or {}))
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def raw(self, request, timeout=30):
        """All that comes back for these bytes."""
        connection = self.connection(timeout)
        connection.connect()
        with connection.sock as client:
            client.sendall(request)
            answer = b""
            try:
                while data := client.recv(65536):
                    answer += data
            except (ConnectionResetError, ssl.SSLError):
                pass
            return answer

    def sign_in(self, token):
        """The headers of a browser that has signed in, and what its page needs for changes."""
        answer = self.post("/api/v1/session", {"token": token})
        assert answer.status == 204, answer.body
        cookie = {"Cookie": answer.headers["Set-Cookie"].split(";")[0]}
        session = self.get("/api/v1/session", **cookie).json
        scheme = "https" if self.context else "http"
        return cookie, {"Origin": f"{scheme}://127.0.0.1:{self.port}", "X-Form-Token": session["form_token"]}


def bearer(token):
    return {"Authorization": f"Bearer {token}"} if token else {}


def events(answer):
    """Events of a stream as they come: (ID, kind, data)."""
    one = {}
    while line := answer.readline():
        line = line.decode().rstrip("\n")
        if line:
            key, _, value = line.partition(": ")
            one[key] = value
        elif "data" in one:
            yield int(one["id"]), one["event"], json.loads(one["data"])
            one = {}
        else:
            one = {}
