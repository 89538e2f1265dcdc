//! Where a job's standard input comes from: a file, our own standard input, a text, or nowhere.

use std::io::{Cursor, IsTerminal};

use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::cli::exit::Failure;
use crate::cli::output::Output;

/// A payload about to be sent.
pub(in crate::cli) struct SentPayload {
    /// Its bytes.
    pub bytes: Box<dyn AsyncRead + Unpin + Send>,
    /// Their number, if known.
    pub size: Option<u64>,
}

impl SentPayload {
    /// A payload from memory.
    pub(super) fn text(text: Vec<u8>) -> Self {
        let size = Some(text.len() as u64);
        Self { bytes: Box::new(Cursor::new(text)), size }
    }

    /// Our standard input, until it ends.
    pub(in crate::cli) fn stdin(output: Output) -> Self {
        if std::io::stdin().is_terminal() {
            output.note("Reading the payload from the terminal; end it with Ctrl-D.");
        }
        Self { bytes: Box::new(tokio::io::stdin()), size: None }
    }

    /// The same payload after a line.
    pub(in crate::cli) fn behind(self, line: &str) -> Self {
        let line = format!("{line}\n").into_bytes();
        let size = self.size.map(|size| size + line.len() as u64);
        Self { bytes: Box::new(Cursor::new(line).chain(self.bytes)), size }
    }

    /// A file, opened before anything is submitted.
    pub(in crate::cli) async fn file(path: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::usage(format!("cannot read payload file {path:?}: {error}"));
        let file = File::open(path).await.map_err(failed)?;
        let metadata = file.metadata().await.map_err(failed)?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("payload file {path:?} is a directory")));
        }
        // Files of the kernel, such as those in /proc, have content but the size 0.
        let size = Some(metadata.len()).filter(|size| metadata.is_file() && *size > 0);
        Ok(Self { bytes: Box::new(file), size })
    }
}
