"""meshd as a service of a systemd that has really booted, 252 as in Debian 12: confined, reloaded, and ended in every way
under running jobs. The units are those of packaging/systemd."""

import json
import os
import re
import subprocess

import pytest

import booted
from mesh import until
from playbooks import transmit_waiting

pytestmark = pytest.mark.timeout(300)

CONFIG = "/etc/meshd/conf.d/10-node.yml"
DROP_IN = "/etc/systemd/system/meshd.service.d"
HOP = """
- node: {id: box}
- tcp-listener: {port: 27199}
- udp-listener: {port: 27200}
- ws-listener: {port: 27201}
- control-service: {service: control, filename: /run/meshd/meshd.sock, permissions: '0660'}
"""
PEERS = ("tcp-peer: {address: '127.0.0.1:27199'}", "udp-peer: {address: '127.0.0.1:27200'}", "ws-peer: {address: 'ws://127.0.0.1:27201/'}")
WORK = f"""
- work-command: {{worktype: sh, command: sh}}
- work-command: {{worktype: ansible-runner, command: {booted.RUNNER}, params: worker, env: {booted.RUNNER_ENVIRONMENT}}}
"""
#: What systemd-analyze may say of a hop at most.
EXPOSURE = 3.0


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    with booted.machine(tmp_path_factory.mktemp("booted")) as box:
        box.run("useradd", "--groups", "meshd", "operate")
        yield box


@pytest.fixture
def hop(box):
    """The service, confined, without jobs."""
    return start(box, HOP)


@pytest.fixture
def execution(box):
    """The service with the drop-in for nodes that run jobs."""
    box.write(f"{DROP_IN}/execution.conf", (booted.UNITS / "execution.conf").read_text())
    yield start(box, HOP + WORK)
    box.run("systemctl", "kill", "--signal=KILL", "meshd-jobs", check=False)
    box.sh(f"rm -rf {DROP_IN} /tmp/beat")


def start(box, config):
    box.write(CONFIG, config)
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "restart", "meshd")
    return box


def main_pid(box):
    return int(box.show("meshd", "MainPID"))


def logged(box, part):
    """Waits for it in the journal, which takes in what it gets a moment later."""
    until(f"{part!r} in the journal", lambda: part in box.journal("meshd"))


def facts(box, pid):
    """What the kernel says of a process."""
    lines = box.sh(f"cat /proc/{pid}/status").splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def is_free(box, said):
    """Whether a process with this status is confined no more than the first process of the machine."""
    own, first = (re.findall(r"(?:NoNewPrivs|Seccomp_filters|CapBnd):.*", text) for text in (said, box.sh("cat /proc/1/status")))
    return len(own) == 3 and own == first


def submit(box, script, work_type="sh"):
    done = box.run("meshctl", "work", "submit", work_type, "--payload", "-", input=script, stdin=None)
    return re.search(r"Unit ID: (\w+)", done.stdout)[1]


def status(box, unit):
    return json.loads(box.run("meshctl", "--json", "work", "status", unit).stdout)[unit]


def output(box, unit):
    return box.sh(f"cat /var/lib/meshd/box/{unit}/stdout")


def finished(box, unit):
    return until(f"the end of {unit}", lambda: (found := status(box, unit))["StateName"] not in ("Pending", "Running") and found, 120)


class Beat:
    """A job that writes a line to a file of /tmp ten times a second."""

    def __init__(self, box):
        self.box = box
        self.unit = submit(box, "while :; do echo beat >>/tmp/beat; sleep 0.1; done")
        self.goes_on()

    def lines(self):
        return int(self.box.sh("cat /tmp/beat 2>/dev/null | wc -l"))

    def goes_on(self):
        before = self.lines()
        until("the job writes on", lambda: self.lines() > before + 2)
        assert status(self.box, self.unit)["StateName"] == "Running"


def test_a_hop_is_confined_and_works(hop):
    said = hop.run("systemd-analyze", "security", "meshd", "--no-pager", check=False).stdout
    exposure = float(re.search(r"exposure level for meshd.service: ([0-9.]+)", said)[1])
    assert exposure <= EXPOSURE, said
    daemon = facts(hop, main_pid(hop))
    assert (daemon["NoNewPrivs"], daemon["Seccomp"], int(daemon["CapBnd"], 16)) == ("1", "2", 0)
    assert daemon["Uid"].split() == [hop.sh("id -u meshd")] * 4
    # Nothing but its own directories is writable, and the data is where systemd says.
    assert hop.sh("ls -A /var/lib/meshd") == "box"
    for number, link in enumerate(PEERS):
        links_to(hop, f"peer{number}", link)
    assert hop.show("meshd", "NRestarts") == "0"
    denied = hop.run("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "meshctl", "status", check=False)
    assert denied.returncode != 0 and "ermission" in denied.stderr, denied.stderr


def links_to(hop, name, link):
    """A node outside the service has a link to it, and the hop reaches that node."""
    hop.write("/root/peer.yml", f"- node: {{id: {name}, datadir: /root/{name}}}\n- {link}\n")
    # Asked as one of the group meshd, without options.
    ping = ["setpriv", "--reuid=operate", "--regid=operate", "--init-groups", "meshctl", "ping", name, "--count=1"]
    with subprocess.Popen(["nsenter", "-t", str(hop.init), "-a", "meshd", "--config", "/root/peer.yml"], env=booted.ENVIRONMENT) as peer:
        try:
            until(f"an answer over {link}", lambda: hop.run(*ping, check=False).returncode == 0)
        finally:
            peer.terminate()


def test_a_reload_tells_how_it_went(hop):
    before = main_pid(hop)
    hop.write(CONFIG, HOP + "- tcp-listener: {port: 27210}\n")
    hop.run("systemctl", "reload", "meshd")
    until("the new listener", lambda: hop.run("bash", "-c", ": </dev/tcp/127.0.0.1/27210", check=False).returncode == 0)
    hop.write(CONFIG, HOP + "- nonsense: {}\n")
    done = hop.run("systemctl", "reload", "meshd", check=False)
    assert done.returncode != 0
    logged(hop, "nonsense")
    hop.run("kill", "-HUP", str(before))
    until("the failure in the status", lambda: "the last reload failed" in hop.show("meshd", "StatusText"))
    assert (hop.show("meshd", "ActiveState"), main_pid(hop)) == ("active", before)


def test_jobs_in_a_confined_service_are_warned_of(hop):
    assert "execution.conf" not in hop.journal("meshd")
    start(hop, HOP + WORK)
    logged(hop, "jobs are confined like the daemon")
    assert finished(hop, submit(hop, "echo x"))["StateName"] == "Succeeded"


def test_a_job_is_not_confined_and_knows_its_place(execution):
    box = execution
    unit = submit(box, "cat /proc/self/status; umask; env; ls -d /home /root /dev/net 2>&1; cat /proc/self/mountinfo >/tmp/mounts")
    assert finished(box, unit)["StateName"] == "Succeeded", status(box, unit)
    said = output(box, unit)
    user = box.sh("id -u meshd")
    assert is_free(box, said), said
    assert "\n0022\n" in said and "\nHOME=/var/lib/meshd" in said and f"Uid:\t{user}" in said, said
    assert "NOTIFY_SOCKET" not in said and "WATCHDOG" not in said and "XDG_RUNTIME_DIR" not in said, said
    assert box.run("systemctl", "show", "-p", "ControlGroup", "--value", "meshd-jobs").stdout.strip() == "/system.slice/meshd-jobs.service"
    # As `meshctl install` leaves it: rootless podman needs the directory.
    box.sh("mkdir -p /var/lib/systemd/linger && touch /var/lib/systemd/linger/meshd && systemctl restart systemd-logind")
    until("the user's directory", lambda: box.run("test", "-d", f"/run/user/{user}", check=False).returncode == 0)
    unit = submit(box, "env")
    finished(box, unit)
    assert "jobs are confined" not in box.sh("journalctl -o cat _SYSTEMD_INVOCATION_ID=$(systemctl show --value -p InvocationID meshd)")
    assert f"XDG_RUNTIME_DIR=/run/user/{user}" in output(box, unit)
    # What the daemon itself sees is what the host sees.
    assert box.sh("cat /tmp/mounts").count(" /tmp ") == box.sh("cat /proc/1/mountinfo").count(" /tmp ")


#: An image of one program, and a container of it, by the user of jobs without root. The kernel refuses a container made by
#: systemd-nspawn a keyring of its own, and higher limits.
PODMAN = """
mkdir -p ~/.config/containers /tmp/image/bin
printf '[containers]\\nkeyring = false\\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\\n' >~/.config/containers/containers.conf
cp /bin/busybox /tmp/image/bin/sh
tar -C /tmp/image -c . | podman import --quiet - local/box:1 >/dev/null && podman run --rm --network=none local/box:1 sh -c 'echo inside as $USER; cat /proc/self/uid_map'
"""


def test_a_job_runs_a_container_without_root(execution):
    """With what `meshctl install` gives the user: subordinate IDs, and a directory that stays."""
    box = execution
    box.sh("echo meshd:200000:65536 | tee /etc/subuid >/etc/subgid; mkdir -p /var/lib/systemd/linger; touch /var/lib/systemd/linger/meshd")
    box.run("systemctl", "restart", "systemd-logind")
    user = box.sh("id -u meshd")
    until("the user's directory", lambda: box.run("test", "-d", f"/run/user/{user}", check=False).returncode == 0)
    unit = submit(box, PODMAN)
    end = finished(box, unit)
    said = output(box, unit)
    as_user = ["setpriv", f"--reuid={user}", "--regid=meshd", "--init-groups", "env", "HOME=/var/lib/meshd", f"XDG_RUNTIME_DIR=/run/user/{user}"]
    if end["StateName"] == "Failed" and box.run(*as_user, "sh", "-c", PODMAN, check=False).returncode != 0:
        # Not even outside of the service.
        pytest.skip("SKIPPED: podman runs no container here")
    assert end["StateName"] == "Succeeded" and "inside" in said and "200000" in said, said


def test_jobs_go_on_whatever_happens_to_the_daemon(execution):
    box = execution
    beat = Beat(box)
    # A hop's daemon has the process that starts jobs in its own group, which may end a moment later.
    left_over = box.journal("meshd").count("left-over process")
    restart, pause = "systemctl restart meshd", "systemctl stop meshd; sleep 0.3; systemctl start meshd"
    for happen in (lambda: box.sh(restart), lambda: box.sh(pause), lambda: box.kill("meshd")):
        before = main_pid(box)
        happen()
        until("another daemon", lambda: main_pid(box) not in (0, before) and box.run("meshctl", "status", check=False).returncode == 0)
        beat.goes_on()
    assert box.journal("meshd").count("left-over process") == left_over, "the daemon's own group is free"
    members = box.sh("systemctl status --no-pager meshd-jobs")
    assert "sh" in members and "__work-spawner" in members and "__work-spawner" not in box.sh("systemctl status --no-pager meshd"), members
    box.run("meshctl", "work", "cancel", beat.unit)
    assert finished(box, beat.unit)["StateName"] == "Canceled"


def test_a_daemon_that_hangs_is_replaced_and_no_number_of_failures_keeps_it_down(execution):
    box = execution
    beat = Beat(box)
    box.write(f"{DROP_IN}/soon.conf", "[Service]\nWatchdogSec=5s\nTimeoutAbortSec=1s\nRestartSec=10ms\n")
    start(box, HOP + WORK)
    # Signs of life keep it: twice the patience of the watchdog passes meanwhile.
    alive = main_pid(box)
    beats = beat.lines()
    until("ten seconds", lambda: beat.lines() > beats + 100, 120)
    assert main_pid(box) == alive
    box.run("kill", "-STOP", str(alive))
    until("another daemon", lambda: main_pid(box) not in (0, alive) and box.show("meshd", "ActiveState") == "active")
    until("the watchdog in the journal", lambda: "watchdog" in box.journal("meshd").lower())
    beat.goes_on()
    # By default systemd gives up after five.
    for _ in range(6):
        before = main_pid(box)
        box.sh("systemctl kill --signal=KILL --kill-who=main meshd")
        until("another daemon", lambda last=before: main_pid(box) not in (0, last) and box.show("meshd", "ActiveState") == "active")
    beat.goes_on()


def test_a_real_job_survives_an_upgrade_of_the_program(execution, tmp_path):
    """Real ansible-runner, whose playbook begins with one daemon and ends with another that runs a new file."""
    box = execution
    (box.root / "root" / "payload").write_bytes(transmit_waiting(tmp_path))
    said = box.run("meshctl", "work", "submit", "ansible-runner", "--payload", "/root/payload").stdout
    unit = re.search(r"Unit ID: (\w+)", said)[1]
    until("the playbook runs", lambda: box.run("test", "-e", "/tmp/begun", check=False).returncode == 0, 60)
    # As a package manager does it: a new file in the place of the running one.
    box.sh("cp /usr/bin/meshd /usr/bin/meshd.new && mv /usr/bin/meshd.new /usr/bin/meshd && systemctl try-restart meshd")
    assert "(deleted)" not in box.sh(f"readlink /proc/{main_pid(box)}/exe")
    assert status(box, unit)["StateName"] == "Running"
    box.sh("touch /tmp/go")
    assert finished(box, unit)["StateName"] == "Succeeded", status(box, unit)
    stream = output(box, unit)
    assert '"status": "successful"' in stream and "still here" in stream, stream[-2000:]


def test_a_stop_of_the_jobs_service_spares_jobs_and_a_kill_ends_them(execution):
    box = execution
    beat = Beat(box)
    box.run("systemctl", "restart", "meshd-jobs")
    beat.goes_on()
    box.run("systemctl", "kill", "--signal=KILL", "meshd-jobs")
    assert finished(box, beat.unit)["StateName"] == "Failed"


def test_limits_hold_across_a_restart_where_there_are_controllers(execution):
    box = execution
    types = box.sh("cat /sys/fs/cgroup/cgroup.controllers 2>/dev/null; true").split()
    if not {"cpu", "memory", "pids"} <= set(types):
        pytest.skip("SKIPPED: cgroup v2 has no controllers here")
    start(box, HOP + "- work-command: {worktype: sh, command: sh, memory: 300000000, pids: 50, cpu: 0.5}\n")
    beat = Beat(box)
    group = f"/sys/fs/cgroup/system.slice/meshd-jobs.service/meshd-units/box.{beat.unit}"
    assert box.sh(f"cat {group}/pids.max") == "50"
    for happen in (lambda: box.sh("systemctl restart meshd"), lambda: box.kill("meshd")):
        before = main_pid(box)
        happen()
        until("another daemon", lambda last=before: main_pid(box) not in (0, last) and box.show("meshd", "ActiveState") == "active")
        beat.goes_on()
    assert box.sh(f"cat {group}/pids.max") == "50"


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: needs root")
def test_only_jobs_keep_a_purge_from_ending(tmp_path):
    """In a view of processes and of /var/lib that the test alone has; what the packages do with it is in tests/packages."""
    unit = "/var/lib/meshd/box/abcdefgh"
    mine, other = "setpriv --reuid=65533 --regid=65533 --clear-groups", "setpriv --reuid=65534 --regid=65534 --clear-groups"
    script = f"""
mount -t tmpfs tmpfs /var/lib && mkdir -p {unit} && touch {unit}/status && chown -R 65533 /var/lib/meshd && cd /
. {booted.UNITS.parent}/scripts/jobs.sh
said() {{ set -e; running=$(processes_of_jobs); echo "$running$*"; }}
started() {{ "$@" sleep 1000 & wait=$!; until grep -qs sleep /proc/$wait/comm; do :; done; }}
(said nobody)
started {other} env MESHD_UNIT_DIR=/var/lib/meshd/x
started {other} env MESHD_UNIT_DIR={unit}
(said strangers)
started {mine} env -i
first=$wait
started {mine} env MESHD_UNIT_DIR={unit}
(said $first $wait)
"""
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
    # Where systemd runs, all that the user does is in control groups.
    done = subprocess.run([*private, "mount -t tmpfs tmpfs /run" + script], capture_output=True, text=True, timeout=60)
    nobody, strangers, jobs = done.stdout.splitlines()
    assert (nobody, strangers) == ("nobody", "strangers"), done
    found, expected = jobs.split()[:2], jobs.split()[2:]
    assert len(jobs.split()) == 4 and found == expected, done


def test_receptor_s_own_configuration_as_the_user_of_a_drop_in(box):
    box.sh("useradd --system awx; useradd --system receptor; ln -sf meshd /usr/bin/receptor; mkdir -p /etc/receptor; systemctl stop meshd")
    box.write(
        "/etc/receptor/receptor.conf",
        "---\n- node:\n    id: box\n- local-only\n- log-level: info\n"
        "- control-service:\n    service: control\n    filename: /var/run/receptor/receptor.sock\n    permissions: 0660\n"
        "- work-command:\n    worktype: id\n    command: sh\n    params: -c 'id; cat /proc/self/status'\n",
    )
    for user, drop_in in (("receptor", None), ("awx", "[Service]\nUser=awx\nGroup=awx\n")):
        if drop_in:
            box.write("/etc/systemd/system/receptor.service.d/override.conf", drop_in)
        box.sh("rm -rf /tmp/receptor; systemctl daemon-reload; systemctl restart receptor")
        socket = ["--socket", "/var/run/receptor/receptor.sock"]
        said = box.run("meshctl", *socket, "work", "submit", "id", "--no-payload", "--follow").stdout
        assert f"({user})" in said and is_free(box, said), said
        pid = int(box.show("receptor", "MainPID"))
        box.sh("systemctl reload receptor; systemctl kill --signal=KILL --kill-who=main receptor")
        until("another daemon", lambda last=pid: int(box.show("receptor", "MainPID")) not in (0, last) and box.show("receptor", "ActiveState") == "active")
    box.run("systemctl", "stop", "receptor")
