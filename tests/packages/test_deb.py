"""The Debian package in a clean Debian: installed, upgraded under a running job, removed, purged."""

import json
import os
import stat

import pytest

from mesh import until

START = "/usr/bin/meshd --config-dir /etc/meshd/conf.d"
#: systemd sets it for a unit with a StateDirectory.
STATE = {"STATE_DIRECTORY": "/var/lib/meshd"}
JOBS = "- work-command:\n    worktype: wait\n    command: sh\n    params: -c 'until [ -e /tmp/go ]; do sleep 0.1; done; echo done'\n"


@pytest.fixture
def installed(tree, debs):
    """A tree with the package; `debs.former` where a test upgrades it."""
    tree.run("dpkg", "-i", tree.copy_in(debs.now["meshd"]))
    return tree


def start_job(tree):
    """Starts the node and a job on it that ends once /tmp/go is there."""
    tree.path("/etc/meshd/conf.d/50-jobs.yml").write_text(JOBS)
    node = tree.start(START, **STATE)
    tree.answers()
    unit = json.loads(tree.run("meshctl", "--json", "work", "submit", "wait", "--no-payload"))["unitid"]
    until("the job to run", lambda: processes_of_jobs(tree))
    return node, unit


def processes_of_jobs(tree):
    marked = "grep -lsz '^MESHD_UNIT_DIR=/var/lib/meshd/' /proc/[0-9]*/environ || true"
    return tree.run("sh", "-c", marked).split()


def stop(tree, node):
    # The daemon alone: its runners have the same name.
    daemon = f'for each in /proc/[0-9]*; do case "$(tr "\\0" " " <$each/cmdline)" in "{START} "*) echo ${{each#/proc/}};; esac; done'
    tree.run("sh", "-c", f"kill -TERM $({daemon})")
    node.wait(60)


def facts(tree, path):
    found = tree.path(path).lstat()
    names = tree.run("stat", "--format", "%U:%G", path).strip()
    return names, oct(stat.S_IMODE(found.st_mode))


def test_it_starts_and_listens_on_its_socket_alone(installed):
    node = installed.start(START, **STATE)
    installed.answers()
    assert facts(installed, "/run/meshd/meshd.sock") == ("meshd:meshd", "0o660")
    # Sockets of the tree's own network: one line is the heading.
    for table in ("tcp", "tcp6", "udp", "udp6"):
        assert len(installed.run("cat", f"/proc/net/{table}").splitlines()) == 1, table
    installed.run("runuser", "-u", "nobody", "-G", "meshd", "--", "meshctl", "status")
    assert "permission" in installed.fails("runuser", "-u", "nobody", "--", "meshctl", "status").lower()
    stop(installed, node)


def test_files_belong_to_whom_they_should(installed):
    assert facts(installed, "/etc/meshd/conf.d") == ("root:meshd", "0o750")
    assert facts(installed, "/etc/meshd/conf.d/00-local.yml") == ("root:meshd", "0o640")
    assert facts(installed, "/var/lib/meshd") == ("meshd:meshd", "0o700")
    assert os.readlink(installed.path("/usr/bin/meshctl")) == "meshd"
    assert "/var/lib/meshd:/usr/sbin/nologin" in installed.run("getent", "passwd", "meshd")


def test_a_job_runs_through_an_upgrade(tree, debs):
    tree.run("dpkg", "-i", tree.copy_in(debs.former["meshd"]))
    node, unit = start_job(tree)
    running = processes_of_jobs(tree)
    tree.run("dpkg", "-i", tree.copy_in(debs.now["meshd"]))
    stop(tree, node)
    node = tree.start(START, **STATE)
    tree.answers()
    # The job's shell; what it sleeps by is another process each time.
    assert set(running) & set(processes_of_jobs(tree))
    tree.path("/tmp/go").touch()
    assert tree.run("meshctl", "work", "results", unit) == "done\n"
    stop(tree, node)


def test_a_change_of_the_configuration_survives_an_upgrade(tree, debs):
    tree.run("dpkg", "-i", tree.copy_in(debs.former["meshd"]))
    own = "- local-only:\n- log-level: debug\n"
    tree.path("/etc/meshd/conf.d/00-local.yml").write_text(own)
    tree.run("dpkg", "-i", tree.copy_in(debs.now["meshd"]))
    assert tree.path("/etc/meshd/conf.d/00-local.yml").read_text() == own


def test_a_purge_waits_for_jobs(installed):
    node, _unit = start_job(installed)
    stop(installed, node)
    # What is removed can be installed again: configuration and results are still there, and the job goes on.
    installed.run("dpkg", "-r", "meshd")
    assert processes_of_jobs(installed)
    assert not installed.path("/usr/bin/meshd").exists()
    assert installed.path("/etc/meshd/conf.d/00-local.yml").exists()
    said = installed.fails("dpkg", "--purge", "meshd")
    assert "jobs still run" in said and "dpkg --purge meshd" in said
    assert list(installed.path("/var/lib/meshd").iterdir())
    installed.path("/tmp/go").touch()
    # The runner, which writes down how the job ended, ends after it.
    until("the job and its runner to end", lambda: installed.succeeds("dpkg", "--purge", "meshd"))
    assert not installed.path("/var/lib/meshd").exists()
    assert not installed.path("/etc/meshd").exists()


def test_a_purge_keeps_the_key_of_a_mesh(installed):
    authority = installed.path("/etc/meshd/ca")
    authority.mkdir(0o700)
    (authority / "ca.key").write_text("key")
    assert "/etc/meshd/ca is kept" in installed.run("dpkg", "--purge", "meshd")
    assert (authority / "ca.key").read_text() == "key"
    assert [path.name for path in installed.path("/etc/meshd").iterdir()] == ["ca"]
