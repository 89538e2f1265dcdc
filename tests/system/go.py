"""The Go implementation's programs, for the tests that put them beside ours: receptor 1.4.9, and one of its successors.

A test that takes the fixture `receptor` runs once beside each. Which program is which, only the environment knows.
"""

import os
import pathlib

import pytest

from mesh import MESHD

#: The variables that name the programs, and what a test beside each is called.
VARIABLES = {"RECEPTOR_GO": "go", "RECEPTOR_GO_NEW": "go-new"}


def parameter(variable, *values, label=""):
    """A test's parameter, skipped loudly where the variable names no program."""
    unset = pytest.mark.skipif(variable not in os.environ, reason=f"SKIPPED: {variable} is not set")
    return pytest.param(*(values or (variable,)), id=f"{label}{VARIABLES[variable]}", marks=unset)


#: Both programs, as parameters of a test that `program` understands.
EACH = [parameter(variable) for variable in VARIABLES]


def program(name):
    """The program that a variable names, or ours for `meshd`. A wrong path is a failure and no skip."""
    if name == "meshd":
        return MESHD
    path = pathlib.Path(os.environ[name])
    assert path.is_file(), f"{name} names no file: {path}"
    return path
