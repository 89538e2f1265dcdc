"""Every kind of link, with and without certificates, dialled from either side, with us in every role: a job there and
back.

One node of the line is ours and two run either release of the Go implementation, or all are ours; then the kinds that
only we have are included. MATRIX_MB sets the megabytes of each job, in each direction; target/test-logs/matrix.md gets
a table of all cells that ran.
"""

import os
import random
import socket
import time

import pytest

import links
from links import LINE
from mesh import MESHD, ROOT, until
from trust import Pki

SIZE = int(os.environ.get("MATRIX_MB", "2")) * 1_000_000
CELLS = [(kind, dialer, role) for kind in links.SHARED for dialer in ("meshd", "receptor") for role in LINE]
TABLE = ROOT / "target" / "test-logs" / "matrix.md"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A certificate for each node of the line, and keys for signing."""
    pki = Pki(tmp_path_factory.mktemp("pki"))
    for name in LINE:
        pki.issue(name, [name])
    pki.signers, pki.verifiers = pki.signing_keys()
    return pki


@pytest.fixture(scope="module")
def rows():
    """The measurements of the cells, written to the table at the end."""
    rows = []
    yield rows
    if rows:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        head = f"| beside | link | dials | our role | unsigned, {SIZE // 1_000_000} MB each way, s | signed, s |\n|---|---|---|---|---|---|\n"
        TABLE.write_text(head + "".join(f"| {' | '.join(row)} |\n" for row in rows))


@pytest.mark.parametrize("kind, dialer, role", CELLS, ids=["-".join(cell) for cell in CELLS])
def test_with_go_nodes(mesh, pki, rows, receptor, kind, dialer, role):
    def left_dials(left, right):
        return role not in (left, right) or (left == role) == (dialer == "meshd")

    programs = {name: MESHD if name == role else receptor for name in LINE}
    rows.append([receptor.name, kind, dialer, role, *cell(mesh, pki, kind, left_dials, programs)])


@pytest.mark.parametrize("kind", links.OWN)
def test_among_our_own_nodes(mesh, pki, rows, kind):
    """control and execution dial the hop, or the hop dials them, in turn."""
    hop_dials = list(links.OWN).index(kind) % 2 == 1
    programs = dict.fromkeys(LINE, MESHD)
    dialer = "the hop" if hop_dials else "its neighbours"
    times = cell(mesh, pki, kind, lambda left, _: (left == "hop") == hop_dials, programs)
    rows.append([MESHD.name, kind, dialer, "all", *times])


@pytest.mark.parametrize("kind", ["tcp-mtls", "wss-mtls"])
@pytest.mark.parametrize("ours", ["named", "plain"])
def test_plain_certificates(mesh, tmp_path, receptor, kind, ours):
    """Go nodes whose certificates name no node dial a meshd hop, configured as docs/interop.md says."""
    pki = Pki(tmp_path / "pki")
    for name in LINE:
        pki.issue(name, [name] if (name, ours) == ("hop", "named") else [])
    directives = links.joined(kind, lambda left, _: left != "hop")
    for name in LINE:
        server, client = pki.profiles(name, **({} if (name, ours) == ("hop", "named") else {"skipreceptornamescheck": True}))
        if name == "hop" and ours == "named":
            server["tls-server"]["requirenodeid"] = False
        directives[name] += [server, client]
    directives["execution"].append(links.work_types()[0])
    links.start(mesh, directives, {name: MESHD if name == "hop" else receptor for name in LINE})
    job(mesh, "cat", {})


def cell(mesh, pki, kind, left_dials, programs):
    """Joins the line, and runs both jobs over it; returns the seconds for each."""
    tls = links.OWN[kind][1]
    directives = links.joined(kind, left_dials)
    for name in LINE:
        directives[name] += pki.profiles(name) if tls else []
    directives["control"] += pki.signers
    directives["execution"] += [*pki.verifiers, *links.work_types()]
    # Where links have certificates, so do the control services and thus the jobs' streams.
    links.start(mesh, directives, programs, {"tls": "server"} if tls else None)
    carry = {"tlsclient": "client"} if tls else {}
    times = [
        job(mesh, "cat", carry),
        job(mesh, "safecat", {**carry, "signwork": "true"}),
    ]
    refused(mesh, carry)
    return [f"{seconds:.1f}" for seconds in times]


def job(mesh, worktype, params):
    payload = random.Random(worktype).randbytes(SIZE)
    start = time.monotonic()
    unit, output = mesh["control"].run("execution", worktype, payload, **params)
    took = time.monotonic() - start
    assert output == payload, f"{len(output)} bytes of {SIZE} came back"
    status = until("the unit to be final", lambda: final(mesh["control"], unit))
    assert (status["StateName"], status["StdoutSize"]) == ("Succeeded", SIZE), status
    mesh["control"].release_all()
    return took


def final(node, unit):
    status = node.unit(unit)
    return status if status["State"] in (2, 3, 4) else None


def refused(mesh, params):
    """Signed work is refused without a signature."""
    with mesh["control"].control() as control:
        control.send({"command": "work", "subcommand": "submit", "node": "execution", "worktype": "safecat", **params})
        control.line()
        control.socket.shutdown(socket.SHUT_WR)
        answer = control.reader.readline().decode()
    assert "signature" in answer, answer
    until("the refused unit to be failed", lambda: all(u["State"] == 3 for u in mesh["control"].command("work list").values()))
