"""Stands in for ansible-runner: reads a transmit stream and writes a worker's, or tells the machine's size.

The kwargs of the stream say what it does: `lines` events, over `pause` seconds, then it waits until the file `go` exists,
then `status`. With `cwd` its first line names its directory, as the runner's does. `recaps` are [how many, hosts in each], all
with names of their own. `diary` has it keep a diary outside of the mesh. With `flood` it prints without end, that many MB a
second unless it is 0; with STAND_IN_FLOOD in its environment it does so whatever it is asked for, and STAND_IN_GO is a `go`.
"""

import base64
import fcntl
import io
import json
import os
import signal
import sys
import time
import zipfile

SIZE = {"cpu_count": int(os.environ.get("STAND_IN_CPUS", 2)), "mem_in_bytes": 16 << 30, "runner_version": "2.4.0", "uuid": "u"}
DIARY = None


class Diary:
    """What a test knows of a run without asking the mesh. PATH.runs gets a line at its start and one at its end, also
    of other runs of the same job; PATH.PID is all that it wrote. A run holds the files `locks` until its process ends,
    and notes those that another one held."""

    def __init__(self, path, locks):
        self.path, self.held = path, [open(lock, "a") for lock in locks]
        unit = next((word.partition("meshd_")[2] for word in sys.argv if word.startswith("--private-data-dir=")), "")
        self.note(run=os.getpid(), unit=unit, overlaps=[one.name for one in self.held if not self.take(one)])
        self.copy = open(f"{path}.{os.getpid()}", "w")

    @staticmethod
    def take(lock):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def note(self, **what):
        with open(f"{self.path}.runs", "a") as runs:
            runs.write(json.dumps({**what, "at": time.time()}) + "\n")


def write(text):
    for file in (sys.stdout, DIARY and DIARY.copy):
        if file:
            file.write(text)
            file.flush()


def say(**line):
    write(json.dumps(line) + "\n")


def flood(rate=None):
    """Without end, at so many MB a second."""
    line = json.dumps({"event": "verbose", "stdout": "x" * 60_000}) + "\n"
    while True:
        sys.stdout.write(line)
        time.sleep(rate and len(line) / rate / 1e6 or 0)


def main():
    global DIARY
    if "STAND_IN_FLOOD" in os.environ:
        flood()
    if "--worker-info" in sys.argv:
        print(json.dumps({**SIZE, "errors": []}))
        return
    if "cleanup" in sys.argv:
        return
    signal.signal(signal.SIGINT, lambda *_: sys.exit(254))
    kwargs, ended = {}, False
    for line in sys.stdin:
        data = json.loads(line)
        if "kwargs" in data:
            kwargs = ({"go": os.environ["STAND_IN_GO"]} if "STAND_IN_GO" in os.environ else {}) | data["kwargs"]
        elif "zipfile" in data:
            sys.stdin.read((data["zipfile"] + 2) // 3 * 4)
        elif "eof" in data:
            ended = True
    assert ended, "the stream has no end"
    if "diary" in kwargs:
        DIARY = Diary(kwargs["diary"], kwargs["locks"])
    where = next((word.partition("=")[2] for word in sys.argv if word.startswith("--private-data-dir=")), "")
    # No two runs write the same.
    run = {"run": os.getpid()} if DIARY else {}
    say(status="starting", command=["ansible-playbook"], **({"cwd": f"{where}/project"} if "cwd" in kwargs else {}))
    say(status="running")
    for number in range(1, kwargs.get("lines", 3) + 1):
        time.sleep(kwargs.get("pause", 0) / kwargs.get("lines", 3))
        say(counter=number, uuid=f"u{number}", event="verbose", stdout=f"{kwargs.get('ident')} {number}", event_data=run)
    if "flood" in kwargs:
        flood(kwargs["flood"])
    if "limit" in kwargs:
        say(counter=1, uuid="l", event="verbose", event_data={}, limit=kwargs["limit"])
    if "stats" in kwargs:
        say(counter=99, uuid="s", event="playbook_on_stats", event_data=kwargs["stats"])
    count, hosts = kwargs.get("recaps", (0, 0))
    for recap in range(count):
        names = {f"h{recap * hosts + at:07}": 1 for at in range(hosts)}
        say(counter=100 + recap, uuid="r", event="playbook_on_stats", event_data={"processed": names, **kwargs.get("stats", {})})
    while "go" in kwargs and not os.path.exists(kwargs["go"]):
        time.sleep(0.02)
    if DIARY:
        DIARY.note(ended=os.getpid())
    say(status=kwargs.get("status", "successful"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rc", "0" if kwargs.get("status", "successful") == "successful" else "2")
    say(zipfile=len(packed.getvalue()))
    write(base64.b64encode(packed.getvalue()).decode())
    say(eof=True)


main()
