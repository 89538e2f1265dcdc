"""Saved jobs: files of a control node that are listed, shown and started by their names, with the real runner."""

import json
import os
import signal
import subprocess

import pytest

import metrics
import web
from mesh import ANSIBLE_RUNNER, MESHCTL, MESHD, command_type, environment, own_runner, until
from test_controller import ask, ended, is_ready, job

PATIENCE = 240
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Tell
      ansible.builtin.debug:
        msg: "{{ greeting }} {{ count + 1 }} {{ password | length }} {{ colour }}"
"""
SAVED = """
description: Greets
directory: {site}
playbook: site.yml
inventory: |
  # one line more
  here ansible_connection=local
extra_vars: {{colour: green}}
labels: {{team: web}}
timeout: 10m
vars:
  greeting: {{description: what it says, choices: [hello, good morning], default: hello}}
  count: {{type: int, default: 3}}
  password: {{secret: true, pattern: '[a-z-]+'}}
"""
PROBE = """
module: debug
args: msg={{ word }}
inventory: |
  # two lines
  here ansible_connection=local
vars: {word: {default: a}}
"""
CANARY = "canary-of-saved"


@pytest.fixture
def saved(mesh, tmp_path):
    """A hybrid node with one saved job: the node, the directory, and a function that runs meshctl."""
    jobs, site = tmp_path / "jobs.d", tmp_path / "site"
    jobs.mkdir()
    site.mkdir()
    (site / "site.yml").write_text(PLAYBOOK)
    (jobs / "greet.yml").write_text(SAVED.format(site=site))
    settings = {"nodetype": "hybrid", "discovery": "enabled", "poll": "1s", "rundir": str(tmp_path), "jobs": str(jobs)}
    settings |= own_runner(command_type("own", str(ANSIBLE_RUNNER), "worker", runtime=True))
    listener, port = metrics.directive()
    page, client = web.directive(tmp_path)
    control = mesh.node("control", extra=[{"work-controller": settings}, listener, page])
    mesh.start()
    until("the instance to be ready", lambda: is_ready(control), PATIENCE)

    def meshctl(*words, text="", check=0, socket=True):
        where = ("--socket", str(control.socket)) if socket else ()
        done = subprocess.run([MESHCTL, *where, *words], input=text, capture_output=True, text=True, env=environment(),
                              timeout=PATIENCE, start_new_session=True)
        assert done.returncode == check, done
        assert CANARY not in done.stdout + done.stderr
        return done

    return control, jobs, (port, client), meshctl


def test_a_saved_job_is_started_with_variables_and_its_secret_is_nowhere_else(saved, tmp_path):
    control, jobs, _, meshctl = saved
    assert meshctl("saved", "check", str(jobs), socket=False).stdout == "1 file right\n"
    shown = meshctl("saved", "show", "greet").stdout
    assert "Greets" in shown and "site.yml" in shown and "2 lines" in shown and "text, secret" in shown, shown
    assert "green" not in shown, "values of extra variables are not shown"
    one, = json.loads(meshctl("--json", "saved", "list").stdout)["saved"]
    assert (one["name"], one["runs"], one["fault"], len(one["hash"])) == ("greet", "site.yml", None, 16)

    done = meshctl("saved", "start", "greet", "-e", "greeting='good morning' count=4", "--follow", text=f"{CANARY}\n")
    assert f"good morning 5 {len(CANARY)} green" in done.stdout, done
    first = job(control, 1)
    assert (first["name"], first["launched_by"], first["state"]) == ("greet", f"unix:{os.geteuid()}", "successful")
    assert first["labels"] == {"team": "web", "meshd/saved": "greet", "meshd/saved-hash": one["hash"]}
    assert first["header"]["timeout"] == "10m0s"

    (tmp_path / "vars.json").write_text(json.dumps({"password": CANARY}))
    assert meshctl("saved", "start", "greet", "-e", f"@{tmp_path}/vars.json").stdout == "2\n"
    ended(control, 2)
    for words, text, code, why in [
        (["greet", "-e", "password=x"], "", 64, "password is secret"),
        (["greet", "-e", "greeting=no"], "x\n", 1, "greet: greeting: it must be one of hello, good morning"),
        (["greet", "-e", "cuont=4"], "x\n", 1, "greet: there is no variable cuont: did you mean count?"),
        (["greet"], "WRONG-canary\n", 1, "greet: password: it does not match [a-z-]+"),
        (["nothing"], "", 1, "there is no saved job nothing on this control node"),
    ]:
        refused = meshctl("saved", "start", *words, text=text, check=code)
        assert why in refused.stderr and "WRONG" not in refused.stderr, refused
    assert len(ask(control, "job.list")["jobs"]) == 2, "what is refused leaves nothing"

    found = [path for path in control.dir.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert not found, "in the payload it is compressed, and it is in nothing else"
    assert CANARY not in control.log() and CANARY not in json.dumps([ask(control, "audit.list"), job(control, 1), job(control, 2)])
    again = ask(control, "job.rerun", id=1)["id"]
    (jobs / "greet.yml").write_text((jobs / "greet.yml").read_text().replace("green", "red"))
    meshctl("reload")
    assert ended(control, again)["labels"]["meshd/saved-hash"] == one["hash"]
    assert "green" in meshctl("job", "output", str(again), "--text").stdout, "what ran runs again, not what the file says now"
    assert [one["id"] for one in json.loads(meshctl("--json", "job", "list", "--saved", "greet").stdout)["jobs"]] == [3, 2, 1]
    assert json.loads(meshctl("--json", "job", "list", "--saved", "gre").stdout)["jobs"] == []
    stream = '{"kwargs": {"ident": "x"}}\n{"eof": true}\n'
    line = json.dumps({"controller": 1, "labels": {"meshd/saved": "greet"}})
    for words, text in [(["--label", "meshd/saved=greet"], stream), ([], f"{line}\n{stream}")]:
        forged = meshctl("job", "submit", *words, text=text, check=101)
        assert "names that begin with meshd/ are the controller's own" in forged.stderr, forged


def test_a_broken_file_keeps_its_last_good_version_and_says_so_everywhere(saved):
    control, jobs, (port, _), meshctl = saved
    good = (jobs / "greet.yml").read_text()
    (jobs / "greet.yml").write_text(good.replace("timeout", "timeuot"))
    (jobs / "new.yml").write_text("playbook: a.yml\n")
    meshctl("reload")
    line = good.splitlines().index("timeout: 10m") + 1
    why = f"{jobs}/greet.yml:{line}: unknown key `timeuot`: did you mean `timeout`?"
    by_name = {one["name"]: one for one in ask(control, "saved.list")["saved"]}
    assert by_name["greet"]["fault"] == why and by_name["greet"]["hash"], by_name
    assert by_name["new"]["hash"] is None and "project: it is missing" in by_name["new"]["fault"]
    assert f"greet.yml:{line}" in meshctl("saved", "list", "-o", "wide").stdout
    assert "did you mean" in control.log() and "last good version" in control.log()
    assert why in meshctl("saved", "check", str(jobs), check=1, socket=False).stdout
    assert any(why in finding["what"] for finding in json.loads(meshctl("--json", "doctor").stdout))
    for words, code in [(["--running"], 0), ([], 1)]:
        checked = subprocess.run([MESHD, "check", *words, str(control.config)], capture_output=True, text=True, env=environment(), timeout=60)
        assert why in checked.stdout + checked.stderr and checked.returncode == code, "a reload must not fail for it"
    told = metrics.scrape(port)
    assert [metrics.value(told, f"meshd_controller_saved_jobs{end}") for end in ("", "_broken")] == [2, 2]

    assert meshctl("saved", "start", "greet", "-q", text="abc\n").stdout == "1\n", "the last good version is started"
    assert ended(control, 1)["state"] == "successful"
    assert "its file has never been right" in meshctl("saved", "start", "new", check=1).stderr
    (jobs / "greet.yml").write_text(good)
    (jobs / "new.yml").unlink()
    control.process.send_signal(signal.SIGHUP)
    until("the reload", lambda: [one["fault"] for one in ask(control, "saved.list")["saved"]] == [None])
    (jobs / "greet.yml").chmod(0o666)
    meshctl("reload")
    assert "others can write to it" in ask(control, "saved.get", name="greet")["fault"]


def test_the_page_starts_what_reads_nothing_of_the_control_node(saved):
    control, jobs, (_, client), meshctl = saved
    (jobs / "probe.yml").write_text(PROBE)
    meshctl("reload")
    assert [one["name"] for one in client.get("/api/v1/saved", "t-read").json["saved"]] == ["greet", "probe"]
    assert client.get("/api/v1/saved?after=greet&limit=1", "t-read").json["saved"][0]["name"] == "probe"
    assert client.get("/api/v1/saved/greet", "t-read").json["vars"]["password"]["secret"] is True
    start = lambda name, token, **vars: client.post(f"/api/v1/saved/{name}/start", {"vars": vars}, token)  # noqa: E731
    assert start("probe", "t-read").status == 403
    started = start("probe", "t-operate", word="b")
    assert started.status == 200 and started.json["id"] == 1, started.body
    first = ended(control, 1)
    assert (first["state"], first["launched_by"], first["kind"], first["module"]) == ("successful", "web:operate", "ad_hoc", "debug"), first
    assert '"msg": "b"' in meshctl("job", "output", "1", "--text").stdout
    refused = start("greet", "t-operate", password=CANARY)
    assert refused.code == "refused" and "need admin rights" in refused.json["error"]["message"], refused.body
    jobs_of = lambda name, token: client.get(f"/api/v1/jobs?saved={name}", token)  # noqa: E731
    assert [[one["id"] for one in jobs_of(name, "t-read").json["jobs"]] for name in ("probe", "greet")] == [[1], []]
    assert client.get("/api/v1/counts?saved=probe", "t-read").json["states"] == {"successful": 1}
    assert [client.get(f"/api/v1/{path}?saved=probe").status for path in ("jobs", "counts")] == [401, 401], "labels need a level"
    assert start("probe", "t-operate", wrod="b").code == "bad_request"
    assert start("nothing", "t-operate").code == "not_found"
    assert start("greet", "t-admin", password=CANARY).json["id"] == 2
    assert ended(control, 2)["launched_by"] == "web:admin"
