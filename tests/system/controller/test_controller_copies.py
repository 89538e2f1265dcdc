"""A job's output on a control node that did not drive it: its unit there ends with all of the output, or says that it is
lost, and never with a part of it. c1 has e1, and c2 is behind a hop of its own."""

import signal
import subprocess

import pytest

from mesh import MESHCTL, environment, until
from test_controller import ask, ended
from test_controller_many import controller, is_whole, keys, pytestmark, runner, runs, server, shows, streamed, submit  # noqa: F401

FETCHED = "its output is fetched from c1"


@pytest.fixture
def site(mesh, server, keys, tmp_path):  # noqa: F811
    database = server.database()
    extra = lambda: controller(server.url(database), keys, tmp_path)  # noqa: E731
    mesh.node("c1", listen=True, extra=extra())
    mesh.node("e1", peers=["c1"], work=[runner("ansible-runner")])
    mesh.node("hop", peers=["c1"], listen=True)
    mesh.node("c2", peers=["hop"], extra=extra())
    mesh.start()
    ready = lambda: {one["name"] for one in ask(mesh["c2"], "instance.list")["instances"] if one["capacity"] > 0} >= {"c1", "c2", "e1"}  # noqa: E731
    until("all instances to be ready", ready, 60)
    yield mesh


def meshctl(node, *words):
    command = [str(MESHCTL), "--socket", str(node.socket), *words]
    return subprocess.run(command, capture_output=True, env=environment(), timeout=120)


def waits(node, unit):
    """The unit runs on, as its output is not here."""
    until("its unit to wait", lambda: (one := node.unit(unit))["Detail"] == FETCHED and one["StateName"] == "Running", 60)


def has_a_part(node, number, whole):
    """Whoever asks for the output is told that this is not all."""
    said = meshctl(node, "job", "output", str(number))
    assert said.returncode == 69 and b"is not here yet" in said.stderr, said
    assert whole.startswith(said.stdout) and len(said.stdout) < len(whole), said
    return said.stdout


def test_a_unit_behind_a_partition_ends_once_it_has_all_of_the_output(site, tmp_path):
    c1, c2, hop, go = site["c1"], site["c2"], site["hop"], tmp_path / "go"
    first, number = submit(c1, {"key": "half"}, ident="h", lines=50, go=str(go))
    second, same = submit(c2, {"key": "half"}, ident="other")
    assert number == same
    runs(c2, number)
    until("the first half", lambda: b'"counter": 50' in streamed(c2, "job.output", id=number)[1], 60)
    hop.stop(signal.SIGSTOP)
    go.touch()
    assert ended(c1, number)["state"] == "successful"
    whole = shows(c1, first)
    is_whole(whole, "h", 50)
    waits(c2, second)
    assert b'"counter": 50' in has_a_part(c2, number, whole)
    hop.process.send_signal(signal.SIGCONT)
    assert shows(c2, second) == whole
    said = meshctl(c2, "job", "output", str(number))
    assert (said.returncode, said.stdout) == (0, whole)
    one = until("both to be known to have it", lambda: (one := ask(c1, "job.get", id=number))["output_on"] == ["c1", "c2"] and one)
    assert (one["output_bytes"], len(one["output_hash"])) == (len(whole), 16), one


def test_a_unit_of_a_job_whose_control_node_is_away_waits_for_the_output_or_its_loss(site):
    c1, c2 = site["c1"], site["c2"]
    first, number = submit(c1, {"key": "back"}, ident="b")
    lost, dead = submit(c1, {"key": "dead"}, ident="d")
    whole = shows(c1, first)
    shows(c1, lost)
    c1.stop(signal.SIGKILL)
    second, same = submit(c2, {"key": "back"}, ident="other")
    assert number == same
    waits(c2, second)
    assert has_a_part(c2, number, whole) == b""
    c1.start()
    assert shows(c2, second) == whole

    c1.stop(signal.SIGKILL)
    third, _ = submit(c2, {"key": "dead"}, ident="other")
    waits(c2, third)
    until("c1 to be declared dead", lambda: declared_dead(c2, "c1"), 60)
    shows(c2, third, "Failed")
    # A moment before it is known whose output was lost with c1, it is known that nobody has it.
    why = ("its output was on c1", "no control node has its output any more")
    assert c2.unit(third)["Detail"] in [f"output lost: job {dead} is successful, and {words}" for words in why]
    said = meshctl(c2, "job", "wait", str(dead))
    assert said.returncode == 69 and b"successful, output lost with c1" in said.stdout, said
    assert b"lost with c1" in meshctl(c2, "job", "show", str(dead)).stdout
    # The other one is here.
    said = meshctl(c2, "job", "output", str(number))
    assert (said.returncode, said.stdout) == (0, whole)


def declared_dead(node, name):
    """Its lease may still be valid."""
    answer = node.command({"command": "controller", "op": "instance.remove", "name": name, "dead": True})
    return answer["ok"]
