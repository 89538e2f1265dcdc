"""The packages, made of the program that the tests have built, and clean trees to install them in."""

import json
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


@pytest.fixture
def stand_in(made, tmp_path):
    """Makes a package that stands for one of another maker."""
    nfpm = next((ROOT / "target" / "packages" / "tools").glob("nfpm-*/nfpm"))

    def make(kind, name, version, **more):
        recipe = {"name": name, "arch": "amd64", "version": version, "maintainer": "tests", "description": "A stand-in", **more}
        (tmp_path / f"{name}.json").write_text(json.dumps(recipe))
        run(nfpm, "package", "--config", f"{name}.json", "--packager", kind, "--target", f"{name}.{kind}", cwd=tmp_path)
        return tmp_path / f"{name}.{kind}"

    return make


@pytest.fixture
def rpm(tree, rpms, stand_in):
    """rpm on a tree of which it knows what the packages need: a package stands for what Debian has installed there."""
    system = stand_in("rpm", "system", "1", provides=["glibc = 2.36", "shadow-utils = 4.13", "/bin/sh = 1"])

    def call(*arguments):
        return run("rpm", "--root", tree.root, *arguments)

    tree.path("/var/lib/rpm").mkdir(exist_ok=True)
    call("--initdb")
    call("-i", "--nosignature", system)
    return call
