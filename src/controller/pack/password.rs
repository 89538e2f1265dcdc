//! Passwords of vaults, from files and from programs that print one.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{PackError, Packer};

/// The password in a file, or what the program prints.
///
/// # Errors
/// It cannot be read, or fails.
pub(crate) fn password(path: &Path, label: &str, packer: Packer) -> Result<Vec<u8>, PackError> {
    use std::os::unix::fs::PermissionsExt;
    let facts = std::fs::metadata(path).map_err(PackError::unreadable(path))?;
    if facts.permissions().mode() & 0o111 == 0 || facts.is_dir() {
        return std::fs::read(path).map_err(PackError::unreadable(path));
    }
    let failed = |why: String| PackError::Password { path: path.to_owned(), why };
    if packer == Packer::Node {
        return Err(failed(
            "it is a program, and this node runs none for a password: name a file with it".to_owned(),
        ));
    }
    let program = path.canonicalize().map_err(PackError::unreadable(path))?;
    let mut command = Command::new(program);
    // As in ansible, only programs with such a name take a label.
    if path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("-client")) {
        command.args(["--vault-id", label]);
    }
    let done = command.stderr(Stdio::inherit()).output().map_err(|error| failed(error.to_string()))?;
    if !done.status.success() {
        return Err(failed(format!(
            "the program that prints the vault's password ended with {}",
            done.status
        )));
    }
    Ok(done.stdout)
}
