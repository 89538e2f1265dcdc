"""The Go implementation's programs, for interoperability tests: receptor 1.4.9, and a later release.

A test that takes the fixture `receptor` runs once with each. Environment variables name the programs.
"""

import os
import pathlib

import pytest

from mesh import MESHD

#: The variables that name the programs, and the ID of a test with each.
VARIABLES = {"RECEPTOR_GO": "go", "RECEPTOR_GO_NEW": "go-new"}


def parameter(variable, *values, label=""):
    """A test's parameter; the test is reported as skipped if the variable names no program."""
    unset = pytest.mark.skipif(variable not in os.environ, reason=f"SKIPPED: {variable} is not set")
    return pytest.param(*(values or (variable,)), id=f"{label}{VARIABLES[variable]}", marks=unset)


#: Both programs, as parameters for `program`.
EACH = [parameter(variable) for variable in VARIABLES]


def program(name):
    """The program that a variable names, or ours for `meshd`. A wrong path is a failure, not a skip."""
    if name == "meshd":
        return MESHD
    path = pathlib.Path(os.environ[name])
    assert path.is_file(), f"{name} names no file: {path}"
    return path
