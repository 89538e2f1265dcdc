"""What other programs write reaches a terminal as text alone, and a pipe as it is."""

import json
import os
import pty
import subprocess

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
