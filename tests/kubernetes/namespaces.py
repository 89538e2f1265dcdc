"""Process, mount and network namespaces for a cluster and all that is run on it.

Whatever starts there ends with these namespaces, however the program that entered them ends, and takes its mounts and
addresses along.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time

import programs

#: In the environment of what runs inside.
ENTERED = "MESHD_NAMESPACES"
#: Each is an empty directory inside: what containerd, the kubelet and network plugins keep there is no business of the
#: host.
PRIVATE = ["/run", "/var/log", "/var/lib/cni"]
#: Two kubelets would tidy up each other's control groups, which have no namespace here.
LOCK = "/run/meshd-cluster.lock"
PATIENCE = 600


def are_entered():
    return ENTERED in os.environ


def run(command):
    """Makes the programs of a cluster, then runs a command in new namespaces; ends with its status."""
    if why := programs.missing():
        sys.exit(f"no cluster can run here: {why}")
    programs.prepare()
    wait_for_lock()
    # The first process of a process namespace takes it along as it ends, and ends with its parent.
    unshare = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--kill-child"]
    os.execvp("unshare", [*unshare, sys.executable, __file__, *map(str, command)])


def wait_for_lock():
    """Waits until no other cluster runs on this machine. The lock ends with the processes that inherit it."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.set_inheritable(lock, True)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                sys.exit(f"another cluster has run on this machine for {PATIENCE} s: see who holds {LOCK}")
            time.sleep(1)


def be_first(command):
    """Runs a command as the first process of its namespace, which inherits and reaps orphans; returns its status."""
    for directory in PRIVATE:
        os.makedirs(directory, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    child = subprocess.Popen(command, env={**os.environ, ENTERED: "1"})
    # Without a handler the first process of a namespace never notices them.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.send_signal(signal.SIGINT))
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    status = be_first(sys.argv[1:])
    sys.exit(status if status >= 0 else 1)
