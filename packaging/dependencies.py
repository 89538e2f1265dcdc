"""What is linked into the program: the licence texts of all crates, and the bill of materials (CycloneDX).

Both come from `cargo metadata`, so they are the same wherever they are made. cargo-about and cargo-cyclonedx do this as
well, for some minutes of compiling and a random number in each result.
"""

import collections
import json
import os
import pathlib

from tools import ROOT, output

#: How the files are named in which crates keep their licences.
LICENCE_FILES = ("licen", "copying", "copyright", "notice", "unlicense")
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""
#: For crates that are published without their licence's text: that is in the repository above them.
STANDARD = {"Apache-2.0": (ROOT / "LICENSE").read_text(), "MIT": MIT}


def linked(target):
    """The crates of other people in the program, by name and version."""
    arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(output("cargo", *arguments, cwd=ROOT))
    crates = {crate["id"]: crate for crate in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, todo = set(), [metadata["resolve"]["root"]]
    while todo:
        crate = todo.pop()
        if crate not in found:
            found.add(crate)
            todo += [dep["pkg"] for dep in nodes[crate]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    others = [crates[crate] for crate in found if crates[crate]["source"]]
    return sorted(others, key=lambda crate: (crate["name"], crate["version"]))


def licences(crates):
    """One text of all licences, each once, under the crates that it holds for."""
    holders = collections.defaultdict(list)
    for crate in crates:
        for text in licence_texts(crate):
            holders[text].append(f"{crate['name']} {crate['version']} ({crate['license']})")
    parts = [(sorted(names), text) for text, names in holders.items()]
    rule = "=" * 78
    return "".join(f"{rule}\n{os.linesep.join(names)}\n{rule}\n\n{text}\n\n" for names, text in sorted(parts))


def licence_texts(crate):
    directory = pathlib.Path(crate["manifest_path"]).parent
    files = [file for file in sorted(directory.rglob("*")) if file.name.lower().startswith(LICENCE_FILES)]
    texts = [file.read_text(errors="replace") for file in files if file.is_file() and file.suffix != ".rs"]
    if not texts:
        words = crate["license"].replace("/", " ").split()
        # Of a choice, one.
        text = next((STANDARD[word] for word in words if word in STANDARD), None)
        if text is None:
            raise SystemExit(f"{crate['name']} has no licence text: add that of {crate['license']} to {__file__}")
        texts = [f"Copyright {', '.join(crate['authors']) or 'the authors of ' + crate['name']}\n\n{text}"]
    return {"\n".join(line.rstrip() for line in text.strip().splitlines()) for text in texts}


def bill_of_materials(crates, version, timestamp):
    """The CycloneDX document, as JSON."""
    checksums = lock_checksums()
    components = []
    for crate in crates:
        url = f"pkg:cargo/{crate['name']}@{crate['version']}"
        component = {
            "type": "library", "bom-ref": url, "name": crate["name"], "version": crate["version"], "purl": url,
            "licenses": [{"expression": crate["license"].replace("/", " OR ")}],
        }
        if checksum := checksums.get((crate["name"], crate["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    program = {"type": "application", "bom-ref": "meshd", "name": "meshd", "version": version,
               "licenses": [{"license": {"id": "Apache-2.0"}}]}
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": timestamp, "component": program}, "components": components,
        "dependencies": [{"ref": "meshd", "dependsOn": [component["bom-ref"] for component in components]}],
    }
    return json.dumps(document, indent=1) + "\n"


def lock_checksums():
    """What Cargo.lock says of each crate. Its lines are simple enough; Python 3.9 has no reader of TOML."""
    found, entry = {}, {}
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        if line == "[[package]]":
            entry = {}
        elif key in ("name", "version", "checksum"):
            entry[key] = value.strip('"')
            if key == "checksum":
                found[entry["name"], entry["version"]] = entry["checksum"]
    return found
