"""`meshctl graph` and `meshctl events` on real nodes, one of which goes and comes back."""

import json
import signal
import subprocess
import xml.etree.ElementTree as xml

import pytest

from mesh import MESHCTL, environment, until


def meshctl(node, *args):
    done = subprocess.run([MESHCTL, "--socket", node.socket, *args], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done
    return done.stdout


def test_a_graph_in_three_notations(line):
    control = line["control"]
    dot = meshctl(control, "graph")
    assert dot == meshctl(control, "graph", "--dot") and dot.startswith("graph mesh {\n"), dot
    assert '"control" -- "hop";' in dot and '"execution" -- "hop";' in dot, dot
    mermaid = meshctl(control, "graph", "--mermaid").splitlines()
    assert mermaid == ["graph LR", '  n0["control"]', '  n1["execution"]', '  n2["hop"]', "  n0 --- n2", "  n1 --- n2"]
    picture = xml.fromstring(meshctl(control, "graph", "--svg"))
    name = "{http://www.w3.org/2000/svg}"
    assert sorted(title.text for title in picture.iter(f"{name}title")) == ["control", "execution", "hop"]
    assert len(list(picture.iter(f"{name}line"))) == 2


class Events:
    """`meshctl events` beside a test, and what it has printed."""

    def __init__(self, node, *args):
        self.file = node.mesh.dir / "events"
        command = [MESHCTL, "--socket", node.socket, *args, "events", "--interval", "0.2"]
        with open(self.file, "w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment())
        assert self.process.stderr.readline().startswith("Watching unix:")

    def seen(self):
        return self.file.read_text().splitlines()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20) == 130
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
    control.restart()
    until("a gap", lambda: "gap" in kinds())
    found = [json.loads(text) for text in events.end()]
    assert [one["seq"] for one in found] == list(range(len(found))), found
    down = next(one for one in found if one["event"] == "link.down")
    assert (down["node"], down["peer"]) == ("execution", "hop"), down
    gap = next(one for one in found if one["event"] == "gap")
    assert gap["from"] < gap["to"] == gap["time"], gap


def test_events_for_people(line):
    events = Events(line["control"])
    line["execution"].stop()
    until("a line", lambda: any("node.lost execution" in text for text in events.seen()))
    lines = events.end()
    assert any("link.down execution - hop" in text for text in lines), lines
