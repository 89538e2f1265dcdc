"""What the packages hold: a page for each command and each directive, licences, the bill of materials, old symbols only."""

import gzip
import json
import os
import pathlib
import re
import subprocess

import pytest

from mesh import MESHCTL, ROOT
from trees import run

#: Of RHEL 8; Debian 11 and Ubuntu 20.04 are newer.
GLIBC = (2, 28)
LIMIT = 12_000_000


@pytest.fixture(scope="session")
def unpacked(debs, tmp_path_factory):
    directory = tmp_path_factory.mktemp("unpacked")
    run("dpkg", "-x", debs.now["meshd"], directory)
    return directory


def page(unpacked, name):
    return gzip.decompress((unpacked / f"usr/share/man/man{name[-1]}/{name}.gz").read_bytes()).decode()


def commands(words=()):
    """Every command of meshctl, as words, as its help lists them."""
    yield words
    said = run(MESHCTL, *words, "--help")
    listed = re.search(r"\nCommands:\n((?:  .*\n)+)", said)
    for name in re.findall(r"^  ([a-z][a-z-]*) ", listed[1], re.M) if listed else ():
        if name != "help":
            yield from commands((*words, name))


def test_each_command_has_a_page(unpacked):
    found = list(commands())
    assert len(found) > 40
    for words in found:
        text = page(unpacked, f"{'-'.join(('meshctl', *words))}.1")
        assert ".SH OPTIONS" in text, words


def test_each_directive_is_in_the_page_of_the_configuration(unpacked):
    text = page(unpacked, "meshd.yml.5").replace("\\-", "-")
    directives = re.findall(r"^### (.+)$", (ROOT / "docs" / "configuration.md").read_text(), re.M)
    assert len(directives) > 25
    assert [name for name in directives if not re.search(rf'^\.SS "?{name}"?$', text, re.M)] == []


def test_the_daemon_has_a_page(unpacked):
    text = page(unpacked, "meshd.1").replace("\\-", "-")
    assert "--config-dir" in text and "meshd check" in text


def test_pages_are_formatted_without_an_error(unpacked):
    for file in sorted((unpacked / "usr/share/man").rglob("*.gz")):
        done = subprocess.run(["groff", "-t", "-man", "-Tutf8", "-z"], input=gzip.decompress(file.read_bytes()),
                              capture_output=True, check=True)
        # Wide tables are warnings.
        assert [line for line in done.stderr.decode().splitlines() if "error:" in line] == [], file


def test_shells_find_the_completions(unpacked):
    assert "meshctl" in (unpacked / "usr/share/bash-completion/completions/meshctl").read_text()
    assert (unpacked / "usr/share/zsh/vendor-completions/_meshctl").read_text().startswith("#compdef meshctl")
    assert "complete" in (unpacked / "usr/share/fish/vendor_completions.d/meshctl.fish").read_text()


def test_each_crate_is_listed_with_its_licence(unpacked):
    document = json.loads((unpacked / "usr/share/doc/meshd/meshd.cdx.json").read_text())
    licences = gzip.decompress((unpacked / "usr/share/doc/meshd/licences.txt.gz").read_bytes()).decode()
    listed = run("cargo", "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}", cwd=ROOT)
    # Our own crates are listed with the directory that they are in.
    wanted = {tuple(line.split()[:2]) for line in listed.splitlines() if line and f"({ROOT}" not in line}
    wanted = {(name, version.lstrip("v")) for name, version in wanted}
    assert len(wanted) > 150
    assert wanted <= {(crate["name"], crate["version"]) for crate in document["components"]}
    assert [crate for crate in wanted if f"{crate[0]} {crate[1]} (" not in licences] == []


def test_packages_of_the_dist_profile_start_on_old_systems():
    program = pathlib.Path(os.environ.get("MESHD_DIST", ROOT / "target" / "x86_64-unknown-linux-gnu" / "dist" / "meshd"))
    if not program.exists():
        pytest.skip("no build of the dist profile is here: tests/run --only long makes one")
    symbols = {tuple(map(int, version)) for version in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", program))}
    assert len(symbols) > 3 and max(symbols) <= GLIBC
