"""The rpm in a tree, by rpm itself. Its scripts run in that tree's shell. RHEL cannot be booted here."""

import pytest


def test_installed_upgraded_and_erased(tree, rpm, rpms):
    rpm("-i", "--nosignature", rpms.former["meshd"])
    assert "meshd:x:" in tree.run("getent", "passwd", "meshd")
    assert tree.run("stat", "--format", "%U:%G %a", "/etc/meshd/conf.d").strip() == "root:meshd 750"
    own = "- local-only:\n- log-level: debug\n"
    tree.path("/etc/meshd/conf.d/00-local.yml").write_text(own)
    rpm("-U", "--nosignature", rpms.now["meshd"])
    assert tree.run("meshd", "--version") == f"meshd {rpms.now['meshd'].name.split('-')[1]}\n"
    assert tree.path("/etc/meshd/conf.d/00-local.yml").read_text() == own
    with pytest.raises(AssertionError) as verified:
        rpm("-V", "meshd")
    assert str(verified.value).splitlines()[1:] == ["S.5....T.  c /etc/meshd/conf.d/00-local.yml"]
    (tree.path("/var/lib/meshd") / "result").write_text("kept")
    rpm("-e", "meshd")
    assert not tree.path("/usr/bin/meshd").exists() and not tree.path("/usr/bin/meshctl").is_symlink()
    # rpm has no purge: changed configuration and results stay.
    assert tree.path("/etc/meshd/conf.d/00-local.yml.rpmsave").read_text() == own
    assert (tree.path("/var/lib/meshd") / "result").exists()


def test_a_dependency_that_is_missing_is_named(tree, rpm, rpms):
    rpm("-e", "system")
    with pytest.raises(AssertionError, match="glibc >= .* is needed by meshd"):
        rpm("-i", "--nosignature", rpms.now["meshd"])
