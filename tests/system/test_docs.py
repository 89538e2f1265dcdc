"""The pages in docs/, README.md and CONTRIBUTING.md name only files, tests and functions that exist.

It starts nothing. `…` at the end of a name stands for the rest of it.
"""

import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: A source file, by its path or by the end of its path.
FILE = re.compile(r"(?<![\w/.*$-])((?:\.{1,2}/)*[\w./-]+\.(?:rs|py|yml|md|service|toml))\b(?!\()")
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
    "/etc/meshd/meshd.yml", "/etc/meshd/credentials/prod.yml", "/etc/meshd/credentials/quay.yml", "/etc/meshd/credentials/git.yml", "NAME.yml",
    "/etc/meshd/conf.d/00-local.yml", "/etc/meshd/conf.d/60-peer-NAME.yml", "group_vars/all.yml", "inventory.yml", "install_receptor.yml", "site.yml", "vars.yml", "collections/requirements.yml", "roles/requirements.yml",
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
    found = [ROOT / path for path in tracked() if re.fullmatch(r"docs/.*\.md|README\.md|CONTRIBUTING\.md", path)]
    assert len(found) > 10
    return found


def is_file(page, mention):
    if mention in NOT_HERE or (page.parent / mention).exists() or (ROOT / mention).exists():
        return True
    return any(path == mention or path.endswith("/" + mention) for path in tracked())


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


def test_pages_that_the_code_mentions_exist():
    wrong = [
        f"{path}: {page}"
        for path in tracked()
        if path.endswith((".rs", ".py", ".toml", ".yml", ".service"))
        for page in re.findall(r"\bdocs/[\w/-]+\.md", (ROOT / path).read_text())
        if not (ROOT / page).is_file()
    ]
    assert not wrong, "\n".join(wrong)
