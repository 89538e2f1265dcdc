"""The container files. An image is built where buildah works; everywhere the manifest's configuration is checked."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
import yaml

from mesh import MESHD, ROOT, until
from trees import made as tree
from trees import run

CONTAINER = ROOT / "packaging" / "container"


@pytest.fixture(scope="module")
def documents():
    return list(yaml.safe_load_all((CONTAINER / "control-pod.yml").read_text()))


def test_the_configuration_in_the_manifest_is_right(documents, tmp_path):
    [configuration] = [document for document in documents if document["kind"] == "ConfigMap"]
    for name, text in configuration["data"].items():
        # The secret's files are where the test's are.
        (tmp_path / name).write_text(text.replace("/etc/meshd/tls", str(ROOT / "certs")).replace("/var/run/receptor", str(tmp_path)))
    said = run(MESHD, "check", "--config-dir", tmp_path)
    assert "error" not in said.lower(), said


def test_client_and_node_share_the_socket_alone(documents):
    [pod] = [document["spec"]["template"]["spec"] for document in documents if document["kind"] == "Deployment"]
    mounts = [{mount["name"] for mount in container["volumeMounts"]} for container in pod["containers"]]
    assert mounts[0] & mounts[1] == {"socket"}
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["containers"])


@pytest.fixture(scope="module")
def image(made, tmp_path_factory):
    """The file system of the image `hop` on our Debian tree, and its settings."""
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        pytest.skip("SKIPPED: no builder of containers here")
    store = tmp_path_factory.mktemp("containers")
    os.environ.update(STORAGE_DRIVER="vfs", BUILDAH_ISOLATION="chroot")
    options = ["--root", store / "root", "--runroot", store / "runroot"]
    empty = run("buildah", *options, "from", "scratch").strip()
    run("buildah", *options, "copy", "--quiet", empty, f"{tree()}/", "/")
    run("buildah", *options, "commit", "--quiet", empty, "base")
    run("buildah", *options, "bud", "--quiet", "--build-arg", "BASE=localhost/base", "--target", "hop", "--tag", "hop",
        "--file", CONTAINER / "Containerfile", made)
    work = run("buildah", *options, "from", "hop").strip()
    settings = json.loads(run("buildah", *options, "inspect", "--type", "image", "hop"))["OCIv1"]["config"]
    yield pathlib.Path(run("buildah", *options, "mount", work).strip()), settings
    run("buildah", *options, "umount", work)


@pytest.fixture
def container(image, tmp_path):
    """The image run as a cluster would: process 1, a user that nobody has heard of, a root that cannot be written."""
    root, settings = image
    (tmp_path / "00-local.yml").write_text((ROOT / "packaging/etc/00-local.yml").read_text())
    tmp_path.chmod(0o755)
    volumes = " && ".join(f"mount -t tmpfs -o mode=0775 tmpfs {root}{volume}" for volume in sorted(settings["Volumes"]))
    command = [*settings["Entrypoint"], *settings["Cmd"]]
    script = " && ".join([
        f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc", volumes,
        f"mount --bind {tmp_path} {root}/etc/meshd/conf.d", f"mount -o remount,bind,ro {root}",
        f"exec chroot --userspec=54321:0 {root} env -i {' '.join(settings['Env'])} {' '.join(command)}",
    ])
    process = subprocess.Popen(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script])
    first = until("process 1", lambda: pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())[0]

    def inside(*words):
        enter = ["nsenter", "--target", first, "--mount", "--net", "--pid", "chroot", "--userspec=54321:0", str(root)]
        return subprocess.run([*enter, *words], capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin:/bin"})

    inside.first, inside.process = int(first), process
    yield inside
    process.kill()
    process.wait()


def test_a_node_runs_as_process_1_of_any_user_with_a_read_only_root(container):
    until("the node to answer", lambda: container("meshctl", "status").returncode == 0)
    assert "Read-only file system" in container("touch", "/etc/meshd/x").stderr
    assert container("sh", "-c", "echo $PPID; sleep 300 >/dev/null 2>&1 &").returncode == 0
    orphan = until("the orphan", lambda: container("pidof", "sleep").stdout.strip())
    container("sh", "-c", f"kill -KILL {orphan}")
    zombies = "grep -l '^State:.Z' /proc/[0-9]*/status"
    until("it to be reaped", lambda: container("sh", "-c", zombies).stdout == "" and not container("pidof", "sleep").stdout)
    os.kill(container.first, signal.SIGTERM)
    assert container.process.wait(20) == 0
