"""The package meshd on a machine that has really booted, by dpkg and by rpm: installed, started, upgraded under a running
job, killed, hung, removed, purged. What the units do beside is in tests/system/host/test_service.py."""

import json
import re

import pytest

import booted
from mesh import until
from playbooks import transmit_waiting

pytestmark = pytest.mark.timeout(400)

DROP_IN = "/etc/systemd/system/meshd.service.d/execution.conf"
LISTENER = "- tcp-listener: {{port: {}}}\n"
JOBS = f"""
- work-command: {{worktype: wait, command: sh, params: "-c 'until [ -e /tmp/go ]; do sleep 0.1; done; echo done'"}}
- work-command: {{worktype: ansible-runner, command: {booted.RUNNER}, params: worker, env: {booted.RUNNER_ENVIRONMENT}}}
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    with booted.machine(tmp_path_factory.mktemp("booted"), with_meshd=False) as box:
        yield box


class Dpkg:
    """The Debian package in a machine."""

    def __init__(self, box, files):
        self.box, self.files = box, files

    def install(self, which="now"):
        file = getattr(self.files, which)["meshd"]
        (self.box.root / "root" / file.name).write_bytes(file.read_bytes())
        return self.call(f"/root/{file.name}")

    def call(self, file):
        return self.box.run("dpkg", "-i", file)

    def remove(self):
        return self.box.run("dpkg", "-r", "meshd").stderr

    def clean(self):
        self.box.run("dpkg", "--purge", "meshd", check=False)


class Rpm(Dpkg):
    """The rpm, of whose dependencies the machine's database knows nothing; that is for test_rpm.py."""

    def call(self, file):
        return self.box.run("rpm", "-U", "--nosignature", "--nodeps", file)

    def remove(self):
        return self.box.run("rpm", "-e", "meshd").stderr

    def clean(self):
        self.box.run("rpm", "-e", "meshd", check=False)
        self.box.sh(f"rm -rf /etc/meshd /var/lib/meshd {DROP_IN}")


@pytest.fixture
def dpkg(box, debs):
    yield from cleaned(Dpkg(box, debs))


@pytest.fixture(params=["dpkg", "rpm"])
def packager(request, box, debs, rpms):
    yield from cleaned(Dpkg(box, debs) if request.param == "dpkg" else Rpm(box, rpms))


def cleaned(packager):
    box = packager.box
    yield packager
    box.run("systemctl", "kill", "--signal=KILL", "meshd", "meshd-jobs", check=False)
    until("the end of all jobs", lambda: not of_user(box))
    packager.clean()
    box.sh("rm -rf /tmp/go /tmp/begun /etc/meshd; userdel meshd; systemctl daemon-reload")


def start(box):
    """Starts a node that runs jobs."""
    box.write("/etc/meshd/conf.d/50-jobs.yml", JOBS)
    box.sh(f"install -D -m 644 /usr/share/meshd/execution.conf {DROP_IN} && systemctl daemon-reload")
    box.run("systemctl", "enable", "--now", "meshd")


def submit(box, work_type, *payload):
    said = box.run("meshctl", "--json", "work", "submit", work_type, *(payload or ["--no-payload"])).stdout
    return json.loads(said)["unitid"]


def state(box, unit):
    return json.loads(box.run("meshctl", "--json", "work", "status", unit).stdout)[unit]["StateName"]


def finished(box, unit):
    return until(f"the end of {unit}", lambda: (found := state(box, unit)) not in ("Pending", "Running") and found, 60)


def answers(box):
    return box.run("meshctl", "status", check=False).returncode == 0


def main_pid(box):
    return int(box.show("meshd", "MainPID"))


def another_daemon(box, former):
    until("another daemon", lambda: main_pid(box) not in (0, former) and answers(box), 60)


def of_user(box):
    """All processes of the user meshd."""
    return box.sh("pgrep --uid meshd || true").split()


def is_active(box, unit):
    return box.run("systemctl", "is-active", unit, check=False).stdout.strip() == "active"


def test_nothing_starts_by_itself_and_a_reload_is_heard(packager):
    box = packager.box
    packager.install()
    assert box.run("systemctl", "is-enabled", "meshd", check=False).stdout == "disabled\n"
    assert not is_active(box, "meshd") and of_user(box) == []
    box.run("systemctl", "enable", "--now", "meshd")
    assert box.sh("stat -c '%U:%G %a' /run/meshd/meshd.sock") == "meshd:meshd 660"
    assert answers(box) and not is_active(box, "meshd-jobs")
    pid = main_pid(box)
    listens = lambda port: box.run("bash", "-c", f": </dev/tcp/127.0.0.1/{port}", check=False).returncode == 0  # noqa: E731
    box.write("/etc/meshd/conf.d/20-more.yml", LISTENER.format(27199))
    box.run("systemctl", "reload", "meshd")
    until("the listener", lambda: listens(27199))
    box.write("/etc/meshd/conf.d/20-more.yml", LISTENER.format(27199) + "- nonsense: {}\n")
    assert box.run("systemctl", "reload", "meshd", check=False).returncode != 0
    assert main_pid(box) == pid and listens(27199)


def test_a_package_as_it_is_installed_gives_certificates(packager):
    """The confined service has the authority's key, and answers a host, which is a second tree here."""
    box = packager.box
    packager.install()
    box.run("systemctl", "enable", "--now", "meshd")
    line = box.sh("meshctl node invite e1 --role execution --peer 127.0.0.1 --here").splitlines()[-1].strip()
    assert box.sh("stat -c '%U:%G %a' /etc/meshd/ca /etc/meshd/ca/ca.key").splitlines() == ["meshd:meshd 700", "meshd:meshd 600"]
    said = json.loads(box.sh(f"{line} --root /srv/e1 --json"))
    assert said["node"] == "e1", said
    box.sh("meshctl cert verify /srv/e1/etc/meshd/tls/node.crt --ca /etc/meshd/ca/ca.crt --node e1")
    used = json.loads(box.sh("meshctl node invites --json"))["invites"]
    assert [(one["node"], len(one["used"])) for one in used] == [("e1", 1)]
    again = box.run("sh", "-c", f"{line} --root /srv/e2", check=False)
    assert again.returncode != 0 and "the token for e1 is used up" in again.stderr, again
    box.sh("rm -rf /srv/e1 /srv/e2")


def test_a_real_job_goes_on_through_an_upgrade_a_kill_and_a_hang(packager, tmp_path):
    box = packager.box
    packager.install("former")
    start(box)
    (box.root / "root" / "payload").write_bytes(transmit_waiting(tmp_path))
    unit = submit(box, "ansible-runner", "--payload", "/root/payload")
    until("the playbook runs", lambda: box.run("test", "-e", "/tmp/begun", check=False).returncode == 0, 60)
    pid = main_pid(box)
    packager.install()
    another_daemon(box, pid)
    assert "(deleted)" not in box.sh(f"readlink /proc/{main_pid(box)}/exe")
    assert state(box, unit) == "Running"
    pid = main_pid(box)
    box.kill("meshd")
    another_daemon(box, pid)
    assert state(box, unit) == "Running"
    # The package waits for a minute.
    box.write("/etc/systemd/system/meshd.service.d/soon.conf", "[Service]\nWatchdogSec=5s\nTimeoutAbortSec=1s\n")
    box.sh("systemctl daemon-reload; systemctl restart meshd")
    pid = main_pid(box)
    box.run("kill", "-STOP", str(pid))
    another_daemon(box, pid)
    box.sh("rm /etc/systemd/system/meshd.service.d/soon.conf")
    until("the watchdog in the journal", lambda: "watchdog" in box.journal("meshd").lower())
    assert state(box, unit) == "Running"
    box.sh("touch /tmp/go")
    assert finished(box, unit) == "Succeeded"
    stream = box.run("meshctl", "work", "results", unit).stdout
    assert '"status": "successful"' in stream and "still here" in stream, stream[-2000:]


def test_a_removal_spares_jobs_and_an_installation_finds_them(packager):
    box = packager.box
    packager.install()
    start(box)
    unit = submit(box, "wait")
    until("the job to run", lambda: state(box, unit) == "Running")
    # Its shell forks for each sleep, and looks like two for a moment.
    job = box.sh("pgrep --oldest --full '^sh -c until'").strip()
    said = packager.remove()
    assert re.search(rf"jobs go on \(processes: .*\b{job}\b", said) and "systemctl kill meshd-jobs" in said, said
    assert not is_active(box, "meshd") and is_active(box, "meshd-jobs")
    box.run("kill", "-0", job)
    packager.install()
    box.run("systemctl", "start", "meshd")
    assert state(box, unit) == "Running"
    box.sh("touch /tmp/go")
    assert finished(box, unit) == "Succeeded"
    assert box.run("meshctl", "work", "results", unit).stdout == "done\n"
    assert "jobs" not in packager.remove()
    # The process that held the group of jobs has ended as well.
    until("the end of their service", lambda: not is_active(box, "meshd-jobs"))
    until("the end of everything", lambda: of_user(box) == [])


def test_a_purge_waits_for_jobs_and_keeps_the_key_of_a_mesh(dpkg):
    box = dpkg.box
    dpkg.install()
    start(box)
    box.run("loginctl", "enable-linger", "meshd")
    unit = submit(box, "wait")
    until("the job to run", lambda: state(box, unit) == "Running")
    # Its shell forks for each sleep, and looks like two for a moment.
    job = box.sh("pgrep --oldest --full '^sh -c until'").strip()
    box.sh("install -d -m 700 /etc/meshd/ca && echo key >/etc/meshd/ca/ca.key")
    refused = box.run("dpkg", "--purge", "meshd", check=False)
    assert refused.returncode != 0 and re.search(rf"jobs still run.*\b{job}\b", refused.stderr), refused
    box.run("kill", "-0", job)
    assert box.sh("ls /var/lib/meshd/box") == unit
    box.sh("touch /tmp/go")
    until("the job to end", lambda: box.run("kill", "-0", job, check=False).returncode != 0)
    done = until("a purge", lambda: (done := box.run("dpkg", "--purge", "meshd", check=False)).returncode == 0 and done)
    assert "/etc/meshd/ca is kept" in done.stdout
    assert box.sh("cat /etc/meshd/ca/ca.key; ls /etc/meshd") == "key\nca"
    gone = ("/var/lib/meshd", DROP_IN, "/var/lib/systemd/linger/meshd", "/etc/systemd/system/multi-user.target.wants/meshd.service")
    assert [path for path in gone if box.run("test", "-e", path, check=False).returncode == 0] == []
    until("the end of their service", lambda: not is_active(box, "meshd-jobs"))
    until("the end of everything", lambda: of_user(box) == [])
