"""docs/migration.md, followed with Go nodes: a mesh of receptor becomes one of meshd node by node, and goes back."""

import subprocess

from mesh import MESHD, command_type, environment, line, until

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
