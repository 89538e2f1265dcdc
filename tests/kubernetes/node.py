"""A meshd that runs pods: its configuration, its process, and what clients ask of it, each within a time limit."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

import cluster as kubernetes
from client import Control, ControlError
from mesh import MESHD, until

# In the credentials of tests, and in no log.
SECRET = "hunter2"
# Where a pod finds its service account.
MOUNTED = "/run/secrets/kubernetes.io"


def work_type(name="kube", **settings):
    """A directive that allows submissions everything, with AWX's rights."""
    allowed = ("allowruntimeauth", "allowruntimecommand", "allowruntimeparams", "allowruntimepod")
    # A credential that comes with the job, or with the pod, is not named here.
    own = {} if "authmethod" in settings else {"authmethod": "kubeconfig", "kubeconfig": kubeconfig("awx")}
    return {"worktype": name, **own, **dict.fromkeys(allowed, True), **settings}


def kubeconfig(account):
    return str(kubernetes.STATE / f"{account}.kubeconfig")


class Node:
    """A node with these work types. `wrapper` is the beginning of its command line, `program` may be another node's."""

    def __init__(self, work_types, wrapper=(), environment=None, program=MESHD):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="meshd-k-"))
        self.socket = str(self.dir / "control.sock")
        items = [
            {"node": {"id": "controller", "datadir": str(self.dir / "data")}},
            {"local-only": None},
            {"control-service": {"service": "control", "filename": self.socket}},
            *({"work-kubernetes": work_type} for work_type in work_types),
        ]
        self.config = self.dir / "meshd.yml"
        self.config.write_text(json.dumps(items))
        self.program = str(program)
        self.wrapper, self.environment = wrapper, {**os.environ, **(environment or {})}
        self.process = None

    # Life

    def start(self):
        with open(self.dir / "log", "a") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, self.program, "--config", str(self.config)], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True,
            )
        until("the node to answer", self.answers)
        return self

    def answers(self):
        assert self.process.poll() is None, f"the node ended: {self.log()[-2000:]}"
        try:
            with Control(self.socket, 5):
                return True
        except (OSError, ControlError):
            return False

    def kill(self):
        """kill -9, of the node and whatever it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            finally:
                if self.process.poll() is None:
                    self.kill()

    def remove(self):
        shutil.rmtree(self.dir)

    def log(self):
        return (self.dir / "log").read_text(errors="replace")

    def check(self):
        """What `meshd check` prints beside the running node."""
        command = [*self.wrapper, self.program, "check", "--running", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=60)
        return done.stdout + done.stderr

    # Units

    def control(self, seconds=60):
        return Control(self.socket, seconds)

    def command(self, line):
        with self.control() as control:
            return control.command(line)

    def submit(self, work_type="kube", payload=b"", **params):
        with self.control() as control:
            return control.submit("localhost", work_type, payload, **params)["unitid"]

    def status(self, unit):
        return self.command(f"work status {unit}")

    def results(self, unit, seconds=120):
        """The whole stdout; waits for the unit's end."""
        with self.control(seconds) as control:
            return control.results(unit).read()

    def run(self, params, payload=b"", work_type="kube", seconds=120):
        """Submits a unit and returns (its stdout, its status at the end)."""
        unit = self.submit(work_type, payload, **params)
        output = self.results(unit, seconds)
        return output, self.final(unit)

    def cancel(self, unit):
        return self.command(f"work cancel {unit}")

    def release(self, unit):
        return self.command(f"work release {unit}")

    def release_all(self):
        for unit in self.command("work list"):
            try:
                self.release(unit)
            except ControlError as error:
                print(f"release of {unit}: {error}")
        until("all units to be released", lambda: self.command("work list") == {}, 60)

    def until(self, unit, is_so, seconds=60):
        """Waits until the unit's status is so; returns it."""
        last = {}

        def condition():
            last.clear()
            last.update(self.status(unit))
            return is_so(last)

        try:
            until(f"a status of {unit}", condition, seconds, 0.05)
        except AssertionError as late:
            raise AssertionError(f"{late}: {last}") from None
        return dict(last)

    def running(self, unit):
        """Waits until the unit has output."""
        return self.until(unit, lambda status: status["StdoutSize"] > 0)

    def final(self, unit, seconds=60):
        return self.until(unit, lambda status: status["State"] >= 2, seconds)


class Reader(threading.Thread):
    """Reads a unit's results aside; `output` is None until they have ended, and if they do not end in time."""

    def __init__(self, node, unit, seconds=150):
        super().__init__(daemon=True)
        self.node, self.unit, self.seconds, self.output = node, unit, seconds, None
        self.start()

    def run(self):
        with contextlib.suppress(TimeoutError):
            self.output = self.node.results(self.unit, self.seconds)


class ServiceAccount:
    """Token, certificate and namespace as a kubelet mounts them into a pod: links into a directory that is replaced."""

    def __init__(self, cluster, account):
        self.cluster, self.account, self.count = cluster, account, 0
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="meshd-k-"))
        (self.dir / "serviceaccount").mkdir()
        self.replace_token()
        for name in ("token", "ca.crt", "namespace"):
            (self.dir / "serviceaccount" / name).symlink_to(f"..data/{name}")

    def token(self):
        return (self.dir / "serviceaccount/token").read_text()

    def replace_token(self):
        self.count += 1
        mounted = self.dir / "serviceaccount"
        data = mounted / f"..{self.count}"
        data.mkdir()
        (data / "token").write_text(self.cluster.token(self.account))
        (data / "ca.crt").write_text(self.cluster.certificate_authority())
        (data / "namespace").write_text(kubernetes.JOBS)
        (mounted / "..new").symlink_to(data.name)
        (mounted / "..new").rename(mounted / "..data")

    def node(self, work_types):
        """A node in a mount namespace in which it finds them where a pod does."""
        script = f'mount -t tmpfs tmpfs /run && mkdir -p /run/secrets && ln -s {self.dir} {MOUNTED} && exec "$@"'
        environment = {"KUBERNETES_SERVICE_HOST": kubernetes.ADDRESS, "KUBERNETES_SERVICE_PORT": str(kubernetes.PORT)}
        return Node(work_types, ["unshare", "--mount", "sh", "-c", script, "sh"], environment)

    def remove(self):
        shutil.rmtree(self.dir)
