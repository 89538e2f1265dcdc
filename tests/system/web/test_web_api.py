"""The description of the API: every answer is as it says, it names every path that there is, and what schemathesis makes up from
it is answered as it says as well."""

import json
import os
import re
import subprocess
import sys

import jsonschema_rs
import pytest

from test_controller import ended, stream, submit
from test_web import ROUTES, site  # noqa: F401

#: What is made up as a job is bytes, and no job.
SETTINGS = """
[[operations]]
include-path = "/api/v1/jobs"
include-method = "POST"
checks.positive_data_acceptance.enabled = false
"""


@pytest.fixture(scope="module")
def described(site):  # noqa: F811
    """The API with a job that has ended, and its description."""
    _, site.job = submit(site.node, {"name": "described"}, ident="described", lines=5)
    ended(site.node, site.job)
    site.description = site.get("/api/v1/openapi.json").json
    return site


def check(description, path, method, answer):
    """That an answer is one of those that the description has for it."""
    answers = description["paths"][path][method]["responses"]
    one = answers.get(str(answer.status), answers["default"])
    if "$ref" in one:
        one = description["components"]["responses"][one["$ref"].rsplit("/", 1)[1]]
    kind = (answer.headers["Content-Type"] or "").split(";")[0]
    if answer.status == 204:
        assert "content" not in one and answer.body == b"", (path, one)
        return
    assert kind in one["content"], (path, answer.status, kind)
    if kind == "application/json":
        schema = {**one["content"][kind]["schema"], "components": description["components"]}
        errors = [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(answer.json)]
        assert not errors, (path, method, errors[:5])
        unknown = set(answer.json) - set(resolved(description, schema).get("properties", answer.json))
        assert not unknown, (path, method, unknown)


def resolved(description, schema):
    reference = schema.get("$ref")
    return description["components"]["schemas"][reference.rsplit("/", 1)[1]] if reference else schema


def test_each_answer_is_as_the_description_says(described):
    description = described.description
    paths = description["paths"]
    described_ones = {(method, path) for path in paths for method in paths[path]}
    tried = set()
    for method, path in [*ROUTES, ("GET", "/api/v1/openapi.json"), ("POST", "/api/v1/session")]:
        if not path.startswith("/api/") or path == "/api/v1/events":
            continue
        method = method.lower()
        pattern = next(one for one in sorted(paths) if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path) and method in paths[one])
        tried.add((method, pattern))
        real = path.replace("/1", f"/{described.job}", 1) if "/jobs/1" in path else path.replace("nobody", "control")
        bodies = {"/api/v1/jobs": stream({"name": "again"}, ident="again", lines=1), "/api/v1/session": {"token": "t-read"}}
        body = bodies.get(path, b"") if method == "post" else None
        for token in ("t-admin", None, "t-nobody" if path == "/api/v1/nodes" else "t-read"):
            answer = described.ask(method.upper(), real, body, None if path.startswith("/api/v1/session") else token)
            check(description, pattern, method, answer)
    assert tried | {("get", "/api/v1/events")} == described_ones


@pytest.mark.timeout(300)
def test_what_is_made_up_from_the_description_is_answered_as_it_says(described, tmp_path):
    description = tmp_path / "openapi.json"
    description.write_text(json.dumps(described.description))
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    command = [program, "run", str(description), "--url", f"http://127.0.0.1:{described.port}", "--header", "Authorization: Bearer t-admin",
               "--exclude-path", "/api/v1/events", "--exclude-path", "/api/v1/session", "--max-examples", "30", "--seed", "7",
               "--generation-database", "none", "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert described.get("/api/v1/session").status == 200, "the node is well"
