"""meshctl's commands for jobs, with real playbooks: what is printed, kept, asked for and returned."""

import base64
import io
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import warnings
import zipfile

import pytest

from mesh import ANSIBLE_RUNNER, HEALTHY, MESHCTL, VENV, command_type, environment, files, own_runner, until
from test_controller import STAND_IN, ask, ended, job, runner, stream
from web import directive

#: With the interpreter that runs Ansible itself.
LOCAL = "ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'"
SITE = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Say hello
      ansible.builtin.debug: {msg: "hello {{ who | default('world') }}"}
    - name: Change something
      ansible.builtin.command: 'true'
"""
FAILS = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.command: 'false'
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def project(tmp_path):
    """A directory with playbooks and an inventory of two hosts."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "site.yml").write_text(SITE)
    (root / "fails.yml").write_text(FAILS)
    (root / "hosts").write_text(f"a {LOCAL}\nb {LOCAL}\n")
    return root


@pytest.fixture
def real(mesh, tmp_path):
    """A control node and an execution node with ansible-runner."""
    if not ANSIBLE_RUNNER.exists():
        pytest.skip(f"there is no ansible-runner in {VENV}")
    work = lambda name: command_type(name, str(ANSIBLE_RUNNER), "worker", runtime=True)  # noqa: E731
    return start(mesh, tmp_path, work)


@pytest.fixture
def stand_in(mesh, tmp_path):
    """The same with a stand-in, whose jobs say what they do in their kwargs."""
    return start(mesh, tmp_path, runner)


def start(mesh, tmp_path, work, nodes=("e1",), more=(), **set_):
    settings = {"discovery": "enabled", "heartbeat": "200ms", "ownerlostafter": "10s", "rundir": str(tmp_path), "poll": "1s", **set_}
    mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(work("own"))}, *more])
    for name in nodes:
        mesh.node(name, peers=["control"], work=[work("ansible-runner")])
    mesh.start()
    ready = lambda: sum(one["capacity"] > 0 for one in ask(mesh["control"], "instance.list")["instances"])  # noqa: E731
    until("all instances to be ready", lambda: ready() == 1 + len(nodes), HEALTHY)
    return mesh["control"]


def arguments(node, *words):
    return [str(MESHCTL), "--socket", str(node.socket), *map(str, words)]


def meshctl(node, *words, **more):
    more = {"stdin": subprocess.DEVNULL, **more} if "input" not in more else more
    return subprocess.run(arguments(node, *words), capture_output=True, text=True, env=environment(), timeout=120, **more)


def result(node, *words):
    done = meshctl(node, "--json", *words)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_a_playbook_is_printed_as_ansible_playbook_prints_it(real, project, tmp_path):
    out = tmp_path / "out"
    done = meshctl(real, "job", "run", project, "-p", "site.yml", "-i", project / "hosts", "-e", "who=you", "--artifacts", out)
    assert done.returncode == 0, done
    words = [str(VENV / "bin" / "ansible-playbook"), "-i", "hosts", "-e", "who=you", "site.yml"]
    theirs = subprocess.run(words, cwd=project, capture_output=True, text=True, env=environment(), timeout=120)

    def tasks(text):
        """Hosts answer in any order."""
        return [sorted(part.splitlines()) for part in COLOUR.sub("", text).strip().split("\n\n")]

    assert "\x1b" not in done.stdout and tasks(done.stdout) == tasks(theirs.stdout)
    number = re.fullmatch(r"Job (\d+)\n", done.stderr)[1]
    one = job(real, int(number))
    assert (one["state"], one["rc"], one["execution_node"]) == ("successful", 0, "e1")
    assert one["host_stats"]["a"]["ok"] == 2
    # The runner's own command keeps the same.
    run = tmp_path / "run"
    (run / "project").mkdir(parents=True)
    (run / "project" / "site.yml").write_text(SITE)
    (run / "inventory").mkdir()
    (run / "inventory" / "hosts").write_text((project / "hosts").read_text())
    subprocess.run([str(ANSIBLE_RUNNER), "run", str(run), "-p", "site.yml", "--ident", "x"], check=True, capture_output=True, env=environment(), timeout=120)
    theirs = run / "artifacts" / "x"
    names = lambda root: sorted(path.name for path in root.iterdir())  # noqa: E731
    assert set(names(theirs)) <= set(names(out)) and (out / "rc").read_text() == "0"
    assert (out / "status").read_text() == "successful"
    events = lambda root: sorted(json.loads(path.read_text())["event"] for path in (root / "job_events").glob("*-*.json"))  # noqa: E731
    assert events(out) == events(theirs)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (out / "job_events").iterdir()} == {0o600}


def test_exit_codes_are_those_of_the_playbook(real, project):
    run = lambda *words: meshctl(real, "job", "run", project, *words)  # noqa: E731
    failed = run("-p", "fails.yml", "-i", project / "hosts")
    assert failed.returncode == 2 and "failed=1" in failed.stdout and " failed on e1" in failed.stderr, failed
    (project / "nowhere").write_text("a ansible_host=127.0.0.1 ansible_port=1 ansible_connection=ssh\n")
    unreachable = run("-p", "site.yml", "-i", project / "nowhere")
    assert unreachable.returncode == 4 and "unreachable=1" in unreachable.stdout, unreachable
    assert run("-p", "site.yml", "-i", "a,", "--group", "nowhere").returncode == 101
    module = run("-m", "ping", "-i", project / "hosts", "--pattern", "b")
    assert module.returncode == 0 and "b | SUCCESS" in module.stdout, module
    last = result(real, "job", "list", "--limit", "1")["jobs"][0]
    waited = meshctl(real, "job", "wait", last["id"] - 1, last["id"])
    assert waited.returncode == 4, waited
    failures = meshctl(real, "job", "events", last["id"] - 1, "--failed").stdout.splitlines()
    assert [json.loads(line)["event"] for line in failures] == ["runner_on_unreachable"]
    text = meshctl(real, "job", "output", last["id"], "--text").stdout
    assert text == module.stdout
    # As for `ansible b -m ...`
    module = meshctl(real, "job", "run", "b", "-m", "command", "-a", "false", "-i", "hosts", cwd=project)
    assert "b | FAILED" in module.stdout and "a | " not in module.stdout, module
    assert module.returncode == 2 and "b: command: non-zero return code" in module.stderr, module


def test_why_a_job_failed_is_said_in_a_line_and_whole(real, project):
    tasks = "\n".join([
        "- {name: Go on, command: ls /nowhere, ignore_errors: true}",
        "- {name: Rescue, block: [{command: ls /nowhere}], rescue: [{debug: {msg: rescued}}]}",
        "- {name: Configure, command: ls /nosuch}",
    ])
    (project / "why.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks:\n" + "".join(f"  {line}\n" for line in tasks.splitlines()))
    # One host after the other: they fail in that order.
    run = meshctl(real, "job", "run", project, "-p", "why.yml", "-i", project / "hosts", "--forks", "1")
    line = "2 of 2 hosts failed: a, b: Configure: non-zero return code: ls: cannot access '/nosuch': No such file or directory"
    assert run.returncode == 2 and run.stderr.endswith(f" failed on e1: {line}\n"), run
    one = result(real, "job", "show", "last")
    assert (one["explanation"], one["failure"]["line"]) == (line, line)
    [task] = one["failure"]["tasks"]
    assert (task["task"], sorted(task["hosts"]), task["count"], task["unreachable"]) == ("Configure", ["a", "b"], 2, False)
    raw = subprocess.run(arguments(real, "job", "output", "last"), capture_output=True, check=True, env=environment(), timeout=60).stdout
    event = json.loads(raw[task["offset"]:].splitlines()[0])
    assert (event["event"], event["event_data"]["task"]) == ("runner_on_failed", "Configure")
    # Cut at its end, it still says which hosts failed where.
    listed = meshctl(real, "job", "list").stdout.splitlines()[1]
    assert "2 of 2 hosts failed: a, b: Conf" in listed, listed
    shown = meshctl(real, "job", "show", "last").stdout
    assert "FAILED TASK" in shown and f"meshctl job errors {one['id']}" in shown, shown
    text = meshctl(real, "job", "output", "last", "--text").stdout.splitlines()
    errors = meshctl(real, "job", "errors", "last", "--host", "b").stdout.split("\n\n")
    assert [error.splitlines()[0].rsplit(", ", 1)[0] for error in errors] == ["b: Go on (failed, ignored", "b: command (failed", "b: Configure (failed"]
    last = errors[-1].splitlines()
    assert "  stderr: ls: cannot access '/nosuch': No such file or directory" in last and "  rc: 2" in last, last
    place = int(re.search(r"line (\d+) of the output", last[0])[1])
    assert any("fatal: [b]: FAILED!" in printed for printed in text[place - 1:place + 12]), (place, text)
    kept = [json.loads(line) for line in meshctl(real, "--json", "job", "errors", one["id"]).stdout.splitlines()]
    assert {(error["task"], error["ignored"]) for error in kept} >= {("Go on", True), ("Configure", False)}
    again = meshctl(real, "job", "rerun", "--follow", one["id"])
    assert again.returncode == 2 and "TASK [Configure]" in again.stdout, again
    assert again.stderr.startswith(f"Job {one['id'] + 1} runs job {one['id']} again\n") and line in again.stderr, again
    waited = meshctl(real, "job", "wait", "--output", one["id"] + 1)
    assert waited.returncode == 2 and waited.stdout.startswith(again.stdout.rstrip("\n")), waited


def test_with_json_a_run_prints_its_job_alone(real, project):
    for playbook, code, state in [("site.yml", 0, "successful"), ("fails.yml", 2, "failed")]:
        done = meshctl(real, "--json", "job", "run", project, "-p", playbook, "-i", project / "hosts")
        one = json.loads(done.stdout)
        assert (done.returncode, one["state"], set(one["host_stats"])) == (code, state, {"a", "b"}), done
        assert set(one) == set(job(real, one["id"]))
    detached = result(real, "job", "run", project, "-p", "site.yml", "-i", project / "hosts", "--detach")
    assert detached == {"id": one["id"] + 1, "unit": job(real, one["id"] + 1)["unit"], "result": "Job Started"}
    assert ended(real, detached["id"])["state"] == "successful"
    refused = meshctl(real, "--json", "job", "run", project, "-p", "site.yml", "-i", "a,", "--group", "nowhere")
    assert (refused.returncode, refused.stdout, json.loads(refused.stderr)["exit_code"]) == (101, "", 101), refused


class Secrets(threading.Thread):
    """Looks for a word in the arguments of all processes, until stopped."""

    def __init__(self, word):
        super().__init__(daemon=True)
        self.word, self.found, self.looks, self.over = word.encode(), set(), 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            self.looks += 1
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = path.read_bytes()
                except OSError:
                    continue
                if self.word in words:
                    self.found.add(words)


def test_secrets_reach_the_playbook_and_no_argument(real, project, tmp_path):
    secret = "canary-5f1c"
    (tmp_path / "vault").write_text(f"{secret}-v\n")
    (tmp_path / "vars.yml").write_text(f"who: {secret}-e\n")
    vaulted = tmp_path / "vaulted"
    vaulted.write_text("inner: opened\n")
    vault = [str(VENV / "bin" / "ansible-vault"), "encrypt", "--vault-password-file", str(tmp_path / "vault"), str(vaulted)]
    subprocess.run(vault, check=True, capture_output=True, env=environment(), timeout=60)
    (project / "vaulted.yml").write_bytes(vaulted.read_bytes())
    playbook = SITE.replace("gather_facts: false", "gather_facts: false\n  vars_files: [vaulted.yml]")
    playbook += f"    - ansible.builtin.assert: {{that: [inner == 'opened', who == '{secret}-e']}}\n"
    (project / "secret.yml").write_text(playbook)
    looks = Secrets(secret)
    words = ["job", "run", project, "-p", "secret.yml", "-i", project / "hosts", "-e", f"@{tmp_path / 'vars.yml'}"]
    words += ["-k", "--vault-password-file", tmp_path / "vault"]
    code, shown = on_a_terminal(arguments(real, *words), {"SSH password: ": f"{secret}-k\n"})
    looks.over.set()
    looks.join()
    # Without the password of -k ansible would wait for it.
    assert code == 0, shown
    assert f"{secret}-k" not in shown and "\x1b[0;32mok: [a]" in shown, shown
    assert looks.looks > 3 and looks.found == set()
    _, plain = on_a_terminal(arguments(real, "job", "output", 1, "--text"), {}, NO_COLOR="1")
    assert "ok: [a]" in plain and "\x1b" not in plain
    for path in files(real.dir):
        if "store.db" in path.name or path.name == "log":
            assert secret.encode() not in path.read_bytes(), path


def on_a_terminal(command, answers, **variables):
    """Runs a command on a terminal of its own; returns its exit code and all that the terminal showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment(**variables))
    shown = b""
    while True:
        ready, _, _ = select.select([terminal], [], [], 120)
        assert ready, shown
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
        for question in [one for one in answers if one.encode() in shown]:
            os.write(terminal, answers.pop(question).encode())
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


class Recorder(threading.Thread):
    """A control socket that takes one submission and keeps its payload."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.payload = b""
        self.start()

    def run(self):
        for number in range(2):
            stream, _ = self.listener.accept()
            with stream, stream.makefile("rb") as lines:
                stream.sendall(b"Receptor Control, node fake\n")
                request = lines.readline()
                if number == 0:
                    self.header = json.loads(json.loads(request)["header"])
                    stream.sendall(b"Work unit created with ID abcd1234. Send stdin data and EOF.\n")
                    self.payload = lines.read()
                    stream.sendall(b'{"result":"Job Started","unitid":"abcd1234"}\n')
                else:
                    stream.sendall(b'{"State":0,"Detail":"","StdoutSize":0,"WorkType":"controller","ExtraData":{"JobID":7}}\n')


def unpacked(payload):
    """The keyword arguments of a stream, and its files: mode, content or target."""
    first, size, rest = payload.split(b"\n", 2)
    size = json.loads(size)["zipfile"]
    letters = (size + 2) // 3 * 4
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(rest[:letters]))) as archive:
        files = {os.path.normpath(one.filename): (oct(one.external_attr >> 16), archive.read(one)) for one in archive.infolist()}
    return json.loads(first)["kwargs"], files


def test_the_stream_is_what_ansible_runner_makes(tmp_path):
    if not ANSIBLE_RUNNER.exists():
        pytest.skip(f"there is no ansible-runner in {VENV}")
    root = tmp_path / "dir"
    for directory in ("project/roles/r/tasks", "inventory/group_vars", "env", "project/empty"):
        (root / directory).mkdir(parents=True)
    (root / "project" / "site.yml").write_text(SITE)
    (root / "project" / "roles" / "r" / "tasks" / "main.yml").write_text("[]\n")
    (root / "project" / "run.sh").write_text("#!/bin/sh\n")
    (root / "project" / "run.sh").chmod(0o755)
    (root / "project" / "secret").write_text("s")
    (root / "project" / "secret").chmod(0o600)
    (root / "project" / "ü b.txt").write_text("names")
    (root / "project" / "link.yml").symlink_to("site.yml")
    (root / "project" / "more").symlink_to("roles")
    (root / "project" / "dangling").symlink_to("../nowhere")
    (root / "inventory" / "hosts").write_text("a\nb\n")
    (root / "inventory" / "group_vars" / "all.yml").write_text("x: 1\n")
    (root / "env" / "settings").write_text("job_timeout: 60\n")
    flags = ["-p", "site.yml", "--limit", "web", "--forks", "7"]
    theirs = [str(ANSIBLE_RUNNER), "transmit", str(root), *flags, "-v"]
    theirs = subprocess.run(theirs, check=True, capture_output=True, env=environment(), timeout=60).stdout
    node = Recorder(tmp_path / "s")
    ours = [str(MESHCTL), "--socket", str(tmp_path / "s"), "job", "run", str(root), *flags, "-v", "--detach"]
    done = subprocess.run(ours, capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stdout) == (0, "7\n"), done
    assert node.header == {"controller": 1, "name": "site.yml"}
    (kwargs, files), (their_kwargs, their_files) = unpacked(node.payload), unpacked(theirs)
    # What the runner's command line passes on without being asked is what it assumes anyway.
    plain = lambda kwargs: {key: str(value) for key, value in kwargs.items() if value and key != "ident"}  # noqa: E731
    assert plain(kwargs) == plain(their_kwargs) and kwargs["ident"]
    ours = [files.pop(name) for name in ("env/callback", "env/callback/no_terminal.py", "env/envvars")]
    assert files == their_files and len(files) > 12 and json.loads(ours[2][1])["ANSIBLE_CALLBACK_PLUGINS"] == "../env/callback"


def test_a_payload_is_on_disk_once_and_no_header_is_too_long(mesh, project, tmp_path):
    """Whoever submits it; a header that is longer than a status may be is in front of the stream."""
    go = tmp_path / "go"
    mesh.variables["STAND_IN_GO"] = str(go)
    web, page = directive(tmp_path)
    # A node that runs them itself, as an attempt on another one has no file of its own.
    control = start(mesh, tmp_path, runner, nodes=(), more=[web], nodetype="hybrid", requiretls=False)
    submitted = {}

    def run(name, *words):
        done = meshctl(control, "job", "run", project, "-p", "site.yml", "--detach", "--name", name, *words)
        assert done.returncode == 0, done
        submitted[name] = int(done.stdout)

    def post(name, **header):
        answer = page.post("/api/v1/jobs", stream({"name": name, **header}, ident=name), "t-admin")
        assert answer.status == 201, answer.body
        submitted[name] = answer.json["id"]

    def submit(name, **header):
        header = json.dumps({"controller": 1, "name": name, **header})
        done = meshctl(control, "--json", "job", "submit", "--header", header, input=stream(ident=name).decode())
        assert done.returncode == 0, done
        submitted[name] = json.loads(done.stdout)["id"]

    labels = {f"{at:03}": "\"" * 125 for at in range(32)}
    run("run")
    run("labels", *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")))
    post("page")
    post("page labels", labels=labels)
    submit("submit")
    for name, number in submitted.items():
        one = until(f"{name} to run", lambda: (one := job(control, number))["state"] == "running" and one)  # noqa: B023
        # Its name in the attempt's directory goes once it is open.
        runs = lambda: re.search(r"PID (\d+)", control.unit(one["attempts"][0]["unit"])["Detail"])  # noqa: B023, E731
        pid = until("its process", runs)[1]
        files = [os.stat(path) for path in (control.unit_dir(one["unit"]) / "stdin", f"/proc/{pid}/fd/0")]
        assert os.path.samestat(*files), (name, files)
        assert one["header"]["name"] == name and one["labels"] == (labels if "labels" in name else {}), one
    # Of a long one the header alone is in front of the stream, and no line on the way is too long for its reader.
    submit("long submit", runner={"options": ["x" * 4096] * 20})
    post("long page", runner={"options": ["\"" * 4096] * 100})
    for name, count in (("long submit", 20), ("long page", 100)):
        one = job(control, submitted[name])
        assert len(one["header"]["runner"]["options"]) == count, name
        with open(control.unit_dir(one["unit"]) / "stdin", "rb") as payload:
            assert json.loads(payload.readline())["name"] == name
    twice = stream({"name": "a"}, ident="x")
    for body in (twice.split(b"\n", 1)[0] + b"\n" + twice, b'{"controller": 1, "nme": "x"}\n' + stream()):
        refused = page.post("/api/v1/jobs", body, "t-admin")
        assert refused.status == 422 and re.search("its kwargs line is expected|header: unknown key `nme`", refused.json["error"]["message"]), refused.body
    go.touch()
    assert {ended(control, number)["state"] for number in submitted.values()} == {"successful"}


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(stand_in, project, tmp_path):
    go = tmp_path / "never"
    stream = b"".join(json.dumps(line).encode() + b"\n" for line in [{"kwargs": {"go": str(go)}}, {"eof": True}])
    blocking = subprocess.run(arguments(stand_in, "job", "submit", "--name", "blocks"), input=stream, capture_output=True, env=environment(), timeout=60)
    assert blocking.returncode == 0, blocking
    assert result(stand_in, "job", "list", "--name", "blo")["jobs"][0]["name"] == "blocks"
    assert meshctl(stand_in, "instance", "disable", "e1").returncode == 0
    words = arguments(stand_in, "job", "run", project, "-p", "site.yml")
    run = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    number = int(run.stderr.readline().split()[1])
    assert f"Job {number} waits: " in run.stderr.readline()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 1 and f"Job {number} canceled" in err, (run.returncode, out, err)
    assert ended(stand_in, number)["state"] == "canceled"
    first = result(stand_in, "job", "list")["jobs"][-1]["id"]
    assert meshctl(stand_in, "job", "cancel", first).returncode == 0
    assert meshctl(stand_in, "instance", "disable", "e1", "--wait").returncode == 0
    assert ended(stand_in, first)["state"] == "canceled"


def test_jobs_are_cancelled_by_what_they_are_once_somebody_says_yes(stand_in, project):
    assert meshctl(stand_in, "controller", "pause").stdout == "Paused: no more jobs start\n"
    run = lambda *words: int(meshctl(stand_in, "job", "run", project, "-p", "site.yml", "--detach", *words).stdout)  # noqa: E731
    one, two, other = run("--label", "day=1"), run("--label", "day=1"), run("--label", "day=2")
    listed = lambda: meshctl(stand_in, "job", "list", "--label", "day=1", "--since", "1h").stdout  # noqa: E731
    # Why it waits, the next pass says.
    waits = re.compile(rf"^{one} +site.yml +pending +the controller is paused ", re.MULTILINE)
    shown = until("why it waits", lambda: waits.search(text := listed()) and text)
    assert re.search(rf"^{two} +site.yml +pending ", shown, re.MULTILINE) and max(map(len, shown.splitlines())) <= 80, shown
    alone = meshctl(stand_in, "job", "show", one).stdout
    assert re.search(rf"^by +unix:{os.getuid()}$", alone, re.MULTILINE), alone
    nobody = meshctl(stand_in, "job", "cancel", "--label", "day=1")
    assert (nobody.returncode, nobody.stdout) == (64, "") and "Cancel 2 jobs?" in nobody.stderr, nobody
    cancel = arguments(stand_in, "job", "cancel", "--label", "day=1")
    code, shown = on_a_terminal(cancel, {"Cancel 2 jobs? [y/N] ": "n\n"})
    assert code == 1 and result(stand_in, "job", "show", one)["state"] == "pending", shown
    code, shown = on_a_terminal(cancel, {"Cancel 2 jobs? [y/N] ": "y\n"})
    assert code == 0 and f"Job {two} canceled" in shown and f"Job {one} canceled" in shown, shown
    assert result(stand_in, "job", "show", other)["state"] == "pending"
    assert meshctl(stand_in, "job", "list", "--quiet", "--state", "pending,canceled").stdout.split() == [str(other), str(two), str(one)]


def test_a_run_says_that_its_node_is_lost_and_where_it_runs_again(mesh, tmp_path, project):
    go, script = tmp_path / "go", tmp_path / "runner"
    info = f'case "$*" in *--worker-info*) exec {sys.executable} {STAND_IN} "$@";; esac'
    says = """echo '{"status": "successful"}'; echo '{"eof": true}'"""
    script.write_text(f"#!/bin/sh\n{info}\ncat > /dev/null\nwhile [ ! -e {go} ]; do sleep 0.05; done\n{says}\n")
    script.chmod(0o755)
    node = start(mesh, tmp_path, lambda name: command_type(name, str(script), "worker", runtime=True), ["e1", "e2"])
    words = arguments(node, "job", "run", project, "-p", "site.yml", "--retry", 1, "--lost-after", "12s")
    run = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    number = int(run.stderr.readline().split()[1])
    running = until("it to run", lambda: (one := job(node, number))["state"] == "running" and one, 60)
    lost = running["execution_node"]
    other = {"e1": "e2", "e2": "e1"}[lost]
    assert result(node, "job", "explain", "site.yml")["silent"] is None
    mesh[lost].stop(signal.SIGKILL)
    clock = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC"
    line = run.stderr.readline()
    assert re.fullmatch(f"Job {number}: {lost} is out of reach since {clock}, lost at {clock}\n", line), line
    silent = result(node, "job", "explain", "site.yml")["silent"]
    assert (silent["node"], silent["attempt"]) == (lost, 1) and silent["since"] < silent["lost_at"], silent
    line = run.stderr.readline()
    helps = f"attempt 1 may still run there. If the node never comes back: meshctl instance remove {lost} --dead"
    assert re.fullmatch(f"Job {number} waits: {lost} is out of reach since {clock}, lost at {clock}: {helps}\n", line), line
    assert result(node, "job", "explain", number)["silent"]["lost"] is True
    assert meshctl(node, "instance", "remove", lost, "--dead").returncode == 0
    assert run.stderr.readline() == f"Job {number} runs again on {other} (attempt 2)\n"
    go.touch()
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, ""), err


def test_a_project_is_not_sent_twice_and_a_running_job_says_so(mesh, real, project, tmp_path):
    (project / "large").write_bytes(random.Random(5).randbytes(3 << 20))
    flag = tmp_path / "goes-on"
    wait = f"- hosts: a\n  gather_facts: false\n  tasks:\n    - wait_for: {{path: '{flag}', timeout: 120}}\n"
    (project / "wait.yml").write_text(wait)
    first = meshctl(real, "job", "run", project, "-p", "site.yml", "-i", project / "hosts")
    assert first.returncode == 0, first
    # They are kept while the job runs, and after it.
    until("the pieces", lambda: mesh["e1"].command("node cache")["bytes"] >= 3 << 20)
    number = result(real, "job", "run", project, "-p", "wait.yml", "-i", project / "hosts", "--detach")["id"]
    said = re.compile(r"payload: 0\.\d MiB sent, [34]\.\d MiB saved")
    until("the words of the job", lambda: said.search(meshctl(real, "job", "show", number).stdout))
    flag.touch()
    until("the job to end", lambda: job(real, number)["state"] == "successful")


def test_groups_and_instances_are_set_and_shown(stand_in):
    group = result(stand_in, "group", "create", "east", "--list", "e1", "--max-jobs", "3")
    assert (group["policy_instance_list"], group["max_concurrent_jobs"]) == (["e1"], 3)
    assert [one["name"] for one in group["members"]] == ["e1"]
    assert result(stand_in, "group", "set", "east", "--max-jobs", "0", "--list", "")["policy_instance_list"] == []
    assert [one["name"] for one in result(stand_in, "group", "add", "east", "e1")["members"]] == ["e1"]
    assert result(stand_in, "group", "remove", "east", "e1")["members"] == []
    assert result(stand_in, "group", "delete", "east")["deleted"]
    assert result(stand_in, "instance", "set", "e1", "--adjustment", "0.5", "--managed-by-policy", "false")["capacity_adjustment"] == 0.5
    added = result(stand_in, "instance", "add", "later", "--type", "execution", "--disabled")
    assert (added["enabled"], added["node_type"]) == (False, "execution")
    assert result(stand_in, "controller", "pause")["paused"] and result(stand_in, "controller", "ping")["paused"]
    assert result(stand_in, "controller", "resume")["paused"] is False
    code, shown = on_a_terminal(arguments(stand_in, "instance", "list"), {})
    assert code == 0 and re.search(r"^e1 +execution +ready +0/\d+ ", shown, re.MULTILINE), shown
    missing = meshctl(stand_in, "--json", "group", "show", "nowhere")
    assert (missing.returncode, json.loads(missing.stderr)["exit_code"]) == (1, 1), missing
    result(stand_in, "group", "create", "west")
    assert {"control", "e1", "later"} <= completed(stand_in, "instance", "enable", "")
    assert completed(stand_in, "group", "show", "w") == {"west"}
    assert {"controlplane", "default", "west"} <= completed(stand_in, "job", "run", "--group", "")
    assert completed(stand_in, "group", "add", "west", "e") == {"e1"}


def completed(node, *words):
    """What bash offers for the last word."""
    names = environment(MESHCTL_COMPLETE="bash", _CLAP_COMPLETE_INDEX=str(len(words)), RECEPTORCTL_SOCKET=str(node.socket))
    done = subprocess.run([str(MESHCTL), "--", "meshctl", *words], capture_output=True, text=True, env=names, timeout=60)
    assert done.returncode == 0, done
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script_for_completion(tmp_path, shell):
    script = tmp_path / "script"
    script.write_text(subprocess.run([str(MESHCTL), "completion", shell], capture_output=True, text=True, env=environment(), check=True, timeout=60).stdout)
    assert "MESHCTL_COMPLETE" in script.read_text()
    if shutil.which(shell) is None:
        return warnings.warn(f"SKIPPED: {shell} is not installed: nobody read its script", stacklevel=1)
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_a_playbook_is_run_where_it_lies(real, project):
    """A directory of that name makes no runner's of a project, and a playbook below keeps its path."""
    (project / "project").mkdir()
    (project / "project" / "site.yml").write_text(SITE.replace("hello", "wrong"))
    (project / "books").mkdir()
    (project / "books" / "site.yml").write_text(SITE)
    for playbook, says in (("site.yml", "hello"), ("books/site.yml", "hello"), ("project/site.yml", "wrong")):
        done = meshctl(real, "job", "run", playbook, "-i", "hosts", cwd=project)
        assert done.returncode == 0 and f"{says} world" in done.stdout, done


@pytest.mark.parametrize("words", [
    "job run site.yml -e @missing", "job run site.yml --vault-password-file missing", "job run site.yml --vault-id a@missing",
    "job run site.yml --private-key missing", "job run site.yml -i missing", "job run -p site.yml missing", "job run missing.yml",
    "job submit missing", "work submit x -p missing", "work submit x -n -a a=@missing", "group create x --pod missing",
    "controller restore missing", "controller copy --to sqlite:x --config missing", "install missing", "cert show missing",
    "cert verify missing --ca missing", "cert signreq --req missing --cacert m --cakey k --outcert o", "config --for receptor missing",
    "cert makereq --inkey missing --commonname x --nodeid x --outreq r"])
def test_a_file_that_is_named_and_is_not_there_is_wrong_usage(project, words):
    done = subprocess.run([str(MESHCTL), "--socket", "none", *words.split()], cwd=project, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 64 and "missing" in done.stderr and "o such file" in done.stderr + "there is no such file" * ("no playbook" in done.stderr), done


def test_a_job_with_very_many_files_says_so_before_it_reads_them(project):
    with (project / "image").open("w") as image:
        image.truncate(200 << 20)
    done = subprocess.run([str(MESHCTL), "--socket", "none", "job", "run", "site.yml"], cwd=project, capture_output=True, text=True, env=environment(), timeout=60)
    assert "meshctl: all 4 files of the directory are sent, 200.0 MiB\n" in done.stderr, done


@pytest.mark.parametrize("place", ["etc", "home", "above", "linked", "module", "shared", "below"])
def test_a_directory_with_more_than_a_project_is_not_packed(tmp_path, place):
    home = tmp_path / "homes" / "x"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "work").mkdir(parents=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for there in (home, home.parent, home / "work", shared):
        (there / "site.yml").write_text(SITE)
    (tmp_path / "link").symlink_to(home)
    run = lambda *words, cwd=elsewhere: subprocess.run(  # noqa: E731
        [str(MESHCTL), "--socket", "none", "job", "run", *map(str, words)], cwd=cwd, capture_output=True, text=True,
        env=environment(HOME=str(home)), stdin=subprocess.DEVNULL, timeout=60)
    words, cwd, root = {
        "etc": (["/etc/passwd", "-i", "a,"], elsewhere, "/etc"),
        "home": ([home / "site.yml"], elsewhere, home),
        "above": (["-p", "site.yml", home.parent], elsewhere, home.parent),
        "linked": ([tmp_path / "link" / "site.yml"], elsewhere, home),
        "module": (["-m", "ping"], home, home),
        "shared": ([shared / "site.yml"], elsewhere, shared),
        "below": (["work/site.yml"], home, home),
    }[place]
    done = run(*words, cwd=cwd)
    what = "what the module needs" if place == "module" else "the playbook"
    helps = f"put {what} into a directory of its own"
    if place == "below":
        helps = f"go to the playbook's: `cd {home}/work && meshctl job run site.yml`"
    assert done.returncode == 64 and f"{root} is not a project: {helps}" in done.stderr, done
    # A directory below is one, and there is no node.
    assert run(home / "work" / "site.yml").returncode == 69


def test_what_cannot_be_is_said_in_plain_words(mesh):
    mesh.node("alone", work=[command_type("cat", "cat")])
    mesh.start()
    alone = mesh["alone"]
    listed, submitted = meshctl(alone, "job", "list"), meshctl(alone, "job", "submit")
    assert "this node is not a control node: configure work-controller" in listed.stderr, listed
    assert (submitted.returncode, submitted.stderr) == (101, "meshctl: this node is not a control node: configure work-controller\n")
    assert meshctl(alone, "ping", "nosuch", "--count", "1").stderr.startswith("No reply from nosuch: no route to node")
    number = "it takes a whole number"
    for words, argument, why in ((["job", "show", "abc"], "<ID>", "a job is a number, or last"),
                                 (["job", "list", "--limit", "x"], "--limit <LIMIT>", number),
                                 (["top", "--interval", ""], "--interval <SECONDS>", number)):
        done = meshctl(alone, *words)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            64, f"error: invalid value '{words[-1]}' for '{argument}': {why}"), done
    assert "[default: standard input]" not in meshctl(alone, "job", "submit", "--help").stdout


def test_who_follows_a_job_hears_that_its_node_is_out_of_reach(mesh):
    mesh.node("alone", work=[command_type("cat", "cat")])
    mesh.start()
    follows = subprocess.Popen(arguments(mesh["alone"], "work", "submit", "cat", "--node", "nosuch", "-n", "-f"), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    with follows:
        try:
            assert follows.stderr.readline() == "Warning: the mesh knows no node nosuch now, so the job waits for it\n"
            said = follows.stderr.readline()
            assert re.fullmatch(r"Unit \w+ waits: Waiting for node nosuch, trying again: .*no route to node.*\n", said), said
        finally:
            follows.send_signal(signal.SIGINT)
        assert "waits" not in follows.stderr.read()
