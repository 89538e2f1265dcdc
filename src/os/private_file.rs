//! Small files with secrets: read whole, within a bound, and only if their owner alone can read them. Errors never
//! show the contents.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::regular_file;

/// The longest secret, in bytes.
const LONGEST_SECRET: u64 = 4096;

/// Why such a file is not read. The caller adds the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateFileError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("its mode is {0:o}, so others can read it: chmod it to 0600")]
    Open(u32),
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    #[error("it is empty")]
    Empty,
}

/// The contents of the file. Blocks.
pub(crate) fn read(path: &Path, longest: u64) -> Result<Vec<u8>, PrivateFileError> {
    let file = regular_file::open(path)?;
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PrivateFileError::Open(mode));
    }
    let mut contents = Vec::new();
    file.take(longest + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > longest {
        return Err(PrivateFileError::TooLong(longest));
    }
    Ok(contents)
}

/// The secret in a file, which may have white space behind it. Blocks.
pub(crate) fn secret(path: &Path) -> Result<Vec<u8>, PrivateFileError> {
    let mut secret = read(path, LONGEST_SECRET)?;
    secret.truncate(secret.trim_ascii_end().len());
    if secret.is_empty() { Err(PrivateFileError::Empty) } else { Ok(secret) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pipe");
        regular_file::pipe(&path);
        assert!(matches!(read(&path, 9), Err(PrivateFileError::Unreadable(_))));
        assert!(matches!(read(temp.path(), 9), Err(PrivateFileError::Unreadable(_))));
    }
}
