"""Git repositories on disk, and a server that gives them out by https. Knows nothing of nodes."""

import functools
import http.server
import pathlib
import ssl
import subprocess

from mesh import environment


class Repository:
    """A git repository on disk."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words):
        names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example"}
        allowed = ["-c", "protocol.file.allow=always"]
        done = subprocess.run(["git", *allowed, *words], cwd=self.path, env=environment(**names), capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD")

    @property
    def url(self):
        return f"file://{self.path}"


class GitServer(http.server.ThreadingHTTPServer):
    """Serves a directory by https, to those who log in; notes who asked for what.

    Ends as many connections as hang_ups says, and gives no object before so many lists of references as `lists` says.
    """

    request_queue_size = 128

    def __init__(self, directory, certificate, key, login):
        self.directory, self.login = directory, login
        self.asked, self.hang_ups, self.lists = [], 0, 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        super().__init__(("127.0.0.1", 0), functools.partial(GitHandler, directory=str(directory)))
        self.url = f"https://127.0.0.1:{self.server_address[1]}"

    def lists_given(self):
        return sum(login == self.login and "/info/refs" in path for path, login in self.asked)

    def finish_request(self, request, client_address):
        """Runs in the connection's own thread, so a slow client holds up no other; an error is told on stderr."""
        if self.hang_ups:
            self.hang_ups -= 1
            return
        with self.context.wrap_socket(request, server_side=True) as connection:
            super().finish_request(connection, client_address)


class GitHandler(http.server.SimpleHTTPRequestHandler):
    """Keeps a connection for as many requests as its client likes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        login = self.headers.get("Authorization", "")
        self.server.asked.append((self.path, login))
        if login != self.server.login:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif "/objects/" in self.path and self.server.lists_given() < self.server.lists:
            self.close_connection = True
        else:
            super().do_GET()

    def log_message(self, *_):
        pass
