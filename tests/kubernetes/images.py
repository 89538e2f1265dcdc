"""Images for pods: made here from what this machine has, and imported into containerd. Nothing is downloaded."""

import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile

import mesh

BUSYBOX = "docker.io/local/busybox:1"
PAUSE = "docker.io/local/pause:1"
RUNNER = "docker.io/local/runner:1"
STDLIB = pathlib.Path(sysconfig.get_path("stdlib"))
DIRECTORIES = ("bin", "etc", "tmp", "root", "runner", "usr/bin")


def make_busybox(directory, ctr):
    """Images of busybox: one for jobs, one that holds a pod's namespaces."""
    layer = directory / "busybox.tar"
    with tarfile.open(layer, "w") as tar:
        add_busybox(tar)
    import_image(ctr, BUSYBOX, layer, ["sh"])
    import_image(ctr, PAUSE, layer, ["sleep", "2147483647"])


def make_runner(directory, ctr):
    """An image with the interpreter and the virtual environment that the tests run in, in the same places."""
    layer = directory / "runner.tar"
    with tarfile.open(layer, "w") as tar:
        add_busybox(tar)
        for place in python_places():
            tar.add(place, str(place).lstrip("/"), filter=is_needed)
        for library in libraries():
            # Links are followed: the loader looks for the name that ldd prints.
            tar.add(os.path.realpath(library), library.lstrip("/"))
        add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        add_text(tar, "etc/group", "root:x:0:\n")
    path = f"PATH={mesh.VENV}/bin:/bin:/usr/bin"
    import_image(ctr, RUNNER, layer, ["sh"], [path, "HOME=/root", "LANG=C.UTF-8", "ANSIBLE_LOCALHOST_WARNING=false"])
    layer.unlink()


def python_places():
    """What belongs to Python: the environment, its interpreter and the standard library."""
    found = {mesh.VENV, STDLIB, pathlib.Path("/usr/lib/locale/C.utf8")}
    # The environment's `python` leads to the interpreter over links.
    link = pathlib.Path(os.path.abspath(sys.executable))
    while link.is_symlink():
        link = pathlib.Path(os.path.join(link.parent, os.readlink(link)))
        found.add(link)
    return sorted(place for place in found if place.exists() and mesh.VENV not in place.parents)


def is_needed(member):
    """Leaves out what only the tests need."""
    unwanted = ("/receptorctl-", "/site-packages/pip/", f"{STDLIB}/site-packages/", f"{STDLIB}/test/", f"{STDLIB}/config-")
    return None if any(part in f"/{member.name}/" for part in unwanted) else member


def libraries():
    """The shared libraries that the interpreter and all its extensions load."""
    programs = [os.path.realpath(sys.executable), *mesh.VENV.rglob("*.so"), *STDLIB.rglob("*.so")]
    # Some extensions miss a library of their own; nobody loads them.
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=60).stdout
    words = {word for line in listed.splitlines() for word in line.split() if not line.endswith(":")}
    return sorted(word for word in words if word.startswith("/") and os.path.isfile(word))


def add_busybox(tar):
    for name in DIRECTORIES:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o777 if name == "tmp" else 0o755
        tar.addfile(info)
    tar.add("/bin/busybox", "bin/busybox")
    names = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, timeout=10).stdout.split()
    for name in names:
        if name != "busybox":
            info = tarfile.TarInfo(f"bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(info)
    info = tarfile.TarInfo("usr/bin/env")
    info.type, info.linkname = tarfile.SYMTYPE, "/bin/busybox"
    tar.addfile(info)


def add_text(tar, name, text):
    info = tarfile.TarInfo(name)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text.encode()))


def import_image(ctr, name, layer, command, environment=("PATH=/bin:/usr/bin",), user=""):
    """Imports an image of one layer."""
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "history": [{}],
        "config": {"Cmd": command, "Env": list(environment), "User": user},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    archive = layer.with_suffix(".image")
    with tarfile.open(archive, "w") as tar:
        add_text(tar, config_name, config.decode())
        add_text(tar, "manifest.json", manifest.decode())
        tar.add(layer, "layer.tar")
    subprocess.run([*ctr, "images", "import", str(archive)], check=True, stdout=subprocess.DEVNULL, timeout=120)
    archive.unlink()
