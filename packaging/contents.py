"""What the packages contain, and what they say of themselves to dpkg and rpm."""

import dataclasses
import datetime
import gzip
import io
import json
import lzma
import pathlib
import tarfile

from tools import ROOT

HERE = ROOT / "packaging"
UNITS = HERE / "systemd"
#: What a site's scripts may ask the package `receptor` for: the release whose configuration and clients are known here.
RECEPTOR = "1.6.9"
MAINTAINER = "meshd's developers <meshd@localhost>"
SUMMARY = "Mesh node that speaks the protocol of Ansible receptor"
DESCRIPTION = f"""{SUMMARY}
 A node relays packets of the mesh, runs jobs, or decides which node runs
 a job. The daemon is meshd, its command line meshctl."""
RECEPTOR_SUMMARY = "Run meshd in the place of Ansible receptor"
RECEPTOR_DESCRIPTION = f"""{RECEPTOR_SUMMARY}
 Installs meshd under the name receptor, and a unit receptor.service that reads
 /etc/receptor/receptor.conf as it is."""

#: What the scripts of meshd do after those that both packages have. rpm has no purge.
MORE = {("preremove", "deb"): ("jobs", "remove"), ("preremove", "rpm"): ("jobs", "remove"), ("postremove", "deb"): ("jobs", "purge")}


@dataclasses.dataclass(frozen=True)
class Release:
    """Which build of which version."""

    version: str
    #: As rpm and Rust name it, and as Debian does.
    arch: str
    debian_arch: str
    #: The oldest glibc that the program starts with.
    glibc: str
    time: datetime.datetime
    #: Of the payloads.
    compression: str

    @property
    def timestamp(self):
        return self.time.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass
class Recipe:
    """A package; its files lie in `stage`, below their later paths."""

    stage: pathlib.Path
    release: Release
    name: str
    text: str
    relations: dict
    scripts: dict
    contents: list = dataclasses.field(default_factory=list)

    def files(self):
        """Not the package's name: nfpm would take a link to a file of that name for one to this directory."""
        return self.stage / f"{self.name}.files"

    def add(self, path, data, mode=0o644, packager=None, **more):
        """A file; for one packager only where the two want it in different places."""
        file = self.files() / (packager or "both") / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        info = {"mode": mode, "mtime": self.release.timestamp, **more.pop("file_info", {})}
        entry = {"src": str(file.relative_to(self.stage)), "dst": path, "file_info": info, **more}
        self.contents.append({**entry, "packager": packager} if packager else entry)

    def add_document(self, path, data, **more):
        """A text that rpm may leave out, if its user says so."""
        self.add(path, data, packager="deb", **more)
        self.add(path, data, packager="rpm", type="doc", **more)

    def add_link(self, path, target):
        self.contents.append({"src": target, "dst": path, "type": "symlink",
                              "file_info": {"mode": 0o777, "mtime": self.release.timestamp}})

    def add_directory(self, path, mode, owner="root", group="root"):
        info = {"mode": mode, "owner": owner, "group": group, "mtime": self.release.timestamp}
        self.contents.append({"dst": path, "type": "dir", "file_info": info})

    def add_documents(self):
        """Those that each package of Debian has."""
        doc = f"/usr/share/doc/{self.name}"
        self.add(f"{doc}/copyright", (HERE / "debian-copyright").read_text(), packager="deb")
        day = self.release.time.strftime("%a, %d %b %Y %H:%M:%S +0000")
        entry = f"{self.name} ({self.release.version}) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {MAINTAINER}  {day}\n"
        self.add(f"{doc}/changelog.gz", compressed(entry), packager="deb")
        overrides = HERE / f"{self.name}.lintian-overrides"
        if overrides.exists():
            self.add(f"/usr/share/lintian/overrides/{self.name}", overrides.read_text(), packager="deb")

    def write(self, kind):
        """The recipe for nfpm, which reads YAML, and so JSON."""
        recipe = {
            "name": self.name, "arch": self.release.debian_arch, "platform": "linux", "version": self.release.version,
            "version_schema": "none", "section": "net", "priority": "optional", "maintainer": MAINTAINER,
            "vendor": "meshd", "license": "Apache-2.0", "mtime": self.release.timestamp, "contents": self.contents,
            "description": self.text, "homepage": "https://github.com/meshd/meshd", "scripts": self.write_scripts(kind),
            "deb": {"compression": self.release.compression},
            "rpm": {"compression": self.release.compression, "buildhost": "localhost", "group": "Unspecified"},
            **({"release": "1"} if kind == "rpm" else {}), **self.relations[kind],
        }
        recipe["rpm"]["summary"] = self.text.splitlines()[0]
        file = self.stage / f"{self.name}-{kind}.json"
        file.write_text(json.dumps(recipe, indent=1))
        return file

    def write_scripts(self, kind):
        paths = {}
        for moment in ("preinstall", "postinstall", "preremove", "postremove"):
            parts = [moment, *(MORE.get((moment, kind), ()) if self.name == "meshd" else ())]
            text = "\n".join((HERE / "scripts" / f"{part}.sh").read_text() for part in parts)
            for word, value in self.scripts.items():
                text = text.replace(word, value)
            file = self.stage / f"{self.name}-{kind}-{moment}"
            file.write_text(text)
            paths[moment] = file.name
        return paths


def stage(directory, program, texts, release):
    """The recipes of all packages."""
    return [meshd(directory, program, texts, release), meshd_receptor(directory, release)]


def meshd(directory, program, texts, release):
    relations = {
        "deb": {"depends": [f"libc6 (>= {release.glibc})", "passwd"], "recommends": ["systemd"]},
        "rpm": {"depends": [f"glibc >= {release.glibc}", "shadow-utils"], "recommends": ["systemd"]},
    }
    scripts = {"@USER@": "meshd", "@UNIT@": "meshd.service"}
    package = Recipe(directory, release, "meshd", DESCRIPTION, relations, scripts)
    package.add("/usr/bin/meshd", program.read_bytes(), 0o755)
    package.add_link("/usr/bin/meshctl", "meshd")
    for unit in sorted(UNITS.glob("meshd*.service")):
        package.add(f"/usr/lib/systemd/system/{unit.name}", unit.read_text())
    package.add("/usr/lib/sysusers.d/meshd.conf", (UNITS / "meshd.sysusers").read_text())
    package.add("/usr/lib/tmpfiles.d/meshd.conf", (UNITS / "meshd.tmpfiles").read_text())
    # Drop-ins, laid down by role.
    for drop_in in sorted(UNITS.glob("*.conf")):
        package.add(f"/usr/share/meshd/{drop_in.name}", drop_in.read_text())
    package.add_directory("/etc/meshd", 0o755)
    package.add_directory("/etc/meshd/conf.d", 0o750, group="meshd")
    package.add_directory("/var/lib/meshd", 0o700, "meshd", "meshd")
    for file in sorted((HERE / "etc").glob("*.yml")):
        readable = {"owner": "root", "group": "meshd"}
        package.add(f"/etc/meshd/conf.d/{file.name}", file.read_text(), 0o640, type="config|noreplace", file_info=readable)
    for name, page in texts["pages"].items():
        package.add_document(f"/usr/share/man/man{name[-1]}/{name}.gz", compressed(page))
    completions = texts["completions"]
    package.add("/usr/share/bash-completion/completions/meshctl", completions["bash"])
    package.add("/usr/share/fish/vendor_completions.d/meshctl.fish", completions["fish"])
    package.add("/usr/share/zsh/vendor-completions/_meshctl", completions["zsh"], packager="deb")
    package.add("/usr/share/zsh/site-functions/_meshctl", completions["zsh"], packager="rpm")
    package.add_document("/usr/share/doc/meshd/licences.txt.gz", compressed(texts["licences"]))
    package.add_document("/usr/share/doc/meshd/meshd.cdx.json", texts["materials"])
    for file in sorted((HERE / "monitoring").iterdir()):
        package.add(f"/usr/share/meshd/monitoring/{file.name}", file.read_text())
    package.add("/usr/share/licenses/meshd/LICENSE", (ROOT / "LICENSE").read_text(), packager="rpm", type="license")
    package.add_documents()
    return package


def meshd_receptor(directory, release):
    same = f"meshd (= {release.version})"
    relations = {
        "deb": {"depends": [same, "passwd"], "provides": [f"receptor (= {RECEPTOR})"], "conflicts": ["receptor"],
                "replaces": ["receptor"]},
        # Not `replaces`, which is Obsoletes here: the next upgrade of a host would swap a running node unasked.
        "rpm": {"depends": [f"meshd = {release.version}", "shadow-utils"], "provides": [f"receptor = {RECEPTOR}"],
                "conflicts": ["receptor"]},
    }
    scripts = {"@USER@": "receptor", "@UNIT@": "receptor.service"}
    # So small that it is packed as a release is also where that is not asked for.
    release = dataclasses.replace(release, compression="xz")
    package = Recipe(directory, release, "meshd-receptor", RECEPTOR_DESCRIPTION, relations, scripts)
    package.add_link("/usr/bin/receptor", "meshd")
    package.add_link("/usr/share/man/man1/receptor.1.gz", "meshd.1.gz")
    package.add("/usr/lib/systemd/system/receptor.service", (UNITS / "receptor.service").read_text())
    package.add("/usr/lib/sysusers.d/receptor.conf", (UNITS / "receptor.sysusers").read_text())
    package.add_documents()
    return package


def compressed(text):
    return gzip.compress(text.encode(), 9, mtime=0)


def tarball(directory, output, release):
    """What is below /usr of the package meshd, for images and for systems without deb and rpm."""
    file = output / f"meshd-{release.version}-{release.arch}.tar.xz"
    roots = [directory / "meshd.files" / part for part in ("both", "rpm")]
    epoch = int(release.time.timestamp())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        link = tarfile.TarInfo("usr/bin/meshctl")
        link.type, link.linkname, link.mtime = tarfile.SYMTYPE, "meshd", epoch
        tar.addfile(link)
        found = [(path.relative_to(root), path) for root in roots for path in (root / "usr").rglob("*") if path.is_file()]
        for name, path in sorted(found):
            entry = tarfile.TarInfo(str(name))
            entry.size, entry.mtime = path.stat().st_size, epoch
            entry.mode = 0o755 if name.parts[1] == "bin" else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)
    file.write_bytes(lzma.compress(buffer.getvalue(), preset=9 if release.compression == "xz" else 0))
    return file
