"""lintian and rpmlint find nothing, apart from what packaging/*.lintian-overrides and packaging/rpmlint.toml give reasons for."""

import re

import pytest

from mesh import ROOT
from trees import run

NAMES = ("meshd", "meshd-receptor")


@pytest.mark.parametrize("name", NAMES)
def test_lintian(debs, name):
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", debs.now[name]) == ""


def test_rpmlint(rpms):
    said = run("rpmlint", "--config", ROOT / "packaging" / "rpmlint.toml", *(rpms.now[name] for name in NAMES))
    assert re.search(r" 0 errors, 0 warnings", said), said
