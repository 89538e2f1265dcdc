"""Recaps of jobs that name more hosts than there are: what they cost, and what is shown of them."""

import signal

from mesh import until
from test_controller import ask, job, submit
from test_controller_operations import hybrid, refused

#: What the node may grow by: a line of the runner is 2.4 MB, and a few of them are on their way at a time.
ROOM = 150 << 20
HOSTS = 150_000


def test_a_recap_of_invented_hosts_costs_a_bounded_amount_of_memory(mesh, tmp_path):
    control = hybrid(mesh, tmp_path)
    before, most = control.rss(), 0
    go = tmp_path / "go"
    stats = {"failures": {f"f{at}": 1 for at in range(20)}, "dark": {"gone": 1}}
    _, number = submit(control, ident="r", recaps=[8, HOSTS], stats=stats, status="failed", go=str(go))

    def has_printed():
        nonlocal most
        most = max(most, control.rss())
        return job(control, number)["events"] >= 11

    until("all recaps to be counted", has_printed, 120)
    shown = job(control, number)
    assert (shown["host_stats"], shown["host_counts"]) == ({}, None), "while it runs nothing of it is written"
    # A process that starts again amid the job reads its output, and loads no host of it.
    control.restart(signal.SIGKILL)
    go.touch()

    def has_ended():
        nonlocal most
        most = max(most, control.rss())
        return job(control, number)["state"] == "failed" and job(control, number)["host_counts"]

    until("its end", has_ended, 120)
    shown = job(control, number)
    assert shown["host_counts"] == {"hosts": HOSTS, "failed": 20, "unreachable": 1, "kept": 10_000}, shown["host_counts"]
    assert len(shown["host_stats"]) == 100 and shown["host_stats"]["gone"]["dark"] == 1
    assert sum(one["failures"] for one in shown["host_stats"].values()) == 20, "those that failed come first"
    pages, place = [], 0
    while place is not None:
        page = ask(control, "job.hosts", id=number, limit=1000, **{"from": place})
        pages += [one["host"] for one in page["hosts"]]
        place = page["next"]
    assert len(pages) == len(set(pages)) == 10_000 and set(pages[:21]) == {*stats["failures"], "gone"}
    most = max(most, control.rss())
    assert most < before + ROOM, f"{before} bytes became {most}"
    assert ask(control, "job.rerun", id=number, failed_hosts=True)["hosts"] == 21


def test_a_job_that_failed_on_more_hosts_than_are_kept_runs_again_as_a_whole(mesh, tmp_path):
    control = hybrid(mesh, tmp_path)
    stats = {"dark": {f"h{at:05}": 1 for at in range(12_000)}}
    _, number = submit(control, ident="d", stats=stats, status="failed")
    until("its recap", lambda: job(control, number)["host_counts"], 60)
    error = refused(control, "job.rerun", id=number, failed_hosts=True)
    assert error["code"] == "conflict" and "failed on 12000 hosts, but only 10000 are kept" in error["message"], error
    assert "run it again as a whole" in error["message"]
    assert ask(control, "job.rerun", id=number)["id"] != number


def test_a_host_that_is_called_like_a_pattern_gets_into_no_limit(mesh, tmp_path):
    control = hybrid(mesh, tmp_path)
    for at, name in enumerate(["all", "web1,all", "*", "@/etc/hosts", "~.*", "!web1"]):
        stats = {"processed": {"web1": 1, name: 1}, "failures": {name: 1}, "ok": {"web1": 1}}
        _, number = submit(control, ident=f"p{at}", stats=stats, status="failed")
        until("its recap", lambda number=number: job(control, number)["host_counts"], 60)
        assert job(control, number)["host_counts"]["failed"] == 1, "it is counted, and shown"
        error = refused(control, "job.rerun", id=number, failed_hosts=True)
        assert error["code"] == "conflict" and f'the name "{name}" may be a pattern' in error["message"], error
        assert "run it again as a whole" in error["message"]
    stats = {"failures": {"web2": 1}, "dark": {"fe80::1": 1}, "ok": {"web1": 1}}
    _, number = submit(control, ident="h", stats=stats, status="failed")
    until("its recap", lambda: job(control, number)["host_counts"], 60)
    assert ask(control, "job.rerun", id=number, failed_hosts=True)["limit"] == "fe80::1,web2"
