"""A one-node Kubernetes: etcd, API server, scheduler, kubelet, containerd and runc.

Runs in the namespaces that `run` makes, and nothing of it listens outside them. There is no controller manager: what it
would do is done by hand.
"""

import json
import shutil
import signal
import subprocess
import threading

import images
import programs
from mesh import until

HOME = programs.HOME
STATE = HOME / "state"
LOGS = HOME / "logs"
# A kubelet takes no loopback address.
ADDRESS = "10.99.0.1"
PORT = 26443
SERVER = f"https://{ADDRESS}:{PORT}"
ETCD = "http://127.0.0.1:22379"
ADMIN_TOKEN = "admin-of-a-test"
JOBS = "jobs"
RBAC = "rbac.authorization.k8s.io"
# What AWX's operator grants, and no more.
AWX_RULES = {
    "pods": ["get", "list", "watch", "create", "update", "patch", "delete"],
    "pods/log": ["get"],
    "pods/attach": ["create"],
    "secrets": ["get", "create", "delete"],
}


class Cluster:
    """The processes, their files, and what a test does as administrator."""

    def __init__(self, logmax="10Mi", idle="4h"):
        self.processes = {}
        self.logmax, self.idle = logmax, idle
        self.ctr = ["ctr", "-a", f"{STATE}/containerd.sock", "-n", "k8s.io"]
        self.runner = None

    # Life

    def start(self):
        shutil.rmtree(LOGS, ignore_errors=True)
        for directory in (STATE, LOGS):
            directory.mkdir(exist_ok=True)
        # In memory: fast, and gone with the namespaces.
        run("mount", "-t", "tmpfs", "tmpfs", str(STATE))
        run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
        self.write_files()
        self.spawn(
            "etcd", "etcd", "--data-dir", f"{STATE}/etcd", "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD,
            "--listen-peer-urls", "http://127.0.0.1:22380", "--initial-advertise-peer-urls", "http://127.0.0.1:22380",
            "--initial-cluster", "default=http://127.0.0.1:22380", "--unsafe-no-fsync",
        )
        self.spawn("containerd", "containerd", "-c", f"{STATE}/containerd.toml")
        until("containerd to answer", lambda: succeeds(*self.ctr, "version"))
        images.make_busybox(STATE, self.ctr)
        self.start_server()
        self.start_kubelet()
        until("the node to be ready", self.is_node_ready, 90)
        self.kubectl("taint", "nodes", "node1", "node.kubernetes.io/not-ready-", check=False)
        self.kubectl("create", "namespace", JOBS)
        self.make_account("awx", AWX_RULES)
        self.make_account("awx-get-attach", {**AWX_RULES, "pods/attach": ["create", "get"]})

    def stop(self):
        """Ends everything. What containers are left ends with the namespaces."""
        for name in list(self.processes):
            self.end(name)

    def mend(self):
        """Starts again what a test that failed has left stopped."""
        if "apiserver" not in self.processes:
            self.start_server()
        if "kubelet" not in self.processes:
            self.start_kubelet()

    def spawn(self, name, *command):
        with open(LOGS / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def end(self, name, number=signal.SIGKILL):
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def start_server(self):
        self.spawn(
            "apiserver", f"{programs.BIN}/kube-apiserver", f"--etcd-servers={ETCD}", f"--secure-port={PORT}",
            f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}", f"--cert-dir={STATE}/certs",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={STATE}/sa.pub", f"--service-account-signing-key-file={STATE}/sa.key",
            f"--token-auth-file={STATE}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount",
            "--kubelet-preferred-address-types=InternalIP",
        )
        until("the API server to be ready", lambda: self.api("GET", "/readyz", parse=False) == "ok", 90)
        # A scheduler that was there before would wait for up to a minute until it asks again.
        if "scheduler" in self.processes:
            self.end("scheduler")
        self.spawn(
            "scheduler", f"{programs.BIN}/kube-scheduler", f"--kubeconfig={STATE}/admin.kubeconfig",
            "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=26259",
        )

    def restart_kubelet(self):
        """After an outage of the server, when it would wait for up to a minute, and longer each time, until it asks again."""
        self.end("kubelet")
        self.start_kubelet()

    def start_kubelet(self):
        self.spawn(
            "kubelet", f"{programs.BIN}/kubelet", f"--config={STATE}/kubelet.json",
            f"--kubeconfig={STATE}/admin.kubeconfig", f"--root-dir={STATE}/kubelet", "--hostname-override=node1",
            f"--node-ip={ADDRESS}",
        )

    def is_node_ready(self):
        nodes = self.api("GET", "/api/v1/nodes").get("items", [])
        conditions = [condition for node in nodes for condition in node["status"].get("conditions", [])]
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def prepare_runner_image(self):
        """Makes the image with ansible-runner aside, as it takes a while; `wait_for_runner_image` waits for it."""
        self.runner = threading.Thread(target=images.make_runner, args=(STATE, self.ctr), daemon=True)
        self.runner.start()

    def wait_for_runner_image(self):
        self.runner.join(150)
        listed = subprocess.run([*self.ctr, "images", "ls", "-q"], capture_output=True, text=True, timeout=30).stdout
        assert images.RUNNER in listed.split(), "the image of ansible-runner could not be made"

    # Files

    def write_files(self):
        run("openssl", "genrsa", "-out", f"{STATE}/sa.key", "2048", stderr=subprocess.DEVNULL)
        run("openssl", "rsa", "-in", f"{STATE}/sa.key", "-pubout", "-out", f"{STATE}/sa.pub", stderr=subprocess.DEVNULL)
        (STATE / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
        write_kubeconfig("admin", ADMIN_TOKEN)
        addresses = {
            "type": "host-local", "dataDir": f"{STATE}/addresses",
            "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": addresses}
        write(STATE / "cni/10-pods.conflist", {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})
        # Without CAP_SYS_RESOURCE runc may not lower a sandbox's OOM score.
        (STATE / "containerd.toml").write_text(f"""version = 2
root = "{STATE}/containerd"
state = "{STATE}/containerd-state"
[grpc]
  address = "{STATE}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{STATE}/cni"
""")
        write(STATE / "kubelet.json", {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": ADDRESS, "port": 26250, "healthzPort": 0, "cgroupDriver": "cgroupfs", "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{STATE}/containerd.sock",
            "containerLogMaxSize": self.logmax, "containerLogMaxFiles": 2, "containerLogMonitorInterval": "3s",
            "streamingConnectionIdleTimeout": self.idle, "syncFrequency": "1s", "volumeStatsAggPeriod": "2s", "enforceNodeAllocatable": [],
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
            "resolvConf": "", "imageGCHighThresholdPercent": 99, "podLogsDir": f"{STATE}/podlogs",
            "volumePluginDir": f"{STATE}/kubelet/plugins",
        })

    def certificate_authority(self):
        """The certificate that signed the API server's own."""
        begin = "-----BEGIN CERTIFICATE-----"
        return begin + (STATE / "certs/apiserver.crt").read_text().split(begin)[-1]

    # Requests

    def api(self, method, path, body=None, parse=True):
        """One request as administrator; {} if the server does not answer."""
        command = [
            "curl", "-sk", "--max-time", "10", "-X", method, "-H", f"Authorization: Bearer {ADMIN_TOKEN}",
            "-H", "Content-Type: application/json", SERVER + path,
        ]
        if body is not None:
            command += ["-d", json.dumps(body)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        return json.loads(answer or "{}") if parse else answer

    def refuses(self, token):
        command = ["curl", "-sk", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}", f"{SERVER}/api", "-H", "@-"]
        header = f"Authorization: Bearer {token}"
        return subprocess.run(command, input=header, capture_output=True, text=True, timeout=20).stdout == "401"

    def kubectl(self, *arguments, check=True, stdin=None):
        command = [f"{programs.BIN}/kubectl", f"--kubeconfig={STATE}/admin.kubeconfig", "--request-timeout=20s", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def pods(self):
        """All pods of the cluster."""
        return self.api("GET", "/api/v1/pods")["items"]

    def pod(self, name):
        return self.api("GET", f"/api/v1/namespaces/{JOBS}/pods/{name}")

    def remove_pods(self):
        for pod in self.pods():
            metadata = pod["metadata"]
            self.api("DELETE", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}?gracePeriodSeconds=0")

    def evict(self, name):
        """What `kubectl drain` asks for."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": JOBS}}
        self.api("POST", f"/api/v1/namespaces/{JOBS}/pods/{name}/eviction", eviction)

    def make_account(self, name, rules):
        """A service account with these rights in namespace `jobs`; returns its kubeconfig."""
        self.kubectl("create", "serviceaccount", "-n", JOBS, name)
        self.api("POST", f"/apis/{RBAC}/v1/namespaces/{JOBS}/roles", {
            "apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": [what], "verbs": verbs} for what, verbs in rules.items()],
        })
        self.kubectl("create", "rolebinding", "-n", JOBS, name, f"--role={name}", f"--serviceaccount={JOBS}:{name}")
        return write_kubeconfig(name, self.token(name))

    def token(self, account):
        """A new token of a service account; all of them end with the account."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}}
        path = f"/api/v1/namespaces/{JOBS}/serviceaccounts/{account}/token"
        return self.api("POST", path, request)["status"]["token"]

    def set_quota(self, pods):
        self.kubectl("create", "quota", "-n", JOBS, "q", f"--hard=pods={pods}")
        # A controller would fill in the status, without which nothing is admitted.
        path = f"/api/v1/namespaces/{JOBS}/resourcequotas/q"
        quota = self.api("GET", path)
        quota["status"] = {"hard": {"pods": str(pods)}, "used": {"pods": "0"}}
        self.api("PUT", f"{path}/status", quota)

    def remove_quota(self):
        self.kubectl("delete", "quota", "-n", JOBS, "q", check=False)


def write_kubeconfig(name, token):
    """Writes NAME.kubeconfig and returns its path."""
    path = STATE / f"{name}.kubeconfig"
    write(path, {
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": JOBS}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": token}}],
    })
    path.chmod(0o600)
    return path


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1))


def run(*command, **options):
    return subprocess.run(command, check=True, timeout=60, **options)


def succeeds(*command):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(command, timeout=60, **quiet).returncode == 0
