"""Projects of git repositories and credentials in jobs: a control node and an execution node with the real runner."""

import base64
import contextlib
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import warnings

import pytest

import trust
from client import ControlError
from gitserver import GitServer, Repository
from mesh import ANSIBLE_RUNNER, command_type, environment, files, free_port, own_runner, until
from project import INVENTORY
from test_callers import Tunnel
from test_controller import ask, job

#: Ansible takes a while to start, and several do here at a time.
PATIENCE = 240
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Tell
      ansible.builtin.debug:
        msg: "{} {{{{ lookup('ansible.builtin.file', 'lib/word') }}}}"
"""


@pytest.fixture
def repository(tmp_path):
    """A playbook that reads a file of a submodule, and needs a role and a collection."""
    library = Repository(tmp_path / "library")
    library.write("word", "word")
    library.commit()
    role = Repository(tmp_path / "greeter")
    role.write("meta/main.yml", "galaxy_info: {author: a, description: d, license: MIT, min_ansible_version: '2.15'}\ndependencies: []\n")
    role.write("tasks/main.yml", "- ansible.builtin.debug: {msg: the role greets}\n")
    role.commit()
    made = Repository(tmp_path / "site")
    made.write("site.yml", PLAYBOOK.format("first"))
    made.write("with_role.yml", "- hosts: all\n  gather_facts: false\n  roles: [greeter]\n")
    made.write("run.sh", "#!/bin/sh\n")
    (made.path / "run.sh").chmod(0o755)
    (made.path / "link.yml").symlink_to("site.yml")
    made.write("roles/requirements.yml", f"- {{name: greeter, src: 'git+{role.url}'}}\n")
    made.git("submodule", "--quiet", "add", "../library", "lib")
    made.commit()
    return made


@pytest.fixture
def credentials(tmp_path):
    """The control node's directory of credentials."""
    directory = tmp_path / "credentials"
    directory.mkdir()
    return directory


def add_credential(directory, name, **content):
    path = directory / f"{name}.yml"
    path.touch(0o600)
    path.write_text(json.dumps(content))


@pytest.fixture
def server(mesh, tmp_path):
    """A git server that nodes trust; its user is "user", and the password "canary-of-git"."""
    pki = trust.Pki(tmp_path / "pki")
    pki.issue("git", [])
    mesh.variables["GIT_SSL_CAINFO"] = str(pki.path("ca.crt"))
    directory = tmp_path / "served"
    directory.mkdir()
    login = "Basic " + base64.b64encode(b"user:canary-of-git").decode()
    with GitServer(directory, pki.path("git.crt"), pki.path("git.key"), login) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def nodes(mesh, tmp_path, credentials):
    """A control node and an execution node, both with the runner."""
    runner = lambda name: command_type(name, str(ANSIBLE_RUNNER), "worker", runtime=True)  # noqa: E731
    rundir = tmp_path / "run"
    rundir.mkdir()
    settings = {"discovery": "enabled", "heartbeat": "500ms", "ownerlostafter": "20s", "lostafter": "60s", "rundir": str(rundir), "poll": "1s"}
    settings |= {"credentials": str(credentials), "projecthosts": ["127.0.0.1"]}
    # What lies on the disk beside a project.
    settings["syncread"] = [str(tmp_path / name) for name in ("library", "greeter", "evil", "needy")]
    mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(runner("own"))}])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    mesh.start()
    ready = lambda: sum(one["capacity"] > 0 for one in ask(mesh["control"], "instance.list")["instances"])  # noqa: E731
    until("both instances to be ready", lambda: ready() == 2, PATIENCE)
    return mesh


def transmit(directory, playbook="site.yml", files=(), **kwargs):
    """What the runner transmits of an inventory and other files, without a project."""
    for name, text in [("inventory/hosts", INVENTORY), *files]:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    command = [str(ANSIBLE_RUNNER), "transmit", str(directory), "-p", playbook]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=PATIENCE, check=True)
    line, rest = done.stdout.split(b"\n", 1)
    data = json.loads(line)
    data["kwargs"].update(kwargs)
    return json.dumps(data).encode() + b"\n" + rest


def submit(node, header, payload):
    """Submits a job; returns its unit and number."""
    with node.control() as client:
        answer = client.submit("control", "controller", json.dumps({"controller": 1, **header}).encode() + b"\n" + payload)
    assert answer["result"] == "Job Started", answer
    return answer["unitid"], node.unit(answer["unitid"])["ExtraData"]["JobID"]


def refusal(node, header, payload):
    with pytest.raises(ControlError) as refused:
        submit(node, header, payload)
    return str(refused.value)


def ended(node, number):
    return until(f"job {number} to end", lambda: (one := job(node, number))["finished"] and one, PATIENCE)


def syncs(node):
    return ask(node, "job.list", kind=["project_sync"])["jobs"]


def said(node, unit):
    until("the unit's end", lambda: node.unit(unit)["StateName"] in ("Succeeded", "Failed", "Canceled"))
    return node.results(unit).decode(errors="replace")


def output_so_far(node, unit):
    path = node.unit_dir(unit) / "stdout"
    return path.read_bytes() if path.exists() else b""


def known(node):
    """The IDs of its jobs, whose rows may still change."""
    return [one["id"] for one in ask(node, "job.list")["jobs"]]


def no_sync_is_left(node):
    places = (node.datadir / node.name / ".controller" / "projects").glob
    until("no directory of a sync to be left", lambda: not list(places("*/sync-*")))


def trees(node):
    found = (node.datadir / node.name / ".controller" / "projects").glob("*/trees/*")
    return sorted(path.name for path in found)


@pytest.fixture
def secrets(mesh):
    """In the environment of the daemon. Its proxy is asked for hosts elsewhere alone."""
    mesh.variables |= {"PGPASSWORD": "canary", "https_proxy": "http://user:canary@127.0.0.1:1", "LC_MESSAGES": "C"}


def test_a_sync_has_no_secret_of_the_daemon_s_environment(secrets, nodes, repository, tmp_path):
    def of_sync():
        """The environments of its processes: those that are confined, and the one beside them that knows the way out."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
                if f"MESHD_UNIT_DIR={nodes['control'].datadir}".encode() in b"\0".join(variables):
                    found[b"__confine" in words] = dict(one.split(b"=", 1) for one in variables if b"=" in one)
        return found

    control = nodes["control"]
    _, number = submit(control, {"sync": {"url": repository.url}}, transmit(tmp_path / "job"))
    # One of them is confined where it has a home of its own.
    both = until("a sync to run", lambda: (one := of_sync()) and {*one} == {False, True} and b"/sync-" in one[False].get(b"HOME", b"") and one, PATIENCE)
    assert b"canary" in both[True][b"https_proxy"] and b"PGPASSWORD" not in both[True], both[True]
    assert not [one for one in both[False].items() if b"canary" in one[1]] and both[False][b"LC_MESSAGES"] == b"C", both[False]
    assert ended(control, number)["state"] == "successful"


def test_a_project_is_synced_before_its_job_and_once_for_a_commit(nodes, repository, tmp_path):
    control = nodes["control"]
    payload = transmit(tmp_path / "job")
    unit, number = submit(control, {"sync": {"url": repository.url}}, payload)
    one = ended(control, number)
    output = said(control, unit)
    assert (one["state"], one["execution_node"], one["controller_node"]) == ("successful", "e1", "control"), (one, output)
    assert "first word" in output
    first = repository.git("rev-parse", "HEAD")
    assert one["revision"] == first
    (sync,) = syncs(control)
    assert (sync["state"], sync["execution_node"], sync["launched_by"]) == ("successful", "control", "node:control"), sync
    assert sync["labels"] == {"launch_type": "sync", "job_type": "run"}
    assert trees(control) == [first]

    # The same commit by its name needs no sync; a role of the requirements is found, links and modes are kept.
    unit, number = submit(control, {"sync": {"url": repository.url, "revision": first}}, transmit(tmp_path / "role", "with_role.yml"))
    one = ended(control, number)
    assert (one["state"], one["revision"]) == ("successful", first), (one, said(control, unit))
    assert "the role greets" in said(control, unit)
    assert len(syncs(control)) == 1

    # A branch that moved is fetched again, and the first sync stays the project's.
    repository.write("site.yml", PLAYBOOK.format("second"))
    second = repository.commit()
    unit, number = submit(control, {"sync": {"url": repository.url, "revision": "main"}}, transmit(tmp_path / "link", "link.yml"))
    one = ended(control, number)
    assert (one["state"], one["revision"]) == ("successful", second), (one, said(control, unit))
    assert "second word" in said(control, unit)
    assert len(syncs(control)) == 2 and trees(control) == sorted([first, second])
    until("nothing to be left of the syncs", lambda: all(unit["WorkType"] == "controller" for unit in control.command("work list").values()))
    no_sync_is_left(control)


def test_two_jobs_of_one_project_sync_one_after_the_other_and_survive_a_restart(nodes, repository, tmp_path):
    control = nodes["control"]
    payload = transmit(tmp_path / "job")
    jobs = [submit(control, {"sync": {"url": repository.url}}, payload) for _ in range(3)]
    begun = lambda: [one["state"] for one in syncs(control) if one["state"] in ("waiting", "running")]  # noqa: E731
    assert until("a sync to run", lambda: "running" in (states := begun()) and states, PATIENCE) == ["running"]
    control.restart(signal.SIGKILL)
    for unit, number in jobs:
        one = ended(control, number)
        assert (one["state"], len(one["attempts"])) == ("successful", 1), (one, said(control, unit))
    assert {one["state"] for one in syncs(control)} == {"successful"} and len(syncs(control)) == 3


def test_what_cannot_be_synced_fails_its_job_and_says_why(nodes, repository, tmp_path, credentials):
    control = nodes["control"]
    payload = transmit(tmp_path / "job")
    for sync, why in [
        ({"url": f"file://{tmp_path}/nowhere"}, "git fetch: fatal: "),
        ({"url": repository.url, "revision": "nonsense"}, "no branch, tag or commit nonsense"),
    ]:
        unit, number = submit(control, {"sync": sync}, payload)
        one = ended(control, number)
        assert one["state"] == "failed" and "could not be synced" in one["explanation"] and why in one["explanation"], one
        until("the unit's end", lambda u=unit: control.unit(u)["StateName"] == "Failed")
        assert syncs(control)[0]["state"] == "failed"
    before = known(control)
    bring = transmit(tmp_path / "bring", files=[("project/site.yml", PLAYBOOK)])
    add_credential(credentials, "registry", kind="registry", host="quay.io", username="u", password="p")
    add_credential(credentials, "scm", kind="scm", username="u", password="p", urls=["https://git.example/team"])
    for header, stream, wanted in [
        ({"sync": {"url": repository.url}}, bring, "the stream brings files below project/"),
        ({"sync": {"url": "--upload-pack=x"}}, payload, "sync.url: write it as https://HOST/PATH"),
        ({"sync": {"url": repository.url, "revision": "--all"}}, payload, "sync.revision: it is not a branch, tag or commit"),
        ({"sync": {"url": "https://git.example/a", "credential": "missing"}}, payload, "credential missing: there is no file"),
        ({"sync": {"url": "https://git.example/a", "credential": "registry"}}, payload, "credential registry is of kind registry"),
        ({"sync": {"url": "https://git.example/a", "credential": "scm"}}, payload, "credential scm may not be sent to https://git.example/a"),
        ({"runner": {"image": "ghcr.io/x", "registry": "registry"}}, payload, "credential registry may not be sent to https://ghcr.io/x"),
    ]:
        assert wanted in refusal(control, header, stream)
    assert known(control) == before


def test_a_cancel_ends_the_sync_as_well(nodes, tmp_path):
    """It would run for ever: its server takes connections, and says nothing."""
    control = nodes["control"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/site.git"
        unit, number = submit(control, {"sync": {"url": url}}, transmit(tmp_path / "job"))
        until("the sync to run", lambda: any(one["state"] == "running" for one in syncs(control)), PATIENCE)
        waiting, (sync,) = job(control, number), syncs(control)
        told = f"Syncing its project (job {sync['id']})"
        assert (waiting["state"], waiting["attempts"][-1]["detail"]) == ("waiting", told), waiting
        assert ask(control, "job.explain", id=number)["summary"].endswith(told)
        ask(control, "job.cancel", id=number)
        assert ended(control, number)["state"] == "canceled"
        until("the unit's end", lambda: control.unit(unit)["StateName"] == "Canceled")
        (sync,) = syncs(control)
        assert ended(control, sync["id"])["state"] == "canceled"
        until("all units but the job's to be gone", lambda: set(control.command("work list")) == {unit}, PATIENCE)
    until("no check of e1 to be left", lambda: nodes["e1"].command("work list") == {})


#: A callback plugin, which every playbook of a user loads that finds it in his home directory.
EVIL = """
import pathlib
pathlib.Path({mark!r}).write_text("pwned")
class CallbackModule:
    pass
"""


def test_requirements_get_nowhere(nodes, repository, tmp_path):
    control = nodes["control"]
    mark = tmp_path / "pwned"
    evil = Repository(tmp_path / "evil")
    evil.write("evil.py", EVIL.format(mark=str(mark)))
    evil.write("meta/main.yml", "galaxy_info: {author: a, description: d, license: MIT, min_ansible_version: '2.15'}\ndependencies: []\n")
    evil.commit()
    needy = Repository(tmp_path / "needy")
    outside = "x/../../../../../home/.ansible/plugins/callback"
    needy.write("meta/main.yml", f"dependencies: [{{src: 'git+{evil.url}', name: '{outside}'}}]\n")
    needy.commit()
    payload = transmit(tmp_path / "job")
    for requirement in (
        f"- {{name: '{outside}', src: 'git+{evil.url}'}}",
        f"- {{name: needy, src: 'git+{needy.url}'}}",
        f"- {{name: '..', src: 'git+{evil.url}'}}",
        f"- 'git+{evil.url},,../../trees'",
    ):
        repository.write("roles/requirements.yml", requirement + "\n")
        repository.commit()
        _, number = submit(control, {"sync": {"url": repository.url}}, payload)
        one = ended(control, number)
        assert one["state"] == "failed" and "the name of a required role" in one["explanation"], (requirement, one)
    # The name of a directory is what the address ends with; its own content harms its job alone.
    repository.write("roles/requirements.yml", f"- {{src: 'git+{evil.url}'}}\n- {{name: greeter, src: 'git+file://{tmp_path}/greeter'}}\n")
    repository.commit()
    unit, number = submit(control, {"sync": {"url": repository.url}}, payload)
    one = ended(control, number)
    assert one["state"] == "successful", (one, said(control, unit))
    no_sync_is_left(control)
    assert not mark.exists()


def test_trees_that_were_not_used_for_longest_go(mesh, nodes, repository, tmp_path):
    control = nodes["control"]
    payload = transmit(tmp_path / "job")
    first = repository.git("rev-parse", "HEAD")
    _, number = submit(control, {"sync": {"url": repository.url}}, payload)
    assert ended(control, number)["state"] == "successful"
    assert trees(control) == [first]
    for directive in control.directives:
        if "work-controller" in directive:
            directive["work-controller"]["projectcache"] = 1
    control.write_config()
    control.command("reload")
    repository.write("site.yml", PLAYBOOK.format("second"))
    repository.commit()
    unit, number = submit(control, {"sync": {"url": repository.url}}, payload)
    assert ended(control, number)["state"] == "successful", said(control, unit)
    until("the first tree to be deleted", lambda: first not in trees(control))


def test_jobs_of_class_control_run_on_the_control_node_and_come_from_admins_alone(nodes, tmp_path):
    control = nodes["control"]
    payload = transmit(tmp_path / "job", files=[("project/site.yml", "- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {msg: here}}]\n")])
    for kind in ("project_update", "system"):
        unit, number = submit(control, {"kind": kind}, payload)
        one = ended(control, number)
        assert (one["state"], one["execution_node"], one["kind"]) == ("successful", "control", kind), (one, said(control, unit))
        assert [attempt["work_type"] for attempt in one["attempts"]] == ["controller-runner"]
    next(one for one in control.directives if "work-controller" in one)["work-controller"]["verifysignature"] = False
    control.write_config()
    assert control.command("reload")["Success"] is True
    before = known(control)
    for kind in ("project_update", "system"):
        with Tunnel(nodes["e1"], "control") as client, pytest.raises(ControlError, match="it needs admin rights"):
            client.submit("control", "controller", json.dumps({"controller": 1, "kind": kind}).encode() + b"\n" + payload)
    assert known(control) == before


def publish(server, name, repository):
    """Lays a repository where the server finds it, for plain downloads."""
    target = server.directory / name
    subprocess.run(["git", "clone", "--quiet", "--bare", str(repository.path), str(target)], check=True, env=environment())
    subprocess.run(["git", "update-server-info"], cwd=target, check=True, env=environment())


def test_a_password_goes_to_the_addresses_of_its_file_alone(server, nodes, tmp_path, credentials):
    control = nodes["control"]
    site = Repository(tmp_path / "plain")
    site.write("site.yml", PLAYBOOK.format("over https"))
    site.write("lib/word", "word")
    site.commit()
    publish(server, "team/site.git", site)
    library = Repository(tmp_path / "library")
    library.write("word", "word")
    library.commit()
    publish(server, "other/library.git", library)
    nested = Repository(tmp_path / "nested")
    nested.write("site.yml", PLAYBOOK.format("nested"))
    nested.write(".gitmodules", '[submodule "lib"]\n\tpath = lib\n\turl = ../../other/library.git\n')
    nested.git("update-index", "--add", "--cacheinfo", f"160000,{library.git('rev-parse', 'HEAD')},lib")
    nested.git("add", ".gitmodules", "site.yml")
    nested.git("commit", "--quiet", "--message", "x")
    publish(server, "team/nested.git", nested)
    add_credential(credentials, "git", kind="scm", username="user", password="canary-of-git", urls=[f"{server.url}/team"])
    payload = transmit(tmp_path / "job")

    unit, number = submit(control, {"sync": {"url": f"{server.url}/team/site.git", "credential": "git"}}, payload)
    one = ended(control, number)
    assert (one["state"], one["revision"]) == ("successful", site.git("rev-parse", "HEAD")), (one, said(control, unit))
    assert "over https word" in said(control, unit)
    assert server.login in {login for _, login in server.asked}

    # Another caller who names the commit, but not the credential, does not get the tree.
    _, number = submit(control, {"sync": {"url": f"{server.url}/team/site.git", "revision": one["revision"]}}, payload)
    assert "terminal prompts disabled" in ended(control, number)["explanation"]

    # A submodule that lies elsewhere does not get the password.
    server.asked.clear()
    _, number = submit(control, {"sync": {"url": f"{server.url}/team/nested.git", "credential": "git"}}, payload)
    assert "terminal prompts disabled" in ended(control, number)["explanation"]
    elsewhere = [login for path, login in server.asked if path.startswith("/other/")]
    assert elsewhere and set(elsewhere) == {""}
    _, number = submit(control, {"sync": {"url": f"{server.url}/team/nested.git", "credential": "git", "submodules": False}}, payload)
    assert ended(control, number)["revision"] == nested.git("rev-parse", "HEAD")


def test_a_sync_outlives_a_fault_of_the_network_and_asks_once_with_a_wrong_password(server, nodes, tmp_path, credentials):
    control = nodes["control"]
    site = Repository(tmp_path / "plain")
    site.write("site.yml", PLAYBOOK.format("over https"))
    site.write("lib/word", "word")
    site.commit()
    publish(server, "team/site.git", site)
    add_credential(credentials, "git", kind="scm", username="user", password="canary-of-git", urls=[server.url])
    add_credential(credentials, "wrong", kind="scm", username="user", password="canary-of-wrong", urls=[server.url])
    payload = transmit(tmp_path / "job")
    url = f"{server.url}/team/site.git"

    server.hang_ups = 1
    unit, number = submit(control, {"sync": {"url": url, "credential": "git"}}, payload)
    job = ended(control, number)
    assert job["state"] == "successful", (job, said(control, unit))
    assert server.hang_ups == 0

    publish(server, "team/again.git", site)
    server.asked.clear()
    server.lists = 2
    unit, number = submit(control, {"sync": {"url": f"{server.url}/team/again.git", "credential": "git"}}, payload)
    job = ended(control, number)
    assert job["state"] == "successful", (job, said(control, unit))

    server.asked.clear()
    _, number = submit(control, {"sync": {"url": url, "credential": "wrong"}}, payload)
    assert "Authentication failed" in ended(control, number)["explanation"]
    assert len([login for _, login in server.asked if login]) == 1

    server.hang_ups = 100
    _, number = submit(control, {"sync": {"url": url, "credential": "git"}}, payload)
    assert "unable to access" in ended(control, number)["explanation"]
    assert server.hang_ups == 97, "three tries"
    server.hang_ups = 0


class SshServer:
    """An ssh server for one key; its own key can be changed."""

    def __init__(self, directory, program):
        self.directory, self.program, self.port = directory, program, free_port()
        directory.mkdir()
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.make_key("login")
        (directory / "authorized").write_text((directory / "login.pub").read_text())
        lines = [f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {directory}/host", f"AuthorizedKeysFile {directory}/authorized"]
        lines += ["StrictModes no", "PidFile none", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin prohibit-password"]
        (directory / "config").write_text("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)

    def make_key(self, name):
        for path in (self.directory / name, self.directory / f"{name}.pub"):
            path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)], check=True)

    @contextlib.contextmanager
    def running(self):
        self.make_key("host")
        with subprocess.Popen([self.program, "-D", "-e", "-f", str(self.directory / "config")], stderr=subprocess.DEVNULL) as process:
            try:
                until("the ssh server", lambda: self.answers())
                yield (self.directory / "host.pub").read_text().split()[1]
            finally:
                process.terminate()

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as one:
            return one.recv(4) == b"SSH-"


def test_a_key_of_an_ssh_server_is_learnt_once_for_each_project(nodes, tmp_path, credentials):
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        assert os.environ.get("CI") != "true"
        warnings.warn("SKIPPED: there is no sshd", stacklevel=1)
        return
    control, server = nodes["control"], SshServer(tmp_path / "sshd", program)
    site = Repository(tmp_path / "by-ssh")
    site.write("site.yml", PLAYBOOK.format("over ssh"))
    site.write("lib/word", "word")
    site.commit()
    base = f"ssh://{server.user}@127.0.0.1:{server.port}"
    add_credential(credentials, "deploy", kind="scm", username=server.user, ssh_key=(server.directory / "login").read_text(), urls=[base])
    header = {"sync": {"url": f"{base}{site.path}", "credential": "deploy"}}
    payload = transmit(tmp_path / "job")
    projects = control.datadir / "control" / ".controller" / "projects"
    with server.running() as key:
        unit, number = submit(control, header, payload)
        one = ended(control, number)
        assert one["state"] == "successful" and "over ssh word" in said(control, unit), (one, said(control, unit))
        (known,) = projects.glob("*/known_hosts")
        assert known.read_text() == f"[127.0.0.1]:{server.port} ssh-ed25519 {key}\n"
    with server.running() as key:
        _, number = submit(control, header, payload)
        assert "Host key verification failed" in ended(control, number)["explanation"]
        assert key not in known.read_text()
        # What an operator wrote down counts for every project.
        known.write_text("")
        (projects / "known_hosts").write_text(f"[127.0.0.1]:{server.port} ssh-ed25519 {key}\n")
        _, number = submit(control, header, payload)
        assert ended(control, number)["state"] == "successful"
        assert known.read_text() == ""


class Watch:
    """Looks for secrets in the arguments of every process, until it is ended."""

    def __init__(self, secrets):
        self.secrets, self.found, self.seen, self.over = secrets, set(), 0, threading.Event()
        self.thread = threading.Thread(target=self.look)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def look(self):
        while not self.over.is_set():
            for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    words = entry.read_bytes()
                    self.seen += 1
                    self.found |= {(secret, words) for secret in self.secrets if secret.encode() in words}


def test_no_secret_is_in_store_log_status_or_process_list(nodes, tmp_path, credentials):
    control = nodes["control"]
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    secrets = {name: f"canary-of-{name}" for name in ("registry", "git", "scm-key", "variables", "vault")}
    secrets["key"] = key.read_text().splitlines()[2][:40]
    closed = f"127.0.0.1:{free_port()}"
    add_credential(credentials, "quay", kind="registry", host=closed, username="user", password=secrets["registry"])
    add_credential(credentials, "git", kind="scm", username="user", password=secrets["git"], urls=[f"https://{closed}"])
    lines = ["-----BEGIN OPENSSH PRIVATE KEY-----", secrets["scm-key"], "-----END OPENSSH PRIVATE KEY-----"]
    add_credential(credentials, "ssh", kind="scm", username="user", ssh_key="\n".join(lines), urls=[f"ssh://{closed}"])
    go = tmp_path / "go"
    wait = f"- hosts: all\n  gather_facts: false\n  tasks: [{{ansible.builtin.wait_for: {{path: {go}, sleep: 1}}}}, {{ansible.builtin.command: 'false', when: fails}}]\n"
    brought = [
        ("project/site.yml", wait),
        ("env/passwords", json.dumps({"Vault password:\\s*?$": secrets["vault"]})),
        ("env/cmdline", "--ask-vault-pass"),
        ("env/ssh_key", key.read_text()),
    ]
    variables = lambda fails: ("env/extravars", json.dumps({"secret": secrets["variables"], "fails": fails}))  # noqa: E731
    registry = {"runner": {"image": f"{closed}/ee", "isolation": False, "registry": "quay"}}
    bare = transmit(tmp_path / "bare")
    streams = [transmit(tmp_path / f"with{fails}", files=[*brought, variables(fails)]) for fails in (False, True)]
    # With a key the runner would never end: it waits for the container to read it.
    contained = transmit(tmp_path / "contained", files=[brought[0], variables(True)])
    with Watch(secrets.values()) as watch:
        jobs = [submit(control, registry, stream) for stream in streams]
        # Whether or not there is podman, there is no such registry.
        jobs.append(submit(control, {"runner": {"image": f"{closed}/ee", "registry": "quay"}}, contained))
        jobs.append(submit(control, {"sync": {"url": f"https://{closed}/a", "credential": "git"}}, bare))
        jobs.append(submit(control, {"sync": {"url": f"ssh://{closed}/a", "credential": "ssh"}}, bare))
        numbers = [number for _, number in jobs]
        until("two jobs to run", lambda: all(job(control, number)["state"] == "running" for number in numbers[:2]), PATIENCE)
        until("the playbooks to run", lambda: all(b"playbook_on_task_start" in output_so_far(control, unit) for unit, _ in jobs[:2]), PATIENCE)
        # It did get there.
        child = job(control, numbers[0])["attempts"][0]["unit"]
        assert secrets["registry"].encode() in b"".join(nodes["e1"].read_payloads()), child
        shown = [json.dumps(node.command("work list")) for node in (control, nodes["e1"])]
        go.touch()
        states = [ended(control, number)["state"] for number in numbers]
    assert states[:2] == ["successful", "failed"] and states[3:] == ["failed", "failed"] and states[2] != "successful", states
    assert watch.seen and not watch.found, watch.found
    for number in [*numbers, *(one["id"] for one in syncs(control))]:
        shown += [json.dumps(job(control, number)), json.dumps(ask(control, "job.explain", id=number))]
    shown += [said(control, unit) for unit, _ in jobs]
    shown += [json.dumps(node.command("work list")) for node in (control, nodes["e1"])]
    kept = []
    for path in files(control.datadir / "control" / ".controller"):
        with contextlib.suppress(FileNotFoundError):
            kept.append(path.read_bytes().decode(errors="replace"))
    assert len(kept) >= 2 and any("project_sync" in text for text in kept)
    for name, secret in secrets.items():
        for text in [*shown, *kept, *nodes.logs().values()]:
            assert secret not in text, (name, text[max(0, text.index(secret) - 300) :][:600])
