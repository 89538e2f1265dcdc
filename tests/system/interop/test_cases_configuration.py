"""Configurations that people have: what receptor takes starts here, and what is probably not meant is named."""

import pathlib
import re
import subprocess

import pytest
import yaml

from go import EACH, program
from mesh import MESHD

DATA = pathlib.Path(__file__).parents[2] / "data"


def check(tmp_path, text, name="node.yml"):
    """Exit code and output of `meshd check` for a file."""
    file = tmp_path / name
    file.write_text(text)
    done = subprocess.run([MESHD, "check", file], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


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


CONTROL = "- control-service: {{filename: {dir}/s}}\n"


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "- node: {{id: host, datadir: {dir}}}\n- tcp-listener: {{port: 0}}\n" + CONTROL
            + "- command-service: {{service: shell, command: bash}}\n",
            "node.yml:4: command-service shell: any node of the mesh can run its command as this node's user",
        ),
        (
            "- node: {{id: runner-1, datadir: {dir}}}\n- tcp-peer: {{address: '127.0.0.1:1'}}\n"
            "- work-command: {{worktype: local, command: cat}}\n",
            "work type local: nobody can submit to it: the node has no `control-service`",
        ),
        (
            "- node: {{id: task-1, datadir: {dir}}}\n" + CONTROL
            + "- local-only\n- work-command: {{worktype: local, command: cat, allowruntimeparams: true}}\n",
            "node.yml:3: local-only: right here and in receptor, but AWX fails at it when it reads this file: write `local-only:`",
        ),
    ],
    ids=["open service", "unreachable work type", "bare word beside AWX"],
)
def test_what_is_allowed_and_probably_not_meant_is_named(tmp_path, text, said):
    status, found = check(tmp_path, text.format(dir=tmp_path))
    assert (status, found.count(said)) == (0, 1), found
    assert found.splitlines()[-1].startswith("fine: "), found


@pytest.mark.parametrize("local", ["true", "false"])
def test_what_receptor_lets_local_only_say_keeps_no_node_from_starting(mesh, local):
    node = mesh.add("solo", [{"local-only": {"local": local == "true"}}]).start()
    node.logged("`local` has no effect")


def test_a_file_of_another_language_is_named_at_its_first_line(tmp_path):
    old = "# peers\n[default]\nnode_id=agent-1\n\n[node]\npeers=wss://hub.example.org/receptor\n"
    status, said = check(tmp_path, old)
    assert status == 1 and "node.yml:2: this is INI or TOML" in said and "docs/configuration.md" in said, said
