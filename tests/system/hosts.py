"""Hosts of a network of their own: namespaces for network, mounts and the host name, with /etc, /run and /var/lib that
are directories of the test. Needs root.

Owns the namespaces, the network between them, and stand-ins for what a host has and a test cannot: a package manager
that brings our unit, our user and the first configuration, `scp`, and a `systemctl` that starts the real daemon as the
unit's user. Knows nothing of what is tested.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from mesh import BINARIES, MARK, ROOT, VENV, environment, until

STAND_IN = ROOT / "tests" / "system" / "stand_in_runner.py"
#: What the package brings. `apt install` and `dnf install` become this.
PACKAGE = """#!/bin/sh -eu
install -D -m 644 {root}/packaging/systemd/meshd.service /usr/lib/systemd/system/meshd.service
grep -q ^meshd: /etc/passwd || echo 'meshd:x:990:990::/var/lib/meshd:/usr/sbin/nologin' >>/etc/passwd
grep -q ^meshd: /etc/group || echo 'meshd:x:990:' >>/etc/group
install -d -o meshd -g meshd -m 700 /var/lib/meshd
install -d -g meshd -m 750 /etc/meshd /etc/meshd/conf.d
[ -e /etc/meshd/conf.d/00-local.yml ] || cp {first} /etc/meshd/conf.d/00-local.yml
"""
SCP = """#!/bin/sh -eu
for last; do :; done
host=${last#root@}; name=${host%%.*}
case "${last#*:}" in /*) to=$HOSTS/${name%%:*}${last#*:} ;; *) to=$HOSTS/${name%%:*}/home/${last#*:} ;; esac
while [ $# -gt 1 ]; do cp "$1" "$to"; shift; done
"""
SYSTEMCTL = '''#!{python}
"""systemctl for one unit: starts what ExecStart says as the unit's user, waits for READY=1, notes what was asked."""
import os, pathlib, signal, socket, subprocess, sys, time

PID, ASKED = pathlib.Path("/run/meshd.pid"), pathlib.Path("/run/asked")


def pid():
    try:
        found = int(PID.read_text())
        os.kill(found, 0)
        return found if pathlib.Path(f"/proc/{{found}}/stat").read_text().split()[2] != "Z" else 0
    except (OSError, ValueError):
        return 0


def start():
    os.makedirs("/run/meshd", exist_ok=True)
    os.chown("/run/meshd", 990, 990)
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind("/run/notify")
    os.chmod("/run/notify", 0o777)
    environment = {{**os.environ, "NOTIFY_SOCKET": "/run/notify", "HOME": "/var/lib/meshd", "STATE_DIRECTORY": "/var/lib/meshd"}}
    log = open("/run/log", "ab")
    command = ["setpriv", "--reuid=meshd", "--regid=meshd", "--clear-groups", "meshd", "--config-dir", "/etc/meshd/conf.d"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/", start_new_session=True)
    PID.write_text(str(process.pid))
    ready.settimeout(1)
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            try:
                if b"READY=1" in ready.recv(4096):
                    return
            except TimeoutError:
                if process.poll() is not None:
                    sys.exit("Job for meshd.service failed: " + pathlib.Path("/run/log").read_text()[-2000:])
        sys.exit("Job for meshd.service failed: timeout")
    finally:
        os.unlink("/run/notify")


with open(ASKED, "a") as asked:
    print(*sys.argv[1:], file=asked)
verb = next(argument for argument in sys.argv[1:] if not argument.startswith("-"))
if verb == "is-active":
    sys.exit(0 if pid() else 3)
if "--now" in sys.argv:
    verb = {{"enable": "start", "disable": "stop"}}[verb]
if verb in ("restart", "stop") and pid():
    os.kill(pid(), signal.SIGTERM)
    while pid():
        time.sleep(0.02)
if verb in ("restart", "start") and not pid():
    start()
'''
#: The interpreter of this environment may belong to root alone: what is installed there runs by the system's.
LIBRARY = next((VENV / "lib").glob("python*/site-packages"), VENV)
BY_SYSTEM = f'#!/bin/sh\nPYTHONPATH={LIBRARY} exec /usr/bin/python3 -m {{}} "$@"\n'
ANSIBLE = {"ansible-runner": BY_SYSTEM.format("ansible_runner"), "ansible-playbook": BY_SYSTEM.format("ansible playbook")}
NO_ANSIBLE = {"ansible-runner": f'#!/bin/sh\nexec /usr/bin/python3 -I {STAND_IN} "$@"\n'}
#: What the package brings as configuration.
FIRST = (ROOT / "packaging/etc/00-local.yml").read_text()


def are_possible():
    """Whether this machine lets the test make namespaces."""
    tools = all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter", "setpriv"))
    return os.geteuid() == 0 and tools and subprocess.run(["unshare", "-n", "-m", "-u", "true"], capture_output=True).returncode == 0


def can_run_ansible():
    """Whether the daemon's user can run the real one."""
    command = ["setpriv", "--reuid=990", "--regid=990", "--clear-groups", "/usr/bin/python3", "-c", "import ansible.errors, ansible_runner"]
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(LIBRARY)}
    if subprocess.run(command, env=surroundings, capture_output=True).returncode == 0:
        return True
    if os.environ.get("CI") == "true":
        raise RuntimeError(f"the system's Python cannot run what is in {LIBRARY}")
    pytest.skip("SKIPPED: the system's Python cannot run the Ansible of this environment")


class Hosts:
    """Hosts on one network, each by its name in example.org."""

    def __init__(self, mesh, *names, has_ansible=False):
        self.mesh, self.dir, self.names = mesh, mesh.dir, names
        # The daemon's user reaches what is in it.
        self.dir.chmod(0o755)
        self.tools = self.dir / "tools"
        self.tools.mkdir()
        first = self.dir / "first.yml"
        first.write_text(FIRST)
        package = PACKAGE.format(root=ROOT, first=first)
        for name, text in {"apt": package, "dnf": package, "scp": SCP, "systemctl": SYSTEMCTL.format(python=sys.executable),
                           "loginctl": "#!/bin/sh\n",
                           **(ANSIBLE if has_ansible and can_run_ansible() else NO_ANSIBLE), "sudo": '#!/bin/sh\nexec "$@"\n'}.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)
        self.hosts = {name: Host(self, name, number) for number, name in enumerate(names, 1)}
        self.connect()

    def __getitem__(self, name):
        return self.hosts[name]

    def connect(self):
        """A bridge in the namespace of the first host, with a cable to each of the others."""
        first, *others = self.hosts.values()
        first.run("ip link set lo up && ip link add mesh type bridge && ip link set mesh up && "
                  f"ip address add {first.address}/24 dev mesh")
        for number, host in enumerate(others):
            first.run(f"ip link add c{number} type veth peer name eth0 netns {host.pid} && ip link set c{number} master mesh up")
            host.run(f"ip link set lo up && ip link set eth0 up && ip address add {host.address}/24 dev eth0")


class Host:
    """One of them."""

    def __init__(self, hosts, name, number):
        self.hosts, self.name, self.address = hosts, name, f"10.99.0.{number}"
        self.dir = hosts.dir / name
        for part in ("run/systemd/system", "lib/systemd", "home", "units"):
            (self.dir / part).mkdir(parents=True)
        shutil.copytree("/etc", self.dir / "etc", symlinks=True, ignore_dangling_symlinks=True)
        self.forget_meshd()
        names = "".join(f"10.99.0.{at} {one}.example.org {one}\n" for at, one in enumerate(hosts.names, 1))
        (self.dir / "etc/hosts").write_text(f"127.0.0.1 localhost\n{names}")
        holder = subprocess.Popen(["unshare", "-n", "-m", "-u", "sleep", "infinity"], env=self.environment())
        self.pid = holder.pid
        until("the namespaces", lambda: os.readlink(f"/proc/{self.pid}/ns/uts") != os.readlink("/proc/self/ns/uts"))
        until("sleep to run", lambda: pathlib.Path(f"/proc/{self.pid}/comm").read_text() == "sleep\n")
        self.run(f"hostname {name}\n" + "".join(
            f"mkdir -p {there} && mount --bind {self.dir / part} {there}\n"
            for part, there in (("etc", "/etc"), ("run", "/run"), ("lib", "/var/lib"),
                                ("units", "/usr/lib/systemd/system"))))

    def forget_meshd(self):
        """The machine of this test may have meshd's package."""
        shutil.rmtree(self.dir / "etc/meshd", ignore_errors=True)
        for name in ("passwd", "group", "subuid", "subgid"):
            path = self.dir / "etc" / name
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            path.write_text("".join(line for line in lines if not line.startswith("meshd:")))

    def environment(self):
        clean = {key: value for key, value in environment().items() if not key.startswith("XDG")}
        path = f"{self.hosts.tools}:{BINARIES}:{VENV / 'bin'}:{os.environ['PATH']}"
        return {**clean, "PATH": path, MARK: str(self.hosts.mesh.dir), "HOSTS": str(self.hosts.dir), "HOME": str(self.dir / "home")}

    def try_to(self, script, seconds=60):
        """Runs a script there as root; the finished process."""
        command = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "sh", "-euc", f"cd {self.dir}/home\n{script}"]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment(), timeout=seconds)

    def run(self, script, seconds=60):
        """The same, and it works; what it prints."""
        done = self.try_to(script, seconds)
        assert done.returncode == 0, (self.name, script, done, self.log()[-2000:])
        return done.stdout

    def fails(self, script, seconds=60):
        """The same, and it does not; what it says."""
        done = self.try_to(script, seconds)
        assert done.returncode != 0, (self.name, script, done)
        return done.stderr

    def file(self, path):
        """A file of the host as this test sees it."""
        kept = {"/etc": "etc", "/run": "run", "/var/lib": "lib", "/home": "home"}
        top = next(top for top in kept if path.startswith(f"{top}/"))
        return self.dir / kept[top] / path.removeprefix(f"{top}/")

    def log(self):
        path = self.file("/run/log")
        return path.read_text(errors="replace") if path.exists() else ""

    def asked(self):
        """What was asked of systemd."""
        return self.file("/run/asked").read_text().splitlines()

    def mode(self, path):
        """Mode, owner and group of a file."""
        found = self.file(path).stat()
        return oct(found.st_mode & 0o7777), found.st_uid, found.st_gid


def commands(section):
    """The indented blocks of a section of README, each with the host that a line before it names."""
    text = (ROOT / "README.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    host, found = None, []
    for line in text.splitlines():
        if line.startswith("    "):
            if not found or found[-1][0] != host:
                found.append((host, []))
            found[-1][1].append(line.strip())
        elif named := re.search(r"[Oo]n (\w+)\.example\.org[^:]*:$", line):
            host = named[1]
    return [(host, "\n".join(lines)) for host, lines in found]


#: How the line begins that is typed on a new host.
INVITED = "meshctl install mesh:"


def pasted(script, printed):
    """The script with the line that `meshctl node invite` has printed last, in the place of the one that README shows."""
    lines = [line.strip() for line in printed.splitlines() if line.strip().startswith(INVITED)]
    return re.sub(rf"^{INVITED}\S+$", lambda _: lines[-1], script, flags=re.M)
