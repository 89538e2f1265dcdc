"""tests/texts.txt lists the texts that other programs read; each must be in the source file listed with it.

It starts nothing, and reads each listed file once. After files have moved, `python tests/system/host/test_texts.py --moved`
updates their paths in the list; it never changes a text.
"""

import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIST = ROOT / "tests" / "texts.txt"
PAGE = ROOT / "docs" / "protocol.md"

#: Comments, so that quotes in them do not count; raw strings; strings; characters, for the quotes among them.
TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|\bb?r(?P<hashes>#*)"(?P<raw>.*?)"(?P=hashes)'
    r'|b?"(?P<text>(?:\\.|[^"\\])*)"'
    r"|b?'(?:\\.[^']*|[^'\\])'",
    re.DOTALL,
)
ESCAPE = re.compile(r"\\(?:\r?\n\s*|x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]+)\}|(.))", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": ""}
#: A struct with its attributes, and one of its fields.
STRUCT = re.compile(r"((?:#\[[^\]]*\]\s*)+)(?:pub(?:\([^)]*\))? )?struct \w+(?:<[^>]*>)? \{(.*?)\n\}", re.DOTALL)
FIELD = re.compile(r"^    (?:pub(?:\([^)]*\))? )?([a-z]\w*):", re.MULTILINE)


def unescaped(text):
    """The value of a string literal. NUL is padding wherever it occurs."""
    def one(match):
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else ESCAPED.get(match[3], match[3] or "")
    return ESCAPE.sub(one, text)


def with_holes(text):
    """A format string with `{}` for each placeholder, `{:?}` for those in quotes, without the trailing newline."""
    def hole(match):
        return "{:?}" if match[0].endswith(":?}") else "{}"
    braces = {"{{": "{", "}}": "}"}
    parts = re.split(r"(\{\{|\}\})", text)
    return "".join(braces.get(part) or re.sub(r"\{[^{}]*\}", hole, part) for part in parts).rstrip("\n")


def product(source):
    """A file without its tests, which are at its end."""
    return re.split(r"#\[cfg\(test\)\]\nmod \w+ \{", source)[0]


@functools.cache
def source(path):
    file = ROOT / path
    return product(file.read_text()) if file.is_file() else ""


@functools.cache
def literals(path):
    """The string literals of a file."""
    found = (match["raw"] if match["raw"] is not None else match["text"] and unescaped(match["text"])
             for match in TOKEN.finditer(source(path)))
    return frozenset(with_holes(text) for text in found if text)


def pascal(name):
    return "".join(word.capitalize() for word in name.split("_"))


@functools.cache
def keys(path):
    """The JSON keys of a file: string literals, and the fields of structs that serde prints or reads."""
    found = set(literals(path))
    for attributes, body in STRUCT.findall(source(path)):
        if "Serialize" in attributes or "Deserialize" in attributes:
            spell = pascal if 'rename_all = "PascalCase"' in attributes else str
            found |= {spell(name) for name in FIELD.findall(body)}
    return found


def has_text(path, text):
    if text.endswith("…"):
        return any(literal.startswith(text[:-1]) for literal in literals(path))
    return text in literals(path)


@functools.cache
def settings(path):
    """The parameters of each directive in the reference page, which another test compares with the declarations."""
    sections = re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", source(path), re.MULTILINE | re.DOTALL)
    return {name: set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) for name, table in sections}


def has_setting(path, words):
    directive, _, parameter = words.partition(" ")
    return directive in settings(path) and (not parameter or parameter in settings(path)[directive])


def has_exit(path, number):
    return re.search(rf"=>? {number}\b", source(path)) is not None


HOLDS = {
    "text": has_text,
    "key": lambda path, key: key in keys(path),
    "file": has_text,
    "setting": has_setting,
    "exit": has_exit,
}


def entries():
    """(line, kind, file, text) of each entry."""
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            kind, path, text = line.split(" ", 2)
            yield number, kind, path, text


def sources():
    """The product's source files."""
    files = sorted(ROOT.glob("src/**/*.rs"))
    return [str(file.relative_to(ROOT)) for file in files if "tests" not in file.parts and file.name != "tests.rs"]


def test_the_listed_texts_are_in_the_code():
    listed = list(entries())
    assert len(listed) > 400, "the list was cut"
    missing = [
        f"texts.txt:{number}: {kind} {text!r} is not in {path}"
        for number, kind, path, text in listed
        if not HOLDS[kind](path, text)
    ]
    assert not missing, "\n".join(missing)


def test_nothing_is_listed_twice():
    seen = {}
    for number, *entry in entries():
        first = seen.setdefault(tuple(entry), number)
        assert first == number, f"lines {first} and {number} are the same"


def test_cited_sections_of_the_protocol_exist():
    text = PAGE.read_text()
    anchors = re.findall(r'<a id="([^"]+)">', text)
    assert len(anchors) > 40 and len(anchors) == len(set(anchors)), "each anchor has one place"
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    for pattern in ("src/**/*.rs", "tests/**/*.rs", "tests/system/**/*.py", "netsim/*.rs", "docs/**/*.md", "*.md"):
        for file in ROOT.glob(pattern):
            links |= set(re.findall(r"protocol\.md#([a-z-]+)", file.read_text()))
    assert links <= set(anchors), f"no such section: {sorted(links - set(anchors))}"


def moved():
    """Replaces the file of each missing entry with the file that has most of the entries missing from the old one."""
    lines, lost = LIST.read_text().splitlines(), 0
    missing = [entry for entry in entries() if not HOLDS[entry[1]](entry[2], entry[3])]
    for number, kind, path, text in missing:
        gone = [entry for entry in missing if entry[2] == path]
        found = [file for file in sources() if HOLDS[kind](file, text)]
        places = {file: sum(HOLDS[entry[1]](file, entry[3]) for entry in gone) for file in found}
        best = [file for file, held in places.items() if held == max(places.values())]
        if len(best) == 1:
            lines[number - 1] = f"{kind} {best[0]} {text}"
        else:
            lost += 1
            print(f"texts.txt:{number}: {kind} {text!r} is in {', '.join(places) or 'no file'}")
    LIST.write_text("\n".join(lines) + "\n")
    return lost


if __name__ == "__main__":
    sys.exit(moved() if sys.argv[1:] == ["--moved"] else __doc__)
