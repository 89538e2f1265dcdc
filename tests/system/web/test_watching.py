"""`meshctl graph`, `meshctl events` and `meshctl top` on real nodes, one of which goes and comes back."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

import pytest

from mesh import MARK, MESHCTL, PATIENCE, environment, until


def meshctl(node, *args):
    done = subprocess.run([MESHCTL, "--socket", node.socket, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def test_a_graph_in_each_notation(line):
    control = line["control"]
    tree = re.sub(r"  [0-9.]+[mµn]s", "", meshctl(control, "graph"))
    assert tree == "control  this node\n└─ hop\n   └─ execution\n", tree
    dot = meshctl(control, "graph", "--dot")
    assert dot.startswith("graph mesh {\n"), dot
    assert '"control" -- "hop";' in dot and '"execution" -- "hop";' in dot, dot
    mermaid = meshctl(control, "graph", "--mermaid").splitlines()
    assert mermaid == ["graph LR", '  n0["control"]', '  n1["execution"]', '  n2["hop"]', "  n0 --- n2", "  n1 --- n2"]
    assert json.loads(meshctl(control, "--json", "graph")) == {
        "node": "control", "nodes": ["control", "execution", "hop"],
        "links": [{"a": a, "b": "hop", "cost_ab": 1.0, "cost_ba": 1.0} for a in ("control", "execution")],
    }


class Events:
    """`meshctl events` beside a test, and what it has printed."""

    def __init__(self, node, *args):
        self.file = node.mesh.dir / "events"
        command = [MESHCTL, "--socket", node.socket, *args, "events", "--interval", "0.2"]
        with open(self.file, "w") as out:
            marked = environment(**{MARK: str(node.mesh.dir)})
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=marked)
        assert self.process.stderr.readline().startswith("Watching unix:")

    def seen(self):
        # The last line may be half written.
        whole, _, _ = self.file.read_text().rpartition("\n")
        return whole.splitlines()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE) == 130
        return self.seen()


@pytest.fixture
def events(line):
    events = Events(line["control"], "--json")
    yield events
    events.process.kill()
    events.process.wait()


def test_nodes_and_links_that_go_and_come_and_a_gap(line, events):
    control, execution = line["control"], line["execution"]
    kinds = lambda: [json.loads(text)["event"] for text in events.seen()]  # noqa: E731
    execution.stop()
    until("the loss", lambda: {"link.down", "node.lost"} <= set(kinds()))
    execution.start()
    until("the return", lambda: {"link.up", "node.seen"} <= set(kinds()))

    def is_missed():
        # Between two looks it goes unnoticed.
        control.restart()
        return "gap" in kinds()

    until("a gap", is_missed, 90)
    found = [json.loads(text) for text in events.end()]
    assert [one["seq"] for one in found] == list(range(len(found))), found
    down = next(one for one in found if one["event"] == "link.down")
    assert (down["node"], down["peer"]) == ("execution", "hop"), down
    gap = next(one for one in found if one["event"] == "gap")
    assert gap["from"] < gap["to"] == gap["time"], gap


def test_reloads(line, events):
    control = line["control"]
    reloads = lambda: [one["to"] for text in events.seen() if (one := json.loads(text))["event"] == "reload"]  # noqa: E731
    assert "LastReload" not in control.status() and control.command({"command": "status", "requested_fields": ["LastReload"]}) == {}
    good = control.config.read_text()
    control.config.write_text("- nonsense: 1\n")
    assert control.command("reload")["Success"] is False
    until("the failure", lambda: reloads() == ["failed"])
    control.config.write_text(good)
    assert control.command("reload")["Success"] is True
    until("the success", lambda: reloads() == ["failed", "successful"])
    assert control.command({"command": "status", "requested_fields": ["LastReload"]})["LastReload"]["Success"] is True
    assert "LastReload" not in control.status()


def test_events_for_people(line):
    events = Events(line["control"])
    line["execution"].stop()
    for news in ("node.lost execution", "link.down execution - hop"):
        until(news, lambda news=news: any(news in text for text in events.seen()))
    events.end()
    line["execution"].start()
    until("the return", lambda: line["control"].reaches("execution"))
    events = Events(line["control"])
    line["hop"].stop()
    until("the loss", lambda: any("node.lost" in text for text in events.seen()))
    line["hop"].start()
    until("the return of both", lambda: line["control"].reaches("execution"))
    until("to be told", lambda: sum("node.seen" in text for text in events.seen()) > 0)
    lost = [text.split(" ", 1)[1] for text in events.end() if "node.lost" in text]
    assert lost == ["node.lost hop is out of reach; 1 node behind it"], lost
    broken = meshctl(line["control"], "status", "--links")
    assert "BROKEN LINK" not in broken, broken
    line["hop"].stop()
    until("the loss", lambda: not line["control"].status()["RoutingTable"])
    told = meshctl(line["control"], "status", "--links")
    assert "control - hop" in told and "hop is out of reach since" in told and "; 1 node behind it" in told, told
    tree = meshctl(line["control"], "graph").splitlines()
    assert tree[1].startswith("└─ hop  OUT OF REACH since ") and tree[2] == "   └─ execution  out of reach", tree


class Screen:
    """`meshctl top` on a terminal of its own."""

    def __init__(self, node):
        self.width = 80
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            self.resize(0)
            os.execve(MESHCTL, [MESHCTL, "--socket", node.socket, "top"], environment(**{MARK: str(node.mesh.dir)}))

    def resize(self, terminal):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.width, 0, 0))

    def read(self, seconds, pause):
        """What comes until nothing has come for as long as the pause, if something begins to come within that time; also ends
        with the program."""
        read = b""
        while select.select([self.terminal], [], [], pause if read else seconds)[0]:
            try:
                part = os.read(self.terminal, 65536)
            except OSError:
                break
            if not part:
                break
            read += part
        return read

    def shows(self, *texts):
        """Whether one picture shows these. One of another width is drawn from the beginning: at once, or with the next look,
        which comes each second."""
        self.width = 161 - self.width
        self.resize(self.terminal)
        # A blank may be a move of the cursor.
        shown = re.sub(r"\x1b\[[0-9;?]*[A-GI-Za-z]", "", self.read(10, 0.3).decode(errors="replace"))
        shown = re.sub(r"(\x1b\[[0-9;]*H| )+", " ", shown)
        return all(text in shown for text in texts)

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def end(self):
        """The exit code, and what came last."""
        last = self.read(PATIENCE, PATIENCE)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), last


def test_top_shows_nodes_and_links_and_leaves_the_terminal_as_it_was(line):
    screen = Screen(line["control"])
    until("all nodes", lambda: screen.shows("Nodes (3)"), 60)
    screen.press("2")
    until("the link", lambda: screen.shows("RTT", "tcp 127.0.0.1:"), 60)
    line["execution"].stop()
    until("what is wrong", lambda: screen.shows("Nodes (3, 1 wrong)"), 60)
    screen.press("1")
    until("which one", lambda: screen.shows("lost"), 60)
    screen.press("q")
    code, last = screen.end()
    assert code == 0 and b"\x1b[?1049l" in last, last


def test_top_needs_a_terminal(line):
    done = subprocess.run([MESHCTL, "--socket", line["control"].socket, "top"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and "this needs a terminal" in done.stderr, done
