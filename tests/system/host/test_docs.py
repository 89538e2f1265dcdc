"""The pages in docs/ and those beside README.md name only files, sections, tests and functions that exist; the index has
every page, and each page says whom it is for.

It starts nothing. `…` at the end of a name stands for the rest of it.
"""

import functools
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
#: A source file, by its path or by the end of its path.
FILE = re.compile(r"(?<![\w/.*$-])((?:\.{1,2}/)*[\w./-]+\.(?:rs|py|yml|md|service|toml))\b(?!\()")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
#: Names of tests and functions (with an underscore) in backquotes, with or without their module.
NAME = re.compile(r"`((?:\w+::)*[a-z]\w*_(?:\w+…?|…))(?:\(\))?`")
#: Items behind a path. Decisions (docs/adr) may also name items of other crates, and examples.
QUALIFIED = re.compile(r"`((?:\w+::)+[\w…*]+)`")
WORD = re.compile(r"[A-Za-z_]\w*")
#: Files that a page creates, or that its reader has.
NOT_HERE = {
    "/usr/share/meshd/monitoring/meshd.rules.yml",
    "/etc/meshd/conf.d/20-controller.yml",
    "/etc/meshd/meshd.yml", "/etc/meshd/jobs.d/deploy.yml", "/etc/meshd/credentials/prod.yml", "/etc/meshd/credentials/quay.yml", "/etc/meshd/credentials/git.yml", "NAME.yml",
    "/etc/meshd/conf.d/00-local.yml", "/etc/meshd/conf.d/60-peer-NAME.yml", "group_vars/all.yml", "inventory.yml", "install_receptor.yml", "site.yml", "vars.yml", "collections/requirements.yml", "roles/requirements.yml", "execution-environment.yml",
}


@functools.cache
def tracked():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout
    return [path for path in listed.splitlines() if (ROOT / path).is_file()]


@functools.cache
def words():
    """Every identifier and every word in the code."""
    found = set()
    for path in tracked():
        if path.endswith((".rs", ".py", ".toml", ".yml")) or path in ("tests/run", ".ci/run"):
            found |= set(WORD.findall((ROOT / path).read_text()))
    return found


@functools.cache
def modules():
    """The names that may stand before a `::`: of files, directories, inline modules and types."""
    found = {Path(path).stem for path in tracked()} | {part for path in tracked() for part in Path(path).parts[:-1]}
    for path in tracked():
        if path.endswith(".rs"):
            found |= set(re.findall(r"\b(?:mod|struct|enum|trait) (\w+)", (ROOT / path).read_text()))
    return found


def pages():
    found = [ROOT / path for path in tracked() if re.fullmatch(r"(docs/.*|README|CHANGELOG|CONTRIBUTING|MAINTAINERS|SECURITY)\.md", path)]
    assert len(found) > 10
    return found


def is_file(page, mention):
    if mention in NOT_HERE or (page.parent / mention).exists() or (ROOT / mention).exists():
        return True
    return any(path == mention or path.endswith("/" + mention) for path in tracked())


@functools.cache
def anchors(page):
    """The anchors of a page's headings, as forges make them, and those that it sets itself."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.add(next(name for name in [slug, *(f"{slug}-{n}" for n in range(1, 99))] if name not in found))
    return found


def is_name(name):
    *path, last = name.split("::")
    if last.endswith("…"):
        known = any(word.startswith(last.rstrip("…")) for word in words())
    else:
        known = last == "*" or last in words() or last in modules()
    return known and all(part in modules() for part in path)


def test_the_check_can_fail():
    page = ROOT / "docs" / "protocol.md"
    assert is_file(page, "src/lib.rs") and not is_file(page, "src/no_such_file.rs")
    assert is_name("test_the_check_can_f…") and not is_name("no_such_" + "test_at_all")
    assert not is_name("no_such_" + "room::main")
    assert {"links", "handshake"} <= anchors(page) and "no-such-section" not in anchors(page)


def test_files_that_a_page_mentions_exist():
    wrong = [
        f"{page.relative_to(ROOT)}:{number}: {mention}"
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for mention in set(FILE.findall(line)) | set(LINK.findall(line))
        if not mention.startswith("http") and not is_file(page, mention)
    ]
    assert not wrong, "\n".join(wrong)


def test_names_that_a_page_mentions_exist():
    wrong = [
        f"{page.relative_to(ROOT)}:{number}: {name}"
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for name in set(NAME.findall(line)) | (set() if page.parent.name == "adr" else set(QUALIFIED.findall(line)))
        if not is_name(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_sections_that_a_page_mentions_exist():
    wrong = [
        f"{page.relative_to(ROOT)}:{number}: {file}#{anchor}"
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for file, anchor in ANCHOR.findall(line)
        if not file.startswith("http") and anchor not in anchors((page.parent / file).resolve() if file else page)
    ]
    assert not wrong, "\n".join(wrong)


def test_pages_that_the_code_mentions_exist():
    wrong = [
        f"{path}: {page}{section}"
        for path in tracked()
        if path.endswith((".rs", ".py", ".js", ".toml", ".yml", ".service"))
        for page, section in re.findall(r"\b(docs/[\w/-]+\.md)(#[\w-]+)?", (ROOT / path).read_text())
        if not (ROOT / page).is_file() or section and section[1:] not in anchors(ROOT / page)
    ]
    assert not wrong, "\n".join(wrong)


def index():
    """Of docs/README.md: readers with the pages that they read, in order, and the pages that it lists."""
    first, second = (ROOT / "docs" / "README.md").read_text().split("\n## All pages\n")
    readers = {reader: LINK.findall(order) for reader, order in re.findall(r"^\| \*\*(.+?)\*\* \|.*\| (.+) \|$", first, re.M)}
    return readers, [LINK.findall(row)[0] for row in re.findall(r"^\| (\[.+?) \|", second, re.M)]


def test_the_index_lists_every_page_once():
    _, listed = index()
    there = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert sorted(listed) == sorted([*there, "adr/README.md"])
    decisions = set(LINK.findall((ROOT / "docs" / "adr" / "README.md").read_text()))
    assert {path.name for path in (ROOT / "docs" / "adr").glob("0*.md")} <= decisions


def test_each_page_says_whom_it_is_for_and_is_in_their_reading():
    readers, listed = index()
    assert len(readers) > 3 and all(readers.values())
    wrong = []
    for page in listed:
        line = (ROOT / "docs" / page).read_text().splitlines()[2]
        told = re.fullmatch(r"\*For (.+)\.\*", line)
        if page != "adr/README.md" and (not told or set(re.split(", | and ", told[1])) != {one for one in readers if page in readers[one]}):
            wrong.append(f"docs/{page}: {line}")
    assert not wrong, "\n".join(wrong)


def matrix():
    """The rows of docs/compatibility.md: what, its version, what was tried, what shows it."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\| (?!with)(.*) \|$", page, re.M)]
    assert len(rows) > 20 and {len(row) for row in rows} == {4}
    return rows


def test_each_line_of_the_matrix_names_a_test_or_says_that_there_is_none():
    shown = [(row, re.findall(r"`(tests/\S+\.py)`", row[3])) for row in matrix()]
    assert not [row for row, tests in shown if not tests and not re.fullmatch(r"\*by hand\*, [\d-]+|\*by reading\*", row[3])]
    assert not [test for _, tests in shown for test in tests if not (ROOT / test).is_file()]


def test_the_matrix_names_the_versions_that_the_tests_have():
    pinned = (ROOT / "tests" / "requirements.txt").read_text()
    named = {}
    for what, version, *_ in matrix():
        named.setdefault(what, version)
    for package in ("ansible-core", "ansible-runner", "receptorctl"):
        assert re.search(rf"^{package}==(.+)$", pinned, re.M)[1] in named[package]
    assert re.search(r"^old_client=(.+)$", (ROOT / "tests" / "run").read_text(), re.M)[1] in named["receptorctl"]
    assert re.search(r"k8s\.io/kubernetes v(\S+)", (ROOT / "tests/kubernetes/go.mod").read_text())[1] == named["Kubernetes"]
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    assert named["meshd"] == version and f"meshd {version}" in (ROOT / "docs" / "compatibility.md").read_text()


def test_the_version_of_this_program_has_a_date_in_the_changelog():
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    released = re.findall(r"^## \[(\d.*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version


def test_the_workflow_runs_what_every_change_must_pass_and_builds_the_packages():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = [step["run"].split()[0] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {".ci/run", "packaging/build"} <= set(commands)
    assert all((ROOT / command).is_file() for command in commands if "/" in command)


def test_an_issue_about_a_fault_asks_for_what_the_doctor_says_and_keeps_holes_private():
    for template in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        asked = yaml.safe_load(template.read_text())
        assert asked["name"] and asked["description"], template
        labels = [field["attributes"]["label"] for field in asked["body"] if field["type"] != "markdown"]
        assert any("`meshctl doctor --json`" in label for label in labels), template
    assert "SECURITY.md" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
