//! What a host provides for a node: the daemon's user, and for a node that runs jobs what rootless containers need,
//! and the drop-in that leaves jobs unconfined.
//!
//! Works on the files of a tree, which may be an image that never ran. It refuses to know whether systemd runs.

use std::path::Path;

use super::JoinError;
use super::configuration::{CONF_D, DATA, ETC, RUN};
use super::place::{Access, DaemonAccount, FileTree};
use crate::os::regular_file::read_text;

/// The daemon's user and group, as the package creates them.
pub(crate) const USER: &str = "meshd";
/// The service's unit.
pub(crate) const UNIT: &str = "meshd.service";
/// Where units of packages, administrators and distributions are.
const UNIT_DIRS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const DROP_IN_DIR: &str = "/etc/systemd/system/meshd.service.d";
/// The drop-in with which a node that runs jobs lifts the unit's confinement.
pub(crate) const DROP_IN: &str = "/etc/systemd/system/meshd.service.d/execution.conf";
const DROP_IN_TEXT: &str = include_str!("../../packaging/systemd/execution.conf");
const LINGER_DIR: &str = "/var/lib/systemd/linger";
const LINGER: &str = "/var/lib/systemd/linger/meshd";
/// The number of subordinate IDs of a user, and the first one given to anybody (shadow's SUB_UID_MIN).
const SUBORDINATES: u64 = 65_536;
const FIRST_SUBORDINATE: u64 = 100_000;

/// The daemon's user in the tree below `root`, if there is one.
///
/// # Errors
/// The list of users cannot be read.
pub(crate) fn account(root: &Path) -> Result<Option<DaemonAccount>, JoinError> {
    let Some(text) = FileTree::new(root, None).text("/etc/passwd")? else { return Ok(None) };
    let fields = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    Ok(fields.filter(|fields| fields.first() == Some(&USER)).find_map(|fields| {
        Some(DaemonAccount { user: fields.get(2)?.parse().ok()?, group: fields.get(3)?.parse().ok()? })
    }))
}

/// Whether the service is installed in a tree.
pub(crate) fn has_unit(tree: &FileTree) -> bool {
    UNIT_DIRS.iter().any(|dir| tree.path(dir).join(UNIT).exists())
}

/// Makes the directories of a node.
pub(super) fn directories(tree: &mut FileTree) -> Result<(), JoinError> {
    for path in [ETC, CONF_D, "/etc/meshd/tls", DATA] {
        tree.directory(path)?;
    }
    tree.give(DATA, 0o700)?;
    // The daemon renews certificates itself.
    tree.give("/etc/meshd/tls", 0o755)
}

/// Makes the directory of the control socket, as the service does when it starts.
pub(crate) fn socket_directory(tree: &mut FileTree) -> Result<(), JoinError> {
    tree.directory(RUN)?;
    tree.give(RUN, 0o755)
}

/// Prepares the host for jobs, or undoes this.
pub(crate) fn prepare_for_jobs(tree: &mut FileTree, runs_jobs: bool) -> Result<(), JoinError> {
    if !runs_jobs {
        // A changed drop-in stays, because whoever changed it wants it.
        let ours = read_text(&tree.path(DROP_IN)).is_ok_and(|text| text == DROP_IN_TEXT);
        return if ours { tree.remove(DROP_IN) } else { Ok(()) };
    }
    tree.directory(DROP_IN_DIR)?;
    tree.file(DROP_IN, DROP_IN_TEXT.as_bytes(), Access::Public)?;
    for list in ["/etc/subuid", "/etc/subgid"] {
        subordinates(tree, list)?;
    }
    tree.directory(LINGER_DIR)?;
    tree.file(LINGER, b"", Access::Public)
}

/// Gives the daemon's user a range of subordinate IDs, unless it has one.
fn subordinates(tree: &mut FileTree, list: &str) -> Result<(), JoinError> {
    let mut text = tree.text(list)?.unwrap_or_default();
    let ranges = || text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    if ranges().any(|fields| fields.first() == Some(&USER)) {
        return Ok(());
    }
    let end = |fields: Vec<&str>| {
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        Some(number(1)?.saturating_add(number(2)?))
    };
    let start = ranges().filter_map(end).fold(FIRST_SUBORDINATE, u64::max);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text += &format!("{USER}:{start}:{SUBORDINATES}\n");
    tree.file(list, text.as_bytes(), Access::Public)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::os::regular_file::pipe;

    #[test]
    fn users_of_a_tree_are_read_from_a_file_in_it_alone() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("tree"), temp.path().join("outside"));
        fs::create_dir_all(root.join("etc")).unwrap();
        assert_eq!(account(&root).unwrap(), None);
        fs::write(&outside, "meshd:x:990:991::/:/bin/false\n").unwrap();
        let list = root.join("etc/passwd");
        std::os::unix::fs::symlink(&outside, &list).unwrap();
        let refused = account(&root).unwrap_err().to_string();
        assert!(refused.contains("etc/passwd is a link"), "{refused}");
        fs::remove_file(&list).unwrap();
        pipe(&list);
        let refused = account(&root).unwrap_err().to_string();
        assert!(refused.ends_with("etc/passwd: it is not a regular file"), "{refused}");
        fs::remove_file(&list).unwrap();
        fs::copy(&outside, &list).unwrap();
        assert_eq!(account(&root).unwrap(), Some(DaemonAccount { user: 990, group: 991 }));
    }
}
