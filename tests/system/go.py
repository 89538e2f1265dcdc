"""The Go implementation's program, for the tests that put it beside ours."""

import os
import pathlib

import pytest

GO = pathlib.Path(os.environ.get("RECEPTOR_GO", ""))
#: Marks what needs the Go node: skipped loudly where RECEPTOR_GO does not name it.
needs_go = pytest.mark.skipif("RECEPTOR_GO" not in os.environ, reason="SKIPPED: RECEPTOR_GO is not set")


def program():
    """The path; a wrong one is a failure and no skip."""
    assert GO.is_file(), f"RECEPTOR_GO names no file: {GO}"
    return GO
