"""Configurations that people have: what receptor takes starts here."""

import pathlib
import re
import subprocess

import pytest
import yaml

from go import EACH, program

DATA = pathlib.Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("go", EACH)
def test_all_that_the_help_of_receptor_lists_is_in_the_table_of_its_parameters(go):
    text = subprocess.run([program(go), "--help"], capture_output=True, text=True, timeout=60).stdout
    listed, directive = set(), None
    for line in text.splitlines():
        if named := re.match(r"   --([a-z0-9-]+):", line):
            directive = named[1]
        elif given := re.match(r"      ([a-z0-9]+)=<", line):
            listed.add((directive, given[1]))
    known = set()
    for line in (DATA / "receptor.txt").read_text().splitlines():
        if not line.startswith("#"):
            (name, parameters), = yaml.safe_load(line.split(" | ", 1)[1]).items()
            known |= {(name, parameter) for parameter in parameters}
    assert len(listed) > 100
    assert listed <= known, listed - known


@pytest.mark.parametrize("local", ["true", "false"])
def test_what_receptor_lets_local_only_say_keeps_no_node_from_starting(mesh, local):
    node = mesh.add("solo", [{"local-only": {"local": local == "true"}}]).start()
    node.logged("`local` has no effect")
