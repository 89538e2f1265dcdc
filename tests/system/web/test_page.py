"""The page of a node, in a real browser: tests/browser/check.mjs looks at it, tests/browser/stand_in.py is the node, and at
the end a real one is. MESHD_PICTURES names a directory for pictures of what was looked at.
"""

import base64
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from gitserver import Repository
from mesh import ANSIBLE_RUNNER, ROOT, command_type, environment, own_runner, until
from project import GREETING, INVENTORY
from web import directive

BROWSER = ROOT / "tests" / "browser"
PAGE = ROOT / "src" / "http" / "page"
sys.path.insert(0, str(BROWSER))
import stand_in  # noqa: E402

CHROMIUM, NODE = shutil.which("chromium"), shutil.which("node")
MISSING = not (CHROMIUM and NODE and (BROWSER / "node_modules" / "playwright-core").is_dir())
if MISSING and os.environ.get("CI") == "true":
    raise RuntimeError("chromium, node or tests/browser/node_modules is missing: ./tests/run installs them")
pytestmark = pytest.mark.skipif(MISSING, reason="chromium, node or tests/browser/node_modules is missing: ./tests/run installs them")

SECONDS = 100
#: Of the page: all its lines, and the longest one.
LINES, WIDTH = 3_000, 120
#: A job that runs, of a mesh with so many.
JOBS, RUNNING = 100, 99


def check(name, **options):
    """Runs one of the checks; returns what it prints."""
    pictures = os.environ.get("MESHD_PICTURES")
    if pictures:
        pathlib.Path(pictures).mkdir(parents=True, exist_ok=True)
    options = {"chromium": CHROMIUM, "pictures": pictures, **options}
    done = subprocess.run([NODE, str(BROWSER / "check.mjs"), name, json.dumps(options)], capture_output=True, text=True, timeout=SECONDS, env=environment())
    assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def look(name, size=30, jobs=JOBS, hostile=False, saved=60, **options):
    """The same with a node that stands in; returns its mesh."""
    node = stand_in.Node(size, jobs, hostile=hostile, saved=saved)
    remote = stand_in.Remote(node)
    try:
        check(name, url=node.url, remote=remote.url, nodes=size, job=RUNNING, **options)
    finally:
        node.stop()
        remote.shutdown()
        remote.server_close()
    return node.mesh


@pytest.mark.parametrize(("size", "jobs"), [(3, JOBS), (30, JOBS), (200, 100_000)])
def test_each_view_fits_the_screen_and_has_no_barrier(size, jobs):
    look("views", size, jobs)


@pytest.mark.parametrize("phone", [False, True])
@pytest.mark.parametrize("size", [3, 30, 200, 1000])
def test_no_two_labels_overlap_and_links_run_beside_them(size, phone):
    look("labels", size, phone=phone)


def test_a_thousand_nodes_are_drawn_at_once():
    look("drawing", 1000)


def test_a_link_that_flaps_and_a_node_that_comes_move_nobody():
    look("flapping")


def test_everything_is_reached_by_keyboard():
    look("keyboard", 200)


def test_what_strangers_write_stays_text_in_its_box():
    look("hostile", 8, hostile=True)


def test_the_page_outlives_a_restart_of_its_node():
    look("restart")


def test_a_tab_that_nobody_sees_holds_no_connection():
    look("unseen")


def test_a_viewer_without_events_sees_what_happens_all_the_same():
    look("refused")


def test_two_viewers_see_what_one_of_them_does():
    look("two_viewers")


def test_a_host_is_let_in_by_click_after_a_look_at_its_fingerprint():
    look("enrolment")


def test_what_is_wrong_is_a_number_on_every_view_and_leads_there():
    look("numbers")


def test_a_hundred_thousand_jobs_are_pages_of_fifty():
    look("many_jobs", jobs=100_000)


@pytest.mark.parametrize("phone", [False, True])
def test_a_saved_job_is_started_and_its_schedule_paused(phone):
    start, = look("saved", phone=phone).starts
    assert start == {"version": "v1.2", "target": "test", "region": "west", "batch": "3", "share": "0.5", "dry": "false", "fast": "false",
                     "hosts": '{"a": [1]}', "notes": "one\ntwo", "empty": "", "password": "s3cr3t of start"}


def test_twenty_thousand_saved_jobs_are_pages_of_twenty_five():
    look("many_saved", saved=20_000)


def test_a_long_output_is_bounded():
    look("long_output")


def test_a_failed_job_opens_at_its_failure():
    look("failure", job_name="nightly patch of all web servers in " + "region-" * 30)


def test_another_node_is_examined_from_the_page():
    look("doctor")


def test_tasks_open_to_hosts_and_hosts_to_their_results():
    look("tasks")


def test_a_large_playbook_is_folded_into_its_tasks():
    look("many_tasks", letters=1)


def test_a_level_sees_what_it_may():
    look("sessions")


def test_a_launch_is_what_ansible_runner_transmits():
    text = "all:\n  hosts:\n    wöb1:"
    fields = {"Project (git)": " https://git.example/site.git ", "Branch, tag or commit": "main", "Playbook": "site.yml", "Inventory": text,
              "Variables": "colour: grün\n", "Limit": "web", "Name": "a launch", "Credential": "git", "Tags": "a,b", "Skip tags": "slow", "Vault password": "s3cr3t of vault"}
    header, kwargs, size, rest = look("launch", fields=fields, group="east").submission.split(b"\n", 3)
    assert json.loads(header) == {"controller": 1, "name": "a launch", "groups": {"launch": ["east"]},
                                  "sync": {"url": "https://git.example/site.git", "revision": "main", "credential": "git"}}
    kwargs = json.loads(kwargs)["kwargs"]
    assert re.fullmatch(r"[0-9a-f-]{36}", kwargs.pop("ident")) and kwargs == {
        "playbook": "site.yml", "limit": "web", "tags": "a,b", "skip_tags": "slow", "cmdline": "--check --diff --vault-id=default@../env/vault_0"}
    packed, end = rest.split(b"{", 1)
    packed = base64.b64decode(packed, validate=True)
    assert len(packed) == json.loads(size)["zipfile"] and json.loads(b"{" + end) == {"eof": True}
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.testzip() is None
        files = {one.filename: (oct(one.external_attr >> 16), archive.read(one).decode()) for one in archive.infolist()}
    assert files["inventory/hosts"] == ("0o100600", text + "\n") and files["env/extravars"] == ("0o100600", "colour: grün\n")
    assert files["env/vault_0"] == ("0o100600", "s3cr3t of vault")
    # A playbook that asks somebody gets an empty answer, as with meshctl.
    assert files["env/callback/no_terminal.py"][1] == stand_in.PLUGIN.read_text()
    assert json.loads(files["env/envvars"][1]) == {"ANSIBLE_CALLBACK_PLUGINS": "../env/callback"}


@pytest.mark.parametrize("length", [1, 7, 1 << 20])
def test_a_runner_hides_nothing_behind_a_length_that_it_invents(tmp_path, length):
    line = lambda **event: json.dumps(event).encode() + b"\n"  # noqa: E731
    packed = base64.b64encode(b"PK ok")
    stream = [
        line(zipfile=(1 << 53) - 1), packed[:4] + b"\r\n" + packed[4:7], line(event="a", stdout="seen"),
        line(zipfile=5), packed[:4] + b" \n\t" + packed[4:], line(event="b", stdout="whole"),
        line(zipfile=4), packed[:3] + b"=====", b"words\n", line(zipfile=1 << 40), line(event="c", stdout="too"),
    ]
    (tmp_path / "stream").write_bytes(b"".join(stream))
    assert check("playbook", stream=str(tmp_path / "stream"), length=length) == "seen\nwhole\nwords\ntoo\n"


@pytest.mark.parametrize("length", [1, 7, 1 << 20])
def test_each_text_has_its_place_in_the_stream(tmp_path, length):
    packed = base64.b64encode(b"PK ok")
    lines = [b'{"event": "a", "stdout": "one"}\n', b'{"zipfile": 5}\n' + packed, b'{"event": "b", "stdout": "two"}\n', b"words\n"]
    (tmp_path / "stream").write_bytes(b"".join(lines))
    begins = [sum(map(len, lines[:at])) for at in range(4)]
    told = check("playbook", stream=str(tmp_path / "stream"), length=length, places=True)
    assert told == f"{begins[0]} one\n{begins[2]} two\n{begins[3]} words\n"


@pytest.mark.parametrize("length", [1, 7, 1 << 20])
def test_a_stream_becomes_what_the_playbook_prints(tmp_path, length):
    line = lambda **event: json.dumps(event, ensure_ascii=False).encode() + b"\n"  # noqa: E731
    packed = base64.b64encode(b"PK\n{not a line" * 9)
    stream = [
        line(status="starting"), line(event="playbook_on_start", stdout="", start_line=0, end_line=0),
        line(event="playbook_on_play_start", stdout="\r\nPLAY [äll] ***", start_line=0, end_line=2), line(event="keepalive"),
        line(event="runner_on_ok", stdout="ok", start_line=2, end_line=4), line(event="verbose", stdout="", start_line=4, end_line=5),
        line(event="big", stdout="x" * (4 << 20)), line(status="error", job_explanation="the node was lost"),
        line(zipfile=len(b"PK\n{not a line" * 9)), packed, line(eof=True), line(status="starting"), line(event="x", stdout="again"),
        b"Traceback: no runner\n", line(status="successful"), line(eof=True),
    ]
    (tmp_path / "stream").write_bytes(b"".join(stream if length > 7 else [one for one in stream if len(one) < 1 << 20]))
    told = check("playbook", stream=str(tmp_path / "stream"), length=length)
    assert told == "\nPLAY [äll] ***\nok\n\n\n\n(the node was lost: it starts again)\nagain\nTraceback: no runner\n"


def test_a_large_mesh_is_folded_and_the_same_picture_for_all():
    look("picture", 200)


SLOW = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Sleep
      ansible.builtin.command: sleep 300
"""


SAVED = """
module: debug
args: msg={{ word }}
inventory: |
  # its one host
  here ansible_connection=local
vars: {word: {pattern: "[a-z]+"}}
schedule: {cron: "30 2 * * *", vars: {word: nightly}}
"""


def test_a_playbook_is_launched_followed_and_cancelled_on_a_real_node(mesh, tmp_path):
    repository = Repository(tmp_path / "site")
    repository.write("site.yml", GREETING.replace("across the mesh", "{{ word }} across the mesh"))
    repository.write("slow.yml", SLOW)
    repository.commit()
    runs, jobs = tmp_path / "runs", tmp_path / "jobs.d"
    runs.mkdir()
    jobs.mkdir()
    (jobs / "greet.yml").write_text(SAVED)
    runner = lambda name: command_type(name, str(ANSIBLE_RUNNER), "worker", runtime=True)  # noqa: E731
    settings = {"discovery": "enabled", "rundir": str(runs), "poll": "1s", "heartbeat": "200ms", "ownerlostafter": "10s", "requiretls": False, "jobs": str(jobs)}
    web, client = directive(tmp_path)
    control = mesh.node("control", listen=True, extra=[{"work-controller": settings | own_runner(runner("own"))}, web])
    mesh.node("e1", peers=["control"], work=[runner("ansible-runner")])
    mesh.start()
    instances = lambda: control.command({"command": "controller", "op": "instance.list"})["result"]["instances"]  # noqa: E731
    until("the runner's answer", lambda: any(one["name"] == "e1" and one["capacity"] > 0 for one in instances()), 60)
    project = {"Project (git)": repository.url, "Branch, tag or commit": "main", "Playbook": "site.yml", "Inventory": INVENTORY, "Variables": "word: said"}
    remote = stand_in.Remote(control)
    try:
        check("real", url=f"http://127.0.0.1:{client.port}/", remote=remote.url, nodes=2, project=project, printed="it said said across the mesh")
    finally:
        remote.shutdown()
        remote.server_close()


def test_the_page_is_small_and_has_nothing_from_elsewhere():
    files = sorted(PAGE.iterdir())
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    for file in files:
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|DOMParser|\.style\b|style=|srcdoc", text), file
        # The name space of SVG is no address, and the example of a project is none that the page asks.
        others = re.findall(r"[\"'`(](?:https?:)?//[^\"'`)]+", re.sub(r"^\s*//.*|/\*.*?\*/", "", text, flags=re.MULTILINE | re.DOTALL))
        assert set(others) <= {'"http://www.w3.org/2000/svg', '"https://git.example/team/site.git'}, file
