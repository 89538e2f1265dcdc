#!/usr/bin/env python3
"""Measure what saved jobs cost a control node: memory, the first read, and reloads.

    benches/saved.py --bin target/release/meshd [--jobs 10000] [--rounds 3]

Each file has some 700 bytes, and differs from all others. Without and with a schedule in each. Memory is anonymous memory (RssAnon) beside
that of the same process with an empty directory. Times are those from the request until the last file is in force.
"""
import argparse, hashlib, json, os, time

from nodes import Control, Mesh

FILE = """# What team {team} runs on its hosts.
description: Rolls out service {n} of team {team} to its hosts, with a check before and after
project: {{url: "https://git.example/team-{team}/service-{n}.git", revision: main, credential: git}}
playbook: deploy/site-{n}.yml
inventory: [inventories/production, inventories/common]
limit: "web-{n}"
tags: [deploy, config]
extra_vars: {{service: "service-{n}", region: eu-central, retries: {n}}}
labels: {{team: "team-{team}", service: "service-{n}"}}
group: [east, west]
retry: 2
timeout: 1h30m
vars:
  version: {{description: the tag to roll out, pattern: 'v[0-9]+(\\.[0-9]+)*'{default}}}
  target: {{choices: [production, staging], default: staging}}
  count: {{type: int, default: {n}}}
  restart: {{type: bool, default: false}}
"""
SCHEDULE = """schedule: {{cron: "{minute} {hour} * * 1-5", zone: Europe/Berlin, overlap: queue, jitter: 5m}}
"""


def anonymous(pid):
    return next(int(line.split()[1]) / 1024 for line in open(f"/proc/{pid}/status") if line.startswith("RssAnon"))


def write(directory, count, with_schedules, round):
    for n in range(count):
        default = ", default: v1" if with_schedules else ""
        text = FILE.format(n=n, team=n % 97, default=default) + f"# round {round}\n"
        text += SCHEDULE.format(minute=n % 60, hour=n // 60 % 24) if with_schedules else ""
        with open(f"{directory}/job-{n:05}.yml", "w") as file:
            file.write(text)
    # 16 hex digits of the last file, as lists show it.
    return hashlib.sha256(text.encode()).hexdigest()[:16], len(text)


def until_in_force(node, count, hash):
    ask = {"command": "controller", "op": "saved.list", "after": f"job-{count - 2:05}", "limit": 1}
    while True:
        with Control(node.sock) as control:
            answer = control.cmd(ask)
        if answer["ok"] and [one.get("hash") for one in answer["result"]["saved"]] == [hash]:
            assert not answer["result"]["saved"][0].get("fault"), answer
            return
        time.sleep(0.005)


def reloaded(node, count, hash):
    begun = time.monotonic()
    with Control(node.sock, 300) as control:
        control.cmd({"command": "reload"})
    until_in_force(node, count, hash)
    return time.monotonic() - begun


def measure(binary, count, with_schedules):
    mesh = Mesh(binary)
    try:
        jobs = f"{mesh.dir}/jobs.d"
        os.mkdir(jobs)
        node = mesh.node("c", [{"local-only": None}, {"work-controller": {"nodetype": "control", "jobs": jobs, "rundir": mesh.dir}}])
        begun = time.monotonic()
        node.start()
        started = time.monotonic() - begun
        with Control(node.sock) as control:
            while not control.cmd({"command": "controller", "op": "ping"})["ok"]:
                time.sleep(0.01)
        empty = anonymous(node.p.pid)
        hash, size = write(jobs, count, with_schedules, 0)
        found = {"read of all": reloaded(node, count, hash), "memory, MiB": anonymous(node.p.pid) - empty}
        found["reload, none changed"] = reloaded(node, count, hash)
        hash, _ = write(jobs, count, with_schedules, 1)
        found["reload, all changed"] = reloaded(node, count, hash)
        found["memory after that, MiB"] = anonymous(node.p.pid) - empty
        for round in range(2, 7):
            hash, _ = write(jobs, count, with_schedules, round)
            reloaded(node, count, hash)
        found["memory after six of them, MiB"] = anonymous(node.p.pid) - empty
        node.kill()
        begun = time.monotonic()
        node.start(wait=False).ready(300)
        until_in_force(node, count, hash)
        found["start, more than without"] = time.monotonic() - begun - started
        found["memory after a start, MiB"] = anonymous(node.p.pid) - empty
        found["bytes of a file"] = size
        return found
    finally:
        mesh.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for with_schedules in (False, True):
        rounds = [measure(arguments.bin, arguments.jobs, with_schedules) for _ in range(arguments.rounds)]
        print("with schedules:" if with_schedules else "without schedules:")
        for what in rounds[0]:
            print(f"  {what}: " + ", ".join(f"{one[what]:.2f}" for one in rounds), flush=True)


if __name__ == "__main__":
    main()
