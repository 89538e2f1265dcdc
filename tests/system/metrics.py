"""Scrapes of nodes, and Prometheus' own program (Debian: prometheus), which checks their grammar and tries alert rules on them.

Knows the text of a scrape; what a series means is up to the test.
"""

import json
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest
import yaml

from mesh import ROOT, free_port

RULES = ROOT / "packaging" / "monitoring" / "meshd.rules.yml"
SERIES = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([-+.\deInfNa]+)$")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
#: Labels that Prometheus adds to what it scrapes.
OF_PROMETHEUS = {"job": "meshd", "instance": "n"}
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed (Debian: apt-get install prometheus)")


def directive(**settings):
    """A `metrics` directive on a free port, and the port."""
    port = free_port()
    return {"metrics": {"address": f"127.0.0.1:{port}", **settings}}, port


def get(port, path, token=None, context=None, method="GET", scheme="http"):
    """Status, body and headers of one request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def trusting(authority):
    return ssl.create_default_context(cafile=authority)


def scrape(port):
    """The text of /metrics."""
    status, text, headers = get(port, "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), (status, text)
    return text


def series(text):
    """Each series with its value, by its name and its labels in order."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SERIES.fullmatch(line).groups()
            found[name, tuple(LABEL.findall(labels or ""))] = float(value)
    return found


def value(text, name, **labels):
    """The value of one series; None if there is none."""
    return {(name, frozenset(of)): value for (name, of), value in series(text).items()}.get((name, frozenset(labels.items())))


def check(text):
    """`promtool check metrics` finds nothing."""
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), done.stdout + done.stderr


def fire(directory, scrapes, alert, minutes, expected):
    """Tries the alert rules on recorded scrapes, one a minute of which the last one lasts: whether an alert fires then.
    `expected` are the labels of what fires; none, if nothing does.
    """
    scrapes = [series(text) for text in scrapes]
    names = {name for found in scrapes for name in found if "instance" not in dict(name[1])}
    inputs = []
    for name, labels in sorted(names):
        values = [found.get((name, labels)) for found in scrapes]
        if name == "meshd_certificate_not_after_seconds":
            # Its clock begins at 0.
            values = [value - time.time() for value in values]
        values += [values[-1]] * (minutes + 1 - len(values))
        shown = ",".join(f'{label}="{value}"' for label, value in (*labels, *OF_PROMETHEUS.items()))
        inputs.append({"series": f"{name}{{{shown}}}", "values": " ".join("_" if v is None else repr(v) for v in values)})
    alerts = [{"exp_labels": {**OF_PROMETHEUS, **labels}} for labels in expected]
    for one in alerts:
        one["exp_annotations"] = annotations(alert, one["exp_labels"])
    test = {"interval": "1m", "input_series": inputs,
            "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": alert, "exp_alerts": alerts}]}
    (directory / "test.yml").write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([PROMTOOL, "test", "rules", "test.yml"], cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def rules():
    """The alert rules of packaging/monitoring, by name."""
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def labels(alert, **more):
    """Those of an alert that fires."""
    return {**rules()[alert]["labels"], **more}


def annotations(alert, labels):
    """What the rule says, with its labels in place."""
    def filled(text):
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return {name: filled(text) for name, text in rules()[alert]["annotations"].items()}
