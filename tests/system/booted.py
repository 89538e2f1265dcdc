"""Machines: a minimal Debian with a systemd of its own, booted by systemd-nspawn in an overlay of a tree that is kept in
target/booted.

Owns the tree, what is mounted, and the processes. Knows how meshd is laid down where there is no package, and nothing of
the purpose of a test. Needs root, mmdebstrap and systemd-nspawn.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from mesh import BINARIES, ROOT, until

SUITE = "bookworm"
INCLUDED = ("systemd", "systemd-sysv", "dbus", "libpam-systemd", "python3", "procps", "podman", "uidmap", "busybox-static", "rpm")
KEPT = ROOT / "target" / "booted"
UNITS = ROOT / "packaging" / "systemd"
#: What ansible-runner is called inside.
RUNNER = "/opt/runner/bin/ansible-runner"
RUNNER_ENVIRONMENT = "{PYTHONPATH: /opt/runner, PATH: '/opt/runner/bin:/usr/bin:/bin'}"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
#: A suite that boots takes its time on a busy machine.
BOOT = 90


def missing():
    """Why no tree can be booted here, if so."""
    if os.geteuid() != 0:
        return "only root can"
    absent = [program for program in ("mmdebstrap", "systemd-nspawn", "nsenter") if shutil.which(program) is None]
    return f"{', '.join(absent)} missing" if absent else ""


def skip(reason):
    """Skips aloud; on the machine that decides about changes that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"no tree can be booted here: {reason}")
    print(f"\n*** NO TREE IS BOOTED: {reason}", file=sys.stderr)
    pytest.skip(f"SKIPPED: no tree can be booted here: {reason}")


def pinned():
    """The releases of ansible that the tests drive."""
    lines = (ROOT / "tests" / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line.startswith(("ansible-core=", "ansible-runner="))]


def tree():
    """The tree that all machines have in common, made once."""
    recipe = hashlib.sha256(repr((SUITE, INCLUDED, pinned())).encode()).hexdigest()[:12]
    made = KEPT / f"{SUITE}-{recipe}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make_tree(made)
    return made


def make_tree(made):
    unfinished = made.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    include = ",".join(INCLUDED)
    done = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", SUITE, str(unfinished)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    if done.returncode != 0:
        skip(f"mmdebstrap: {done.stderr.strip()[-500:]}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    wheels = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11", "--target", str(unfinished / "opt" / "runner")]
    subprocess.run([*pip, *wheels, *pinned()], check=True, timeout=300)
    for script in (unfinished / "opt" / "runner" / "bin").iterdir():
        text = script.read_text()
        if text.startswith("#!"):
            script.write_text("#!/usr/bin/python3\n" + text.split("\n", 1)[1])
    unfinished.rename(made)


class Machine:
    """One booted tree. What it changes is gone with it."""

    def __init__(self, directory, name="box"):
        self.directory = pathlib.Path(directory) / name
        self.root = self.directory / "root"
        self.log = self.directory / "console"
        self.process = None
        self.init = None
        for part in ("upper", "work", "root"):
            (self.directory / part).mkdir(parents=True)
        layers = f"lowerdir={tree()},upperdir={self.directory}/upper,workdir={self.directory}/work"
        if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, self.root], capture_output=True).returncode != 0:
            # In a container the directory may be on an overlay itself.
            subprocess.run(["cp", "-a", "--reflink=auto", f"{tree()}/.", self.root], check=True)
        (self.root / "etc" / "hostname").write_text(f"{name}\n")

    def write(self, path, text, mode=0o644):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def lay_down(self):
        """Everything of meshd where the package has it, but for its configuration."""
        program = self.root / "usr" / "bin" / "meshd"
        subprocess.run(["strip", "-o", program, BINARIES / "meshd"], check=True)
        (self.root / "usr" / "bin" / "meshctl").symlink_to("meshd")
        for unit in UNITS.glob("*.service"):
            shutil.copy(unit, self.root / "usr" / "lib" / "systemd" / "system")
        shutil.copy(UNITS / "meshd.sysusers", self.root / "usr" / "lib" / "sysusers.d" / "meshd.conf")
        shutil.copy(UNITS / "meshd.tmpfiles", self.root / "usr" / "lib" / "tmpfiles.d" / "meshd.conf")

    def boot(self):
        command = ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "--private-network", "-b", "-D", str(self.root)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            until("the machine has booted", self.has_booted, BOOT)
        except AssertionError as error:
            console = self.log.read_text(errors="replace")[-2000:]
            self.end()
            skip(f"{error}: {console}")
        return self

    def has_booted(self):
        # The first child that systemd-nspawn has makes the machine, and ends.
        self.init = self.first_process()
        return self.init and self.state() in ("running", "degraded")

    def first_process(self):
        if self.process.poll() is not None:
            raise AssertionError(f"systemd-nspawn ended with {self.process.returncode}")
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def state(self):
        return self.run("systemctl", "is-system-running", check=False).stdout.strip()

    def run(self, *command, check=True, **options):
        """Runs a command inside, as root, and returns what subprocess says of it."""
        inside = ["nsenter", "-t", str(self.init), "-a", *command]
        options = {"stdin": subprocess.DEVNULL, "timeout": 60} | options
        done = subprocess.run(inside, capture_output=True, text=True, env=ENVIRONMENT, **options)
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def sh(self, script, **options):
        return self.run("sh", "-c", script, **options).stdout.strip()

    def kill(self, unit):
        """Kills all processes of a unit. What systemd says of it is no failure: it tells an EIO if it meets one that is just ending."""
        self.run("systemctl", "kill", "--signal=KILL", unit, check=False)

    def show(self, unit, property_):
        return self.run("systemctl", "show", "--value", "-p", property_, unit).stdout.strip()

    def journal(self, unit):
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout

    def end(self):
        """Powers it off, and takes everything away."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        subprocess.run(["umount", "-l", self.root], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def machine(directory, name="box", with_meshd=True):
    """A machine for the time of a block: with meshd laid down and nothing configured, or without it."""
    if reason := missing():
        skip(reason)
    made = Machine(directory, name)
    try:
        if with_meshd:
            made.lay_down()
        yield made.boot()
    finally:
        made.end()


if __name__ == "__main__":
    # ./tests/run makes the tree beside the tests that need none.
    if not missing():
        tree()
