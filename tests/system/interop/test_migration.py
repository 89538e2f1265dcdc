"""docs/migration.md, followed with Go nodes: a mesh of receptor becomes one of meshd node by node, and goes back."""

import re
import subprocess

from mesh import MESHCTL, MESHD, ROOT, command_type, environment, free_port, line, until

CAT = command_type("cat", "cat")
SHELL = command_type("sh", "sh", "-c", runtime=True)
#: The order of the page.
ORDER = ("execution", "hop", "control")


def unfinished(node):
    """What step 2 of the page looks for."""
    return {unit for unit, status in node.command("work list").items() if status["StateName"] in ("Pending", "Running")}


def swap(mesh, name, program):
    node = mesh[name]
    assert unfinished(node) == set()
    node.stop()
    node.program = program
    node.start()
    mesh.wait_for_routes()


def test_a_mesh_is_swapped_node_by_node_and_back(mesh, receptor):
    ours = mesh.dir / "receptor"
    ours.symlink_to(MESHD)
    line(mesh, work=[CAT, SHELL], programs=(receptor,) * 3).start()
    control, execution = mesh["control"], mesh["execution"]
    unit, stdout = execution.run("execution", "cat", b"of receptor")
    assert stdout == b"of receptor"

    # A job that still runs is named before the swap.
    go = mesh.dir / "go"
    with execution.control() as client:
        running = client.submit("execution", "sh", params=f"'until [ -e {go} ]; do sleep 0.1; done'")["unitid"]
    until("the job to run", lambda: unfinished(execution) == {running})
    go.touch()
    until("the job to end", lambda: not unfinished(execution))

    for name in ORDER:
        checked = subprocess.run([ours, "check", mesh[name].config, "--running"], capture_output=True, text=True, env=environment())
        assert checked.returncode == 0, checked.stdout + checked.stderr
        swap(mesh, name, ours)
        assert control.run("execution", "cat", name.encode())[1] == name.encode()
    assert execution.results(unit) == b"of receptor"
    later, _ = execution.run("execution", "cat", b"of meshd")

    for name in reversed(ORDER):
        swap(mesh, name, receptor)
        assert control.run("execution", "cat", name.encode())[1] == name.encode()
    assert execution.results(later) == b"of meshd"


def parameters_of(program):
    """The directives that a Go program's help lists, each with its parameters."""
    found = {}
    for text in subprocess.run([program, "--help"], capture_output=True, text=True).stdout.splitlines():
        if directive := re.match(r"   --([a-z0-9-]+)(:|$)", text):
            last = found[directive[1]] = set()
        elif parameter := re.match(r"      ([a-z0-9]+)=", text):
            last.add(parameter[1])
    return {name: found[name] for name in found if name not in ("help", "config", "bash-completion", "version")}


def test_what_receptor_does_not_know_is_named_before_the_way_back(mesh, receptor):
    lines = (ROOT / "src/config/receptor.txt").read_text().splitlines()
    theirs = parameters_of(receptor)
    # Newer ones know more.
    assert lines and all(set(names) <= theirs[name] for name, *names in map(str.split, lines))
    metrics = {"metrics": {"address": f"127.0.0.1:{free_port()}"}}
    node = mesh.node("a", work=[CAT], extra=[metrics]).start()
    node.stop()

    def check():
        command = [MESHCTL, "config", "--for", "receptor", node.config]
        return subprocess.run(command, capture_output=True, text=True, env=environment())

    found = check()
    assert found.returncode == 1 and found.stdout.strip().endswith("metrics: delete this directive"), found
    node.directives.remove(metrics)
    node.write_config()
    fine = check()
    assert (fine.returncode, fine.stdout) == (0, f"fine: receptor knows everything in {node.config}\n"), fine
    node.program = receptor
    node.start()
