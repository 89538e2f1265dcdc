"""Stands in for ansible-runner: reads a transmit stream and writes a worker's, or tells the machine's size.

The kwargs of the stream say what it does: `lines` events, then it waits until the file `go` exists, then `status`.
"""

import base64
import io
import json
import os
import signal
import sys
import time
import zipfile

SIZE = {"cpu_count": int(os.environ.get("STAND_IN_CPUS", 2)), "mem_in_bytes": 16 << 30, "runner_version": "2.4.0", "uuid": "u"}


def say(**line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main():
    if "--worker-info" in sys.argv:
        print(json.dumps({**SIZE, "errors": []}))
        return
    signal.signal(signal.SIGINT, lambda *_: sys.exit(254))
    kwargs, ended = {}, False
    for line in sys.stdin:
        data = json.loads(line)
        if "kwargs" in data:
            kwargs = data["kwargs"]
        elif "zipfile" in data:
            sys.stdin.read(data["zipfile"])
        elif "eof" in data:
            ended = True
    assert ended, "the stream has no end"
    say(status="starting", command=["ansible-playbook"])
    say(status="running")
    for number in range(1, kwargs.get("lines", 3) + 1):
        say(counter=number, uuid=f"u{number}", event="verbose", stdout=f"{kwargs.get('ident')} {number}", event_data={})
    while "go" in kwargs and not os.path.exists(kwargs["go"]):
        time.sleep(0.02)
    say(status=kwargs.get("status", "successful"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rc", "0" if kwargs.get("status", "successful") == "successful" else "2")
    say(zipfile=len(packed.getvalue()))
    sys.stdout.write(base64.b64encode(packed.getvalue()).decode())
    say(eof=True)


main()
