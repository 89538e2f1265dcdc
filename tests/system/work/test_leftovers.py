"""What a job of the real ansible-runner leaves on its node: nothing, however it ends, but what it put into the background."""

import contextlib
import fnmatch
import json
import os
import pathlib
import signal
import subprocess

import pytest

import playbooks
from mesh import until
from test_controller import ask, ended, job
from test_controller import runner as stand_in
from test_controller_real import ready, runner, submit

@pytest.fixture
def nodes(mesh, tmp_path):
    """control - e1, of which e1 has ansible-runner."""
    mesh.runs = tmp_path / "runs"
    mesh.runs.mkdir()
    settings = {"discovery": "enabled", "rundir": str(mesh.runs), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s"}
    mesh.node("control", listen=True, work=[stand_in("local")], extra=[{"work-controller": settings}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    mesh.start()
    until("both runners' answers", lambda: ready(mesh["control"]) == {"control", "e1"}, 60)
    return mesh


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def processes(unit):
    """The command lines of the living processes that a unit of e1 has started, by process ID."""
    mark = f"/e1/{unit}".encode()
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and any(word.startswith(b"MESHD_UNIT_DIR=") and word.endswith(mark) for word in read(entry / "environ").split(b"\0")):
            if line := read(entry / "cmdline").replace(b"\0", b" ").decode():
                found[int(entry.name)] = line
    return found


def start(nodes, tmp_path, tasks, **header):
    source = playbooks.Playbook(tasks, "", 0, {}).write(tmp_path / "source")
    (source / "env" / "extravars").write_text(json.dumps({"word": "xyzzy-secret"}))
    payload = json.dumps({"controller": 1, **header}).encode() + b"\n" + playbooks.transmit(source)
    _, number = submit(nodes["control"], payload)
    return number


def loop(path):
    return f"    - ansible.builtin.shell: date >>{path}; sleep 0.2\n      loop: '{{{{ range(1000) | list }}}}'\n"


def lines(path):
    return read(path).count(b"\n")


def nothing_is_left(nodes, unit):
    e1 = nodes["e1"]
    left = lambda: {**processes(unit), **{n: str(path) for n, path in enumerate(files(nodes, unit))}}  # noqa: E731
    until(f"the end of all of {unit}", lambda: left() == {})
    until("its release", lambda: e1.command("work list") == {})


def files(nodes, unit):
    """Whatever of the unit's private data is on the node: a directory of its name, also an empty one."""
    # Directories go while one looks, which ends a walk of pathlib.
    walks = (os.walk(root) for root in (nodes.runs, nodes.dir))
    names = (os.path.join(above, name) for walk in walks for above, below, inside in walk for name in below + inside)
    return [name for name in names if fnmatch.fnmatchcase(os.path.basename(name), f"meshd_{unit}")]


def test_a_killed_runner_leaves_neither_playbook_nor_passwords(nodes, tmp_path):
    diary = tmp_path / "diary"
    number = start(nodes, tmp_path, loop(diary))
    until("the loop", lambda: lines(diary) > 2, 60)
    (attempt,) = job(nodes["control"], number)["attempts"]
    here = processes(attempt["unit"])
    workers = [pid for pid, line in here.items() if "ansible-runner worker" in line]
    assert workers and len(here) > len(workers) and files(nodes, attempt["unit"]), here
    for pid in workers:
        # The first one's end may be that of all.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    one = ended(nodes["control"], number)
    assert one["state"] == "error" and "signal: killed" in one["explanation"], one
    assert processes(attempt["unit"]) == {}, "they end before the end is told"
    written = lines(diary)
    nothing_is_left(nodes, attempt["unit"])
    assert lines(diary) == written


def test_a_job_that_runs_out_of_time_leaves_no_process(nodes, tmp_path):
    diary = tmp_path / "diary"
    number = start(nodes, tmp_path, loop(diary), timeout=f"{playbooks.SECONDS}s")
    until("the loop", lambda: lines(diary) > 2, 60)
    (attempt,) = job(nodes["control"], number)["attempts"]
    one = ended(nodes["control"], number)
    assert (one["state"], one["rc"]) == ("failed", 254), one
    nothing_is_left(nodes, attempt["unit"])


def test_what_a_job_put_into_the_background_goes_on(nodes, tmp_path):
    pid = tmp_path / "pid"
    task = f"    - ansible.builtin.shell: echo $$ >{pid}; exec sleep 1000\n      async: 1000\n      poll: 0\n"
    wait = f"    - ansible.builtin.wait_for: {{path: {pid}, search_regex: '[0-9]'}}\n"
    number = start(nodes, tmp_path, task + wait)
    assert ended(nodes["control"], number, 90)["state"] == "successful"
    until("its release", lambda: nodes["e1"].command("work list") == {})
    background = int(pid.read_text())
    assert b"sleep" in read(pathlib.Path(f"/proc/{background}/cmdline"))
    os.kill(background, signal.SIGKILL)


#: Looks for private data directories in the command lines of all processes, and makes each before its job can. Prints what
#: became of that, once for each.
FIRST = """
import os, sys
told = set()
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace").split("\\0")
        except OSError:
            continue
        for path in (word.partition("=")[2] for word in words if word.startswith("--private-data-dir=/")):
            try:
                os.mkdir(path, 0o777)
                result = "made"
            except OSError as error:
                result = error.strerror
            if (path, result) not in told:
                told.add((path, result))
                print(result, path, flush=True)
"""


def test_no_local_user_is_in_a_private_data_directory_first(nodes, tmp_path):
    """Whoever makes it before the job does owns what the job reads, and what it runs."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: becoming another user needs root")
    nodes.runs.chmod(0o1777)
    for path in (nodes.dir, *nodes.runs.parents):
        path.chmod(path.stat().st_mode | 0o755)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", FIRST]
    with open(tmp_path / "told", "w") as told:
        attacker = subprocess.Popen(command, stdout=told, cwd="/")
    try:
        for n in range(3):
            number = start(nodes, tmp_path / str(n), "    - ansible.builtin.command: echo done\n")
            one = ended(nodes["control"], number, 90)
            assert one["state"] == "successful", one
            (attempt,) = one["attempts"]
            seen = lambda unit=attempt["unit"]: [line for line in (tmp_path / "told").read_text().splitlines() if unit in line]  # noqa: E731
            until("the attack", lambda seen=seen: seen())
            assert {line.partition(" /")[0] for line in seen()} == {"Permission denied"}, seen()
    finally:
        attacker.kill()
        attacker.wait()
    until("nothing to be left", lambda: files(nodes, "*") == [])
