"""Faults of everything around jobs, in a seeded order, and a model of what must be true of jobs afterwards.

CONTROLLER_FAULTS sets the number of faults with one control node, CONTROLLER_FAULTS_PAIR that with two and a PostgreSQL of
the test's own, and CONTROLLER_FAULTS_SEED the seed. Where there are more than LONG of them, partitions last for more than a
minute.
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from controller_model import choose
from controller_pair import Pair
from controller_world import LONG_PARTITION, PARTITION, SPANS, World, is_child
from mesh import until

FAULTS = int(os.environ.get("CONTROLLER_FAULTS", 30))
SEED = int(os.environ.get("CONTROLLER_FAULTS_SEED", 1))
PAIR_FAULTS = int(os.environ.get("CONTROLLER_FAULTS_PAIR", 16))
LONG = 100
#: Faults between two checks of everything.
ROUND = 12
#: Kinds of faults, and how often each is chosen.
KINDS = {
    **{"kill": 3, "kill control": 2, "kill hop": 1, "kill process": 4, "kill machine": 1, "wipe": 1, "fill": 1},
    **{"cut": 3, "silence": 1, "cut control": 2, "partition": 0.4, "stop": 2, "stop hop": 1, "stop control": 1},
    **{"cancel": 3, "strangers": 2, "set clock": 2, "lose commits": 1},
}
#: What comes at least once, however few the faults are.
CERTAIN = ("set clock", "lose commits", "partition")
#: Seconds until everything is at rest once all is back: the housekeeping period, and some more for a busy machine.
REST = 75


@pytest.mark.timeout(300 + 8 * FAULTS)
def test_no_fault_loses_a_job_or_runs_it_twice(mesh):
    check_faults(World, mesh, FAULTS, "CONTROLLER_FAULTS")


@pytest.mark.timeout(300 + 8 * PAIR_FAULTS)
def test_no_fault_loses_a_job_or_runs_it_twice_with_two_control_nodes(mesh):
    check_faults(Pair, mesh, PAIR_FAULTS, "CONTROLLER_FAULTS_PAIR")


def check_faults(kind, mesh, faults, variable):
    """Plays that many faults in a world of this kind; the variable has their number."""
    world = kind(mesh, random.Random(SEED))
    done = total = 0
    certain = dict(zip(world.rng.sample(range(faults), len(CERTAIN)), CERTAIN, strict=True))
    world.partition_span = LONG_PARTITION if faults > LONG else PARTITION
    try:
        while done < faults:
            numbers = range(done, min(done + ROUND, faults))
            world.note(f"--- faults {done + 1} to {numbers[-1] + 1}")
            total += play(world, [certain.get(number) for number in numbers])
            done += len(numbers)
    except BaseException as error:
        history = "\n".join(world.history)
        again = f"{variable}={faults} CONTROLLER_FAULTS_SEED={SEED}"
        raise AssertionError(f"{error}\n\n{history}\n\nafter {done} faults; {again}") from error
    finally:
        world.close()
    print(f"{done} faults over {total} jobs, seed {SEED}")


def play(world, faults):
    """Submits jobs amid faults, these or any others, waits until all is back and at rest, and checks everything. Returns how
    many jobs there were."""
    rng, jobs, halves, unsure = world.rng, [], [], []
    world.jobs = []
    for chosen in faults:
        for _ in range(rng.choice((1, 2, 2, 3))):
            job = choose(world, jobs)
            if rng.random() < 0.08:
                world.note(f"half of {job.name}")
                job.submit(is_whole=False)
                halves.append(job.name)
            elif rng.random() < 0.2 and len(world.controls) > 1:
                at_once(world, job, jobs, unsure)
            else:
                amid = rng.random() < 0.1
                acknowledged = job.submit(lambda: fault(world, jobs) if amid else None)  # noqa: B023
                (jobs if acknowledged else unsure).append(job)
        world.tick(rng.choice((0, 0.05, 0.2)))
        fault(world, jobs, chosen)
        look_at_some(world, jobs)
    while world.is_apart():
        world.tick(1)
        look_at_some(world, jobs)
    world.end_faults()
    world.await_ready()
    await_rest(world, jobs)
    find_unsure(world, jobs, unsure, halves)
    await_rest(world, jobs)
    for job in jobs:
        job.check(jobs)
    await_empty(world)
    release(world)
    return len(jobs)


def look_at_some(world, jobs):
    for job in world.rng.sample(jobs, min(2, len(jobs))):
        job.look()


def at_once(world, job, jobs, unsure):
    """Two clients submit at once, each to its own control node, so that two schedulers see both jobs."""
    both = [job, choose(world, jobs)]
    controls = [world.mesh[name] for name in world.controls if name not in world.down | world.stopped]
    if len(controls) < len(both):
        controls = [world.control()] * len(both)
    world.note(f"{both[0].name} and {both[1].name} at once")
    with ThreadPoolExecutor() as pool:
        acknowledged = list(pool.map(lambda one, control: one.submit(control=control), both, controls))
    for one, is_acknowledged in zip(both, acknowledged, strict=True):
        (jobs if is_acknowledged else unsure).append(one)


def fault(world, jobs, chosen=None):
    """One fault: this one, or any."""
    rng = world.rng
    kinds = {**KINDS, **world.KINDS}
    chosen = chosen or rng.choices(list(kinds), kinds.values())[0]
    name, span = rng.choice(world.executions), rng.choice(SPANS)
    control = rng.choice(world.controls)
    open_jobs = [job for job in jobs if not job.final]
    match chosen:
        case "kill":
            world.kill(name, span)
        case "kill control":
            world.kill(control, span)
        case "kill hop":
            world.kill("hop", span)
        case "cut":
            world.break_link(name, span, silently=False)
        case "silence":
            world.break_link(name, span, silently=True)
        case "cut control":
            world.break_link(control, span, silently=rng.random() < 0.3)
        case "partition":
            world.partition()
        case "stop":
            world.stop(name, span, is_whole=rng.random() < 0.5)
        case "stop hop":
            world.stop("hop", span)
        case "stop control":
            world.stop(control, span)
        case "kill process":
            world.kill_process(name)
        case "cancel" if open_jobs:
            rng.choice(open_jobs).cancel()
        case "kill machine":
            world.kill_node(name, span)
        case "wipe":
            world.kill(name, span, wipe=True)
        case "fill":
            world.fill(span)
        case "set clock":
            world.store.step(span)
        case "lose commits":
            world.store.lose_commits(span)
        case own if own in world.KINDS:
            world.own_fault(own, span)
        case _:
            world.strangers_release(name) if rng.random() < 0.5 else world.strangers_refused()
    # Without a control node no client can do anything: it stays away as long as the fault lasts.
    if set(world.controls) <= world.down | world.stopped:
        world.tick(span)
    # A key that the store has forgotten makes another job.
    twice = [job for job in jobs if job.kind == "twice" and len(job.units) == 1 and not job.losses]
    if twice and rng.random() < 0.5:
        rng.choice(twice).submit()


def await_rest(world, jobs):
    """Until all jobs have ended, nothing is occupied, and no unit is left of them."""

    def late():
        return [(job.name, row["state"], row["explanation"]) for job in jobs if not job.final and not (row := job.look())["finished"]]

    unended = []
    until_empty("jobs that have not ended", late, unended)


def until_empty(what, left, last):
    def done():
        last.clear()
        last[:] = left() or []
        return not last

    try:
        until(f"no {what}", done, REST, pause=0.1)
    except AssertionError:
        if not last:
            raise
        raise AssertionError(f"after {REST} s there are still {what}: {last}") from None


def await_empty(world):
    until_empty("units of ended jobs", lambda: list(world.left().items()), [])

    def consumed():
        instances = world.ask("instance.list")["instances"]
        return [(one["name"], one["consumed_capacity"], one["jobs_running"]) for one in instances if one["consumed_capacity"] or one["jobs_running"]]

    until_empty("claims of ended jobs", consumed, [])


def find_unsure(world, jobs, unsure, halves):
    """Submissions whose client saw no answer are jobs or nothing; half of one is nothing."""
    known = {row["name"]: row for row in rows(world)}
    for job in unsure:
        if job.name in known:
            job.number = known[job.name]["id"]
            world.note(f"{job.name} is job {job.number}, without an answer")
            jobs.append(job)
    assert not set(halves) & set(known), f"half a submission became a job: {set(halves) & set(known)}"
    strange = {row["name"] for row in known.values() if row["state"] not in ("successful", "failed", "error", "canceled")}
    assert strange <= {job.name for job in jobs}, f"nobody submitted {strange}"


def rows(world):
    """All jobs."""
    before, found = None, []
    while True:
        page = world.ask("job.list", limit=1000, **({"before": before} if before else {}))
        found += page["jobs"]
        if not (before := page["next"]):
            return found


def release(world):
    """Releases the units of all jobs; nothing is left on any control node."""
    for name in world.controls:
        node = world.mesh[name]
        for unit in node.command("work list"):
            if not is_child(unit):
                # By force, as a unit may belong to a job that the store has forgotten.
                node.command(f"work force-release {unit}")
        until_empty(f"units on {name}", lambda n=node: list(n.command("work list")), [])
