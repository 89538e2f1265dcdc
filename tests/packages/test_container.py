"""The container files. Images are built by buildah without a daemon, and run in namespaces; the manifest's configuration is
checked."""

import contextlib
import functools
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess

import pytest
import yaml

import go
from client import Control
from mesh import MESHD, ROOT, until
from playbooks import FIVE, transmit
from trees import made as tree
from trees import run

pytestmark = pytest.mark.timeout(600)

CONTAINER = ROOT / "packaging" / "container"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
JOBS = "- work-command: {worktype: ansible-runner, command: ansible-runner, params: worker}\n"


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
def build(made, tmp_path_factory):
    """Makes an image of the Containerfile, on our Debian tree: its file system, and its settings."""
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        pytest.skip("SKIPPED: no builder of containers here")
    store = tmp_path_factory.mktemp("containers")
    pip = store / "pip.conf"
    # A proxy between here and PyPI may have an authority of its own.
    pip.write_text("[global]\ncert = /etc/host.crt\n")
    mounts = ["--volume", f"{CERTIFICATES}:/etc/host.crt:ro", "--volume", f"{pip}:/etc/pip.conf:ro"]
    os.environ.update(STORAGE_DRIVER="vfs", BUILDAH_ISOLATION="chroot")
    buildah = lambda *words: run("buildah", "--root", store / "root", "--runroot", store / "runroot", *words).strip()  # noqa: E731
    empty = buildah("from", "scratch")
    buildah("copy", "--quiet", empty, f"{tree()}/", "/")
    buildah("commit", "--quiet", empty, "base")

    @functools.cache
    def build(target, file=CONTAINER / "Containerfile"):
        buildah("bud", "--quiet", *mounts, "--build-arg", "BASE=localhost/base", "--target", target, "--tag", target, "--file", file, made)
        settings = json.loads(buildah("inspect", "--type", "image", target))["OCIv1"]["config"]
        return pathlib.Path(buildah("mount", buildah("from", target))), settings

    yield build
    buildah("umount", "--all")


@contextlib.contextmanager
def running(root, settings, command, mounted):
    """An image run as a cluster would: process 1, a user that nobody has heard of, a root that cannot be written."""
    volumes = " && ".join(f"mount -t tmpfs -o mode=0775 tmpfs {root}{volume}" for volume in sorted(settings.get("Volumes", ["/tmp"])))
    script = " && ".join([
        f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev", volumes,
        *(f"mount --bind {here} {root}{there}" for here, there in mounted.items()), f"mount -o remount,bind,ro {root}",
        f"exec chroot --userspec=54321:0 {root} env -i {' '.join(settings['Env'])} {shlex.join(command)}",
    ])
    process = subprocess.Popen(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script])
    first = until("process 1", lambda: pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())[0]

    def inside(*words, **options):
        enter = ["nsenter", "--target", first, "--mount", "--net", "--pid", "chroot", "--userspec=54321:0", str(root)]
        environment = {"PATH": "/usr/sbin:/usr/bin:/bin"}
        return subprocess.run([*enter, *words], capture_output=True, env=environment, **{"text": True, **options})

    inside.first, inside.process = int(first), process
    try:
        yield inside
    finally:
        # unshare's own signal does not reach it: the kernel forgets that wish once the user has changed.
        if process.poll() is None:
            os.kill(inside.first, signal.SIGKILL)
        process.wait(60)


@pytest.fixture
def container(request, build, tmp_path):
    root, settings = build(request.param)
    (tmp_path / "00-local.yml").write_text((ROOT / "packaging/etc/00-local.yml").read_text())
    (tmp_path / "50-jobs.yml").write_text(JOBS)
    tmp_path.chmod(0o755)
    command = [*settings["Entrypoint"], *settings["Cmd"]]
    with running(root, settings, command, {tmp_path: "/etc/meshd/conf.d"}) as inside:
        until("the node to answer", lambda: inside("meshctl", "status").returncode == 0)
        yield inside


@pytest.mark.parametrize("container", ["hop"], indirect=True)
def test_a_node_runs_as_process_1_of_any_user_with_a_read_only_root(container):
    assert "Read-only file system" in container("touch", "/etc/meshd/x").stderr
    assert container("sh", "-c", "echo $PPID; sleep 300 >/dev/null 2>&1 &").returncode == 0
    orphan = until("the orphan", lambda: container("pidof", "sleep").stdout.strip())
    container("sh", "-c", f"kill -KILL {orphan}")
    zombies = "grep -l '^State:.Z' /proc/[0-9]*/status"
    until("it to be reaped", lambda: container("sh", "-c", zombies).stdout == "" and not container("pidof", "sleep").stdout)
    os.kill(container.first, signal.SIGTERM)
    assert container.process.wait(60) == 0


@pytest.mark.parametrize("container", ["execution"], indirect=True)
def test_an_execution_node_runs_the_ansible_runner_of_its_image(container, tmp_path):
    payload = transmit(FIVE["ok"].write(tmp_path / "job"))
    submit = ["meshctl", "work", "submit", "ansible-runner", "--payload", "-", "--follow"]
    done = container(*submit, input=payload, text=False)
    stream = done.stdout.decode()
    assert done.returncode == 0 and '"status": "successful"' in stream and "across the mesh" in stream, done
    for program in ("git", "ssh", "sshpass"):
        assert container("which", program).returncode == 0, program


def test_the_image_of_receptor_has_its_paths_and_signals(build):
    root, settings = build("receptor")
    assert (root / "usr/bin/receptor").is_file() and not (root / "usr/bin/receptor").is_symlink()
    assert "7323/tcp" in settings["ExposedPorts"] and "RECEPTORCTL_SOCKET=/tmp/receptor.sock" in settings["Env"]
    with running(root, settings, settings["Cmd"], {}) as inside:
        until("the node to answer", lambda: inside("meshctl", "--socket", "/tmp/receptor.sock", "status").returncode == 0)
        assert f":{7323:04X} " in inside("cat", "/proc/net/tcp6").stdout
        os.kill(inside.first, signal.SIGTERM)
        assert inside.process.wait(60) == 0


#: How images of execution environments come by receptor.
ENVIRONMENT = """\
ARG BASE
FROM ${BASE} AS environment
COPY --from=localhost/receptor /usr/bin/receptor /usr/bin/receptor
RUN mkdir -p /etc/receptor /var/run/receptor
"""
#: As in the pod of AWX's control node.
POD = """\
- local-only:
- node: {id: task-1}
- control-service: {service: control, filename: /var/run/receptor/receptor.sock, permissions: '0660'}
- work-command: {worktype: local, command: cat, params: "", allowruntimeparams: true}
"""
#: What a pod of AWX's mesh ingress does with the program before it starts it.
CERTIFICATES_OF_A_POD = """\
set -e
cd /tmp
receptor --cert-init commonname=ca bits=2048 outcert=ca.crt outkey=ca.key
receptor --cert-makereq bits=2048 commonname=task-1 dnsname=task-1 nodeid=task-1 outreq=task.req outkey=task.key
receptor --cert-signreq req=task.req cacert=ca.crt cakey=ca.key outcert=task.crt verify=yes notafter=2099-01-01T00:00:00Z
"""


@pytest.fixture(scope="module")
def environment(build, tmp_path_factory):
    """An execution environment with the program of our image; its file system, and its settings."""
    build("receptor")
    file = tmp_path_factory.mktemp("environment") / "Containerfile"
    file.write_text(ENVIRONMENT)
    return build("environment", file)


@pytest.mark.parametrize("program", ["meshd", *go.EACH])
def test_an_execution_environment_takes_receptor_from_the_image(environment, tmp_path, program):
    """And the same holds with receptor's own program there."""
    root, settings = environment
    if program != "meshd":
        shutil.copy(go.program(program), root / "usr/bin/receptor")
    for volume in ("etc", "run"):
        (tmp_path / volume).mkdir(mode=0o777)
        (tmp_path / volume).chmod(0o777)
    (tmp_path / "etc/receptor.conf").write_text(POD)
    mounted = {tmp_path / "etc": "/etc/receptor", tmp_path / "run": "/run/receptor"}
    with running(root, settings, ["sh", "-c", "exec receptor --config /etc/receptor/receptor.conf"], mounted) as inside:
        socket = tmp_path / "run/receptor.sock"
        until("its socket", socket.exists)
        assert socket.stat().st_mode & 0o777 == 0o660
        with Control(str(socket)) as control:
            unit = control.submit("localhost", "local", b"across the mesh")["unitid"]
        with Control(str(socket)) as control:
            assert control.results(unit, 0).read() == b"across the mesh"
        assert inside("ls", "/tmp/receptor/task-1").stdout.split() == [unit]
        version = inside("receptor", "--version")
        assert (version.returncode, version.stdout.count("\n"), version.stderr) == (0, 1, "")
        made = inside("sh", "-c", CERTIFICATES_OF_A_POD)
        assert made.returncode == 0 and "BEGIN CERTIFICATE" in inside("cat", "/tmp/task.crt").stdout, made
        os.kill(inside.first, signal.SIGTERM)
        inside.process.wait(60)
