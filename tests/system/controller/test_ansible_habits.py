"""Who comes from ansible-playbook types what he is used to: the same words, given to ansible-playbook and to `meshctl job
run` in the same project, print the same and end with the same code. docs/ansible-playbook.md lists what differs."""

import dataclasses
import os
import re
import shutil
import subprocess

import pytest

from mesh import ANSIBLE_RUNNER, HEALTHY, MESHCTL, ROOT, VENV, command_type, environment, own_runner, until
from test_controller import ask

HEAD = "- hosts: all\n  gather_facts: false\n"
LOCAL = "ansible_python_interpreter='{{ ansible_playbook_python }}'"
VAULT = [str(VENV / "bin" / "ansible-vault"), "encrypt_string", "--name", "inner", "opened"]


@dataclasses.dataclass
class Case:
    """A project, the words, and what they need."""

    words: str
    #: Path and content; `site.yml` and `hosts` are there unless they are given.
    files: dict = dataclasses.field(default_factory=dict)
    code: int = 0
    variables: dict = dataclasses.field(default_factory=dict)
    #: What must be in the output, so that the case cannot be empty.
    says: str = "PLAY RECAP"
    #: What is on our standard error before the job.
    warns: str = ""


def play(tasks, head=HEAD):
    return head + "  tasks:\n" + "".join(f"  - {task}\n" for task in tasks)


def tell(text, name="Tell", more=""):
    return f'{{name: {name}, debug: {{msg: "{text}"}}{more}}}'


CONFIG = "lookup('config', 'HOST_KEY_CHECKING')"
VAULTED = {
    "pass.sh": "#!/bin/sh\necho secret\n",
    "pass.txt": "secret\n",
    "site.yml": play([tell("{{ inner }}")], HEAD + "  vars_files: [inner.yml]\n"),
}
COLLECTION = {
    "ansible.cfg": "[defaults]\ncollections_path = collections\n",
    "collections/ansible_collections/acme/tools/plugins/modules/shout.py": (
        "from ansible.module_utils.basic import AnsibleModule\n"
        "m = AnsibleModule(argument_spec={'text': {'type': 'str'}})\n"
        "m.exit_json(changed=False, said=m.params['text'].upper())\n"
    ),
    "collections/ansible_collections/acme/tools/galaxy.yml": "namespace: acme\nname: tools\nversion: 1.0.0\n",
}
SU = shutil.which("su") is not None and os.geteuid() == 0
CASES = {
    "plain": Case("site.yml -i hosts"),
    "unwritten rules": Case(
        "books/site.yml -i hosts",
        {
            "books/site.yml": "- import_playbook: more.yml\n" + play([tell("{{ colour }}")], HEAD + "  roles: [r]\n"),
            "books/more.yml": play(["{name: Fall, fail: {msg: no}, ignore_errors: true}", "include_tasks: t.yml"]),
            "books/t.yml": "- debug: {msg: included}\n",
            "books/roles/r/tasks/main.yml": "- debug: {msg: of a role}\n",
            "group_vars/all.yml": "colour: green\n",
        },
    ),
    "check and diff": Case(
        "site.yml -i hosts -C -D",
        {"site.yml": play(["copy: {content: new, dest: ./written-by-the-job}"])},
        says="+new",
    ),
    "tags often": Case(
        "site.yml -i hosts -t one -t two --skip-tags three",
        {"site.yml": play([tell(tag, more=f", tags: [{tag}, x]") for tag in ("one", "two", "three")])},
    ),
    "limit often": Case("site.yml -i hosts -l a -l b", says="ok: [b]"),
    "variables often": Case(
        'site.yml -i hosts -e who=a -e {"n":1} -e @vars.yml',
        {"vars.yml": "last: [1, 2]\n", "site.yml": play([tell("{{ who }} {{ n }} {{ last }}")])},
    ),
    "user and connection": Case(
        "site.yml -i hosts -u somebody -c local", {"hosts": f"a {LOCAL}\n", "site.yml": play([tell("{{ ansible_user | default('none') }}")])}
    ),
    "become": Case(
        "site.yml -i hosts -b --become-user root --become-method su",
        {"site.yml": play(["{name: Who, command: id -un, register: me}", tell("{{ me.stdout }}")])},
        says='"msg": "root"',
    ),
    "start at a task": Case(
        "site.yml -i hosts --start-at-task Second", {"site.yml": play([tell("one", "First"), tell("two", "Second")])}
    ),
    "syntax": Case("site.yml -i hosts --syntax-check", says="playbook: site.yml"),
    "list of hosts": Case("site.yml -i hosts -l a --list-hosts", says="hosts (1)"),
    "lists of tasks and tags": Case("site.yml -i hosts --list-tasks --list-tags", says="TASK TAGS"),
    "vault by a program": Case("site.yml -i hosts --vault-id dev@pass.sh", VAULTED, says="opened"),
    "vault by a file": Case("site.yml -i hosts --vault-password-file pass.txt", VAULTED, says="opened"),
    "handlers by force": Case(
        "site.yml -i hosts -l a --flush-cache --force-handlers",
        {
            "site.yml": play(["{name: Change, command: 'true', notify: h}", "{name: Fall, fail: {msg: on purpose}}"])
            + "  handlers:\n  - {name: h, debug: {msg: handled}}\n"
        },
        code=2,
        says="handled",
    ),
    "keys of hosts": Case(
        "site.yml -i hosts",
        {"ansible.cfg": "[defaults]\nhost_key_checking = True\n", "site.yml": play([tell("{{ " + CONFIG + " }}")])},
        says='"msg": true',
    ),
    "callback of the project": Case(
        "site.yml -i hosts -l a", {"ansible.cfg": "[defaults]\nstdout_callback = minimal\n"}, says="a | SUCCESS"
    ),
    "variables of the caller": Case(
        "site.yml -i hosts",
        {"site.yml": play([tell("shown"), tell("skipped", "Skip", ", when: false")])},
        variables={"ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false"},
    ),
    "a question with a default": Case(
        "site.yml -i hosts",
        {"site.yml": play([tell("{{ who }}")], HEAD + "  vars_prompt: [{name: who, prompt: Who, default: nobody}]\n")},
        says="nobody",
        warns="site.yml asks for who (vars_prompt)",
    ),
    "a pause": Case(
        "site.yml -i hosts",
        {"site.yml": play(["pause: {prompt: Go on}", tell("after")])},
        says="after",
        warns="site.yml pauses until somebody answers",
    ),
    "nobody is reached": Case(
        "site.yml -i nowhere",
        {"nowhere": "a ansible_host=127.0.0.1 ansible_port=1 ansible_connection=ssh\n", "site.yml": play(["ping:"])},
        code=4,
        says="unreachable=1",
    ),
    "no hosts": Case("site.yml -i hosts -l nobody", code=1, says="no hosts to target"),
    "a module becomes": Case("-m command -a id\\ -un -i hosts -l a -b --become-method su", says="root"),
    "a module of the project's collection": Case("-m acme.tools.shout -a text=hi -i hosts -l a", COLLECTION, says="HI"),
    "a module of a directory": Case(
        "-m shout -M library -a text=hi -i hosts -l a",
        {"library/shout.py": next(text for name, text in COLLECTION.items() if name.endswith("shout.py"))},
        says="HI",
    ),
}

VARIABLES = {
    "group_vars/all/m.yml": "app_port: 8080\n",
    "group_vars/web.yml": "role: front\n",
    "host_vars/b.yml": "role: of b\n",
    "hosts": f"[web]\na ansible_connection=local {LOCAL}\nb ansible_connection=local {LOCAL}\n",
}
DEFAULT, ONELINE = "[defaults]\nstdout_callback = default\n", "[defaults]\nstdout_callback = oneline\n"
LOADED = "bin_ansible_callbacks = True\n"
ON_A = "-i hosts -l a"
#: What a sysadmin types each day, as `ansible all WORDS` and as `meshctl job run WORDS`.
AD_HOC = {
    "ping": Case("-m ping -i hosts", says="b | SUCCESS"),
    "a list of hosts": Case("-m ping -i localhost, -c local -e ansible_python_interpreter={{ansible_playbook_python}}", says="localhost | SUCCESS"),
    "a command": Case(f"-m command -a echo\\ hi {ON_A}", says="a | CHANGED | rc=0 >>\nhi"),
    "a shell": Case(f"-m shell -a echo\\ one;echo\\ two {ON_A}", says="one\ntwo"),
    "a command that fails": Case(f"-m command -a false {ON_A}", code=2, says="FAILED | rc=1"),
    "a program that is missing": Case(f"-m command -a nosuchprogram {ON_A}", code=2, says="FAILED"),
    "an argument that is wrong": Case(f"-m ping -a nosuch=1 {ON_A}", code=2, says="nosuch"),
    "nobody is like that": Case("-m ping -i hosts -l nobody", code=1, says="no hosts to target"),
    "check and diff": Case(f"-m copy -a content=new\\ dest=./by-ad-hoc {ON_A} -C -D", says="+new"),
    "the hosts alone": Case("-m ping -i hosts --list-hosts", says="hosts (2)"),
    "variables of a group": Case(f"-m debug -a var=app_port {ON_A}", VARIABLES, says='"app_port": 8080'),
    "variables of one group": Case("-m debug -a var=role -i hosts", VARIABLES, says="front"),
    "variables of a host": Case("-m debug -a var=role -i hosts -l b", VARIABLES, says="of b"),
    "variables beside an inventory elsewhere": Case(
        "-m debug -a var=app_port -i inv/hosts -l a", {**VARIABLES, "inv/hosts": VARIABLES["hosts"]}, says="8080"),
    "those of the inventory and those of the directory": Case(
        "-m debug -a msg={{app_port}}-{{role}} -i inv/hosts -l a",
        {**VARIABLES, "inv/hosts": VARIABLES["hosts"], "inv/group_vars/all.yml": "app_port: 9\nrole: of the inventory\n"}, says="8080-front"),
    "a directory as inventory": Case("-m debug -a var=role -i inv -l a", {**VARIABLES, "inv/hosts": VARIABLES["hosts"]}, says="front"),
    "variables of the command line": Case(f"-m debug -a var=app_port -e app_port=1 {ON_A}", VARIABLES, says='"1"'),
    "an interpreter of the variables": Case(
        "-m ping -i web1, -c local", {"group_vars/all.yml": "ansible_python_interpreter: '{{ ansible_playbook_python }}'\n"}, says="web1 | SUCCESS"),
    "a user of the variables": Case(
        "-m debug -a var=ansible_user -i hosts -l a", {"group_vars/all.yml": "ansible_user: deploy\n"}, says="deploy"),
    "an encrypted variable": Case(
        "-m debug -a var=inner -i hosts -l a --vault-password-file pass.txt",
        {**VAULTED, "site.yml": play([tell("x")], HEAD + "  vars_files: [inner.yml]\n"), "group_vars/all/inner.yml": "@inner.yml"}, says="opened"),
    "a file by a relative path": Case(f"-m copy -a src=files/f.txt\\ dest=./by-ad-hoc {ON_A} -C", {"files/f.txt": "text\n"}, says="CHANGED"),
    "a template by a relative path": Case(f"-m template -a src=t.j2\\ dest=./by-ad-hoc {ON_A} -C", {"t.j2": "{{ 6 * 7 }}\n"}, says="CHANGED"),
    "a script by a relative path": Case(f"-m script -a ./s.sh {ON_A}", {"s.sh": "#!/bin/sh\necho scripted\n"}, says="scripted"),
    "a file that is looked up": Case(f"-m debug -a msg={{{{lookup('file','files/f.txt')}}}} {ON_A}", {"files/f.txt": "looked up\n"}, says="looked up"),
    "the callback default": Case(f"-m command -a echo\\ uptime {ON_A}", {"ansible.cfg": DEFAULT}, says="uptime"),
    "the callback oneline": Case(f"-m command -a echo\\ uptime {ON_A}", {"ansible.cfg": ONELINE}, says="rc=0 >>"),
    "the callback minimal, loaded": Case(f"-m command -a echo\\ uptime {ON_A}", {"ansible.cfg": "[defaults]\nstdout_callback = minimal\n" + LOADED}, says="rc=0 >>"),
    "the callback default, loaded": Case(f"-m command -a echo\\ uptime {ON_A}", {"ansible.cfg": DEFAULT + LOADED}, says="rc=0 >>"),
    "callbacks that are enabled": Case(
        f"-m ping {ON_A}", {"ansible.cfg": "[defaults]\ncallbacks_enabled = tree\n"}, says="a | SUCCESS"),
    "more words": Case(f"-m debug -a msg=more {ON_A} -v", says="a | SUCCESS"),
    "hidden": Case(f"-m debug -a msg=hidden {ON_A}", variables={"ANSIBLE_NO_LOG": "True"}, says="a | SUCCESS"),
    "a handful at a time": Case("-m debug -a msg=hi -i hosts -f 1", {"ansible.cfg": "[defaults]\nforks = 2\n"}, says="b | SUCCESS"),
}


@pytest.fixture(scope="module")
def control(request):
    """One node that does everything."""
    if not ANSIBLE_RUNNER.exists():
        pytest.skip(f"there is no ansible-runner in {VENV}")
    from conftest import scoped_mesh

    with scoped_mesh(request.node) as mesh:
        runner = command_type("own", str(ANSIBLE_RUNNER), "worker", runtime=True)
        mesh.node("control", extra=[{"work-controller": {"nodetype": "hybrid", "poll": "1s", **own_runner(runner)}}])
        mesh.start()
        until("the runner's answer", lambda: any(one["capacity"] for one in ask(mesh["control"], "instance.list")["instances"]), HEALTHY)
        yield mesh["control"]


def write(root, files):
    usual = {
        "site.yml": play([tell("hello"), "{name: Change, command: 'true'}"]),
        "hosts": f"a ansible_connection=local {LOCAL}\nb ansible_connection=local {LOCAL}\n",
    }
    for name, text in (usual | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    if "vars_files: [inner.yml]" in (root / "site.yml").read_text():
        words = [*VAULT, "--vault-password-file", str(root / "pass.txt")]
        text = subprocess.run(words, check=True, capture_output=True, text=True, env=environment(), timeout=60).stdout
        for name in ("inner.yml", *(name for name, text in files.items() if text == "@inner.yml")):
            (root / name).write_text(text)
    return root


def run(words, root, variables, **more):
    return subprocess.run(words, cwd=root, text=True, env=environment(ANSIBLE_FORKS="1", **variables), timeout=120,
                          stdout=subprocess.PIPE, **{"stdin": subprocess.DEVNULL} | more)


def ours(control, words, root, **variables):
    return run([str(MESHCTL), "--socket", str(control.socket), "job", "run", *words], root, variables, stderr=subprocess.PIPE)


def words_of(case):
    return [word.replace("\\ ", " ") for word in re.split(r"(?<!\\) ", case.words)]


DIRECTORY = re.compile(r"/[\w./-]*/(?:project|unwritten[\w-]*|habit[\w-]*)/")


def same(text):
    """Directories and times are of the machine, not of ansible."""
    return re.sub(r'"(start|end|delta)": "[^"]*"', r'"\1": ""', DIRECTORY.sub("DIR/", text))


@pytest.mark.parametrize("name", AD_HOC)
def test_a_module_prints_the_same(control, name, tmp_path):
    case = AD_HOC[name]
    root = write(tmp_path / "habit", case.files)
    theirs = run([str(VENV / "bin" / "ansible"), "all", *words_of(case)], root, case.variables, stderr=subprocess.STDOUT)
    done = ours(control, words_of(case), root, **case.variables)
    assert case.says in theirs.stdout and (theirs.returncode, done.returncode) == (case.code, case.code), (theirs, done)
    # `Origin:` names the file of the node.
    plain = lambda text: re.sub(r"^(Origin:).*", r"\1", same(text), flags=re.M)  # noqa: E731
    assert plain(done.stdout) == plain(theirs.stdout), done


@pytest.mark.parametrize("name", CASES)
def test_the_same_words_print_the_same(control, name, tmp_path):
    case = CASES[name]
    if "su" in words_of(case) and not SU:
        pytest.skip("SKIPPED: only root becomes somebody else without a password")
    words = words_of(case)
    is_module = words[0] == "-m"
    root = write(tmp_path / "habit", case.files)
    program = [str(VENV / "bin" / "ansible"), "all"] if is_module else [str(VENV / "bin" / "ansible-playbook")]
    theirs = run([*program, *words], root, case.variables, stderr=subprocess.STDOUT)
    done = ours(control, words, root, **case.variables)
    assert case.says in theirs.stdout and (theirs.returncode, done.returncode) == (case.code, case.code), (theirs, done)
    assert same(done.stdout) == same(theirs.stdout), done
    number = re.search(r"^Job (\d+)$", done.stderr, re.M)
    assert number and case.warns in done.stderr.split(number[0])[0], done.stderr
    if not case.warns:
        assert done.stderr.startswith(number[0]), done.stderr
    named = ask(control, "job.get", id=int(number[1]))["name"]
    assert named == (" ".join([words[1], *words[words.index("-a") + 1 :][:1]]) if "-a" in words else words[0]), named


def test_what_nobody_can_answer_is_refused_before_it_is_sent(control, tmp_path):
    root = write(tmp_path / "habit", {"asks.yml": play([tell("{{ who }}")], HEAD + "  vars_prompt: [{name: who}]\n")})
    # Its row may still change.
    last = lambda: ask(control, "job.list", limit=1)["jobs"][0]["id"]  # noqa: E731
    before = last()
    for words, text in [
        (["asks.yml"], "asks.yml asks for who (vars_prompt), but nobody can answer a job: give -e who=VALUE"),
        (["site.yml", "--step"], "--step asks before each task, and nobody can answer a job"),
        (["none.yml"], "there is no playbook none.yml"),
        (["site.yml", "-i", "none"], "cannot read none: No such file or directory"),
        (["."], ". is a directory: name the playbook in it with -p"),
        ([], "say what to run: a playbook, as in `meshctl job run site.yml`, or -m MODULE"),
        (["site.yml", "-M", "/usr/share"], "--module-path: /usr/share is not in the project"),
    ]:
        done = ours(control, words, root)
        assert done.returncode == 64 and text in done.stderr, (words, done)
    assert last() == before
    assert ours(control, ["asks.yml", "-i", "hosts", "-e", "who=me"], root).returncode == 0


def test_a_vaults_password_is_typed_or_of_the_settings(control, tmp_path):
    elsewhere = tmp_path / "vault.txt"
    elsewhere.write_text("secret\n")
    root = write(tmp_path / "habit", VAULTED)
    command = [str(MESHCTL), "--socket", str(control.socket), "job", "run", "site.yml", "-i", "hosts"]
    typed = subprocess.run([*command, "-J"], cwd=root, input="secret\n", capture_output=True, text=True, env=environment(),
                           start_new_session=True, timeout=120)
    assert typed.returncode == 0 and "opened" in typed.stdout and "assword" not in typed.stdout, typed
    (root / "ansible.cfg").write_text(f"[defaults]\nvault_password_file = {elsewhere}\n")
    settings = ours(control, ["site.yml", "-i", "hosts"], root)
    assert settings.returncode == 0 and "opened" in settings.stdout, settings


def test_the_page_lists_the_variables_that_travel():
    code = (ROOT / "src" / "controller" / "pack" / "settings.rs").read_text()
    page = (ROOT / "docs" / "ansible-playbook.md").read_text()
    travelling = re.findall(r'"(ANSIBLE_\w+)",\n', code)
    assert len(travelling) > 30 and [name for name in travelling if f"`{name}`" not in page] == []


def test_standard_input_of_a_playbook_is_no_terminal(control, tmp_path):
    root = write(tmp_path / "habit", {"site.yml": play([tell("{{ lookup('pipe', 'test -t 0 && echo terminal || echo none') }}")])})
    done = ours(control, ["site.yml", "-i", "hosts", "-l", "a"], root)
    assert '"msg": "none"' in done.stdout, done
