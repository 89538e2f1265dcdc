"""The Ansible collection of packaging/ansible, installed as its users install it, and the playbooks that drive it."""

import os
import subprocess

import yaml

from mesh import BINARIES, ROOT, VENV, environment

SOURCE = ROOT / "packaging" / "ansible"


class Collection:
    """The collection in a directory of its own."""

    def __init__(self, directory):
        self.directory = directory
        self.done("ansible-galaxy", "collection", "install", "--offline", "-p", directory, SOURCE)

    def run(self, *words, cwd=None, **variables):
        """Runs a program of Ansible with the collection; what subprocess says of it."""
        more = {"PATH": f"{BINARIES}:{VENV / 'bin'}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_COLLECTIONS_PATH": str(self.directory), "ANSIBLE_HOME": str(self.directory / "home"), **variables}
        return subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, env=environment(**more), timeout=300)

    def done(self, *words, **variables):
        """The same for what must succeed; what it printed."""
        done = self.run(*words, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def role(self, directory, name, host, **variables):
        """A playbook that gives a host this role; the words that run it."""
        play = {"hosts": "all", "roles": [{"role": f"meshd.meshd.{name}", **variables}]}
        (directory / "play.yml").write_text(yaml.safe_dump([play]))
        (directory / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": host}}))
        return "ansible-playbook", "--diff", "-i", directory / "inventory.yml", directory / "play.yml"
