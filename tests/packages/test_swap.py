"""The commands of docs/migration.md that swap receptor for meshd and back, as printed: by apt in a clean Debian, and by dnf on
its tree. The package receptor is a stand-in with that name, a program and a configuration file."""

import re

import pytest

from mesh import ROOT
from trees import run

CONFIGURATION = "/etc/receptor/receptor.conf"
OWN = "- node: {id: execution}\n- local-only:\n"


def commands(section, tool):
    """The commands of a section for hosts with this tool."""
    text = (ROOT / "docs/migration.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(rf"^ {{4,}}((?:{tool}|cp) [^#\n]*[^#\s])", text, re.M)
    assert len(found) > 1
    return found


@pytest.fixture
def receptor(stand_in, tmp_path):
    """Makes the stand-in; of the configuration file, rpm and dpkg know this kind."""
    (tmp_path / "receptor").write_text("#!/bin/sh\necho receptor itself\n")
    (tmp_path / "receptor.conf").write_text("- node: {id: shipped}\n")

    def make(kind, config):
        program = {"src": "receptor", "dst": "/usr/bin/receptor", "file_info": {"mode": 0o755}}
        return stand_in(kind, "receptor", "1.6.9", contents=[program, {"src": "receptor.conf", "dst": CONFIGURATION, "type": config}])

    return make


def test_apt_swaps_receptor_and_back(tree, debs, receptor):
    tree.run("dpkg", "-i", tree.copy_in(receptor("deb", "config")))
    tree.path(CONFIGURATION).write_text(OWN)
    for package in debs.now.values():
        tree.copy_in(package)
    for command in commands("A node", "apt"):
        tree.run("sh", "-c", f"cd /root && {command.replace('apt ', 'apt --yes ')}")
    assert tree.run("receptor", "--version").startswith("meshd ") and tree.path(CONFIGURATION).read_text() == OWN
    for command in commands("Back", "apt"):
        tree.run("sh", "-c", f"cd /root && {command.replace('apt install receptor', 'apt --yes install ./receptor.deb')}")
    assert tree.run("receptor") == "receptor itself\n" and tree.path(CONFIGURATION).read_text() == OWN


@pytest.mark.parametrize("config", ["config", "config|noreplace"])
def test_dnf_swaps_receptor_and_back(tree, rpm, rpms, receptor, config):
    theirs = receptor("rpm", config)
    dnf = f"dnf --assumeyes --installroot={tree.root} --releasever=9 --disablerepo=* --nogpgcheck"

    def follow(section):
        for command in commands(section, "dnf"):
            if command.startswith("dnf"):
                words = [str(theirs) if word == "receptor" and section == "Back" else word for word in command.split()[1:]]
                run(*dnf.split(), *words, cwd=rpms.now["meshd"].parent)
            else:
                tree.run("sh", "-c", command)

    rpm("-i", "--nosignature", theirs)
    tree.path(CONFIGURATION).write_text(OWN)
    follow("A node")
    assert tree.run("receptor", "--version").startswith("meshd ") and tree.path(CONFIGURATION).read_text() == OWN
    # As the page says.
    assert tree.path(f"{CONFIGURATION}.rpmsave").read_text() == OWN
    follow("Back")
    assert tree.run("receptor") == "receptor itself\n" and tree.path(CONFIGURATION).read_text() == OWN
