//! Sends a payload to a node that keeps pieces of payloads: lists them well ahead of what is sent, and sends what the
//! node lacks (docs/protocol.md#pieces). The payload's file is read twice, so that what lies between is not kept in
//! memory. `start` has the connection, `work::pieces` the parts of a payload.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Mutex as TaskMutex, mpsc};

use super::Remotes;
use super::payload::{PayloadReader, open, total};
use super::progress::SendProgress;
use super::submit::CHUNK;
use crate::work::WorkError;
use crate::work::far::StepError;
use crate::work::pieces::{LISTED_AT_ONCE, Lister, PieceFrame, PieceId, Run, SecondReading, Steps};
use crate::work::units::Entry;

/// A payload with fewer bytes is sent as it is.
pub(crate) const WORTH_IT: u64 = 1 << 20;
/// How many chunks the first reading is ahead of the second, so that answers arrive in time: 64 MiB.
const AHEAD: usize = (64 << 20) / CHUNK;
/// The most answers that a node may give in advance, more than it can be asked for.
pub(super) const ANSWERS_AHEAD: usize = 64 * 1024;
/// The most nodes that are remembered.
const NODES: usize = 4096;

/// What is known of nodes that keep pieces, and what that has saved.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    /// Nodes that said that they keep pieces of what this node sends. A plain lock, never held across a wait.
    nodes: Mutex<HashSet<Box<str>>>,
    sent: AtomicU64,
    saved: AtomicU64,
}

impl Keepers {
    /// A node has said, with its latest answer, whether it keeps pieces.
    pub(super) fn note(&self, node: &str, keeps: bool) {
        let mut nodes = self.nodes.lock();
        match keeps {
            true if nodes.contains(node) || nodes.len() >= NODES => {}
            true => drop(nodes.insert(node.into())),
            false => drop(nodes.remove(node)),
        }
    }

    /// Bytes of long payloads that were sent, and bytes that need not be, since the daemon started.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.saved.load(Ordering::Relaxed))
    }
}

/// What was sent of a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PieceTraffic {
    /// Bytes sent, lists included.
    pub(super) sent: u64,
    /// Bytes of the payload that need not be sent.
    pub(super) saved: u64,
}

impl Remotes {
    /// Whether the payload goes in pieces: its node keeps them, and it is long enough. Waits until that is known.
    pub(super) async fn goes_in_pieces(&self, entry: &Entry, node: &str) -> bool {
        let link = entry.link();
        if link.goes_plainly() || !self.keepers.nodes.lock().contains(node) {
            return false;
        }
        let (mut growth, mut status) = (link.growth.subscribe(), entry.subscribe());
        loop {
            growth.mark_unchanged();
            let whole = {
                status.borrow_and_update();
                total(entry)
            };
            let so_far = whole.unwrap_or_else(|| entry.dir.payload_size());
            if whole.is_some() || so_far >= WORTH_IT || entry.attempt().is_some() {
                return so_far >= WORTH_IT;
            }
            tokio::select! {
                _ = growth.changed() => {}
                _ = status.changed() => {}
            }
        }
    }

    /// Sends the payload; `there` are the node's answers to the lists, a sign for each piece.
    pub(super) async fn send_pieces(
        &self,
        entry: &Arc<Entry>,
        writer: &mut (impl AsyncWrite + Unpin),
        there: mpsc::Receiver<bool>,
        is_heard: &AtomicBool,
    ) -> Result<PieceTraffic, StepError> {
        let (writer, (chunks, listed), (lengths, pieces)) =
            (TaskMutex::new(writer), mpsc::channel(AHEAD), mpsc::unbounded_channel());
        let listing = Listing { writer: &writer, chunks, lengths, unsent: Vec::new(), sent: 0 };
        let payload = PayloadReader::open(self, entry)?;
        let sending = async {
            let second = SecondReading::new(open(entry)?);
            self.send_listed(entry, second, Steps::new(pieces, there), listed, &writer, is_heard).await
        };
        let ((listed, length, hash), sent) = tokio::try_join!(listing.run(payload, is_heard), sending)?;
        // Bytes without base64 end base64.
        let mut end = Vec::new();
        PieceFrame::Raw(Vec::new()).write(&mut end);
        PieceFrame::End { length, hash }.write(&mut end);
        writer.lock().await.write_all(&end).await?;
        let sent = listed + sent + end.len() as u64;
        let carried = PieceTraffic { sent, saved: length.saturating_sub(sent) };
        self.keepers.sent.fetch_add(carried.sent, Ordering::Relaxed);
        self.keepers.saved.fetch_add(carried.saved, Ordering::Relaxed);
        Ok(carried)
    }

    /// Sends what was listed, as far as the node lacks it.
    async fn send_listed(
        &self,
        entry: &Arc<Entry>,
        mut second: SecondReading<Box<dyn Read + Send>>,
        mut steps: Steps,
        mut chunks: mpsc::Receiver<(usize, Vec<Run>)>,
        writer: &TaskMutex<&mut (impl AsyncWrite + Unpin)>,
        is_heard: &AtomicBool,
    ) -> Result<u64, StepError> {
        let (mut progress, mut sent) = (SendProgress::begin(), 0);
        while let Some((length, runs)) = chunks.recv().await {
            let ended = || StepError::Connection("the connection ended in the middle of the payload".into());
            let next = steps.of(runs).await.ok_or_else(ended)?;
            let read = move || second.frames(&next).map(|frames| (second, frames));
            let read = self.units.store().blocking(read).await;
            let (back, frames) = read.map_err(|e| WorkError::io("read", entry.dir.file("stdin"), e))?;
            second = back;
            writer.lock().await.write_all(&frames).await?;
            sent += frames.len() as u64;
            self.note_sent(entry, &mut progress, length, is_heard).await;
        }
        Ok(sent)
    }
}

/// The first reading of a payload.
struct Listing<'a, W> {
    writer: &'a TaskMutex<W>,
    /// Takes the length and the runs of each chunk.
    chunks: mpsc::Sender<(usize, Vec<Run>)>,
    /// Takes the lengths of pieces that are listed.
    lengths: mpsc::UnboundedSender<u32>,
    /// Pieces that the node was not asked about yet.
    unsent: Vec<PieceId>,
    sent: u64,
}

impl<W: AsyncWrite + Unpin> Listing<'_, &mut W> {
    /// Lists all of it. Returns the bytes that were sent for that, the payload's length and its hash.
    async fn run(
        mut self,
        mut payload: PayloadReader,
        is_heard: &AtomicBool,
    ) -> Result<(u64, u64, [u8; 32]), StepError> {
        let mut lister = Lister::default();
        while let Some(chunk) = payload.next(is_heard).await? {
            let listed = lister.push(&chunk);
            self.unsent.extend(listed.pieces);
            // A short chunk is all that the client has sent so far.
            if self.unsent.len() >= LISTED_AT_ONCE / 2 || chunk.len() < CHUNK {
                self.ask().await?;
            }
            if let Err(mpsc::error::TrySendError::Full(chunk)) =
                self.chunks.try_send((chunk.len(), listed.runs))
            {
                // The second reading may wait for an answer to these.
                self.ask().await?;
                let _gone = self.chunks.send(chunk).await;
            }
        }
        let (listed, length, hash) = lister.end();
        self.unsent.extend(listed.pieces);
        self.ask().await?;
        let _gone = self.chunks.send((0, listed.runs)).await;
        Ok((self.sent, length, hash))
    }

    /// Asks which of the pieces are there.
    async fn ask(&mut self) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let mut frames = Vec::new();
        for pieces in self.unsent.chunks(LISTED_AT_ONCE) {
            PieceFrame::List(pieces.to_vec()).write(&mut frames);
        }
        self.writer.lock().await.write_all(&frames).await?;
        self.sent += frames.len() as u64;
        for piece in self.unsent.drain(..) {
            let _gone = self.lengths.send(piece.length);
        }
        Ok(())
    }
}
