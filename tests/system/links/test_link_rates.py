"""`meshctl link test`: what a link carries, asked for by an operator."""

import json
import subprocess

import pytest

import go
import links
from client import ControlError
from mesh import MESHCTL, environment, free_port, until
from trust import Pki

MB = 1_000_000


def asked(node, neighbour, seconds=1, mb=4):
    return {"command": "link", "subcommand": "test", "node": neighbour, "seconds": seconds, "mb": mb}


def refusal(node, neighbour, **size):
    with node.control() as control, pytest.raises(ControlError) as refused:
        control.ask(asked(node, neighbour, **size))
    return str(refused.value)


def meshctl(node, *arguments):
    command = [MESHCTL, "--socket", node.socket, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())


def sent(node):
    with node.control() as control:
        answer = control.command({"command": "status", "requested_fields": ["Links"]})
    return sum(link["BytesOut"] for link in answer["Links"])


@pytest.mark.parametrize("kind", ["tcp", "quic-mtls"])
def test_a_link_is_measured_both_ways(mesh, tmp_path, kind):
    pki, port = Pki(tmp_path / "pki"), free_port()
    for name in ("near", "far"):
        pki.issue(name, [name])
    mesh.add("far", [*pki.profiles("far"), links.listener(kind, port)])
    near = mesh.add("near", [*pki.profiles("near"), links.peer(kind, port)])
    mesh.start()
    until("the neighbour to be known for one of ours", lambda: meshctl(near, "link", "test", "far", "--mb", "1").returncode == 0)
    before = sent(near)
    done = meshctl(near, "--json", "link", "test", "far", "--mb", "4", "--seconds", "20")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["NodeID"] == "far" and report["Transport"] == kind.split("-")[0], report
    assert 0 < report["RTT"] < 1e9 and 0 < report["BusyRTT"] <= report["BusyRTTMax"] < 10e9, report
    assert report["ProbeLoss"] == 0, report
    for way in (report["Out"], report["Back"]):
        assert way["Bytes"] == 4 * MB and 0.1 * MB < way["Rate"] < 10_000 * MB, report
        assert way["Rate"] == pytest.approx(way["Bytes"] / (way["Time"] / 1e9), rel=0.01), report
    assert sent(near) - before > 4 * MB
    text = meshctl(near, "link", "test", "far", "--mb", "1").stdout
    assert "Round trip" in text and "MB/s (" in text and text.startswith("Link         far over "), text


def test_what_cannot_be_tested_is_explained(line):
    control = line["control"]
    until("a test of the hop", lambda: meshctl(control, "link", "test", "hop", "--mb", "1").returncode == 0)
    said = "execution is not a neighbour of this node: its neighbours are hop"
    assert refusal(control, "execution") == said
    done = meshctl(control, "link", "test", "execution")
    assert done.returncode == 1 and said in done.stderr, done
    for size, key in (({"seconds": 61}, "seconds"), ({"mb": 1001}, "mb"), ({"mb": 0}, "mb"), ({"seconds": "5"}, "seconds")):
        assert refusal(control, "hop", **size).startswith(f"{key} must be a whole number from 1 to "), size
    assert meshctl(control, "link", "test", "hop", "--seconds", "61").returncode == 64


def test_a_node_takes_part_in_one_test_at_a_time(mesh):
    far = mesh.node("far", listen=True)
    near = mesh.node("near", peers=["far"])
    mesh.start()
    until("a test", lambda: meshctl(near, "link", "test", "far", "--mb", "1").returncode == 0)
    before, first = sent(near), near.control()
    first.send(json.dumps(asked(near, "far", seconds=60, mb=1000)))
    until("its bytes", lambda: sent(near) > before + MB)
    for node, other in ((near, "far"), (far, "near")):
        assert refusal(node, other).startswith("this node takes part in another link test")
    # Whoever asked for it is gone, so it ends.
    first.close()
    for node, other in ((near, "far"), (far, "near")):
        until("the next test", lambda n=node, o=other: meshctl(n, "link", "test", o, "--mb", "1").returncode == 0)


@pytest.mark.parametrize("variable", go.EACH)
def test_a_receptor_node_is_told_from_one_of_ours(mesh, variable):
    mesh.node("far", listen=True, program=go.program(variable))
    near = mesh.node("near", peers=["far"])
    mesh.start()
    assert refusal(near, "far").startswith("the link to far cannot be tested")
