#!/usr/bin/env python3
"""Measure jobs as Kubernetes pods, on the cluster of tests/kubernetes, as root.

    benches/kubernetes.py [--bin meshd=target/dist/meshd] [--rounds 5] [--only figures|cases]

Prints two Markdown tables. The first: seconds from the submission to the end of the results of one `echo`, and of twelve
pods at once that sleep 1 s, medians of the rounds, in which all contenders take turns. The second: what a user sees of a
job that something goes wrong with. Contenders are meshd, `kubectl run --rm -i --attach` with the same image, command and
account, and the Go programs that RECEPTOR_GO and RECEPTOR_GO_NEW name (1.4.9 and about 1.5.1).
"""

import argparse
import concurrent.futures
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/kubernetes"), str(ROOT / "tests/system")]

import cluster as kubernetes  # noqa: E402
import namespaces  # noqa: E402
import programs  # noqa: E402
from client import ControlError  # noqa: E402
from images import BUSYBOX  # noqa: E402
from mesh import until  # noqa: E402
from node import Node, Reader, kubeconfig, work_type  # noqa: E402
from pods import STAY, pod, shell  # noqa: E402

AT_ONCE = 12
#: No case is observed for longer.
PATIENCE = 75
ECHO = "echo hi"
SLEEP = "sleep 1"


class Contender:
    """A node, meshd or Go."""

    def __init__(self, program):
        self.node = Node([work_type()], program=program).start()

    def run(self, script):
        unit = self.node.submit(**shell(script))
        return self.node.results(unit)

    def clean(self, cluster):
        release(self.node)
        until("the end of all pods", lambda: not cluster.pods(), 90)


class Kubectl:
    """kubectl, with the account of the nodes."""

    count = 0

    def run(self, script):
        Kubectl.count += 1
        command = [f"{programs.BIN}/kubectl", f"--kubeconfig={kubeconfig('awx')}", "run", f"run-{Kubectl.count}"]
        options = ["--rm", "-i", "--attach", "--quiet", "--restart=Never", f"--image={BUSYBOX}", "--command", "--"]
        done = subprocess.run([*command, *options, "sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        return done.stdout

    def clean(self, cluster):
        cluster.remove_pods()
        until("the end of all pods", lambda: not cluster.pods(), 90)


def release(node):
    for unit in node.command("work list"):
        try:
            node.release(unit)
        except ControlError as error:
            print(f"release of {unit}: {error}", file=sys.stderr)


def one(contender):
    begun = time.monotonic()
    output = contender.run(ECHO)
    assert output == b"hi\n", output
    return time.monotonic() - begun


def many(contender):
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(contender.run, [SLEEP] * AT_ONCE))
    return time.monotonic() - begun


def figures(cluster, contenders, rounds):
    seconds = {name: {one: [], many: []} for name in contenders}
    for measure in (one, many):
        # The first run of each loads what the others need.
        for turn in range(rounds + 1):
            for name, contender in contenders.items():
                took = measure(contender)
                contender.clean(cluster)
                if turn > 0:
                    seconds[name][measure].append(took)
                print(f"{name}: {measure.__name__} {took:.2f} s", file=sys.stderr)
    print(f"| | `{ECHO}`, s | {AT_ONCE} pods of 1 s at once, s |\n|---|---|---|")
    for name, of in seconds.items():
        cells = (f"{statistics.median(of[m]):.2f} ({min(of[m]):.2f} to {max(of[m]):.2f})" for m in (one, many))
        print(f"| {name} | {' | '.join(cells)} |")


# Cases: each submits a unit to a node and says what came of it.


def observe(node, params, expected=b"", meanwhile=lambda unit: None):
    begun = time.monotonic()
    unit = node.submit(**params)
    reader = Reader(node, unit, PATIENCE)
    meanwhile(unit)
    try:
        status = node.final(unit, max(1, PATIENCE - (time.monotonic() - begun)))
    except AssertionError:
        status = node.status(unit)
        return f"{status['StateName']} after {PATIENCE} s, `{status['Detail']}`{output(reader, expected)}"
    took = time.monotonic() - begun
    reader.join(10)
    return f"{status['StateName']} after {took:.0f} s, `{status['Detail']}`{output(reader, expected)}"


def output(reader, expected):
    if reader.is_alive() or reader.output is None:
        return "; its results do not end"
    if reader.output == expected:
        return "; output complete" if expected else ""
    return f"; {len(reader.output)} of {len(expected)} bytes of output"


def away(node, cluster):
    lines = b"".join(b"line %d\n" % n for n in range(1, 36))

    def meanwhile(unit):
        node.running(unit)
        cluster.end("apiserver")
        time.sleep(20)
        cluster.start_server()

    return observe(node, shell("for n in $(seq 1 35); do echo line $n; sleep 1; done"), lines, meanwhile)


def rotations(node, _):
    lines = b"".join(b"a line of a log that is rotated, with the number %d\n" % n for n in range(1, 320_001))
    script = "seq 1 320000 | sed 's/^/a line of a log that is rotated, with the number /'"
    # What is rotated away before the log can be followed is nobody's any more.
    return observe(node, shell(f"echo begun; sleep 3; {script}"), b"begun\n" + lines)


def missing_image(node, _):
    worker = {"image": "docker.io/local/none:1", "imagePullPolicy": "Never"}
    return observe(node, {**pod("true", worker=worker), "pod_pending_timeout": "20s"})


def out_of_memory(node, _):
    limits = {"resources": {"limits": {"memory": "20Mi"}}}
    return observe(node, pod("echo before; exec tail /dev/zero", worker=limits), b"before\n")


def unschedulable(node, _):
    return observe(node, {**pod("true", nodeSelector={"no": "where"}), "pod_pending_timeout": "20s"})


def cancel(node, _):
    def meanwhile(unit):
        node.running(unit)
        node.cancel(unit)

    return observe(node, pod(f"echo begun; {STAY}"), b"begun\n", meanwhile)


def sidecar(node, _):
    stays = {"name": "sidecar", "image": BUSYBOX, "args": ["sh", "-c", STAY]}
    return observe(node, pod("echo done", beside=[stays]), b"done\n")


CASES = {
    "API server away for 20 s of a healthy job": away,
    "17 MB of output across a rotation of the log": rotations,
    "an image that is not there, policy Never, 20 s of patience": missing_image,
    "out of memory": out_of_memory,
    "no node fits, 20 s of patience": unschedulable,
    "a cancel": cancel,
    "a sidecar that stays": sidecar,
}


def cases(cluster, nodes):
    print(f"| | {' | '.join(nodes)} |\n|---|{'---|' * len(nodes)}")
    for title, case in CASES.items():
        cells = []
        for name, contender in nodes.items():
            told = case(contender.node, cluster).replace("\n", " ").replace("|", "\\|")
            release(contender.node)
            try:
                until("the end of all pods", lambda: not cluster.pods(), 45)
            except AssertionError:
                told += f"; {len(cluster.pods())} pods left after the release"
                cluster.remove_pods()
                until("the end of all pods", lambda: not cluster.pods(), 45)
            print(f"{name}: {title}: {told}", file=sys.stderr)
            cells.append(told)
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=f"meshd={ROOT}/target/dist/meshd", help="NAME=PATH of our program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["figures", "cases"])
    arguments = parser.parse_args()
    if not namespaces.are_entered():
        namespaces.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
    name, _, path = arguments.bin.partition("=")
    of_go = {"receptor 1.4.9": "RECEPTOR_GO", "receptor 1.5.1": "RECEPTOR_GO_NEW"}
    paths = {name: path, **{go: os.environ[variable] for go, variable in of_go.items() if variable in os.environ}}
    cluster = kubernetes.Cluster(logmax="1Mi", idle="4h")
    cluster.start()
    nodes = {name: Contender(os.path.abspath(path)) for name, path in paths.items()}
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.release()}, Kubernetes {programs.VERSION[1]}\n")
    if arguments.only != "cases":
        figures(cluster, {**nodes, "kubectl run": Kubectl()}, arguments.rounds)
        print()
    if arguments.only != "figures":
        cases(cluster, {title: node for title, node in nodes.items() if title != "receptor 1.4.9"})


if __name__ == "__main__":
    main()
