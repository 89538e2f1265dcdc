"""Jobs of a controller that ansible-runner and ansible-playbook run: their results are those of a run without a mesh."""

import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

import playbooks
import project
from conftest import scoped_mesh
from mesh import ANSIBLE_RUNNER, HEALTHY, MESHCTL, RECEPTORCTL, ROOT, VENV, command_type, environment, own_runner, until
from playbooks import FIVE
from test_controller import ask, ended, job
from test_controller import runner as stand_in


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """control - hop - execution, with ansible-runner as its users configure it."""
    runs = tmp_path_factory.mktemp("runs")
    with scoped_mesh(request.node) as mesh:
        mesh.node("hop", listen=True)
        settings = {"work-controller": {"discovery": "enabled", "rundir": str(runs), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s", **own_runner(runner("own"))}}
        mesh.node("control", peers=["hop"], extra=[settings])
        mesh.node("e1", peers=["hop"], work=[runner("ansible-runner")])
        mesh.start()
        until("both runners' answers", lambda: ready(mesh["control"]) == {"control", "e1"}, HEALTHY)
        mesh.runs = runs
        yield mesh
        until("no directory of a job that is over", lambda: list(runs.iterdir()) == [])


def runner(name):
    return command_type(name, str(ANSIBLE_RUNNER), "worker", runtime=True)


def ready(control):
    return {one["name"] for one in ask(control, "instance.list")["instances"] if one["capacity"] > 0}


def submit(control, payload):
    """Submits a job; returns its unit and number."""
    with control.control() as client:
        answer = client.submit("control", "controller", payload)
    assert answer["result"] == "Job Started", answer
    return answer["unitid"], control.unit(answer["unitid"])["ExtraData"]["JobID"]


def waits_in(control, unit):
    """Returns once the output of a job says that its playbook waits."""
    with control.control() as client:
        stream = client.results(unit, 0)
        assert any(playbooks.is_waiting(line.decode()) for line in stream), "it ended before it waited"


@pytest.mark.parametrize("way", FIVE)
def test_a_playbook_leaves_what_it_leaves_without_a_mesh(nodes, tmp_path, way):
    control, playbook = nodes["control"], FIVE[way]
    source = playbook.write(tmp_path / "source")
    header = {"controller": 1, "name": way, **({"timeout": f"{playbooks.SECONDS}s"} if way == "timeout" else {})}
    payload = playbooks.transmit(source)
    unit, number = submit(control, json.dumps(header).encode() + b"\n" + payload)
    if way == "cancelled":
        waits_in(control, unit)
        done = subprocess.run([str(MESHCTL), "--socket", str(control.socket), "job", "cancel", str(number)], env=environment(), timeout=60)
        assert done.returncode == 0, done
    here = playbooks.results(playbooks.run_here(source, way))
    one = ended(control, number, 90)
    until("the unit's end", lambda: control.unit(unit)["State"] > 1)
    artifacts = playbooks.process(control.results(unit), tmp_path / "out")
    assert playbooks.results(artifacts) == here
    events = len(list((artifacts / "job_events").iterdir()))
    assert events > 3 and any("PLAY [all]" in line for line in here["stdout"]), here
    if way == "ok":
        assert "colour" in str(here["fact_cache"]), here
    assert (one["state"], one["rc"], one["events"]) == (playbook.state, playbook.rc, events), one
    assert one["host_stats"] == playbook.stats(), one
    assert (one["execution_node"], one["controller_node"], len(one["attempts"])) == ("e1", "control", 1), one
    if way == "timeout":
        assert "timed out" in one["explanation"], one
    until("nothing is left there", lambda: nodes["e1"].command("work list") == {})


@pytest.fixture
def apart(mesh, tmp_path):
    """control - e1, of which e1 alone has ansible-runner: on this machine both would clean up the same directory."""
    mesh.runs = tmp_path / "runs"
    mesh.runs.mkdir()
    settings = {"discovery": "enabled", "rundir": str(mesh.runs), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s"}
    mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(stand_in("own"))}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    mesh.start()
    until("both runners' answers", lambda: ready(mesh["control"]) == {"control", "e1"}, HEALTHY)
    return mesh


def test_a_clean_up_deletes_old_directories_of_this_controller_alone(apart, tmp_path):
    """They are left by nodes that make no private directories themselves. A job that was to leave its own has left it on
    its node, until its release; it was kept alive in silence."""
    control, hours_ago = apart["control"], time.time() - 2 * 3600
    go = tmp_path / "go"
    quiet = playbooks.Playbook(f"    - ansible.builtin.wait_for: {{path: {go}, timeout: 300}}\n", "successful", 0, {})
    header = {"controller": 1, "cleanup": False, "runner": {"keepalive": 1}}
    unit, number = submit(control, json.dumps(header).encode() + b"\n" + playbooks.transmit(quiet.write(tmp_path / "quiet")))
    with control.control() as client:
        stream = client.results(unit, 0)
        assert any(b'"keepalive"' in line for line in stream), "it ended without a word"
        go.touch()
    one = ended(control, number, 90)
    assert (one["state"], one["execution_node"]) == ("successful", "e1"), one
    until("nothing is left there", lambda: apart["e1"].command("work list") == {})
    until("no directory to be left", lambda: list(apart.runs.iterdir()) == [])

    unit, number = submit(control, playbooks.transmit(FIVE["cancelled"].write(tmp_path / "active")))
    waits_in(control, unit)
    old = apart.runs / f"meshd_{one['attempts'][0]['unit']}"
    (old / "project").mkdir(parents=True)
    active = apart.runs / f"meshd_{job(control, number)['attempts'][0]['unit']}"
    install = ask(control, "ping")["install"]
    of_others = [apart.runs / "awx_77_abcdefgh", apart.runs / f"meshd_c{int(install, 16) ^ 1:08x}n1a1r00000000"]
    young = apart.runs / f"meshd_c{install}n77a1r00000000"
    for directory in (active, *of_others, young):
        directory.mkdir()
    for directory in (old, active, *of_others):
        os.utime(directory, (hours_ago, hours_ago))
    assert ask(control, "cleanup") == {"instances": ["control", "e1"]}
    until("the old one to be gone", lambda: not old.exists(), 60)
    until("the clean-ups to end", lambda: not [one for one in control.command("work list") if one.startswith(f"c{install}k")], 60)
    assert set(apart.runs.iterdir()) == {active, *of_others, young}
    ask(control, "job.cancel", id=number)
    assert ended(control, number, 90)["state"] == "canceled"
    assert active.exists()


def test_the_pipeline_of_ansible_runner_with_receptorctl(nodes, tmp_path):
    control = nodes["control"]
    source, out = project.write(tmp_path / "source"), tmp_path / "out"
    client = [str(RECEPTORCTL), "--socket", str(control.socket), "work", "submit", "controller", "--node", "control", "-p", "-", "-f"]
    output, told, code = project.pipeline(source, client, out)
    assert code == 0, told
    assert "it said across the mesh" in output
    status, rc, stdout, events = project.artifacts(out)
    assert (status, rc) == ("successful", 0) and "it said across the mesh" in stdout
    (last,) = ask(control, "job.list", limit=1)["jobs"]
    assert (last["state"], last["events"], last["execution_node"]) == ("successful", len(events), "e1"), last


def test_the_size_of_a_machine_is_what_the_runner_says(nodes):
    """Capacities by AWX's formulas: four forks a processor, a fork for each 100 MiB beyond 2 GiB, the larger of both."""
    info = subprocess.run([str(ANSIBLE_RUNNER), "worker", "--worker-info"], capture_output=True, text=True, env=environment(), timeout=60).stdout
    line = next(line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    memory, cpus = int(line.split()[1]) * 1024, multiprocessing.cpu_count()
    assert f"mem_in_bytes: {memory}" in info and f"cpu_count: {cpus}" in info, info
    ask(nodes["control"], "instance.health", name="e1")
    one = ask(nodes["control"], "instance.get", name="e1")
    by_cpu, by_memory = 4 * cpus, max(1, (memory - (2 << 30)) // (1 << 20) // 100)
    wanted = {
        "node_state": "ready",
        "errors": [],
        "cpu": cpus,
        "memory": memory,
        "cpu_capacity": by_cpu,
        "mem_capacity": by_memory,
        "capacity": max(by_cpu, by_memory),
        "version": f"ansible-runner-{version()}",
    }
    assert {key: one[key] for key in wanted} == wanted, one


def version():
    asked = subprocess.run([str(VENV / "bin" / "ansible-runner"), "--version"], capture_output=True, text=True, env=environment(), timeout=60)
    return asked.stdout.strip()


#: Settings with which podman runs containers: its own, and those for a machine with the older control groups where limits
#: cannot be raised.
PODMAN = ["", '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n[engine]\nruntime = "runc"\n']
IMAGE = "docker.io/local/runner:1"


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """The variables with which podman runs containers of IMAGE, which is made of what this machine has."""
    if shutil.which("podman") is None:
        pytest.skip("SKIPPED: podman runs no container here")
    monkeypatch.syspath_prepend(ROOT / "tests" / "kubernetes")
    import images

    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    (tmp_path / "storage.conf").write_text(storage)
    variables = {"CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"), "CONTAINERS_CONF": str(tmp_path / "containers.conf")}
    (tmp_path / "containers.conf").touch()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    images.make_runner(tmp_path, ["sh", "-c", 'exec podman load --quiet --input "$3" >&2', "podman"])
    for settings in PODMAN:
        (tmp_path / "containers.conf").write_text(settings)
        done = subprocess.run(["podman", "run", "--rm", IMAGE, "true"], capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            yield variables
            subprocess.run(["podman", "rmi", "--all", "--force"], capture_output=True, timeout=60)
            return
    print(done.stderr, file=sys.stderr)
    pytest.skip("SKIPPED: podman runs no container here")


@pytest.mark.timeout(300)
def test_a_job_in_an_execution_environment(mesh, podman, tmp_path):
    """The header names image and isolation; the stream of the client says nothing of them."""
    (tmp_path / "runs").mkdir()
    mesh.variables |= podman
    settings = {"discovery": "enabled", "rundir": str(tmp_path / "runs"), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s"}
    control = mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    mesh.start()
    until("both runners' answers", lambda: ready(control) == {"control", "e1"}, HEALTHY)
    tasks = """
    - name: Look
      ansible.builtin.shell: test -e /run/.containerenv && echo "inside $container"
      register: seen
    - name: Tell
      ansible.builtin.debug: {var: seen.stdout}
"""
    payload = playbooks.transmit(playbooks.Playbook(tasks, "successful", 0, {}).write(tmp_path / "in"))
    header = {"controller": 1, "runner": {"image": IMAGE, "pull": "never", "isolation": True, "options": ["--network=host"]}}
    unit, number = submit(control, json.dumps(header).encode() + b"\n" + payload)
    one = ended(control, number, 90)
    until("the unit's end", lambda: control.unit(unit)["State"] > 1)
    output = control.results(unit)
    assert (one["state"], one["rc"], one["execution_node"]) == ("successful", 0, "e1"), (one, output[-2000:])
    assert b"inside " in output and b'"podman", "run"' in output, output[:2000]
    assert one["host_stats"]["one"]["ok"] == 2, one
