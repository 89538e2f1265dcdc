"""Playbooks for every way in which a job ends, and what ansible-runner leaves of a run. Knows nothing of meshes."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess

from mesh import ANSIBLE_RUNNER, environment, free_port, until

IDENT = "run"
LOCAL = "ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'"
HEAD = "- hosts: all\n  gather_facts: false\n  tasks:\n"
WAITS = "    - name: Wait\n      ansible.builtin.wait_for: {path: /nonexistent/go, timeout: 300}\n"
#: So long runs a job that is to run out of time: its playbook waits by then, also on a busy machine.
SECONDS = 20
COUNTS = ("ok", "changed", "failures", "dark", "skipped", "rescued", "ignored")


@dataclasses.dataclass
class Playbook:
    """A playbook, and how the job that runs it ends."""

    tasks: str
    state: str
    rc: int
    #: What the recap says of each host, in the order of COUNTS; the rest is 0.
    hosts: dict
    #: More hosts, as lines of an inventory.
    inventory: str = ""

    def stats(self):
        return {host: dict(zip(COUNTS, [*counts, *[0] * 7], strict=False)) for host, counts in self.hosts.items()}

    def write(self, directory):
        """A private data directory for it."""
        for name in ("project", "inventory", "env"):
            (directory / name).mkdir(parents=True)
        (directory / "project" / "site.yml").write_text(HEAD + self.tasks)
        inventory = f"one {LOCAL}\n{self.inventory.format(port=free_port())}"
        (directory / "inventory" / "hosts").write_text(inventory)
        return directory


#: By the way in which they end.
FIVE = {
    "ok": Playbook(
        """
    - name: Remember
      ansible.builtin.set_fact: {colour: green, cacheable: true}
    - name: Work
      ansible.builtin.command: echo across the mesh
    - name: Leave out
      ansible.builtin.debug: {msg: no}
      when: false
""",
        "successful",
        0,
        {"one": [2, 1, 0, 0, 1]},
    ),
    "failed": Playbook(
        """
    - name: Tell
      ansible.builtin.debug: {msg: before the failure}
    - name: Fail
      ansible.builtin.fail: {msg: on purpose}
""",
        "failed",
        2,
        {"one": [1, 0, 1]},
    ),
    "unreachable": Playbook(
        "    - name: Reach\n      ansible.builtin.ping:\n",
        "failed",
        4,
        {"one": [1], "two": [0, 0, 0, 1]},
        "two ansible_connection=ssh ansible_host=127.0.0.1 ansible_port={port}\n",
    ),
    "cancelled": Playbook(WAITS, "canceled", 254, {}),
    "timeout": Playbook(WAITS, "failed", 254, {}),
}


def transmit(directory):
    """The transmit stream of a directory."""
    command = [str(ANSIBLE_RUNNER), "transmit", str(directory), "-p", "site.yml", "--ident", IDENT]
    return subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True, timeout=60).stdout


def transmit_waiting(directory):
    """The same of a playbook that makes /tmp/begun where it runs, and waits for /tmp/go there."""
    tasks = (
        "    - name: Begin\n      ansible.builtin.copy: {content: '', dest: /tmp/begun}\n"
        "    - name: Wait\n      ansible.builtin.wait_for: {path: /tmp/go, timeout: 100}\n"
        "    - name: Tell\n      ansible.builtin.debug: {msg: still here}\n"
    )
    return transmit(Playbook(tasks, "successful", 0, {}).write(directory))


def process(stream, directory):
    """What ansible-runner makes of a worker's stream."""
    command = [str(ANSIBLE_RUNNER), "process", str(directory), "--ident", IDENT]
    subprocess.run(command, input=stream, stdout=subprocess.DEVNULL, env=environment(), timeout=60)
    return directory / "artifacts" / IDENT


def run_here(source, way):
    """Runs the playbook with ansible-runner alone, from a copy of its directory; returns its artifacts."""
    copy = source.with_name(f"{source.name}-here")
    shutil.copytree(source, copy)
    if way == "timeout":
        (copy / "env" / "settings").write_text(f"job_timeout: {SECONDS}\n")
    command = [str(ANSIBLE_RUNNER), "run", str(copy), "-p", "site.yml", "--ident", IDENT]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(), start_new_session=True)
    artifacts = copy / "artifacts" / IDENT
    if way == "cancelled":
        events = artifacts / "job_events"
        # Events are written under another name first, which may go meanwhile.
        waits = lambda: any(is_waiting(path.read_text()) for path in events.glob("*.json") if "partial" not in path.name)  # noqa: E731
        until("the playbook to wait", waits, 60)
        running.send_signal(signal.SIGINT)
    running.wait(90)
    return artifacts


def is_waiting(event):
    return '"runner_on_start"' in event and '"Wait"' in event


TEMPORARY = re.compile(r"/[^\"\s]*/(?=(?:project|inventory|artifacts)/)|/[^\"\s]*/\.ansible/(?:tmp|cp)/[^\"\s]*")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00)?|\d:\d\d:\d\d\.\d+")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NUMBER = re.compile(r'("(?:duration|pid)": )[0-9.e-]+')


def results(artifacts):
    """The artifacts in which no run differs from another: times, IDs and temporary paths are made equal."""
    known = {}

    def equal(text):
        text = UUID.sub(lambda found: f"uuid {known.setdefault(found[0], len(known))}", text)
        return NUMBER.sub(r"\g<1>0", TIME.sub("TIME", TEMPORARY.sub("DIR/", text)))

    events = [json.loads(path.read_text()) for path in (artifacts / "job_events").iterdir()]
    events.sort(key=lambda event: event["counter"])
    # A playbook's last words if the signal that ends its runner reaches it before the runner kills it.
    said = None
    while events and events[-1]["event"] in ("verbose", "warning", "error"):
        said = events.pop()["start_line"]
    found = {name: equal((artifacts / name).read_text()) for name in ("rc", "status", "stdout", "stderr")}
    found["stdout"] = found["stdout"].splitlines()[:said]
    found["fact_cache"] = {path.name: equal(path.read_text()) for path in (artifacts / "fact_cache").glob("*")}
    found["job_events"] = [json.loads(equal(json.dumps(event))) for event in events]
    return found
