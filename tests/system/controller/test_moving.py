"""Types docs/moving.md: a control node moves to another machine, is restored on an empty one, and its store goes from SQLite to
PostgreSQL and back."""

import contextlib
import json
import re
import subprocess

import pytest

import conftest
import hosts as harness
import postgres
from mesh import MESHCTL, ROOT, environment, until
from test_controller import ask, ended, submit
from test_controller_operations import hybrid

BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "moving.md").read_text(), re.S)
STREAM = """printf '{"kwargs": {"ident": "one", "lines": 1}}\\n{"eof": true}\\n' | meshctl job submit"""


@pytest.mark.skipif(not harness.are_possible(), reason="needs root and namespaces")
def test_a_control_node_moves_and_is_restored_on_an_empty_host(request):
    with conftest.scoped_mesh(request.node) as mesh:
        world = harness.Hosts(mesh, "control", "new", "bare")
        old, new, bare = (world[name] for name in world.names)
        old.run("apt install ./meshd.deb")
        old.file("/etc/meshd/conf.d/20-control.yml").write_text("- node: {id: control, datadir: /var/lib/meshd}\n- work-controller: {nodetype: hybrid}\n")
        old.run("systemctl enable --now meshd")
        number = re.search(r"\d+", old.run(STREAM))[0]
        old.run(f"meshctl job wait {number}", 120)
        assert "it exists already: give the name of a file" in old.fails("touch there.db; meshctl controller backup there.db")
        old.run("meshctl controller backup /var/lib/meshd/backup.db && scp /var/lib/meshd/backup.db root@bare.example.org:")
        for host, block in ((old, BLOCKS[0]), (new, BLOCKS[1])):
            printed = host.run(block)
        assert re.search(rf"^{number} .*successful", printed, re.M), printed
        assert new.run(f"meshctl job output {number}") and int(re.search(r"\d+", new.run(STREAM))[0]) > int(number)
        # A host on which no node ever ran.
        bare.run("apt install ./meshd.deb && rm -r /var/lib/meshd/* 2>/dev/null || true")
        bare.file("/etc/meshd/conf.d/20-control.yml").write_text(old.file("/etc/meshd/conf.d/20-control.yml").read_text())
        bare.run(BLOCKS[2])
        (job,) = json.loads(bare.run("meshctl --json job list"))["jobs"]
        assert (job["id"], job["state"]) == (int(number), "successful"), job
        assert bare.mode("/var/lib/meshd/control/.controller/store.db") == ("0o600", 990, 990)


def copied(node, to, *words):
    return subprocess.run([MESHCTL, "controller", "copy", "--config", node.config, "--to", to, *words], capture_output=True,
                          text=True, env=environment(), timeout=120)


@pytest.fixture
def server():
    with contextlib.ExitStack() as ends:
        server = postgres.Postgres()
        ends.callback(server.remove)
        yield server.start()


def restart_with(node, store):
    """Stops it, and starts it with another store."""
    node.stop()
    next(one for one in node.directives if "work-controller" in one)["work-controller"]["store"] = store
    node.write_config()
    node.start()


@pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL is not installed")
def test_all_jobs_come_along_to_postgresql_and_back(mesh, tmp_path, server):
    node = hybrid(mesh, tmp_path)
    numbers = [submit(node, {"name": f"job {n}", "labels": {"n": str(n)}}, ident=f"c{n}")[1] for n in range(3)]
    for number in numbers:
        ended(node, number)
    ask(node, "group.create", name="east", max_forks=7)
    url, empty = server.url(server.database()), server.url(server.database())
    # It is open.
    busy = copied(node, url)
    assert busy.returncode == 1 and "is in use by node control" in busy.stderr, busy
    before = everything(node)
    node.stop()
    done = copied(node, url)
    assert done.returncode == 0 and f"Copied into {url}: 3 jobs" in done.stdout and "Outputs and payloads" in done.stdout, done
    again = copied(node, url)
    assert again.returncode == 1 and "it is this store or an earlier copy of it" in again.stderr, again
    restart_with(node, url)
    until("the store", lambda: everything(node) == before)
    _, number = submit(node, ident="later")
    assert number == max(numbers) + 1 and ended(node, number)["state"] == "successful"
    # While it works its lease changes.
    busy = copied(node, f"sqlite:{tmp_path}/back/store.db")
    assert busy.returncode == 1 and "the control node control uses this store: stop it first" in busy.stderr, busy
    # An empty one beside the former one's file.
    restart_with(node, empty)
    node.logged("the store is empty, but there is an older one at this path", "store.db")
    node.stop()
    back = copied(node, f"sqlite:{tmp_path}/back/store.db")
    assert back.returncode == 0 and "0 jobs" in back.stdout, back
    restart_with(node, url)
    node.stop()
    back = copied(node, f"sqlite:{tmp_path}/back/store.db")
    assert back.returncode == 0 and "4 jobs" in back.stdout, back
    restart_with(node, f"sqlite:{tmp_path}/back/store.db")
    assert [one["id"] for one in ask(node, "job.list")["jobs"]] == [number, *reversed(numbers)]
    assert submit(node, ident="last")[1] == number + 1


def test_a_store_of_sqlite_is_copied_without_a_word_of_postgresql(mesh, tmp_path):
    node = hybrid(mesh, tmp_path)
    own, new = f"sqlite:{node.datadir}/control/.controller/store.db", f"sqlite:{tmp_path}/new/store.db"
    busy = copied(node, new)
    assert busy.returncode == 1 and re.search(r"store.db is in use by node control, process \d+: stop that first", busy.stderr), busy
    node.stop()
    same = copied(node, own)
    assert same.stderr == f"meshctl: not copied into {own}: it is this store\n", same
    first, again = copied(node, new), copied(node, new)
    assert first.returncode == 0 and first.stderr == "", first
    text = "it is this store or an earlier copy of it, but a store can only be copied into an empty one"
    assert again.returncode == 1 and again.stderr == f"meshctl: not copied into {new}: {text}\n", again


def everything(node):
    """What operators see, without what changes by itself."""
    jobs = [ask(node, "job.get", id=one["id"]) for one in ask(node, "job.list")["jobs"]]
    groups = [(one["name"], one["max_forks"]) for one in ask(node, "group.list")["groups"]]
    audit = [(one["who"], one["op"], one["target"]) for one in ask(node, "audit.list")["rows"]]
    return jobs, groups, audit, [one["name"] for one in ask(node, "instance.list")["instances"]]
