"""Fetches a git repository into its mirror, and packs the tree of one commit as a part of a stream for ansible-runner.

It reads order.json beside it and leaves its answer, the packed tree and new keys of servers in the order's `own`
directory. A login stands in env/scm_login or env/scm_key of the private data directory, and is given to git and ssh for
the addresses of the order's `allowed` alone. What it may reach of this machine, others decide.
"""

import base64
import contextlib
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.parse
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ENV = HERE.parent / "env"
LOGIN, KEY = ENV / "scm_login", ENV / "scm_key"
REQUIREMENTS = ("requirements.yml", "requirements.yaml")
LONGEST_ERROR = 2000
CHUNK = 3 << 18
TRIES = 3
PAUSE = 1.0
# What git and ssh say of the network. An answer of the server, and so a wrong login, is not asked for twice.
NETWORK_FAULT = re.compile(
    r"unable to access '[^'\n]*': (?!The requested URL returned error: 4|[^\n]*[Cc][Oo][Nn][Nn][Ee][Cc][Tt][^\n]* 403)|RPC failed; curl|early EOF"
    r"|\(curl_result = [0-9]+, http_code = (0|5[0-9][0-9]),"
    r"|the remote end hung up unexpectedly|ssh: connect to host|kex_exchange_identification|Connection (closed|reset) by"
)
# The proxy's answer, in the words of git with curl, of ansible-galaxy, and of ours.
NOT_ALLOWED = re.compile(r"CONNECT tunnel failed, response 403|HTTP code 403 from proxy|Not among projecthosts")


class Failure(Exception):
    """The text is for people."""


class Sync:
    def __init__(self, order):
        self.order = order
        self.home = pathlib.Path(order["directory"])
        self.own = pathlib.Path(order["own"])
        self.mirror = self.home / "mirror"
        self.work = self.own / "run" / "work"
        self.project = self.work / "project"

    def run(self):
        shutil.rmtree(self.work, ignore_errors=True)
        try:
            self.work.mkdir(mode=0o700)
            (self.work / "home").mkdir()
            self.write_config()
            commit = self.resolve()
            name = commit + self.order["suffix"]
            tree = self.home / "trees" / name
            if not tree.exists():
                self.check_out(commit)
                if self.order["requirements"]:
                    self.install_requirements()
                self.pack(self.own / "tree")
            return {"commit": commit}
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def write_config(self):
        """The only settings of git besides the machine's: no helper but ours knows a password."""
        lines = ["[credential]", "\thelper =", "[core]", "\thooksPath = /dev/null", "[advice]", "\tdetachedHead = false"]
        # Over a proxy of the machine's own settings nothing is reached.
        lines += ["[http]", "\tproxy = %s" % quote(os.environ["https_proxy"]), "\tproxyAuthMethod = basic"]
        if LOGIN.exists():
            helper = quote("!f() { test \"$1\" = get && cat %s; }; f" % shlex.quote(str(LOGIN)))
            for prefix in self.order["allowed"]:
                if prefix.startswith("https://"):
                    lines += ["[credential %s]" % quote(prefix), "\thelper = %s" % helper]
        (self.work / "gitconfig").write_text("\n".join(lines) + "\n")

    def environment(self):
        keep = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_SSL_")}
        for name in ("SSH_ASKPASS", "SSH_AUTH_SOCK"):
            keep.pop(name, None)
        return {
            **keep,
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.work / "home"),
            "GIT_CONFIG_GLOBAL": str(self.work / "gitconfig"),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": self.order["protocols"],
            "GIT_SSH_VARIANT": "ssh",
            "GIT_SSH_COMMAND": shlex.join([sys.executable, "-I", str(HERE / "sync.py"), "ssh"]),
            "GIT_HTTP_LOW_SPEED_LIMIT": "1",
            "GIT_HTTP_LOW_SPEED_TIME": "60",
        }

    def call(self, *command, where=None, may_fail=False):
        done = subprocess.run(
            command, cwd=where or self.work, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
        if may_fail:
            return None
        if NOT_ALLOWED.search(done.stderr):
            raise Failure("%s: a host is not among projecthosts: %s" % (command[0], done.stderr.strip()[-LONGEST_ERROR:]))
        said = (done.stderr.strip() or done.stdout.strip() or "no message")[-LONGEST_ERROR:]
        raise Failure("%s: %s" % (os.path.basename(command[0]) + " " + command[1], said))

    def git(self, *words, **more):
        return self.call("git", *words, **more)

    def git_from_network(self, *words, where):
        for _ in range(TRIES - 1):
            try:
                return self.git(*words, where=where)
            except Failure as failure:
                if not NETWORK_FAULT.search(str(failure)):
                    raise
            time.sleep(PAUSE)
        return self.git(*words, where=where)

    def resolve(self):
        """Brings the mirror up to date, unless the wanted commit is there. Returns the commit."""
        if not (self.mirror / "HEAD").exists():
            self.git("init", "--quiet", "--bare", str(self.mirror))
        revision = self.order["revision"]
        if revision and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", revision) and self.find(revision):
            return revision
        wanted = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        if not revision:
            wanted.append("+HEAD:refs/sync/head")
        self.fetch("--prune", *wanted)
        if not revision:
            return self.find("refs/sync/head")
        names = ["refs/heads/" + revision, "refs/tags/" + revision]
        if re.fullmatch("[0-9a-f]{4,64}", revision):
            names.append(revision)
        for name in names:
            if found := self.find(name):
                return found
        # Neither branch nor tag: a commit that none of them leads to, or another ref, as of a pull request.
        with contextlib.suppress(Failure):
            self.fetch("+%s:refs/sync/wanted" % revision)
            if found := self.find("refs/sync/wanted"):
                return found
        raise Failure("the repository has no branch, tag or commit %s" % revision)

    def fetch(self, *words):
        options = [word for word in words if word.startswith("--")]
        refs = [word for word in words if not word.startswith("--")]
        command = ["fetch", "--quiet", "--force", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", *options]
        self.git_from_network(*command, "--", self.order["url"], *refs, where=self.mirror)

    def find(self, name):
        name += "^{commit}"
        return self.git("rev-parse", "--quiet", "--verify", "--end-of-options", name, where=self.mirror, may_fail=True)

    def check_out(self, commit):
        self.git("init", "--quiet", str(self.project))
        borrowed = self.project / ".git" / "objects" / "info" / "alternates"
        borrowed.write_text(str(self.mirror / "objects") + "\n")
        # Addresses of submodules may be relative to it.
        self.git("config", "remote.origin.url", self.order["url"], where=self.project)
        self.git("checkout", "--quiet", "--detach", commit, where=self.project)
        if self.order["submodules"] and (self.project / ".gitmodules").exists():
            self.git_from_network("submodule", "--quiet", "update", "--init", "--recursive", where=self.project)

    def install_requirements(self):
        for kind, install in (("role", self.install_roles), ("collection", self.install_collections)):
            for name in REQUIREMENTS:
                file = self.project / (kind + "s") / name
                if file.is_file() and not file.is_symlink():
                    install(file, self.work / ("requirements_%ss" % kind))
                    break

    def galaxy(self, *words):
        beside = pathlib.Path(sys.executable).with_name("ansible-galaxy")
        self.call(str(beside) if beside.exists() else "ansible-galaxy", *words)

    def install_collections(self, file, target):
        self.galaxy("collection", "install", "-r", str(file), "-p", str(target))

    def install_roles(self, file, target):
        """Installs roles, and then what they depend on, so that each name is looked at before it becomes a path."""
        roles, names = read_roles(file, "%s/%s" % (file.parent.name, file.name)), set()
        while roles:
            for role in roles:
                names.add(role_name(role))
            order = self.work / "roles.yml"
            order.write_text(json.dumps(roles))
            self.galaxy("role", "install", "--no-deps", "-r", str(order), "-p", str(target))
            found = [role for name in sorted(names) for role in dependencies(target / name)]
            roles = [role for role in found if role_name(role) not in names]

    def pack(self, tree):
        packed = self.work / "tree.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for top in ("project", "requirements_roles", "requirements_collections"):
                for path in walk(self.work / top):
                    add(archive, path, path.relative_to(self.work))
        unfinished = self.work / "tree"
        with open(packed, "rb") as source, open(unfinished, "wb", opener=private) as target:
            target.write(json.dumps({"zipfile": packed.stat().st_size}).encode() + b"\n")
            while chunk := source.read(CHUNK):
                target.write(base64.b64encode(chunk))
            target.flush()
            os.fsync(target.fileno())
        unfinished.rename(tree)


def private(path, flags):
    return os.open(path, flags, 0o600)


def walk(top):
    """Everything below a directory but what git keeps there, in a repeatable order."""
    if not top.is_dir():
        return
    for entry in sorted(top.iterdir()):
        if entry.name == ".git":
            continue
        yield entry
        if entry.is_dir() and not entry.is_symlink():
            yield from walk(entry)


def add(archive, path, name):
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        link = zipfile.ZipInfo(str(name))
        link.create_system = 3
        link.external_attr = facts.st_mode << 16
        archive.writestr(link, os.readlink(path))
    elif stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode):
        archive.write(path, str(name))


def read_roles(file, shown):
    """The roles that a file asks for, in both forms that it may have."""
    import yaml

    try:
        wanted = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Failure("%s is no YAML" % shown) from error
    roles = wanted.get("roles") if isinstance(wanted, dict) else wanted
    return [role for role in roles or [] if isinstance(role, (str, dict))] if isinstance(roles, (list, type(None))) else []


def role_name(role):
    """The name under which a role is installed, as ansible-galaxy finds it: it becomes the name of a directory."""
    from ansible.errors import AnsibleError
    from ansible.playbook.role.requirement import RoleRequirement

    if isinstance(role, dict) and "include" in role:
        raise Failure("roles/requirements.yml: include is not supported")
    try:
        name = RoleRequirement.role_yaml_parse(role if isinstance(role, str) else dict(role)).get("name")
    except (AnsibleError, AttributeError, TypeError, KeyError) as error:
        raise Failure("a required role is not understood: %s" % (role,)) from error
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_.-]+", name) or ".." in name or name == ".":
        raise Failure("the name of a required role may have letters, digits, _, . and -, and no ..: %s" % (name,))
    return name


def dependencies(role):
    """The roles that an installed role needs and that can be installed: a plain name is one that is beside it."""
    found = []
    for name in ("main.yml", "main.yaml", "requirements.yml", "requirements.yaml"):
        file = role / "meta" / name
        if file.is_file() and not file.is_symlink():
            if name.startswith("main"):
                found += read_dependencies(file)
            else:
                found += read_roles(file, "%s/meta/%s" % (role.name, name))
    return [one for one in found if is_elsewhere(one)]


def read_dependencies(file):
    import yaml

    try:
        meta = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        return []
    needed = meta.get("dependencies") if isinstance(meta, dict) else None
    return [one for one in needed if isinstance(one, (str, dict))] if isinstance(needed, list) else []


def is_elsewhere(role):
    text = role if isinstance(role, str) else str(role.get("src") or role.get("role") or role.get("name") or "")
    return "." in text or "/" in text


def quote(text):
    """A value of git's configuration."""
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def place(url):
    """What decides about an address: scheme, host, port and path."""
    parts = urllib.parse.urlsplit(url)
    path = [segment for segment in parts.path.split("/") if segment]
    return parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or 22, path


def may_use_key(order, host, port, command):
    """Whether the repository that ssh is called for lies below an allowed prefix."""
    words = shlex.split(command)
    path = words[-1] if len(words) == 2 else ""
    asked = [segment for segment in path.split("/") if segment]
    if not path.startswith("/") or any(segment in (".", "..") or segment.startswith("~") for segment in asked):
        return False
    for prefix in order["allowed"]:
        scheme, prefix_host, prefix_port, below = place(prefix)
        if (scheme, prefix_host, prefix_port) == ("ssh", host.lower(), port) and asked[: len(below)] == below:
            return True
    return False


def ssh(order, words):
    """Git calls this instead of ssh: options, a host and a command."""
    target, command = words[-2:]
    port = int(words[words.index("-p") + 1]) if "-p" in words[:-2] else 22
    home = pathlib.Path(order["directory"])
    # New keys go to the first file. The others are the project's, all projects' from before, and the machine's.
    users = quote_paths(pathlib.Path(order["own"]) / "known_hosts", home / "known_hosts")
    machines = quote_paths(home.parent / "known_hosts", "/etc/ssh/ssh_known_hosts")
    options = ["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentityAgent=none", "-o", "ConnectTimeout=30"]
    options += ["-o", "StrictHostKeyChecking=accept-new", "-o", "UserKnownHostsFile=" + users]
    options += ["-o", "GlobalKnownHostsFile=" + machines]
    options += ["-o", "ProxyCommand=" + shlex.join([sys.executable, "-I", str(HERE / "sync.py"), "tunnel"]) + " %h %p"]
    if KEY.exists() and may_use_key(order, target.rpartition("@")[2].strip("[]"), port, command):
        options += ["-o", "IdentitiesOnly=yes", "-i", str(KEY)]
        if order["username"] and "@" not in target:
            options += ["-l", order["username"]]
    else:
        options += ["-o", "IdentityFile=none"]
    os.execvp("ssh", ["ssh", *options, *words])


def tunnel(host, port):
    """Ssh calls this for its connection: standard input and output lead to the server."""
    proxy = urllib.parse.urlsplit(os.environ["https_proxy"])
    server = socket.create_connection((proxy.hostname, proxy.port))
    login = base64.b64encode(("%s:%s" % (proxy.username, proxy.password)).encode()).decode()
    head = "CONNECT %s:%s HTTP/1.1\r\nDirect: yes\r\nProxy-Authorization: Basic %s\r\n\r\n"
    server.sendall((head % ("[%s]" % host if ":" in host else host, port, login)).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += server.recv(1) or sys.exit("ssh: connect to host %s: the connection was closed" % host)
    if head.split()[1] != b"200":
        sys.exit("ssh: %s" % head.split(b"\r\n")[0].split(b" ", 1)[1].decode())
    ends = {0: server.sendall, server.fileno(): lambda data: os.write(1, data) and None}
    while ends:
        for end in select.select(list(ends), [], [])[0]:
            data = os.read(end, CHUNK)
            if data:
                ends[end](data)
            elif end == 0:
                del ends[0]
                server.shutdown(socket.SHUT_WR)
            else:
                return


def quote_paths(*paths):
    return " ".join('"%s"' % path for path in paths)


def main():
    order = json.loads((HERE / "order.json").read_text())
    if sys.argv[1:2] == ["ssh"]:
        ssh(order, sys.argv[2:])
    if sys.argv[1:2] == ["tunnel"]:
        return tunnel(*sys.argv[2:])
    # Files of the tree have the modes that a checkout has by default; the directories above them are closed.
    os.umask(0o022)
    try:
        answer = Sync(order).run()
    except (Failure, OSError) as error:
        answer = {"error": str(error)}
    result = pathlib.Path(order["own"]) / "answer.json"
    unfinished = result.with_suffix(".new")
    with open(unfinished, "w", opener=private) as file:
        json.dump(answer, file)
    unfinished.rename(result)
    if "error" in answer:
        sys.exit(answer["error"])


if __name__ == "__main__":
    main()
