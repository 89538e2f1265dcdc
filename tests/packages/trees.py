"""Trees: a minimal Debian that nothing runs in, and a copy of it for each test, with processes and a network of its own.

Owns what is mounted and what runs there; both end with the copy. Needs root and mmdebstrap.
"""

import contextlib
import fcntl
import os
import pathlib
import shlex
import shutil
import subprocess

from mesh import ROOT, until

SUITE = "bookworm"
KEPT = ROOT / "target" / "packages" / "trees"


def made():
    """The tree that all copies are of, made once."""
    tree = KEPT / SUITE
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            unfinished = tree.with_suffix(".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            run("mmdebstrap", "--quiet", "--variant=minbase", SUITE, unfinished)
            unfinished.rename(tree)
    return tree


def run(*command, **options):
    """Runs a command, which must succeed; what it printed on both streams."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, f"{shlex.join(str(word) for word in command)}: status {done.returncode}\n{done.stdout}"
    return done.stdout


class Tree:
    """A copy of the tree, as a process namespace: what was started in it ends with it."""

    def __init__(self, directory):
        self.directory, self.root = directory, directory / "root"
        for part in ("upper", "work", "root"):
            (directory / part).mkdir()
        layers = f"lowerdir={made()},upperdir={directory}/upper,workdir={directory}/work"
        if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, self.root], capture_output=True).returncode:
            # The directory may be on an overlay itself.
            run("cp", "-a", "--reflink=auto", f"{made()}/.", self.root)
        hold = f"mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev && echo held && exec sleep infinity"
        spaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        self.holder = subprocess.Popen([*spaces, "sh", "-c", hold], stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "held\n"
        [self.init] = pathlib.Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()

    def end(self):
        self.holder.kill()
        self.holder.wait()
        subprocess.run(["umount", "--lazy", self.root], capture_output=True)
        shutil.rmtree(self.directory)

    def inside(self, *command):
        """The words that run a command in the tree."""
        return ["nsenter", "--target", self.init, "--mount", "--net", "--pid", "chroot", str(self.root), *map(str, command)]

    def run(self, *command):
        return run(*self.inside(*command), env=ENVIRONMENT)

    def fails(self, *command):
        """What a command that must fail printed."""
        done = subprocess.run(self.inside(*command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        assert done.returncode != 0, done.stdout
        return done.stdout

    def succeeds(self, *command):
        done = subprocess.run(self.inside(*command), stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRONMENT)
        return done.returncode == 0

    def copy_in(self, file):
        """A file of this machine in the tree; its path there."""
        shutil.copy(file, self.root / "root")
        return f"/root/{file.name}"

    def path(self, path):
        return self.root / path.lstrip("/")

    def start(self, command, user="meshd", **more):
        """A service as its unit would run it, in the background: its directories, its user, its working directory."""
        self.run("install", "-d", "-o", user, "-g", user, f"/run/{user}")
        with self.path("/var/log/service").open("ab") as log:
            words = self.inside("runuser", "-u", user, "--", *shlex.split(command))
            return subprocess.Popen(words, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                    env={**ENVIRONMENT, **more})

    def answers(self, *options):
        """Waits until meshctl reaches a node here; its status."""
        with contextlib.suppress(FileNotFoundError):
            return until("a node to answer", lambda: self._status(*options))

    def _status(self, *options):
        done = subprocess.run(self.inside("meshctl", *options, "status"), capture_output=True, text=True, env=ENVIRONMENT)
        return done.stdout if done.returncode == 0 else ""


ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root",
               "DEBIAN_FRONTEND": "noninteractive"}
