"""What a hop writes in the name of another node decides nothing for good (docs/links-and-trust.md, "What an end says that
has proven nothing").
"""

import json
import socket
import ssl

import pytest

from hop import Hop, answer_to, connection_of, initial_close
from mesh import command_type, free_port, own_runner, until
from test_controller import HEALTHY, ask, ended, job, runner, submit
from trust import Pki


@pytest.fixture
def hop(mesh, tmp_path):
    """control - a hop made of sockets - e1, with certificates on links and on control services."""
    pki = Pki(tmp_path / "pki")
    ports = {"control": free_port(), "e1": free_port()}
    for name in (*ports, "hop"):
        pki.issue(name, [name])
    settings = {"discovery": "enabled", "rundir": str(tmp_path), "tlsclient": "client", "requiretls": True}
    kinds = {"control": [{"work-controller": settings | own_runner(runner("own"))}], "e1": [runner("ansible-runner"), command_type("cat", "cat")]}
    for name, port in ports.items():
        listener = {"tcp-listener": {"bindaddr": "127.0.0.1", "port": port, "tls": "server"}}
        mesh.add(name, [{"log-level": "info"}, *pki.profiles(name), listener, *kinds[name]], service={"tls": "server"}).start()
    context = ssl.create_default_context(cafile=pki.path("ca.crt"))
    context.load_cert_chain(pki.path("hop.crt"), pki.path("hop.key"))
    context.check_hostname = False
    with Hop(ports, context) as hop:
        mesh.wait_for_routes()
        until("e1 to be ready", lambda: capacity(mesh["control"], "e1") > 0, HEALTHY)
        yield hop


def capacity(control, name):
    return sum(one["capacity"] for one in ask(control, "instance.list")["instances"] if one["name"] == name)


class Forgery:
    """The hop answers the first packet of each connection to a control service with a close, and drops the rest of it."""

    def __init__(self, hop, code):
        self.code, self.seen = code, set()
        hop.policy = self.forge

    def forge(self, side, message):
        begun = connection_of(message[36:])
        if message[28:36] != b"control\0" or begun is None:
            return False
        if begun not in self.seen:
            self.seen.add(begun)
            side.send(answer_to(message, initial_close(message[36:], self.code)))
        return True


def restart(hop, mesh, code):
    """From now on no handshake comes about; what stood would be used."""
    Forgery(hop, code)
    mesh["control"].restart()
    mesh.wait_for_routes()
    return mesh["control"]


def be_honest(hop):
    hop.policy = lambda _side, _message: False


WAITS = "TLS error connecting to remote service: "


@pytest.mark.parametrize("code", [0x12A, 0x131], ids=["bad certificate", "access denied"])
def test_a_forged_close_of_each_handshake_makes_jobs_wait(hop, mesh, code):
    control = restart(hop, mesh, code)
    jobs = [submit(control, ident=f"f{number}", lines=3)[1] for number in range(2)]
    attempts = lambda: [attempt for number in jobs for attempt in job(control, number)["attempts"]]  # noqa: E731
    until("both to have an attempt", lambda: len(attempts()) == 2)
    details = lambda: [attempt["detail"] or "" for attempt in attempts()]  # noqa: E731
    until("both to wait", lambda: all(detail.startswith(WAITS) for detail in details()))
    assert all(WAITS in ask(control, "job.explain", id=number)["summary"] for number in jobs)
    be_honest(hop)
    for one in [ended(control, number) for number in jobs]:
        assert (one["state"], len(one["attempts"])) == ("successful", 1), one


def test_a_forged_close_makes_a_unit_wait(hop, mesh):
    control = restart(hop, mesh, 0x12A)
    with control.control() as client:
        answer = client.submit("e1", "cat", b"whole", tlsclient="client")
    assert answer["result"] == "Job Submitted", answer
    status = control.unit(answer["unitid"])
    assert status["StateName"] == "Pending" and status["Detail"].startswith(WAITS), status
    be_honest(hop)
    until("it to succeed", lambda: control.unit(answer["unitid"])["StateName"] == "Succeeded")
    assert control.results(answer["unitid"]) == b"whole"


def test_a_forged_notice_ends_no_stream_whose_far_end_answers(mesh):
    served = socket.create_server(("127.0.0.1", 0))
    ports = {"control": free_port(), "e1": free_port()}
    entrance = {"port": free_port(), "remotenode": "e1", "remoteservice": "svc"}
    proxies = {
        "control": {"tcp-server": entrance},
        "e1": {"tcp-client": {"service": "svc", "address": f"127.0.0.1:{served.getsockname()[1]}"}},
    }
    for name, port in ports.items():
        mesh.add(name, [{"tcp-listener": {"bindaddr": "127.0.0.1", "port": port}}, proxies[name]]).start()
    with Hop(ports) as hop:
        mesh.wait_for_routes()
        seen = []
        hop.policy = lambda _side, message: message[28:36] == b"svc\0\0\0\0\0" and seen.append(message)
        with socket.create_connection(("127.0.0.1", entrance["port"]), 60) as near, served.accept()[0] as far:
            near.settimeout(60)
            far.sendall(b"1")
            assert near.recv(1) == b"1"
            notice = {"FromNode": "control", "ToNode": "e1", "FromService": name_of(seen[0][20:28]), "ToService": "svc", "Problem": "service unknown"}
            forged = answer_to(seen[0], json.dumps(notice).encode(), (b"unreach\0", b"unreach\0"))
            control = next(side for side in hop.sides if side.name == "control")
            before = len(seen)
            control.send(forged)
            # It is asked for as often as that, a second apart.
            until("control to ask", lambda: len(seen) >= before + 3)
            far.sendall(b"2")
            assert near.recv(1) == b"2"


def name_of(service):
    return service.rstrip(b"\0").decode()
