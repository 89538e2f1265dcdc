"""What must be true of the controller's jobs, whatever fails: each job, what a client saw of it, and what its runs wrote
into their diaries outside of the mesh.

A job may end otherwise than by itself only if a fault that explains it hit its attempt while it was open. Less is certain of a
job about which the store has lost commits; but none of its attempts runs beside another one, what a unit has shown as its end
stays, and a unit that shows success has the whole output of a run.
"""

import contextlib
import itertools
import json
import pathlib
import time

from client import ControlError
from controller_world import HEARTBEAT, LOST_AFTER, is_child
from mesh import until

FINAL = {"successful": "Succeeded", "failed": "Failed", "error": "Failed", "canceled": "Canceled"}
#: In place of the row of a job that the store does not know any more.
FORGOTTEN = {"state": "forgotten", "rc": None, "execution_node": None, "attempt": 0, "attempts": [], "output_hash": None}
#: What reaches its node late, and what ends a process before a client can know.
SLACK = 0.5
WORDS = ("red", "blue")
RETRY = {"max": 2, "on": ["lost", "error"]}
#: Kinds of jobs, and how often each is chosen.
KINDS = {"plain": 4, "fails": 1, "retry": 3, "unconfirmed": 2, "exclusive": 2, "after": 2, "twice": 2}


class Job:
    """A job, from its submission to its release."""

    numbers = itertools.count(1)

    def __init__(self, world, kind, need=None):
        rng = world.rng
        self.world, self.kind, self.need = world, kind, need
        self.name = f"{kind}-{next(self.numbers)}"
        self.path = world.diary / self.name
        self.lock = f"{self.path}.lock"
        self.words = [rng.choice(WORDS)] if kind == "exclusive" else []
        self.header = {"controller": 1, "name": self.name, "forks": rng.choice((0, 2, 5)), **self.extras()}
        locks = [self.lock, *(str(world.diary / f"{word}.word") for word in self.words)]
        self.kwargs = {
            "ident": self.name,
            "lines": rng.choice((1, 30, 30, 3000)),
            "pause": rng.choice((0, 0.05, 0.3, 1, 2.5)),
            "status": "failed" if kind == "fails" else "successful",
            "diary": str(self.path),
            "locks": locks,
        }
        #: The node and IDs of its units, and its number once a submission was answered.
        self.units, self.number = [], None
        #: When a client was told of a saved cancel, or asked for one.
        self.cancel_saved, self.cancel_asked = None, False
        #: The row once it was final, and when that was first seen.
        self.final, self.final_at = None, None
        #: How often the store has lost commits that may be about it.
        self.losses, self.is_doubled = 0, False
        #: The end that each of its units was seen to show, with the output, and when.
        self.shown = {}

    def extras(self):
        match self.kind:
            case "retry":
                return {"retry": RETRY}
            case "unconfirmed":
                return {"retry": {**RETRY, "unconfirmed": True}}
            case "exclusive":
                return {"exclusive": self.words}
            case "after":
                return {"depends_on": [self.need.number]}
            case "twice":
                return {"key": f"key-{self.name}"}
        return {}

    @property
    def retries(self):
        return "retry" in self.header

    def payload(self):
        lines = [self.header, {"kwargs": self.kwargs}, {"eof": True}]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def submit(self, amid=lambda: None, is_whole=True, control=None):
        """Submits it, or half of it, to some control node; `amid` runs in the middle. Returns whether it was acknowledged."""
        payload = self.payload()
        half = len(payload) // 2
        control = control or self.world.control()
        try:
            with control.control(timeout=30) as client:
                unit = client.begin(control.name, "controller")
                client.socket.sendall(payload[:half])
                amid()
                # A client waits for a node that hangs, and the world goes on meanwhile.
                while control.name in self.world.stopped:
                    self.world.tick(0.05)
                if not is_whole:
                    return False
                client.socket.sendall(payload[half:])
                client.socket.shutdown(1)
                answer = json.loads(client.line())
        except (OSError, ControlError) as error:
            self.world.note(f"{self.name} is not acknowledged: {error}")
            return False
        assert answer["result"] in ("Job Started", "Job Submitted"), answer
        self.units.append((control.name, unit))
        numbered = until("its number", lambda: self.unit(control.name, unit)["ExtraData"].get("JobID"))
        assert self.number in (None, numbered) or self.losses, f"{self.name} is job {numbered} and {self.number}"
        # Another control node that has never heard of its key has made another job of it.
        others = [there for there, _ in self.units[:-1]]
        self.is_doubled |= self.number not in (None, numbered) and control.name not in others
        self.number = numbered
        self.world.note(f"{self.name} is job {numbered}, unit {unit}")
        return True

    def unit(self, node, unit):
        """What a unit shows; None if it is gone, as may be if the store has forgotten its job."""

        def status():
            self.world.control()
            try:
                return [self.world.mesh[node].unit(unit)]
            except OSError:
                return None
            except ControlError as error:
                assert self.losses and "unknown work unit" in str(error), f"{unit} of {self.name} on {node}: {error}"
                return [None]

        return until(f"the status of unit {unit}", status)[0]

    def look(self):
        """Its row. What is final stays."""
        row = self.row()
        if self.final and self.final["state"] != "forgotten":
            same = ("state", "explanation", "finished", "rc", "execution_node", "attempt")
            changed = {key: (self.final[key], row[key]) for key in same if self.final[key] != row[key]}
            assert not changed, f"{self.name} was final, and changed: {changed}"
        elif row["finished"]:
            self.final, self.final_at = row, time.time()
        for node, unit in self.units:
            if node not in self.world.down | self.world.stopped:
                self.look_at(node, unit)
        return row

    def row(self):
        """As the store has it. Of a job that is forgotten its units alone are left."""
        answer = self.world.answer("job.get", id=self.number)
        if self.is_row(answer):
            return answer["result"]
        assert self.losses, f"{self.name} is not job {self.number}: {answer}"
        shown = [one for node, unit in self.units if (one := self.unit(node, unit))]
        # One that waits to become a job again has no number.
        for number in {one["ExtraData"].get("JobID") for one in shown} - {self.number, None}:
            if self.is_row(answer := self.world.answer("job.get", id=number)):
                self.world.note(f"{self.name} is job {number}, and was {self.number}")
                self.number = number
                return answer["result"]
        ends = all(one["State"] >= 2 for one in shown)
        return FORGOTTEN | {"finished": ends, "explanation": "" if ends else [one["Detail"] for one in shown]}

    def is_row(self, answer):
        return answer["ok"] and answer["result"]["name"] == self.name

    def look_at(self, node, unit):
        """What a unit shows. Its end, with all of the output, comes once."""
        one = self.unit(node, unit)
        if not one:
            return
        if one["State"] < 2:
            assert (node, unit) not in self.shown, f"{unit} of {self.name} on {node} showed its end, and now {one}"
        elif (node, unit) not in self.shown:
            output = self.world.mesh[node].results(unit)
            self.shown[node, unit] = (one["StateName"], output, time.time())

    def forget(self, since):
        """The store has lost what it committed since then."""
        if self.final_at and self.final_at < since:
            return
        self.losses += 1
        self.final = self.final_at = None
        if self.cancel_saved and self.cancel_saved > since:
            self.cancel_saved = None

    def cancel(self):
        # Its number may have become another job's.
        if self.row()["state"] == "forgotten":
            return
        self.cancel_asked = True
        row = self.world.ask("job.cancel", id=self.number)
        if row["cancel_requested"]:
            self.cancel_saved = self.cancel_saved or time.time()
        self.world.note(f"cancel {self.name}: {row['state']}")

    def notes(self):
        """What its runs noted: starts by process ID, and when those ended that came to their end."""
        with contextlib.suppress(FileNotFoundError), open(f"{self.path}.runs") as file:
            notes = [json.loads(line) for line in file]
            return [one for one in notes if "run" in one], {one["ended"]: one["at"] for one in notes if "ended" in one}
        return [], {}

    # The model.

    def check(self, jobs):
        """All that must be true once everything is back and it is final."""
        row = self.look()
        assert self.final, f"{self.name} has not ended: {row}"
        runs, ends = self.notes()
        try:
            if self.losses:
                self.check_forgotten(row, runs)
            else:
                self.check_runs(row, runs)
                self.check_end(row, runs, ends)
                self.check_words(row, runs, ends, jobs)
            self.check_outputs(row, runs)
        except AssertionError as missed:
            raise AssertionError(f"{self.name}: {missed}\nrow: {row}\nruns: {runs}\nends: {ends}") from missed

    def check_forgotten(self, row, runs):
        """What is true however much the store has lost of it."""
        self.check_no_second_run(runs, {})
        most = self.losses + (RETRY["max"] + 1 if self.retries else 1)
        assert len({run["unit"] for run in runs}) <= most, f"it ran {len(runs)} times, and the store has lost commits {self.losses} times"
        # Of one that the store does not know any more a unit says that it may have run; and one that the store takes for pending
        # is cancelled at once, whatever was sent of it.
        ends = [at for state, _, at in self.shown.values() if state == "Succeeded" or row["attempts"]]
        late = [run for run in runs if run["at"] > min(ends, default=run["at"])]
        assert self.is_doubled or not late, f"it ran after its end was shown, {self.shown}: {late}"
        if row["state"] == "canceled":
            assert self.cancel_asked, "nobody cancelled it"

    def check_runs(self, row, runs):
        attempts = {one["unit"]: one for one in row["attempts"]}
        by_unit = [run["unit"] for run in runs]
        self.check_no_second_run(runs, attempts)
        assert set(by_unit) <= set(attempts), "something ran that is no attempt"
        most = RETRY["max"] + 1 if self.retries else 1
        unheard = {run["unit"] for run in runs if self.is_unheard(run, attempts[run["unit"]])}
        assert len(set(by_unit) - unheard) <= most, f"it ran {len(runs)} times"
        for run in runs:
            outcome = attempts[run["unit"]]["outcome"]
            assert outcome != "not_accepted" or run["unit"] in unheard, "an attempt ran that counts as not accepted"
            assert self.final["state"] != "successful" or run["at"] < self.final_at, "an attempt started after success"
        for one in row["attempts"]:
            if self.cancel_saved:
                assert self.world.store.true(one["placed"]) <= self.cancel_saved, "an attempt was placed after a saved cancel"
        last = (row["attempts"] or [None])[-1]
        for one, following in itertools.pairwise(row["attempts"]):
            # With `unconfirmed` it may end, or be cancelled, long after the next one was placed.
            is_late = self.world.store.true(one["ended"]) > self.world.store.true(following["placed"])
            assert not is_late or self.kind == "unconfirmed", f"attempt {following['n']} was placed before the end"
            self.check_outcome(one, one["ended"], "lost" if is_late else one["outcome"])
        if last:
            is_late = row["state"] == "failed" and self.world.store.true(last["ended"]) > self.world.store.true(row["finished"])
            self.check_outcome(last, row["finished"], "lost" if is_late else last["outcome"])

    def is_unheard(self, run, attempt):
        """Whether nobody had heard that it runs before it was released, or its machine installed again."""
        if attempt["outcome"] != "not_accepted":
            return False
        return self.world.excuses(["wiped", "released"], [attempt["node"]], run["at"], self.world.store.true(attempt["ended"]))

    def check_no_second_run(self, runs, attempts):
        """An attempt runs once, and none beside another one."""
        for earlier, later in itertools.combinations(runs, 2):
            # Where it was released, or the machine installed again, before an answer was heard, nothing tells of it.
            nodes = [attempts[later["unit"]]["node"]] if later["unit"] in attempts else self.world.executions
            is_forgotten = self.world.excuses(["wiped", "released"], nodes, earlier["at"], later["at"])
            assert earlier["unit"] != later["unit"] or is_forgotten, "an attempt ran twice"
        if self.kind != "unconfirmed" and not self.is_doubled:
            assert not any(self.lock in run["overlaps"] for run in runs), "two attempts ran at once"

    def check_outcome(self, attempt, ended, outcome):
        """A fault explains an outcome that is not the job's own."""
        node, unit = attempt["node"], attempt["unit"]
        start, end = self.world.store.true(attempt["placed"]), self.world.store.true(ended)
        where = (node, *self.world.HOPS, *self.world.controls)
        assert outcome, f"attempt {attempt['n']} has no end"
        if outcome == "lost":
            if self.world.excuses(["dead"], [node], start, end) or self.world.excuses(["wiped"], [node], start, end):
                return
            since = self.world.excuses(["away"], where, start - LOST_AFTER, end)
            assert since, f"attempt {attempt['n']} is lost, and its node was there"
            late = since + LOST_AFTER - 2 * HEARTBEAT
            assert end >= late, f"attempt {attempt['n']} was lost {late - end} s too soon"
        elif outcome == "error":
            kinds = ["killed", "released", "wiped", "full"]
            excused = self.world.excuses(kinds, [unit, node, *self.world.controls], start - SLACK, end)
            assert excused, f"attempt {attempt['n']} ended as error without a cause"
        elif outcome == "canceled":
            assert self.cancel_asked, "nobody cancelled it"
        elif outcome == "failed":
            assert self.kwargs["status"] == "failed", "it failed, and its playbook did not"

    def check_end(self, row, runs, ends):
        state, last = row["state"], (row["attempts"] or [None])[-1]
        if self.cancel_saved:
            assert state == "canceled", f"a cancel was saved, and it is {state}"
        if state == "canceled":
            assert self.cancel_asked, "nobody cancelled it"
        elif self.need and self.need.losses:
            # What it needed may have succeeded, and the store forgotten that. Its own process may have been killed at once.
            assert state == "failed" or runs or last["outcome"] == "error", f"it is {state} and never ran"
        elif self.need and self.need.final["state"] != "successful":
            assert (state, runs) == ("failed", []), "it ran without what it needs"
        elif state == "successful":
            assert self.kwargs["status"] == "successful", "its playbook failed"
            assert last["outcome"] == "successful", "its last attempt did not succeed"
            ended = [run for run in runs if run["unit"] == last["unit"] and run["run"] in ends]
            assert ended, "no run of its last attempt came to its end"
        else:
            assert last, f"it is {state} and never ran"
            wanted = {"failed": ("lost", "not_accepted", "failed"), "error": ("error",)}[state]
            # A lost one may end at last, after the job has.
            is_late = state == "failed" and self.world.store.true(last["ended"]) > self.world.store.true(row["finished"])
            assert is_late or last["outcome"] in wanted, f"it is {state}, its last attempt {last['outcome']}"

    def check_words(self, row, runs, ends, jobs):
        """Needs and words hold for the runs themselves."""
        if self.need and runs and not self.need.losses:
            done = max(self.need.notes()[1].values())
            assert done <= runs[0]["at"], "it began before what it needs had ended"
        others = [one for one in jobs if set(one.words) & set(self.words)]
        is_certain = not any(one.losses or any(a["outcome"] == "lost" for a in one.look()["attempts"]) for one in others)
        if self.words and is_certain:
            assert not any(run["overlaps"] for run in runs), f"it ran beside another {self.words}"

    def check_outputs(self, row, runs):
        """Each control node that has its output has all of it, and what it shows once stays."""
        for (node, unit), (state, output, _) in self.shown.items():
            one = self.unit(node, unit)
            if not one and not row["attempts"]:
                continue
            assert one["StateName"] == state, f"{unit} on {node} showed {state}, and now {one}"
            assert self.world.mesh[node].results(unit) == output, f"the output of {unit} on {node} has changed since its end was shown"
        outputs = {}
        for node, unit in self.copies():
            if self.losses and not self.unit(node, unit):
                continue
            # Output that may still come is waited for, for a minute.
            shown = until("the unit's end", lambda n=node, u=unit: (s := self.unit(n, u))["State"] >= 2 and s, 90)
            if not self.losses:
                assert shown["StateName"] == FINAL[row["state"]], f"its unit shows {shown}"
            outputs[node, unit] = output = self.world.mesh[node].results(unit)
            if shown["StateName"] == "Succeeded":
                self.check_output(output, runs, row)
        if self.losses:
            return
        for node in self.world.controls:
            if row["output_hash"]:
                outputs[node, "job.output"] = self.streamed(node)
        for where, output in outputs.items():
            assert len(output) >= row["output_bytes"], f"{len(output)} bytes of output, and {row['output_bytes']} counted"
            is_same = output == next(iter(outputs.values())) and len(output) == row["output_bytes"]
            assert is_same or not row["output_hash"], f"copies differ: {[(of, len(one)) for of, one in outputs.items()]}"

    def copies(self):
        """Its units on all control nodes: also those of a control node that has taken it over."""
        found = list(self.units)
        for node in self.world.controls:
            for unit, one in self.world.mesh[node].command("work list").items():
                extra = one.get("ExtraData") or {}
                if not is_child(unit) and (extra.get("JobID"), extra.get("Name")) == (self.number, self.name):
                    found.append((node, unit))
        return dict.fromkeys(found)

    def streamed(self, node):
        """What `job.output` of a control node tells, once it finds the way to one that has the output."""
        def ask():
            with self.world.mesh[node].control() as client:
                client.send({"command": "controller", "op": "job.output", "id": self.number})
                answer = json.loads(client.line())
                return answer, client.reader.read() if answer["ok"] else b""

        # A partition may have ended a moment ago.
        answer, output = until("a way to the output", lambda: (a := ask())[0].get("error", {}).get("code") != "owner_away" and a, 90)
        assert answer["ok"], answer
        return output

    def check_output(self, output, runs, row):
        """That of a job that succeeded: whole, and what the runner wrote."""
        attempts = row["attempts"]
        # The last one counts: `check_runs` has found why there is another before it.
        units = {attempts[-1]["unit"]} if attempts and not self.losses else {run["unit"] for run in runs}
        runs = [run for run in runs if run["unit"] in units]
        if not self.losses:
            runs = runs[-1:]
        said = [(run, pathlib.Path(f"{self.path}.{run['run']}").read_bytes()) for run in runs]
        if "the end of its output is missing" in row.get("explanation", ""):
            # Its final status has come, and decided; what comes behind that went with its unit, or was never written.
            last, true = attempts[-1], self.world.store.true
            placed, ended = true(last["placed"]), true(last["ended"])
            excused = self.world.excuses(["killed", "released", "wiped"], [last["unit"], last["node"]], placed, ended)
            # A node that was lost then gives the rest once it is back, and the job has ended.
            where = [last["node"], *self.world.HOPS, *self.world.controls]
            excused = excused or self.world.excuses(["away", "dead"], where, placed - LOST_AFTER, ended)
            assert excused, "the end of its output is missing without a cause"
            cut = output[output.rfind(b'{"status": "starting"'):]
            assert b'{"status": "successful"}' in cut, f"its output has no final status: {cut[-200:]}"
            wrote = [cut for _, one in said if one.startswith(cut)]
        else:
            # Of a job about which commits were lost less is told: one that was killed behind its final status has no end line.
            killed = {unit for kind, unit, _, _ in self.world.events if kind == "killed"} if self.losses else set()
            wrote = [one for run, one in said if one and output.endswith(one) and (one.endswith(b'{"eof": true}\n') or run["unit"] in killed)]
        assert wrote, f"{len(output)} bytes of output do not end with what the runner wrote"
        before = output[: -len(wrote[0])]
        if not self.retries:
            assert before == b"", f"{len(before)} bytes stand before its output: {before[:200]}"
        elif before:
            lines = worker_lines(before)
            assert lines[-1].get("status") == "error", f"before its last attempt stands {before[-200:]}"
            assert not any("eof" in line for line in lines), "an attempt before the last one has an end line"


def worker_lines(output):
    """The lines of whole output without its zips, as `ansible-runner process` reads them: a line follows a zip at once."""
    lines, at = [], 0
    while at < len(output):
        end = output.find(b"\n", at) + 1
        assert end, f"a line is not whole: {output[at:][:200]}"
        lines.append(json.loads(output[at:end]))
        at = end + (lines[-1].get("zipfile", 0) + 2) // 3 * 4
    assert at == len(output), f"a zip is not whole: {output[-200:]}"
    return lines


def choose(world, jobs):
    """A job of a random kind."""
    kind = world.rng.choices(list(KINDS), KINDS.values())[0]
    needs = [job for job in jobs if job.number]
    if kind == "after" and not needs:
        kind = "plain"
    world.jobs.append(Job(world, kind, world.rng.choice(needs) if kind == "after" else None))
    return world.jobs[-1]
