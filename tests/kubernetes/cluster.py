"""A one-node Kubernetes in a network namespace of its own: etcd, API server, scheduler, kubelet, containerd and runc.

It needs root, Debian or Ubuntu, and Go 1.24 or newer. `build()` takes some ten minutes once; what it makes is kept in
MESHD_CLUSTER, by default target/kubernetes. Nothing listens outside the namespace.
"""

import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path(os.environ.get("MESHD_CLUSTER", HERE.parent.parent / "target/kubernetes"))
PROGRAMS = ["kube-apiserver", "kube-scheduler", "kubectl", "kubelet"]
PACKAGES = ["etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static", "iproute2", "curl"]
NAMESPACE = "meshd-kubernetes"
# A kubelet takes no loopback address.
NODE_ADDRESS = "10.99.0.1"
SERVER = "https://127.0.0.1:26443"
ADMIN_TOKEN = "admin-of-a-test"
JOBS = "jobs"
# What AWX's operator grants, and no more.
AWX_RULES = {
    "pods": ["get", "list", "watch", "create", "update", "patch", "delete"],
    "pods/log": ["get"],
    "pods/attach": ["create"],
    "secrets": ["get", "create", "delete"],
}


def missing():
    """Why the cluster cannot be built here, or nothing."""
    if os.geteuid() != 0:
        return "root is needed"
    if not is_built() and shutil.which("go") is None:
        return "Go 1.24 or newer is needed: see https://go.dev/dl"
    if not is_installed() and shutil.which("apt-get") is None:
        return f"these Debian packages are needed: {' '.join(PACKAGES)}"
    return None


def is_installed():
    programs = all(shutil.which(name) for name in ("etcd", "containerd", "runc", "ip", "curl", "openssl"))
    return programs and os.path.exists("/bin/busybox") and os.path.isdir("/usr/lib/cni")


def is_built():
    return all((HOME / "bin" / name).exists() for name in PROGRAMS)


def build():
    (HOME / "bin").mkdir(parents=True, exist_ok=True)
    if not is_installed():
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "-qq", env=env)
        run("apt-get", "install", "-y", "-qq", *PACKAGES, env=env, stdout=subprocess.DEVNULL)
    for name in PROGRAMS:
        if not (HOME / "bin" / name).exists():
            run("go", "build", "-o", f"{HOME}/bin/", f"k8s.io/kubernetes/cmd/{name}", cwd=HERE)


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


def succeeds(*command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def until(what, is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s: see the logs in {HOME}"
        time.sleep(0.1)


class Cluster:
    def __init__(self, logmax="10Mi", idle="4h"):
        self.processes = {}
        self.logmax, self.idle = logmax, idle

    # Life

    def start(self):
        self.stop()
        for name in ("etcd", "kubelet", "podlogs"):
            shutil.rmtree(HOME / name, ignore_errors=True)
        for name in ("certs", "cni", "logs"):
            (HOME / name).mkdir(exist_ok=True)
        self.prepare_network()
        self.write_files()
        self.spawn(
            "etcd", "etcd", "--data-dir", f"{HOME}/etcd", "--listen-client-urls", "http://127.0.0.1:22379",
            "--advertise-client-urls", "http://127.0.0.1:22379", "--listen-peer-urls", "http://127.0.0.1:22380",
            "--initial-advertise-peer-urls", "http://127.0.0.1:22380",
            "--initial-cluster", "default=http://127.0.0.1:22380",
        )
        self.spawn("containerd", "containerd", "-c", f"{HOME}/containerd.toml")
        until("containerd", lambda: succeeds(*self.ctr(), "version"))
        self.make_images()
        self.start_server()
        self.start_kubelet()
        self.spawn(
            "scheduler", f"{HOME}/bin/kube-scheduler", f"--kubeconfig={HOME}/admin.kubeconfig",
            "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=26259",
        )
        until("the node", self.is_node_ready)
        # No controller manager runs here: what it would do is done by hand.
        self.kubectl("taint", "nodes", "node1", "node.kubernetes.io/not-ready-", check=False)
        self.make_accounts()

    def stop(self):
        self.end("kubelet", seconds=5)
        if os.path.exists(f"{HOME}/containerd.sock") and "containerd" in self.processes:
            self.end_containers()
        for name in ("scheduler", "apiserver", "containerd", "etcd"):
            self.end(name)
        for line in open("/proc/mounts").read().splitlines():
            place = line.split()[1]
            if place.startswith((f"{HOME}/kubelet", f"{HOME}/containerd-state")):
                succeeds("umount", "-l", place)
        succeeds("ip", "netns", "delete", NAMESPACE)

    def end_containers(self):
        listed = lambda *what: subprocess.run([*self.ctr(), *what], capture_output=True, text=True).stdout.split()
        for task in listed("tasks", "ls", "-q"):
            succeeds(*self.ctr(), "tasks", "kill", "-s", "SIGKILL", task)
        until("the end of all tasks", lambda: "RUNNING" not in " ".join(listed("tasks", "ls")), 20)
        for container in listed("containers", "ls", "-q"):
            succeeds(*self.ctr(), "tasks", "rm", "-f", container)
            succeeds(*self.ctr(), "containers", "rm", container)

    def prepare_network(self):
        run("ip", "netns", "add", NAMESPACE)
        run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
        run("ip", "-n", NAMESPACE, "addr", "add", f"{NODE_ADDRESS}/32", "dev", "lo")

    def inside(self, *command):
        # `ip netns exec` would mount /sys anew and hide the cgroups from the kubelet.
        return ["nsenter", f"--net=/run/netns/{NAMESPACE}", *command]

    def spawn(self, name, *command):
        log = open(HOME / "logs" / f"{name}.log", "a")
        self.processes[name] = subprocess.Popen(
            self.inside(*command), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def end(self, name, seconds=10):
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_server(self):
        self.spawn(
            "apiserver", f"{HOME}/bin/kube-apiserver", "--etcd-servers=http://127.0.0.1:22379", "--secure-port=26443",
            "--bind-address=127.0.0.1", f"--advertise-address={NODE_ADDRESS}", f"--cert-dir={HOME}/certs",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={HOME}/sa.pub", f"--service-account-signing-key-file={HOME}/sa.key",
            f"--token-auth-file={HOME}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount",
            "--kubelet-preferred-address-types=InternalIP",
        )
        until("the API server", lambda: self.api("GET", "/readyz", parse=False) == "ok")

    def start_kubelet(self):
        self.spawn(
            "kubelet", f"{HOME}/bin/kubelet", f"--config={HOME}/kubelet.json",
            f"--kubeconfig={HOME}/admin.kubeconfig", f"--root-dir={HOME}/kubelet", "--hostname-override=node1",
            f"--node-ip={NODE_ADDRESS}",
        )

    def is_node_ready(self):
        conditions = [c for n in self.api("GET", "/api/v1/nodes").get("items", []) for c in n["status"].get("conditions", [])]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    # Files

    def write_files(self):
        run("openssl", "genrsa", "-out", f"{HOME}/sa.key", "2048", stderr=subprocess.DEVNULL)
        run("openssl", "rsa", "-in", f"{HOME}/sa.key", "-pubout", "-out", f"{HOME}/sa.pub", stderr=subprocess.DEVNULL)
        (HOME / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
        self.write_kubeconfig("admin.kubeconfig", ADMIN_TOKEN)
        network = {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]}}
        write(HOME / "cni/10-pods.conflist", {"cniVersion": "0.4.0", "name": "pods", "plugins": [network]})
        # Without CAP_SYS_RESOURCE runc may not lower a sandbox's OOM score.
        (HOME / "containerd.toml").write_text(f"""version = 2
root = "{HOME}/containerd"
state = "{HOME}/containerd-state"
[grpc]
  address = "{HOME}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{HOME}/cni"
""")
        write(HOME / "kubelet.json", {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS, "port": 26250, "healthzPort": 0, "cgroupDriver": "cgroupfs", "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{HOME}/containerd.sock",
            "containerLogMaxSize": self.logmax, "containerLogMaxFiles": 2, "containerLogMonitorInterval": "3s",
            "streamingConnectionIdleTimeout": self.idle, "syncFrequency": "1s", "enforceNodeAllocatable": [],
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
            "resolvConf": "", "imageGCHighThresholdPercent": 99, "podLogsDir": f"{HOME}/podlogs",
            "volumePluginDir": f"{HOME}/kubelet/plugins",
        })

    def write_kubeconfig(self, name, token):
        write(HOME / name, {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": JOBS}}],
            "clusters": [{"name": "c", "cluster": {"server": SERVER, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": token}}],
        })
        return HOME / name

    def make_images(self):
        root = HOME / "rootfs"
        for name in ("bin", "etc", "tmp", "root"):
            (root / name).mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        names = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True).stdout.split()
        for name in names:
            if name != "busybox" and not os.path.lexists(root / "bin" / name):
                os.symlink("busybox", root / "bin" / name)
        with tarfile.open(HOME / "rootfs.tar", "w") as layer:
            layer.add(root, ".")
        self.import_image("docker.io/local/busybox:1", HOME / "rootfs.tar", ["sh"])
        self.import_image("docker.io/local/pause:1", HOME / "rootfs.tar", ["sleep", "2147483647"])

    def import_image(self, name, rootfs, command):
        """Imports an image of one layer."""
        layer = rootfs.read_bytes()
        config = json.dumps({
            "architecture": "amd64", "os": "linux", "history": [{}],
            "config": {"Cmd": command, "Env": ["PATH=/bin:/usr/bin:/usr/local/bin"]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        }).encode()
        config_name = hashlib.sha256(config).hexdigest() + ".json"
        manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
        archive = HOME / "image.tar"
        with tarfile.open(archive, "w") as tar:
            for member, content in ((config_name, config), ("layer.tar", layer), ("manifest.json", manifest)):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        run(*self.ctr(), "-n", "k8s.io", "images", "import", str(archive), stdout=subprocess.DEVNULL)

    def ctr(self):
        return ["ctr", "-a", f"{HOME}/containerd.sock", "-n", "k8s.io"]

    # Requests

    def api(self, method, path, body=None, parse=True):
        command = ["curl", "-sk", "-X", method, "-H", f"Authorization: Bearer {ADMIN_TOKEN}", "-H", "Content-Type: application/json", SERVER + path]
        if body is not None:
            command += ["-d", json.dumps(body)]
        answer = subprocess.run(self.inside(*command), capture_output=True, text=True).stdout
        return json.loads(answer or "{}") if parse else answer

    def kubectl(self, *arguments, check=True):
        command = self.inside(f"{HOME}/bin/kubectl", f"--kubeconfig={HOME}/admin.kubeconfig", *arguments)
        return subprocess.run(command, check=check, capture_output=True, text=True).stdout

    def pods(self):
        return self.api("GET", f"/api/v1/namespaces/{JOBS}/pods")["items"]

    def make_accounts(self):
        self.api("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": JOBS}})
        self.make_account("awx", AWX_RULES)
        self.make_account("awx-get-attach", {**AWX_RULES, "pods/attach": ["create", "get"]})

    def make_account(self, name, rules):
        """A service account with these rights in namespace `jobs`, and its kubeconfig."""
        rbac = "rbac.authorization.k8s.io/v1"
        namespaced = f"/api/v1/namespaces/{JOBS}/serviceaccounts"
        self.api("POST", namespaced, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
        self.api("POST", f"/apis/{rbac}/namespaces/{JOBS}/roles", {
            "apiVersion": rbac, "kind": "Role", "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": [what], "verbs": verbs} for what, verbs in rules.items()],
        })
        self.api("POST", f"/apis/{rbac}/namespaces/{JOBS}/rolebindings", {
            "apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": JOBS}],
        })
        return self.write_kubeconfig(f"{name}.kubeconfig", self.token(name))

    def token(self, account):
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}}
        path = f"/api/v1/namespaces/{JOBS}/serviceaccounts/{account}/token"
        return self.api("POST", path, request)["status"]["token"]

    def set_quota(self, pods):
        path = f"/api/v1/namespaces/{JOBS}/resourcequotas"
        hard = {"pods": str(pods)}
        self.api("POST", path, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}})
        quota = self.api("GET", f"{path}/q")
        quota["status"] = {"hard": hard, "used": {"pods": "0"}}
        self.api("PUT", f"{path}/q/status", quota)

    def remove_quota(self):
        self.api("DELETE", f"/api/v1/namespaces/{JOBS}/resourcequotas/q")


def write(path, content):
    path.write_text(json.dumps(content, indent=1))
