"""PostgreSQL as the store of a controller: what is between it and its nodes, and what is in it."""

import contextlib
import json
import subprocess

import pytest

import postgres
from mesh import ANSIBLE_RUNNER, MESHD, command_type, environment, until
from test_controller import ask, ended
from test_controller_cli import LOCAL, Secrets, arguments, on_a_terminal, unpacked
from test_controller_many import controller, is_whole, keys, pytestmark, runner, runs, server, shows, submit  # noqa: F401
from test_controller_projects import output_so_far
from test_doctor import examine


@pytest.mark.skipif(not postgres.PGBOUNCER.exists(), reason="PgBouncer is not installed (Debian: apt-get install pgbouncer)")
def test_behind_a_transaction_pooler_everything_works_but_notifications(mesh, server, keys, tmp_path):  # noqa: F811
    database, go = server.database(), tmp_path / "go"
    with contextlib.closing(postgres.Pooler(server)) as pooler:
        mesh.node("hop", listen=True)
        for name in ("c1", "c2"):
            mesh.node(name, peers=["hop"], extra=controller(server.url(database, pooler.port), keys, tmp_path))
        mesh.node("e1", peers=["hop"], work=[runner("ansible-runner")])
        mesh.start()
        c1, c2 = mesh["c1"], mesh["c2"]
        ready = lambda: {one["name"] for one in ask(c2, "instance.list")["instances"] if one["capacity"] > 0} >= {"c1", "c2", "e1"}  # noqa: E731
        until("all instances to be ready", ready, 60)
        for node, other in ((c1, c2), (c2, c1)):
            unit, number = submit(node, ident=node.name)
            assert ended(other, number)["state"] == "successful"
            is_whole(shows(node, unit), node.name)
        unit, number = submit(c1, ident="c", go=str(go))
        runs(c2, number)
        ask(c2, "job.cancel", id=number)
        assert ended(c2, number)["state"] == "canceled"
        shows(c1, unit, "Canceled")
        checked = lambda node: subprocess.run([str(MESHD), "check", "--running", str(node.config)], capture_output=True, text=True, env=environment(), timeout=60)  # noqa: E731
        warning = "store: notifications do not arrive, for example because of a transaction pooler"
        told = checked(c1)
        assert told.returncode == 0 and warning in told.stdout, told
        c1.config.write_text(c1.config.read_text().replace(f":{pooler.port}/", f":{server.port}/"))
        told = checked(c1)
        assert told.returncode == 0 and warning not in told.stdout, told
        mesh.end()


def test_a_database_that_stands_still_does_not_hold_up_the_start_of_a_node(mesh, server, keys, tmp_path):  # noqa: F811
    c1 = mesh.node("c1", listen=True, extra=controller(server.url(server.database()), keys, tmp_path))
    mesh.node("e1", peers=["c1"], work=[runner("ansible-runner")])
    server.pause()
    try:
        mesh.start()
        until("it to say so", lambda: "does not answer" in (ask(c1, "ping")["store"]["error"] or ""))
    finally:
        server.resume()
    until("the store to be there", lambda: ask(c1, "ping")["store"]["up"], 60)
    until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(c1, "instance.list")["instances"]}.get("e1"), 60)
    unit, number = submit(c1, ident="late")
    assert ended(c1, number)["state"] == "successful"
    is_whole(shows(c1, unit), "late")
    mesh.end()


def test_no_secret_is_in_the_store_a_log_a_status_or_an_argument(mesh, server, keys, tmp_path):  # noqa: F811
    """The password of the database, wrong and right, and what a job brings."""
    canary, database = "canary-81c7", server.database()
    server.require_password(database, f"{canary}-database")
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text(f"{canary}-wrong")
    (tmp_path / "vars.yml").write_text(f"word: {canary}-e\n")
    (tmp_path / "vault").write_text(f"{canary}-vault\n")
    go = tmp_path / "go"
    (tmp_path / "project").mkdir()
    wait = f"- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.wait_for: {{path: {go}}}\n"
    (tmp_path / "project" / "site.yml").write_text(f"{wait}    - ansible.builtin.assert: {{that: word == '{canary}-e'}}\n")
    (tmp_path / "project" / "hosts").write_text(f"a {LOCAL}\n")
    (tmp_path / "run").mkdir()
    extra = controller(server.url(database), keys, tmp_path / "run", storepasswordfile=str(password), lostafter="60s")
    c1 = mesh.node("c1", listen=True, extra=extra, level="debug")
    work = [command_type("ansible-runner", str(ANSIBLE_RUNNER), "worker", runtime=True)]
    e1 = mesh.node("e1", peers=["c1"], work=work, level="debug")
    looks = Secrets(canary)
    mesh.start()
    until("the password to be refused", lambda: "password authentication failed" in (ask(c1, "ping")["store"]["error"] or ""))
    shown = [json.dumps(ask(c1, "ping"))]
    password.write_text(f"{canary}-database\n")
    until("the store to be there", lambda: ask(c1, "ping")["store"]["up"], 60)
    until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(c1, "instance.list")["instances"]}.get("e1"), 60)
    words = ["job", "run", tmp_path / "project", "-p", "site.yml", "-i", tmp_path / "project" / "hosts", "-K"]
    words += ["-e", f"@{tmp_path / 'vars.yml'}", "--vault-password-file", tmp_path / "vault", "--detach"]
    code, said = on_a_terminal(arguments(c1, *words), {"BECOME password: ": f"{canary}-K\n"})
    assert code == 0, said
    (number,) = (one["id"] for one in ask(c1, "job.list")["jobs"])
    unit = runs(c1, number)["unit"]
    until("the playbook to wait", lambda: b"playbook_on_task_start" in output_so_far(c1, unit), 60)
    # They did get there.
    (payload,) = (payload for payload in e1.read_payloads() if payload)
    assert all(f"{canary}-{word}".encode() in unzipped(payload) for word in ("e", "K", "vault"))

    def look():
        shown.extend(json.dumps(node.command("work list")) for node in (c1, e1))
        asked = [("job.get", {"id": number}), ("job.explain", {"id": number}), ("job.list", {}), ("instance.list", {}), ("ping", {})]
        shown.extend(json.dumps(ask(c1, op, **more)) for op, more in asked)

    look()
    go.touch()
    one = ended(c1, number)
    assert one["state"] == "successful", (one, c1.results(unit))
    look()
    looks.over.set()
    looks.join()
    assert looks.looks > 3 and looks.found == set()
    dump = server.dump(database)
    assert "unix:" in dump and "COPY meshd.job " in dump, dump[:2000]
    texts = [*shown, said, dump, c1.results(unit).decode(), (server.dir / "log").read_text(), *mesh.logs().values()]
    assert [text[max(0, text.index(canary) - 300) :][:600] for text in texts if canary in text] == []


def unzipped(payload):
    """The files of a runner's stream."""
    _, files = unpacked(payload)
    return b"".join(content for _, content in files.values())


def test_a_check_warns_of_a_store_in_the_clear(tmp_path):
    config = tmp_path / "c1.yml"
    settings = {"store": "postgresql://meshd@db.invalid/meshd?sslmode=disable"}
    config.write_text(json.dumps([{"node": {"id": "c1", "datadir": str(tmp_path / "data")}}, {"local-only": None}, {"work-controller": settings}]))
    command = [str(MESHD), "check", str(config)]
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert "the connection to db.invalid is neither encrypted" in told.stdout and "use sslmode=verify-full" in told.stdout, told
    config.write_text(config.read_text().replace("?sslmode=disable", ""))
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert "neither encrypted" not in told.stdout and "cannot be reached now" in told.stdout, told


@contextlib.contextmanager
def session(server, database, statements, role="meshd"):
    """A connection to the database that has done something, and stays."""
    command = [postgres.programs() / "psql", "-h", "127.0.0.1", "-p", str(server.port), "-U", role, "-d", database, "-At"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write(statements + "\n\\echo done\n")
        process.stdin.flush()
        while (line := process.stdout.readline()) != "done\n":
            assert line, "psql ended"
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(30)


def test_who_may_only_connect_stops_nothing_and_who_holds_the_turn_is_named_everywhere(mesh, server, keys, tmp_path):  # noqa: F811
    database = server.database()
    server.sql("CREATE ROLE stranger LOGIN")
    numbers = ", ".join(f"pg_advisory_lock({0x6D650001 + at})" for at in range(3))
    c1 = mesh.node("c1", listen=True, extra=controller(server.url(database), keys, tmp_path))
    mesh.node("e1", peers=["c1"], work=[runner("ansible-runner")])
    with session(server, database, f"SELECT {numbers};", "stranger"):
        mesh.start()
        until("e1 to be ready", lambda: {i["name"]: i["capacity"] for i in ask(c1, "instance.list")["instances"]}.get("e1"), 60)
        assert ended(c1, submit(c1, ident="a")[1])["state"] == "successful"
    # Who may write the row can keep it, as an operator's forgotten transaction does.
    with session(server, database, "BEGIN; SELECT key FROM meshd.meta WHERE key = 'pass' FOR UPDATE;"):
        pid = server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'psql' AND state LIKE 'idle in%'").stdout.strip()
        _, number = submit(c1, ident="b")
        why = until("ping to tell of it", lambda: ask(c1, "ping")["store"]["error"], 60)
        assert "no turn to place jobs for" in why and f"process {pid}, which serves the role meshd" in why, why
        assert ask(c1, "ping")["store"]["up"]
        assert f"process {pid}" in ask(c1, "job.explain", id=number)["summary"]
        assert any("no turn to place jobs" in one["what"] for one in examine(c1))
        assert "this node places no jobs" in c1.log()
    assert ended(c1, number)["state"] == "successful"
    until("it to be forgotten", lambda: ask(c1, "ping")["store"]["error"] is None)
