"""What README says is typed as it stands there, in the order of the page, and so is the first configuration of
docs/install.md. Builds have stand-ins that know what they would find; the two machines are those of test_joining.py."""

import os
import re
import subprocess
import sys

import pytest

import hosts as harness
from mesh import BINARIES, MESHD, ROOT, environment, free_port

README, INSTALL = ROOT / "README.md", ROOT / "docs" / "install.md"
#: What makes programs and images: it looks whether all is there that the command names, and runs the programs of this test.
CARGO = """#!{python}
import os, pathlib, sys
root, binaries = pathlib.Path({root!r}), {binaries!r}
verb, words = sys.argv[1], sys.argv[2:]
assert verb in ("build", "run"), verb
if verb == "run":
    program = words[words.index("--bin") + 1]
    assert f'name = "{{program}}"' in (root / "Cargo.toml").read_text(), program
    os.execv(f"{{binaries}}/{{program}}", [program, *words[words.index("--") + 1:]])
"""
PODMAN = """#!{python}
import os, pathlib, re, sys
root, binaries = pathlib.Path({root!r}), {binaries!r}
verb, *words = sys.argv[1:]
if verb == "build":
    stages = re.findall(r"^FROM .* AS (\\w+)$", (root / words[words.index("-f") + 1]).read_text(), re.M)
    assert words[words.index("--target") + 1] in stages, stages
else:
    assert verb == "run" and words[:2] == ["--rm", "meshd"], words
    os.execv(f"{{binaries}}/meshd", words[1:])
"""


def blocks(page, heading):
    """The indented blocks below a heading."""
    text = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
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


@pytest.fixture
def tools(tmp_path):
    """The environment in which builds are stand-ins."""
    for name, text in {"cargo": CARGO, "podman": PODMAN}.items():
        (tmp_path / name).write_text(text.format(python=sys.executable, root=str(ROOT), binaries=str(BINARIES)))
        (tmp_path / name).chmod(0o755)
    return environment(PATH=f"{tmp_path}:{BINARIES}:{os.environ['PATH']}")


def typed(script, env):
    done = subprocess.run(["sh", "-euc", script], cwd=ROOT, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, (script, done)
    return done.stdout


def test_all_of_readme_is_typed():
    text = README.read_text().split("\n## ")
    typed = {section.split("\n")[0] for section in text[1:] if re.search(r"^    \S", section, re.M)}
    assert typed == {"Install", "Two commands", "Two machines"}
    assert len(harness.commands("Two machines")) == 3


@pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces")
def test_a_package_is_installed(mesh):
    build, *script = blocks(README, "Install")[0].splitlines()
    assert " " not in build.split("#")[0].strip()
    made = subprocess.run([ROOT / build.split()[0], "--help"], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0 and "target/packages" in made.stdout, made
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    packages = [f"meshd_{version}_amd64.deb", f"meshd-{version}-1.x86_64.rpm"]
    assert [re.search(r"install \./target/packages/(\S+)", line)[1] for line in script[:2]] == packages
    world = harness.Hosts(mesh, "first")
    assert world["first"].run("\n".join(script) + "\nmeshctl status").split()[:2] == ["Node", "first"]


def test_a_container_and_a_build_from_source(tools):
    _, container, source = blocks(README, "Install")
    assert re.fullmatch(r"meshd \d+\.\d+\.\d+\n", typed(container, tools))
    typed(source, tools)


def test_the_demo_and_the_tests_begin(tools):
    demo, tests = blocks(README, "Two commands")[0].splitlines()
    assert "6 of 6 jobs successful" in typed(demo, tools)
    # All of them from within one of them would be too much.
    begun = subprocess.run(f"{tests.split('#')[0]} --only nothing", shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert begun.returncode == 2 and "--only takes cargo" in begun.stderr, begun


def test_the_first_node_runs_a_command_and_is_a_door_for_nobody(mesh):
    configuration, commands = blocks(INSTALL, "A node by hand")[:2]
    place = Place(mesh, "first-machine", free_port())
    place.start("first", configuration)
    assert place.shell(commands).endswith("hello\n")
