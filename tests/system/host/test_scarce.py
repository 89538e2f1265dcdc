"""Scarce resources: no inotify instance, few descriptors, a log that nobody reads. Units still end, with all of their
output.
"""

import concurrent.futures
import fcntl
import os
import subprocess
import termios
import time

import pytest

from mesh import MARK, MESHD, WORK, environment, until

#: In a user namespace with a limit of its own.
NO_INOTIFY = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"', "sh"]


def start(node, prefix):
    """Starts a node through a program that restricts it."""
    with open(node.logfile, "ab") as log:
        command = [*prefix, str(MESHD), "--config", str(node.config)]
        marked = environment(**{MARK: str(node.mesh.dir)})
        node.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=marked)
    until("an answer", node.answers)
    return node


def test_without_inotify_readers_look_by_themselves_and_one_warning_says_so(mesh):
    node = mesh.node("alone", work=WORK)
    if subprocess.run([*NO_INOTIFY, "true"], capture_output=True).returncode != 0:
        pytest.skip("SKIPPED: this system lets nobody make a user namespace")
    start(node, NO_INOTIFY)
    gate = mesh.dir / "gate"
    with node.control() as control:
        unit = control.submit("alone", "sh", params=f"'echo early; while [ ! -e {gate} ]; do sleep 0.02; done; echo late'")["unitid"]
    with node.control() as control:
        reader = control.results(unit)
        assert reader.readline() == b"early\n"
        gate.touch()
        begun = time.monotonic()
        assert reader.read() == b"late\n"
        assert time.monotonic() - begun < 20
    for number in range(20):
        assert node.run("alone", "sh", params=f"'echo {number}'")[1] == b"%d\n" % number
    node.logged("no inotify for following output")
    assert node.log().count("no inotify for following output") == 1, node.log()


def test_a_thousand_units_with_a_hundred_descriptors(mesh):
    node = start(mesh.node("alone", work=WORK), ["prlimit", "--nofile=100:100"])

    def job(number):
        unit, output = node.run("alone", "sh", params=f"'echo {number}; exit {number % 2}'")
        status = node.unit(unit)
        node.command(f"work release {unit}")
        return output, status["Detail"]

    with concurrent.futures.ThreadPoolExecutor(16) as clients:
        for number, ended in enumerate(clients.map(job, range(1000))):
            assert ended == (b"%d\n" % number, f"exit status {number % 2}")
    assert node.command("work list") == {}


def test_more_at_once_than_there_are_descriptors_for(mesh):
    """Each running unit needs a descriptor; without one its end is detected by polling."""
    node = start(mesh.node("alone", work=WORK), ["prlimit", "--nofile=64:64"])
    gate = mesh.dir / "gate"
    units = []
    for number in range(100):
        with node.control() as control:
            wait = f"'while [ ! -e {gate} ]; do sleep 0.2; done; echo {number}'"
            units.append(control.submit("alone", "sh", params=wait)["unitid"])
    gate.touch()
    for number, unit in enumerate(units):
        assert node.results(unit) == b"%d\n" % number
        until("the end", lambda unit=unit: node.unit(unit)["StateName"] == "Succeeded")


def test_a_log_that_nobody_reads_holds_up_nobody(mesh):
    node = mesh.node("alone", work=WORK, level="debug")
    end, log = os.pipe()
    size = fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
    command = [str(MESHD), "--config", str(node.config)]
    node.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(**{MARK: str(mesh.dir)}))
    os.close(log)

    def is_full():
        run_one(node)
        return int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), "little") > size - 1024

    until("an answer", node.answers)
    until("a full pipe", is_full, 60)
    for _ in range(50):
        run_one(node)
    with open(end, errors="replace") as lines:
        first = lines.readline()
        assert "starting" in first, first
        # The pipe is full again, and the last lines wait for nobody.
        node.stop()
        rest = lines.read()
    assert rest.count("\n") > 10, rest


def run_one(node):
    with node.control() as control:
        unit = control.submit("alone", "cat", b"x")["unitid"]
    assert node.results(unit) == b"x"
    node.command(f"work release {unit}")
