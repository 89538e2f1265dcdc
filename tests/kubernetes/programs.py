"""The programs that the cluster consists of: Debian's packages, and Kubernetes built as Go tools. Nothing runs here.

    programs.py              installs and builds what is missing
    programs.py --missing    prints why that cannot be done here, and exits with 1, if it cannot

It needs root, Debian or Ubuntu, and Go 1.24 or newer. The first build takes some ten minutes on two cores. What it makes
is kept in MESHD_CLUSTER, by default target/kubernetes, under a key of everything that it is made from; a build that was
interrupted continues from Go's cache in the same directory.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path(os.environ.get("MESHD_CLUSTER", HERE.parent.parent / "target/kubernetes"))
NAMES = ["kube-apiserver", "kube-scheduler", "kubectl", "kubelet"]
PACKAGES = ["etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static", "iproute2", "curl", "openssl"]
SOURCES = [HERE / "go.mod", HERE / "go.sum"]
# Kubernetes's own builds set these; without them every server calls itself 0.0.0.
VERSION = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", SOURCES[0].read_text())
LINKER_FLAGS = " ".join(
    ["-s", "-w"]
    + [
        f"-X {package}/version.{name}={value}"
        for package in ("k8s.io/component-base", "k8s.io/client-go/pkg")
        for name, value in zip(("gitVersion", "gitMajor", "gitMinor", "gitTreeState"), (*VERSION.groups(), "clean"))
    ]
)
KEY = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES) + LINKER_FLAGS.encode()).hexdigest()[:16]
BIN = HOME / f"bin-{KEY}"


def missing():
    """Why the programs cannot be had here, or None."""
    if os.geteuid() != 0:
        return "it needs root (sudo ./tests/run --only kubernetes)"
    if not is_built() and shutil.which("go") is None:
        return "it needs Go 1.24 or newer (https://go.dev/dl)"
    if not is_installed() and shutil.which("apt-get") is None:
        return f"it needs these packages of Debian: {' '.join(PACKAGES)}"
    return None


def is_installed():
    names = ("etcd", "containerd", "runc", "ip", "curl", "openssl", "nsenter")
    return all(map(shutil.which, names)) and os.path.exists("/bin/busybox") and os.path.exists("/usr/lib/cni/bridge")


def is_built():
    return BIN.is_dir()


def prepare():
    """Installs and builds what is missing; of two that begin at once the second waits."""
    HOME.mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed():
            install()
        if not is_built():
            build()


def install():
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    subprocess.run(install, env=env, check=True, stdout=subprocess.DEVNULL)


def build():
    unfinished = HOME / "bin-unfinished"
    cache = HOME / "go-cache"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    env = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(cache)}
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in NAMES]
    command = ["go", "build", "-trimpath", "-ldflags", LINKER_FLAGS, "-o", f"{unfinished}/", *packages]
    subprocess.run(command, cwd=HERE, env=env, check=True)
    # Complete, or not there.
    unfinished.rename(BIN)
    for old in HOME.glob("bin-*"):
        if old != BIN:
            shutil.rmtree(old)
    # It is as large as the programs are, and of use to an interrupted build only.
    shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    if why := missing():
        print(why)
        sys.exit(1)
    if "--missing" not in sys.argv:
        prepare()
