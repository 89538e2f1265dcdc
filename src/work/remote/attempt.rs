//! Gives the output of a job's attempt on another node to its reader, and asks the node again for what the reader has
//! missed. Knows neither who reads nor what becomes of the output.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use super::Remotes;
use super::driver::{FIRST_PAUSE, LONGEST_PAUSE};
use super::follow::POLL;
use super::output::{MissingOutput, OutputLooks};
use super::step::extra;
use super::submit::CHUNK;
use crate::os::back_off::BackOff;
use crate::rpc::ErrorCode;
use crate::work::far::StepError;
use crate::work::units::{AHEAD, Entry, Follower};

/// How long a node that has bytes ready may take to send some of them.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// The output of an attempt, for its reader.
#[derive(Debug)]
pub struct FarOutput {
    remotes: Arc<Remotes>,
    unit: Arc<Entry>,
    status: Follower,
    bytes: mpsc::Receiver<Bytes>,
    position: u64,
    /// The unit has ended, and what was missing is asked for.
    is_last: bool,
}

impl std::fmt::Debug for Remotes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remotes")
    }
}

impl Remotes {
    /// Reads the output of an attempt from a byte on. A former reader gets nothing more until the end, and then the
    /// rest.
    pub(crate) fn read_attempt(self: &Arc<Self>, unit: &Arc<Entry>, from: u64) -> Option<FarOutput> {
        let bytes = unit.attempt()?.read(from);
        let (remotes, unit, status) = (self.clone(), unit.clone(), unit.subscribe());
        Some(FarOutput { remotes, unit, status, bytes, position: from, is_last: false })
    }

    /// Reads bytes again that a node had ready before; a node keeps them until the release. Delivers fewer if the node
    /// does not have them any more.
    async fn read_again(&self, unit: &Entry, mut from: u64, to: u64, sender: &mpsc::Sender<Bytes>) {
        let mut pauses = BackOff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut looks = OutputLooks::default();
        while from < to {
            let before = from;
            match self.copy_again(unit, &mut from, to, sender).await {
                Ok(()) if from >= to => return,
                // The node answers but has less than it said, for example after a power loss.
                Ok(()) if looks.look(from) == MissingOutput::Lost => {
                    tracing::warn!(unit = %unit.id, from, to, "the unit's node has lost the rest of its output");
                    return;
                }
                Ok(()) => {
                    tokio::time::sleep(POLL).await;
                    continue;
                }
                Err(error) if error.code().is_some_and(ErrorCode::is_no_unit) => {
                    tracing::warn!(unit = %unit.id, from, "the rest of a unit's output is lost: its node no longer has the unit");
                    return;
                }
                Err(error) => {
                    tracing::info!(unit = %unit.id, %error, "cannot read the rest of a unit's output, trying again")
                }
            }
            if from > before {
                pauses.reset();
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }

    /// Sends on those of the bytes that the node has.
    async fn copy_again(
        &self,
        unit: &Entry,
        from: &mut u64,
        to: u64,
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<(), StepError> {
        let mut session = self.far.results(&extra(unit), *from).await?;
        while *from < to {
            let mut piece = vec![0; CHUNK.min(usize::try_from(to - *from).unwrap_or(CHUNK))];
            let read = tokio::time::timeout(READ_WITHIN, session.connection.reader().read(&mut piece)).await;
            // A receptor node leaves the results of a cancelled unit open.
            let count = read.unwrap_or(Ok(0))?;
            if count == 0 {
                return Ok(());
            }
            piece.truncate(count);
            *from += count as u64;
            // If the reader has gone, this task ends with it.
            let _gone = sender.send(piece.into()).await;
        }
        Ok(())
    }
}

impl FarOutput {
    /// The next bytes; `None` once the unit has ended and everything available was delivered. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let has_ended = tokio::select! {
                biased;
                next = self.bytes.recv() => Err(next),
                // Cannot fail, as below.
                _ = self.status.wait_for(|status| status.life.state.is_final()), if !self.is_last => Ok(()),
            };
            let next = match has_ended {
                // Somebody else reads now, so this reader gets no news until the end.
                Err(None) if !self.is_last => {
                    // The follower keeps the sender, so this cannot fail.
                    drop(self.status.wait_for(|status| status.life.state.is_final()).await);
                    self.ask_for_the_rest();
                    continue;
                }
                Err(next) => next,
                Ok(()) => match self.bytes.try_recv() {
                    Ok(next) => Some(next),
                    Err(_) => {
                        self.ask_for_the_rest();
                        continue;
                    }
                },
            };
            self.position += next.as_ref().map_or(0, |bytes| bytes.len() as u64);
            return next;
        }
    }

    /// After the end: whether the output had more bytes than were delivered.
    pub fn is_cut(&self) -> bool {
        self.is_last && self.position < self.unit.status().life.stdout_size
    }

    /// Asks for the missing bytes again, if the node may have them. Otherwise nothing more is delivered.
    fn ask_for_the_rest(&mut self) {
        self.is_last = true;
        let (sender, bytes) = mpsc::channel(AHEAD);
        self.bytes = bytes;
        let status = self.unit.status();
        let (from, to) = (self.position, status.life.stdout_size);
        if from >= to || status.remote().is_some_and(|remote| remote.gone) {
            return;
        }
        let (remotes, unit) = (self.remotes.clone(), self.unit.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = remotes.read_again(&unit, from, to, &sender) => {}
                () = sender.closed() => {}
            }
        });
    }
}
