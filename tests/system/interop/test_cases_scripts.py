"""Programs that run in a script which comes through standard input: it is not theirs to read."""

import pathlib
import subprocess

import pytest

from mesh import MESHD, environment

SCRIPT = pathlib.Path(__file__).parents[2] / "data" / "signs_in_a_script.sh"


@pytest.mark.parametrize("by", ["cat {} | bash -s", "bash -s < {}"], ids=["pipe", "file"])
def test_a_question_that_nobody_can_answer_leaves_the_script_its_lines(tmp_path, by):
    path = {"PATH": f"{MESHD.parent}:/usr/bin:/bin"}
    done = subprocess.run(by.format(SCRIPT), shell=True, cwd=tmp_path, env=environment() | path,
                          capture_output=True, text=True, timeout=120)
    said = done.stdout.splitlines()
    assert said[-3:] == ["signreq ended with 1", "the directive ended with 1", "the last line has run"], done
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o400
    assert not (tmp_path / "n.crt").exists()
    for how in ("--verify", "verify=true"):
        assert f"give {how} to sign without asking" in done.stderr, done.stderr
