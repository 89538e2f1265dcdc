//! Sending a unit's payload to another node: hashed if it is signed, and read from its file, which may still grow while
//! the payload is being submitted. Knows nothing of what comes before and after it on the connection.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;

use super::Remotes;
use super::session::{ControlSession, StepError};
use super::submit::CHUNK;
use crate::work::WorkError;
use crate::work::signing::PayloadHash;
use crate::work::units::Entry;

/// How often it is noted, of a payload that does not come on, that this is not the other node's doing.
const BREATH: Duration = Duration::from_millis(400);
/// Bytes hashed in one go, some milliseconds' worth.
const HASHED_AT_A_TIME: usize = 8 * 1024 * 1024;

impl Remotes {
    /// The hash of the payload, all of which is on disk; found once, as there may be many attempts.
    pub(super) async fn payload_hash(&self, entry: &Arc<Entry>) -> Result<PayloadHash, StepError> {
        let link = entry.link();
        if let Some(hash) = link.payload_hash.get() {
            return Ok(*hash);
        }
        let path = entry.dir.file("stdin");
        let failed = |e| StepError::Local(WorkError::io("read", &path, e));
        let stdin = entry.dir.open("stdin", OpenOptions::new().read(true)).map_err(failed)?;
        let mut hashed = Hashing { file: stdin, so_far: digest::Context::new(&digest::SHA256), whole: false };
        while !hashed.whole {
            // In pieces: operations on files take turns.
            hashed = self.units.store().blocking(move || hashed.go_on()).await.map_err(failed)?;
        }
        Ok(*link.payload_hash.get_or_init(|| hashed.finish()))
    }

    /// Sends all of the payload; of one that is still being submitted what there is and then the rest. Never ends if the
    /// unit ends before, so that half a payload is never shut down like a whole one.
    pub(super) async fn send_payload(
        &self,
        entry: &Arc<Entry>,
        session: &mut ControlSession,
    ) -> Result<(), StepError> {
        let path = entry.dir.file("stdin");
        let failed = |path: &std::path::Path, e| StepError::Local(WorkError::io("read", path, e));
        let mut file =
            entry.dir.open("stdin", OpenOptions::new().read(true)).map_err(|e| failed(&path, e))?;
        let link = entry.link();
        let (mut growth, mut status) = (link.growth.subscribe(), entry.subscribe());
        loop {
            growth.mark_unchanged();
            // Before the file is read: what is complete by then does not grow any more.
            let (ended, whole) = {
                let life = &status.borrow_and_update().life;
                (life.state.is_final(), !life.awaits_payload)
            };
            if ended {
                // The driver sees it too, and gives this up.
                return std::future::pending().await;
            }
            let read = move || {
                let mut chunk = vec![0; CHUNK];
                let read = file.read(&mut chunk);
                read.map(|length| {
                    chunk.truncate(length);
                    (file, chunk)
                })
            };
            let chunk;
            (file, chunk) = self.units.store().blocking(read).await.map_err(|e| failed(&path, e))?;
            if !chunk.is_empty() {
                session.connection.send(&chunk).await?;
                link.note_progress();
            }
            if chunk.len() < CHUNK {
                // Of a regular file, less than was asked for is all that there is.
                if whole {
                    return Ok(());
                }
                tokio::select! {
                    _ = growth.changed() => {}
                    _ = status.changed() => {}
                    () = session.connection.interrupted() => {
                        return Err(session.connection.interruption().await.into());
                    }
                    // It is the client that is waited for.
                    () = tokio::time::sleep(BREATH) => link.note_progress(),
                }
            }
        }
    }
}

/// A payload that is being hashed.
struct Hashing {
    file: File,
    so_far: digest::Context,
    whole: bool,
}

impl Hashing {
    /// Takes the next piece in. Blocks.
    fn go_on(mut self) -> io::Result<Self> {
        let mut chunk = vec![0; CHUNK];
        for _ in 0..HASHED_AT_A_TIME / CHUNK {
            match self.file.read(&mut chunk)? {
                0 => {
                    self.whole = true;
                    break;
                }
                length => self.so_far.update(&chunk[..length]),
            }
        }
        Ok(self)
    }

    fn finish(self) -> PayloadHash {
        let mut hash = PayloadHash::default();
        hash.copy_from_slice(self.so_far.finish().as_ref());
        hash
    }
}
