"""Work types of kind work-python with the program that runs plugins, as its project distributes it.

It is on no package index, so RECEPTOR_PYTHON_WORKER names the directory of its package `receptor_python_worker`.
"""

import json
import os
import sys

import pytest

import mesh as harness

WORKER = os.environ.get("RECEPTOR_PYTHON_WORKER")
pytestmark = pytest.mark.skipif(not WORKER, reason="RECEPTOR_PYTHON_WORKER is not set")

PLUGIN = '''
import time

import receptor


@receptor.plugin_export(payload_type=receptor.BYTES_PAYLOAD)
def upper(message, config, result_queue):
    result_queue.put({"said": message.decode().upper(), "config": config})


@receptor.plugin_export(payload_type=receptor.FILE_PAYLOAD)
def broken(message, config, result_queue):
    result_queue.put("before")
    raise RuntimeError("on purpose")


@receptor.plugin_export(payload_type=receptor.BUFFER_PAYLOAD)
def endless(message, config, result_queue):
    result_queue.put(message.read().decode())
    time.sleep(1000)


def secret(message, config, result_queue):
    result_queue.put("not exported")
'''


@pytest.fixture
def node(mesh, tmp_path, monkeypatch):
    """A node with a plugin, with the worker first on its PATH."""
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[receptor.worker]\nshouting = shouting\n")
    (tmp_path / "shouting.py").write_text(PLUGIN)
    program = tmp_path / "bin" / "receptor-python-worker"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom receptor_python_worker import run\nrun()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{WORKER}:{tmp_path}")
    work = []
    for function in ("upper", "broken", "endless", "secret"):
        kind = {"worktype": function, "plugin": "shouting", "function": function, "config": {"tone": "loud"}}
        work.append({"work-python": kind})
    mesh.node("alone", work=work)
    mesh.start()
    return mesh["alone"]


def test_a_plugin_gets_payload_and_config_and_says_how_it_ended(node):
    unit, output = node.run("alone", "upper", b"hello")
    said = json.loads(output)
    assert said["said"] == "HELLO"
    assert said["config"]["tone"] == "loud"
    report = node.unit(unit)
    assert (report["StateName"], report["Detail"], report["StdoutSize"]) == ("Succeeded", "Complete", len(output))


def test_a_plugin_that_breaks_fails_its_unit_in_its_own_words(node):
    unit, output = node.run("alone", "broken", b"")
    report = node.unit(unit)
    assert report["StateName"] == "Failed"
    assert report["Detail"] == "Error running worker: RuntimeError('on purpose')"
    unit, output = node.run("alone", "secret", b"")
    assert b"not exported" not in output
    assert "Not allowed to call non-exported" in node.unit(unit)["Detail"]


def test_a_plugin_can_be_cancelled(node):
    with node.control(60) as control:
        unit = control.submit("alone", "endless", b"begun")["unitid"]
    harness.until("the plugin to speak", lambda: node.unit(unit)["StdoutSize"] > 0)
    node.command(f"work cancel {unit}")
    assert node.unit(unit)["StateName"] == "Canceled"
    assert json.loads(node.results(unit)) == "begun"
