"""lintian and rpmlint find nothing, apart from what packaging/*.lintian-overrides and packaging/rpmlint.toml give reasons for."""

import os
import re
import shutil

import pytest

from mesh import ROOT
from trees import run

NAMES = ("meshd", "meshd-receptor")


@pytest.mark.parametrize("name", NAMES)
def test_lintian(debs, name):
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", debs.now[name]) == ""


def test_rpmlint(rpms, tmp_path):
    # nfpm writes absolute names, and rpmlint's cpio would unpack them over this machine's own files.
    cpio = tmp_path / "cpio"
    cpio.write_text(f'#!/bin/sh\nexec {shutil.which("cpio")} --no-absolute-filenames "$@"\n')
    cpio.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = run("rpmlint", "--config", ROOT / "packaging" / "rpmlint.toml", *(rpms.now[name] for name in NAMES), env=os.environ | path)
    assert re.search(r" 0 errors, 0 warnings", said), said
