"""The export of jobs that have ended: a reader that keeps the last cursor gets each job once, whoever dies in between."""

import json
import signal
import subprocess

from mesh import MESHCTL, environment, until
from test_controller import ask, ended, meshctl, nodes, submit  # noqa: F401

#: More than a page.
MANY = 120


def cancelled(control, name):
    _, number = submit(control, {"name": name, "labels": {"team": "a"}})
    ask(control, "job.cancel", id=number)
    return number


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_reader_that_is_killed_goes_on_at_its_cursor_and_follows_through_a_restart(nodes, tmp_path):  # noqa: F811
    control = nodes["control"]
    _, ran = submit(control, {"name": "ran"}, ident="x", lines=3)
    assert ended(control, ran)["state"] == "successful"
    ask(control, "pause")
    numbers = [cancelled(control, f"j{n}") for n in range(MANY)]
    _, open_job = submit(control, {"name": "goes on"})
    all_of_them = lines(meshctl(control, "job", "export").stdout)
    assert [one["id"] for one in all_of_them] == [ran, *numbers], "in the order of their ends"
    first, cursors = all_of_them[0], [one["cursor"] for one in all_of_them]
    assert (first["state"], first["attempts"][0]["outcome"], first["host_counts"]) == ("successful", "successful", None)
    assert all_of_them[1]["labels"] == {"team": "a"} and cursors == sorted(set(cursors))

    words = [MESHCTL, "--socket", control.socket, "job", "export", "--follow"]
    reader = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment())
    read = [json.loads(reader.stdout.readline()) for _ in range(30)]
    reader.kill()
    reader.wait()
    reader = subprocess.Popen([*words, "--since", str(read[-1]["cursor"])], stdout=subprocess.PIPE, text=True, env=environment())
    try:
        read += [json.loads(reader.stdout.readline()) for _ in range(len(all_of_them) - 30)]
        assert read == all_of_them, "none is missing and none twice"
        control.restart(signal.SIGKILL)
        ask(control, "job.cancel", id=open_job)
        after = json.loads(reader.stdout.readline())
        assert (after["id"], after["state"]) == (open_job, "canceled") and after["cursor"] > cursors[-1]
    finally:
        reader.kill()
        reader.wait()
    page = ask(control, "job.export", since=cursors[0], limit=2)
    assert [one["id"] for one in page["jobs"]] == numbers[:2] and page["next"] == cursors[2]
    assert ask(control, "job.export", since=after["cursor"]) == {"jobs": [], "next": after["cursor"]}
