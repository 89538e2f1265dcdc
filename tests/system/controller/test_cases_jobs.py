"""Jobs whose runner fails before their playbook begins: they say so, in the runner's words."""

import pathlib
import shutil
import subprocess

import pytest

from mesh import ANSIBLE_RUNNER, HEALTHY, MESHCTL, VENV, command_type, environment, own_runner, until
from test_controller import ask
from test_doctor import examine

DIRECTORY = pathlib.Path(__file__).parents[2] / "data" / "needs_podman"
PATH = f"{VENV / 'bin'}:/usr/bin:/bin"


@pytest.mark.skipif(shutil.which("podman", path=PATH) is not None, reason="SKIPPED: podman is installed")
def test_a_job_that_wants_an_engine_where_none_is(mesh, tmp_path):
    runner = command_type("own", str(ANSIBLE_RUNNER), "worker", runtime=True)
    settings = {"nodetype": "hybrid", "rundir": str(tmp_path), "poll": "1s", **own_runner(runner)}
    node = mesh.node("site", listen=True, extra=[{"work-controller": settings}])
    node.variables = {"PATH": PATH}
    node.start()
    until("its runner to be found", lambda: ask(node, "instance.list")["instances"][0]["capacity"] > 0, HEALTHY)
    words = [str(MESHCTL), "--socket", str(node.socket), "job", "run", str(DIRECTORY), "-p", "site.yml"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode not in (0, 64), done
    last = done.stderr.splitlines()[-1]
    assert "the playbook never began" in last and "The command was not found or was not executable: podman." in last, done
    (told,) = [one for one in examine(node) if one["where"] == "instance site"]
    assert "could not start its container" in told["what"] and "podman" in told["remedy"], told
