"""The packages, made of the program that the tests have built, and clean trees to install them in."""

import os
import pathlib
import shutil
import tempfile
import types

import pytest

from mesh import MESHD, ROOT
from trees import Tree, run

#: There is no release yet: the former version is this one under a lower number.
FORMER = "0.0.9"


@pytest.fixture(scope="session")
def made():
    """A directory with the packages of both versions."""
    directory = ROOT / "target" / "packages" / "test"
    shutil.rmtree(directory, ignore_errors=True)
    for version in ([], ["--version", FORMER]):
        run(ROOT / "packaging" / "build", "--fast", "--program", MESHD, "--output", directory, *version)
    return directory


def version():
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version"))


@pytest.fixture(scope="session")
def debs(made):
    """The packages for dpkg by name; `former` holds those of the former version."""
    find = lambda of: {name: made / f"{name}_{of}_amd64.deb" for name in ("meshd", "meshd-receptor")}
    return types.SimpleNamespace(**{"now": find(version()), "former": find(FORMER)})


@pytest.fixture(scope="session")
def rpms(made):
    find = lambda of: {name: made / f"{name}-{of}-1.x86_64.rpm" for name in ("meshd", "meshd-receptor")}
    return types.SimpleNamespace(**{"now": find(version()), "former": find(FORMER)})


@pytest.fixture
def tree():
    """A clean Debian."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        reason = "packages are installed by root, in trees that mmdebstrap makes"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(f"SKIPPED: {reason}")
    tree = Tree(pathlib.Path(tempfile.mkdtemp(prefix="meshd-p-")))
    try:
        yield tree
    finally:
        tree.end()
