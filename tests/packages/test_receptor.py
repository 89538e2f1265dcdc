"""meshd-receptor runs what ran receptor: our unit, one like that of receptor's package, one like that of AWX's role.

The lines that start it are read from the units and run as they are; booted systems are for tests/system.
"""

import configparser

import pytest

from mesh import ROOT

CONFIGURATION = """\
- node:
    id: execution
- log-level: info
- control-service:
    service: control
    filename: /var/run/receptor/receptor.sock
    permissions: 0660
- local-only
- work-command:
    worktype: ansible-runner
    command: ansible-runner
    params: worker
    allowruntimeparams: true
"""
#: Written by us after the facts: how receptor's package starts it, and how the role receptor-collection's `setup` does.
OF_PACKAGE = """\
[Unit]
Description=Receptor
[Service]
User=receptor
Group=receptor
ExecStart=/usr/bin/receptor -c /etc/receptor/receptor.conf
"""
OF_ROLE = """\
[Unit]
Description=Receptor of the role
[Service]
User=awx
Group=awx
ExecStart=/usr/bin/receptor --config /etc/receptor/receptor.conf
StandardOutput=append:/var/log/receptor/receptor.log
"""
UNITS = {"ours": (ROOT / "packaging/systemd/receptor.service").read_text(), "package": OF_PACKAGE, "role": OF_ROLE}
#: What would take rights from jobs, or things from under them; receptor's own units have none of it.
CONFINING = ("protect", "private", "restrict", "nonewprivileges", "capabilityboundingset", "systemcall", "memorydeny",
             "lockpersonality", "readonly", "inaccessible", "removeipc", "ipaddress", "devicepolicy", "umask")


def service(unit):
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read_string(unit)
    return parsed["Service"]


@pytest.fixture
def swapped(tree, debs):
    """A host of receptor with meshd-receptor in its place."""
    tree.path("/etc/receptor").mkdir()
    tree.path("/etc/receptor/receptor.conf").write_text(CONFIGURATION)
    tree.run("dpkg", "-i", tree.copy_in(debs.now["meshd"]), tree.copy_in(debs.now["meshd-receptor"]))
    return tree


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_it_unchanged(swapped, unit):
    settings = service(UNITS[unit])
    user = settings["User"]
    if user != "receptor":
        swapped.run("useradd", "--system", user)
    swapped.run("install", "-d", "-o", user, "/run/receptor")
    node = swapped.start(settings["ExecStart"], user)
    assert "execution" in swapped.answers("--socket", "/var/run/receptor/receptor.sock")
    # The data of a Go node, so that what it has not finished is found.
    assert swapped.path("/tmp/receptor/execution").is_dir()
    swapped.run("sh", "-c", "kill -TERM $(pidof receptor)")
    node.wait(60)


def test_the_package_touches_no_configuration(swapped):
    assert "/etc" not in swapped.run("dpkg", "-L", "meshd-receptor")
    assert swapped.path("/etc/receptor/receptor.conf").read_text() == CONFIGURATION
    assert [path.name for path in swapped.path("/etc/receptor").iterdir()] == ["receptor.conf"]


def test_our_unit_confines_nothing():
    settings = service(UNITS["ours"])
    assert [name for name in settings if name.lower().startswith(CONFINING)] == []


def test_it_stands_for_receptor(tree, debs, rpms):
    told = tree.run("dpkg", "--info", tree.copy_in(debs.now["meshd-receptor"]))
    for relation in ("Provides: receptor (= ", "Conflicts: receptor", "Replaces: receptor"):
        assert relation in told
