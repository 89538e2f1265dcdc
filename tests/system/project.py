"""Ansible projects, and both ends of an ansible-runner job. Knows nothing of meshes."""

import json
import subprocess

from mesh import ANSIBLE_RUNNER, environment

#: Ansible runs modules with its own interpreter: one that it discovers may be broken.
INVENTORY = "localhost ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'\n"
GREETING = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Work
      ansible.builtin.command: echo across the mesh
      register: said
    - name: Tell
      ansible.builtin.debug:
        msg: "it said {{ said.stdout }}"
"""
FAILURE = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Tell
      ansible.builtin.debug:
        msg: before the failure
    - name: Fail
      ansible.builtin.fail:
        msg: on purpose
"""


def write(directory, playbook=GREETING):
    """A private data directory with `site.yml`."""
    for name in ("project", "inventory"):
        (directory / name).mkdir(parents=True)
    (directory / "project" / "site.yml").write_text(playbook)
    (directory / "inventory" / "hosts").write_text(INVENTORY)
    return directory


def pipeline(directory, submit, out):
    """`transmit | submit | process`, like a shell; returns (output of process, stderr of submit, its exit code)."""
    runner, pipe, env = str(ANSIBLE_RUNNER), subprocess.PIPE, environment()
    transmit = subprocess.Popen([runner, "transmit", directory, "-p", "site.yml"], stdout=pipe, env=env)
    client = subprocess.Popen(submit, stdin=transmit.stdout, stdout=pipe, stderr=pipe, env=env)
    process = subprocess.Popen([runner, "process", out], stdin=client.stdout, stdout=pipe, env=env)
    # Now only the children hold the pipes' ends, so each sees the end of its predecessor.
    transmit.stdout.close()
    client.stdout.close()
    output, _ = process.communicate(timeout=120)
    told = client.stderr.read().decode()
    client.stderr.close()
    assert transmit.wait(60) == 0
    return output.decode(), told, client.wait(60)


def transmit(directory):
    """The complete transmit stream of a project."""
    command = [str(ANSIBLE_RUNNER), "transmit", directory, "-p", "site.yml"]
    return subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True, timeout=60).stdout


def process(stream, out):
    """Processes a result stream with ansible-runner; returns (its output, its exit code)."""
    command = [str(ANSIBLE_RUNNER), "process", out]
    done = subprocess.run(command, input=stream, stdout=subprocess.PIPE, env=environment(), timeout=60)
    return done.stdout.decode(), done.returncode


def artifacts(out):
    """The job's artifacts: (status, return code, stdout, events in order)."""
    job = out / "artifacts"
    events = [json.loads(path.read_text()) for path in (job / "job_events").iterdir()]
    events.sort(key=lambda event: event["counter"])
    text = {name: (job / name).read_text() for name in ("status", "rc", "stdout")}
    return text["status"], int(text["rc"]), text["stdout"], events
