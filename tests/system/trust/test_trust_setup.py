"""Follows docs/trust-setup.md: runs its commands in order, and writes its files where it says.

Other machines are simulated: each host of the page is a directory, which `ssh` and `scp` write to, and the hop is
dialled on this machine.
"""

import os
import re
import subprocess

import pytest

from mesh import BINARIES, ROOT, environment, free_port, until

PAGE = ROOT / "docs" / "trust-setup.md"
HOSTS = ("control", "hop", "execution")
#: Both become the same: `scp FILE... root@HOST.example.org:DIRECTORY` and `ssh root@HOST.example.org COMMAND...`.
SCP = """#!/bin/sh -eu
for last; do :; done
host=${last#root@}; to=$HOSTS/${host%%.*}${last#*:}
while [ $# -gt 1 ]; do cp -p "$1" "$to"; shift; done
"""
SSH = """#!/bin/sh -eu
host=${1#root@}; shift
[ "$1 $2" = "mkdir -p" ] && mkdir -p "$HOSTS/${host%%.*}$3"
"""


def steps():
    """(place, language, text) of each block, in order; a place is a host, `each` or the authority's machine."""
    place, block, found = "authority", None, []
    for line in PAGE.read_text().splitlines():
        if line.startswith("```"):
            if block is None:
                block = (place, line[3:], [])
            else:
                found.append((block[0], block[1], "\n".join(block[2])))
                block = None
        elif block is not None:
            block[2].append(line)
        elif line.startswith("#"):
            place = "authority"
        elif host := re.search(r"(?:On|on) (\w+)\.example\.org:$", line):
            place = host[1]
        elif line.endswith("On each node:"):
            place = "each"
    assert block is None
    return found


@pytest.fixture
def world(mesh):
    """The machines as directories, and the commands that copy between them."""
    mesh.hosts, tools = mesh.dir / "hosts", mesh.dir / "tools"
    tools.mkdir()
    (mesh.dir / "authority").mkdir()
    for name, text in (("scp", SCP), ("ssh", SSH)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    mesh.path = f"{tools}:{BINARIES}:{os.environ['PATH']}"
    mesh.port = free_port()
    for host in HOSTS:
        (mesh.hosts / host / "run/meshd").mkdir(parents=True)
    return mesh


def here(mesh, host, text):
    """The text with a host's paths and the hop's address replaced by those on this machine."""
    # On the authority's machine these paths follow a host's name.
    for path in ("/etc/meshd/", "/run/meshd/") if host in HOSTS else ():
        text = text.replace(path, f"{mesh.hosts / host}{path}")
    return text.replace("hop.example.org:27199", f"localhost:{mesh.port}").replace("port: 27199", f"port: {mesh.port}")


def write(mesh, host, text):
    data = f"- node:\n    datadir: {mesh.hosts / host / 'data'}\n"
    path = mesh.hosts / host / "etc/meshd/meshd.yml"
    path.write_text(here(mesh, host, text).replace("- node:\n", data, 1))


def start(mesh, host):
    node = mesh.add(host, [])
    node.config, node.socket = mesh.hosts / host / "etc/meshd/meshd.yml", mesh.hosts / host / "run/meshd" / f"{host}.sock"
    node.start()


def run(mesh, directory, script):
    """Runs a block like a shell; returns its output. Lines that should fail are run separately."""
    env = environment(PATH=mesh.path, HOSTS=str(mesh.hosts), MARK=str(mesh.dir))
    done = subprocess.run(["sh", "-euc", script], cwd=directory, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_commands_of_the_page(world):
    printed, failed, started = "", [], []
    exports = ""
    blocks = steps()
    assert len(blocks) >= 12, blocks
    for place, language, text in blocks:
        if language == "yaml":
            write(world, place, text)
            continue
        for host in HOSTS if place == "each" else [place]:
            if text.startswith("meshd --config "):
                start(world, host)
                started.append(host)
                continue
            directory = world.dir / "authority" if host == "authority" else world.hosts / host
            # The hop is dialled as `localhost` here; no other name changes.
            script = here(world, host, text).replace("--dnsname $node.example.org", "--dnsname $node.example.org --dnsname localhost")
            if "export " in script:
                exports = script.splitlines()[0] + "\n"
                until("the way to execution", lambda: world["control"].reaches("execution"))
            fails = [line for line in script.splitlines() if line.endswith("# fails")]
            for line in fails:
                code, _, said = run(world, directory, exports + line)
                assert code != 0, line
                failed.append(said)
            script = "\n".join(line for line in script.splitlines() if line not in fails)
            code, out, err = run(world, directory, script)
            assert code == 0, (script, out, err)
            printed += out
    assert started == list(HOSTS)
    assert "IT WORKS" in printed
    assert printed.count("fine: node") == 3 and printed.count(": accepted") == 3, printed
    assert len(failed) == 2, failed
    assert "could not verify signature: signature is empty" in failed[0], failed
    assert "insecure connection to secure service" in failed[1] and "--tls-client" in failed[1], failed
    for host in HOSTS:
        key = world.hosts / host / f"etc/meshd/{host}.key"
        assert key.stat().st_mode & 0o777 == 0o600, key
        assert not (world.hosts / host / "etc/meshd/ca.key").exists()
