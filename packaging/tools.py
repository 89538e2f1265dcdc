"""The tools that make packages: which, in which version, and where they are kept."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Kept from one run to the next, under their versions.
TOOLS = ROOT / "target" / "packages" / "tools"
#: Newer releases of nfpm need a module that the Go proxy does not serve to everybody.
GO_TOOLS = {"nfpm": ("github.com/goreleaser/nfpm/v2/cmd/nfpm", "v2.45.2"), "go-md2man": ("github.com/cpuguy83/go-md2man/v2", "v2.0.7")}
ZIG = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"]


def run(*command, **options):
    """Runs a command, which must succeed."""
    return subprocess.run([str(word) for word in command], check=True, **options)


def output(*command, **options):
    return run(*command, stdout=subprocess.PIPE, text=True, **options).stdout


def go_tool(name):
    """The path of a program that Go builds."""
    module, version = GO_TOOLS[name]
    directory = TOOLS / f"{name}-{version}"
    if not (directory / name).exists():
        run("go", "install", f"{module}@{version}", env={**os.environ, "GOBIN": str(directory), "GOFLAGS": ""})
    return directory / name


def zigbuild():
    """The environment in which `cargo zigbuild` works."""
    directory = TOOLS / "-".join(ZIG).replace("==", "-")
    if not (directory / "made").exists():
        run(sys.executable, "-m", "venv", directory)
        run(directory / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *ZIG)
        (directory / "made").touch()
    return {**os.environ, "PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}
