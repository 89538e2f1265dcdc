//! Small files with secrets: read whole, within a bound, and only if nobody but their owner can read them. Errors never show
//! what is in a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Why such a file is not read. The path is the caller's to say.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateFileError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("its mode is {0:o}: others can read it, chmod it to 0600")]
    Open(u32),
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
}

/// What is in the file. Blocks.
///
/// # Errors
/// [`PrivateFileError`]
pub(crate) fn read(path: &Path, longest: u64) -> Result<Vec<u8>, PrivateFileError> {
    let file = File::open(path)?;
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
