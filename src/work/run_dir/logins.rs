//! The logins for registries that ansible-runner writes outside of a private directory, and leaves there if it is
//! killed. They are found by the command that its artifacts record, which names the place. That record is not trusted:
//! only what belongs to the private directory's owner is removed.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Uid};

use crate::work::runner::containers::{login_of, remove_login};

/// The most directories that are looked at on each level. A runner makes fewer.
const MOST_DIRECTORIES: usize = 16;
/// The most bytes that are read of a recorded command, which includes the whole environment of a playbook.
const LONGEST_FILE: u64 = 1 << 20;

/// Removes the logins of all runs in a private directory. Blocks.
pub(super) fn remove_logins(run_dir: &Path) {
    let Ok(owner) = fs::symlink_metadata(run_dir).map(|found| Uid::from_raw(found.uid())) else { return };
    remove_below(run_dir, owner, &std::env::temp_dir());
}

fn remove_below(run_dir: &Path, owner: Uid, temporary: &Path) {
    let runs = inside(run_dir).into_iter().flat_map(|private| inside(&private.join("artifacts")));
    for words in runs.filter_map(|run| command(&run.join("command"))) {
        if let Some(login) = login_of(&words) {
            // This fails if the login is gone already.
            let _ = remove_login(temporary, &login, owner);
        }
    }
}

fn inside(path: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(path).into_iter().flatten().flatten();
    found.take(MOST_DIRECTORIES).map(|entry| entry.path()).collect()
}

/// The command that ansible-runner recorded.
fn command(path: &Path) -> Option<Vec<OsString>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(i32::try_from(flags).ok()?).open(path).ok()?;
    let found = file.metadata().ok().filter(|found| found.is_file() && found.len() <= LONGEST_FILE)?;
    let mut text = Vec::with_capacity(usize::try_from(found.len()).ok()?);
    file.take(LONGEST_FILE).read_to_end(&mut text).ok()?;
    let noted: serde_json::Value = serde_json::from_slice(&text).ok()?;
    noted.get("command")?.as_array()?.iter().map(|word| Some(word.as_str()?.into())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_login_of_a_run_is_found_by_its_artifacts() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run/meshd_c1/artifacts/7");
        fs::create_dir_all(&run).unwrap();
        let login = temp.path().join("ansible_runner_registry_7_x");
        fs::create_dir(&login).unwrap();
        fs::set_permissions(&login, fs::Permissions::from_mode(0o700)).unwrap();
        let owner = rustix::process::geteuid();
        fs::write(login.join("auth.json"), "secret").unwrap();
        let auth = format!("--authfile={}/auth.json", login.display());
        let noted = serde_json::json!({
            "command": ["podman", "run", "--rm", auth, "--name", "ansible_runner_7", "image"],
            "cwd": "/runner",
            "env": {},
        });
        fs::write(run.join("command"), "{").unwrap();
        remove_below(&temp.path().join("run"), owner, temp.path());
        assert!(login.exists());
        fs::write(run.join("command"), noted.to_string()).unwrap();
        remove_below(&temp.path().join("run"), owner, temp.path());
        assert!(!login.exists());
    }
}
