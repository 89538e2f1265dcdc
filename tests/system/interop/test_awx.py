"""The calls that AWX makes, in its order, through the Python API of receptorctl.

The texts are those that AWX compares.
"""

import socket
import sys
import threading

import pytest

import mesh as harness
import project
from conftest import scoped_mesh
from mesh import VENV, until


def api():
    """receptorctl's package, wherever pytest itself is installed."""
    try:
        import receptorctl
    except ImportError:
        (packages,) = (VENV / "lib").glob("python3*/site-packages")
        sys.path.append(str(packages))
        import receptorctl
    return receptorctl.ReceptorControl


@pytest.fixture(scope="module")
def nodes(request):
    """As AWX configures itself: its own work type `local`, and `ansible-runner` on the other node."""
    with scoped_mesh(request.node) as mesh:
        local = harness.command_type("local", "ansible-runner", "worker", runtime=True)
        mesh.node("hop", listen=True)
        mesh.node("control", peers=["hop"], work=[local, *harness.WORK[1:]])
        mesh.node("execution", peers=["hop"], work=harness.WORK)
        yield mesh.start()


@pytest.fixture
def receptor(nodes):
    """A client object; AWX creates one for each job."""
    receptor = api()(str(nodes["control"].socket))
    yield receptor
    receptor.close()
    nodes["control"].release_all()


def test_a_job(receptor, tmp_path):
    """Submits with a socket as payload while another thread writes to it, then reads results from socket and file."""
    stream = project.transmit(project.write(tmp_path / "source"))
    near, far = socket.socketpair()

    def write():
        with near:
            near.sendall(stream)

    writer = threading.Thread(target=write)
    writer.start()
    params = {"params": f"--private-data-dir={tmp_path / 'private'} --delete"}
    with far, far.makefile("rb") as payload:
        answer = receptor.submit_work("ansible-runner", payload, node="execution", params=params)
    writer.join()
    assert answer["result"] == "Job Started"
    unit = answer["unitid"]
    result_socket, result_file = receptor.get_work_results(unit, return_socket=True)
    with result_socket, result_file:
        output, code = project.process(result_file.read(), tmp_path / "out")
    assert code == 0 and "it said across the mesh" in output
    assert receptor.simple_command(f"work status {unit}")["StateName"] == "Succeeded"
    # AWX's reaper does both to every finished job, without a check.
    assert receptor.simple_command(f"work cancel {unit}") == {"cancelled": unit}
    assert receptor.simple_command(f"work release {unit}") == {"released": unit}


def test_a_job_on_the_controller_itself(receptor, tmp_path):
    stream = project.transmit(project.write(tmp_path / "source"))
    params = {"params": f"--private-data-dir={tmp_path / 'private'}"}
    answer = receptor.submit_work("local", stream, params=params)
    assert answer["result"] == "Job Started"
    with receptor.get_work_results(answer["unitid"]) as result:
        output, code = project.process(result.read(), tmp_path / "out")
    assert code == 0 and "it said across the mesh" in output


def test_a_failed_job_is_explained_from_near_the_end(receptor):
    """Reads results from max(StdoutSize - 1000, 0) if the state is Failed."""
    params = {"params": "'seq 1000; exit 4'"}
    unit = receptor.submit_work("sh", "", node="execution", params=params)["unitid"]
    with receptor.get_work_results(unit) as result:
        whole = result.read()
    status = receptor.simple_command(f"work status {unit}")
    assert (status["StateName"], status["Detail"]) == ("Failed", "exit status 4")
    assert status["StdoutSize"] == len(whole)
    with receptor.get_work_results(unit, startpos=len(whole) - 1000) as result:
        assert result.read() == whole[-1000:]


def test_a_cancelled_job_ends_the_results(receptor):
    params = {"params": "'echo started; exec sleep 1000'"}
    unit = receptor.submit_work("sh", "", node="execution", params=params)["unitid"]
    result_socket, result_file = receptor.get_work_results(unit, return_socket=True)
    with result_socket, result_file:
        assert result_file.readline() == b"started\n"
        assert receptor.simple_command(f"work cancel {unit}") == {"cancelled": unit}
        assert result_file.read() == b""
    assert receptor.simple_command(f"work status {unit}")["StateName"] == "Canceled"


def test_a_health_check(receptor):
    """Submits with ttl and an empty string, polls the status, reads all output, releases."""
    params = {"params": "--worker-info"}
    unit = receptor.submit_work("ansible-runner", "", node="execution", ttl="20s", params=params)["unitid"]
    with receptor.get_work_results(unit) as result:
        active = ("Pending", "Running")
        until("the end", lambda: receptor.simple_command(f"work status {unit}")["StateName"] not in active, 60)
        assert b"runner_version" in result.read()
    assert receptor.simple_command(f"work release {unit}") == {"released": unit}


def test_the_administrative_reaper_recognises_a_health_check(receptor):
    params = {"params": "--worker-info"}
    unit = receptor.submit_work("ansible-runner", "", node="execution", ttl="20s", params=params)["unitid"]
    extra = receptor.simple_command("work list")[unit]["ExtraData"]
    assert (extra["RemoteWorkType"], extra["RemoteParams"]["params"]) == ("ansible-runner", "--worker-info")


def test_status_has_the_fields_that_awx_reads(receptor):
    """Advertisements are never null, the control service comes first, times have a zone, and costs are maps."""

    def advertised():
        return {entry["NodeID"] for entry in receptor.simple_command("status")["Advertisements"]}

    until("all nodes to be advertised", lambda: {"control", "hop", "execution"} <= advertised())
    status = receptor.simple_command("status")
    first = {}
    for entry in status["Advertisements"]:
        first.setdefault(entry["NodeID"], entry)
        assert entry["ConnType"] in (0, 1, 2)
    assert {entry["Service"] for entry in first.values()} == {"control"}
    assert {"WorkType": "ansible-runner", "Secure": False} in first["execution"]["WorkCommands"]
    assert first["hop"]["WorkCommands"] is None
    for entry in first.values():
        assert entry["Time"].endswith("Z") or entry["Time"][-6] in "+-", entry
    assert "execution" in status["KnownConnectionCosts"]["hop"]


def test_texts_that_are_compared(receptor):
    with pytest.raises(RuntimeError, match="^unknown work unit nosuch"):
        receptor.simple_command("work status nosuch")
    with pytest.raises(RuntimeError, match="^Failed to get results: unknown work unit nosuch"):
        receptor.get_work_results("nosuch")
    receptor.close()
    with pytest.raises(RuntimeError, match="^unknown work unit nosuch"):
        receptor.simple_command("work release nosuch")
    with pytest.raises(RuntimeError, match="^Remote error: ERROR: "):
        receptor.submit_work("nosuch", "", node="execution")


def test_a_ttl_for_an_unreachable_node(receptor):
    unit = receptor.submit_work("ansible-runner", "", node="nowhere", ttl="300ms")["unitid"]
    until("the end", lambda: receptor.simple_command(f"work status {unit}")["StateName"] == "Failed")
    assert receptor.simple_command(f"work status {unit}")["Detail"].startswith("Work unit expired on ")


def test_signing_is_ignored_on_the_own_node(receptor):
    """A controller with a signing key also requests signatures for local units."""
    answer = receptor.submit_work("cat", "signed", signwork=True)
    with receptor.get_work_results(answer["unitid"]) as result:
        assert result.read() == b"signed"


def test_reload(receptor, nodes):
    assert receptor.simple_command("reload") == {"Success": True}
    control = nodes["control"]
    whole = control.config.read_text()
    try:
        control.config.write_text(whole.replace('"datadir": "', '"datadir": "/elsewhere'))
        answer = receptor.simple_command("reload")
        assert answer["Success"] is False and answer["Error"].endswith("ERRORCODE 3"), answer
        control.config.write_text("- node: {id: control\n- [")
        answer = receptor.simple_command("reload")
        assert answer["Success"] is False and answer["Error"].endswith("ERRORCODE 4"), answer
    finally:
        control.config.write_text(whole)
    assert receptor.simple_command("reload") == {"Success": True}


def test_reload_adds_and_removes_peers(receptor, nodes):
    control, whole = nodes["control"], nodes["control"].config.read_text()
    peer = [one for one in control.directives if "tcp-peer" in one]
    control.directives = [one for one in control.directives if "tcp-peer" not in one] + [{"local-only": None}]
    control.write_config()
    assert receptor.simple_command("reload") == {"Success": True}
    until("the link to be gone", lambda: not receptor.simple_command("status")["Connections"])
    control.directives = [*control.directives[:-1], *peer]
    control.config.write_text(whole)
    assert receptor.simple_command("reload") == {"Success": True}
    nodes.wait_for_routes()
