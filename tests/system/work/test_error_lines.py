"""The words by which clients recognise an error of a node: each program still says them.

What they mean stands in `src/rpc/error_line.rs`; what is asked here are the programs themselves, ours and the Go ones.
"""

import json

import pytest

from client import ControlError
from go import parameter, program

PROGRAMS = [pytest.param("meshd", id="ours"), *(parameter(name) for name in ("RECEPTOR_GO", "RECEPTOR_GO_NEW"))]
SHELL = {"work-command": {"worktype": "sh", "command": "sh", "allowruntimeparams": True}}


def submit(**fields):
    return json.dumps({"command": "work", "subcommand": "submit", "node": "localhost", **fields})


@pytest.mark.parametrize("name", PROGRAMS)
def test_errors_begin_with_the_words_that_clients_know(mesh, name):
    node = mesh.node("node", work=[SHELL], program=program(name))
    mesh.start()

    def error(line):
        with pytest.raises(ControlError) as raised, node.control() as client:
            client.ask(line)
        return str(raised.value)

    assert "Unknown command" in error("nonsense")
    assert "bad command" in error("work nonsense")
    assert "unknown work unit gone" in error("work status gone")
    assert "unknown work unit gone" in error("work cancel gone")
    assert "unknown work type nosuch" in error(submit(worktype="nosuch"))
    if name == "meshd":
        return
    # No Go node knows how our own nodes follow a unit.
    follow = {"command": "work", "subcommand": "follow", "unitid": "x", "startpos": 0}
    assert "bad command" in error(json.dumps(follow))


@pytest.mark.parametrize("name", [PROGRAMS[0], PROGRAMS[2]])
def test_a_chosen_id_is_given_once(mesh, name):
    node = mesh.node("node", work=[SHELL], program=program(name))
    mesh.start()
    job = {"worktype": "sh", "params": "-c true", "workUnitID": "chosen1"}
    with node.control() as client:
        client.submit("localhost", **job)
    with pytest.raises(ControlError) as raised, node.control() as client:
        client.ask(submit(**job))
    assert "workunit ID chosen1 is already in use" in str(raised.value)
