"""README's first configuration as it stands there: nothing about it is warned of, it starts, and what is typed next works.
Paths are those of this test. Its two machines are those of test_joining.py."""

import os
import re
import subprocess

from mesh import BINARIES, MESHD, ROOT, environment, free_port


def blocks(heading):
    """The indented blocks below a heading."""
    text = (ROOT / "README.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found, block = [], []
    for line in [*text.splitlines(), "end"]:
        if line.startswith("    ") or (not line and block):
            block.append(line[4:])
        elif block:
            found.append("\n".join(block).strip() + "\n")
            block = []
    return found


class Place:
    """A directory in the place of a machine."""

    def __init__(self, mesh, name, port):
        self.mesh, self.dir = mesh, mesh.dir / name
        self.dir.mkdir()
        self.replaced = {
            "/etc/meshd/": f"{self.dir}/", "/run/meshd/": f"{self.dir}/", "/tmp/": f"{self.dir}/",
            "execution.example.org:27199": f"localhost:{port}", "port: 27199": f"port: {port}",
        }

    def fit(self, text):
        return re.sub("|".join(map(re.escape, self.replaced)), lambda found: self.replaced[found[0]], text)

    def shell(self, script):
        path = {"PATH": f"{BINARIES}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-eu", "-c", self.fit(script)], cwd=self.dir, capture_output=True, text=True,
                              env=environment(**path), timeout=120)
        assert done.returncode == 0, (script, done)
        return done.stdout

    def start(self, name, configuration):
        """Checks it as it is, and starts it with a data directory of the test."""
        text = self.fit(configuration)
        (self.dir / "check.yml").write_text(text)
        checked = subprocess.run([MESHD, "check", self.dir / "check.yml"], capture_output=True, text=True, env=environment(), timeout=60)
        assert re.fullmatch(r"fine: [^\n]*\n", checked.stdout), checked
        node = self.mesh.node(name)
        node.config.write_text(re.sub(r"- node: \{", f"- node: {{datadir: {node.datadir}, ", text))
        node.socket = re.search(r"filename: ([^,}]+)", text)[1]
        return node.start()


def test_the_first_node_runs_a_command_and_is_a_door_for_nobody(mesh):
    configuration, commands = blocks("A first configuration")[:2]
    place = Place(mesh, "first-machine", free_port())
    place.start("first", configuration)
    assert place.shell(commands).endswith("hello\n")
