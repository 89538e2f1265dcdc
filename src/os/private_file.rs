//! Small files with secrets: read whole, within a bound, and only if nobody but their owner can read them. Errors never show
//! what is in a file.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Why such a file is not read. The path is the caller's to say.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateFileError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("its mode is {0:o}: others can read it, chmod it to 0600")]
    Open(u32),
    #[error("it is no regular file")]
    NoFile,
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
}

/// What is in the file. Blocks.
///
/// # Errors
/// [`PrivateFileError`]
pub(crate) fn read(path: &Path, longest: u64) -> Result<Vec<u8>, PrivateFileError> {
    // A pipe that nobody writes to would be waited for.
    let file =
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(PrivateFileError::NoFile);
    }
    let mode = metadata.mode() & 0o7777;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg("-m600").arg(&path).status().unwrap().success());
        assert!(matches!(read(&path, 9), Err(PrivateFileError::NoFile)));
        assert!(matches!(read(temp.path(), 9), Err(PrivateFileError::NoFile)));
    }
}
