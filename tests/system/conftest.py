"""Fixtures of the system tests: meshes that end with their test, and logs that are kept if it fails."""

import contextlib

import pytest

import go
import mesh as harness

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for node in (item, item.parent, item.session):
            node.stash[FAILED] = True
    return report


@contextlib.contextmanager
def scoped_mesh(node):
    """A mesh for the lifetime of a test or a module; kept on disk if something failed."""
    mesh = harness.Mesh()
    try:
        yield mesh
        mesh.check_sane()
    except BaseException:
        node.stash[FAILED] = True
        raise
    finally:
        mesh.end()
        if node.stash.get(FAILED, False):
            print(f"\nlogs and configurations are kept in {mesh.dir}")
            for name, log in mesh.logs().items():
                print(f"--- the end of {name}'s log\n{log[-3000:]}")
        else:
            mesh.remove()


@pytest.fixture
def mesh(request):
    """An empty mesh for one test."""
    with scoped_mesh(request.node) as mesh:
        yield mesh


@pytest.fixture
def line(mesh):
    """control - hop - execution, started, for one test."""
    return harness.line(mesh).start()


@pytest.fixture(scope="module")
def shared_line(request):
    """control - hop - execution, started, for the tests of a file that leave it unchanged."""
    with scoped_mesh(request.node) as mesh:
        yield harness.line(mesh).start()


@pytest.fixture(scope="module", params=go.EACH)
def receptor(request):
    """The program of the Go implementation; each test that takes it runs with both releases."""
    return go.program(request.param)
