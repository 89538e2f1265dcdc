//! Keeps the pieces of payloads that have arrived, in the background, one payload after the other. Owns that nobody
//! waits for it: if too many payloads wait, the next ones are not kept.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::cutter::Cutter;
use super::index::on_disk;
use super::list::cut;
use super::parts::{PayloadPart, PayloadParts};
use super::{PieceId, PieceStore};
use crate::work::Submitter;

/// The most payloads that wait. They are open files.
const WAITING: usize = 16;
/// The bytes read at a time, a few milliseconds' worth.
const READ: usize = 1 << 20;

/// Keeps pieces.
#[derive(Debug)]
pub(crate) struct PieceKeeper(mpsc::Sender<(File, Submitter)>);

impl PieceKeeper {
    /// Waits for payloads until it is dropped.
    pub(crate) fn start(store: Arc<PieceStore>) -> Self {
        let (payloads, mut next) = mpsc::channel::<(File, Submitter)>(WAITING);
        tokio::spawn(async move {
            while let Some((payload, caller)) = next.recv().await {
                let mut keeping = Keeping::new(payload, caller, store.clone());
                let kept = loop {
                    match tokio::task::spawn_blocking(move || keeping.go_on()).await {
                        Ok(Ok(Some(more))) => keeping = more,
                        Ok(Ok(None)) => break Ok(()),
                        Ok(Err(error)) => break Err(error),
                        Err(stopped) => break Err(io::Error::other(stopped)),
                    }
                };
                if let Err(error) = kept {
                    tracing::info!(%error, "a payload's files are not kept: they are sent again with the next job");
                }
            }
        });
        Self(payloads)
    }

    /// Keeps what may be kept of a whole payload, a little later.
    pub(crate) fn keep(&self, payload: File, caller: Submitter) {
        // One that finds no room is sent again.
        let _ = self.0.try_send((payload, caller));
    }
}

/// A payload whose pieces are being kept.
struct Keeping {
    payload: File,
    caller: Submitter,
    store: Arc<PieceStore>,
    parts: PayloadParts,
    cutter: Cutter,
    /// Bytes that may still be kept. More would push out what was kept before of the same payload.
    room: u64,
}

impl Keeping {
    fn new(payload: File, caller: Submitter, store: Arc<PieceStore>) -> Self {
        let room = store.room(caller);
        Self { payload, caller, store, parts: PayloadParts::default(), cutter: Cutter::default(), room }
    }

    /// Keeps some more; `None` at the end. Blocks.
    fn go_on(mut self) -> io::Result<Option<Self>> {
        let mut bytes = Vec::with_capacity(READ);
        self.payload.by_ref().take(READ as u64).read_to_end(&mut bytes)?;
        let Self { store, caller, parts, cutter, room, .. } = &mut self;
        let mut kept = Ok(());
        let mut keep = |piece: &[u8]| {
            let left = room.checked_sub(on_disk(piece.len() as u64)).ok_or(io::ErrorKind::StorageFull);
            if let (Ok(()), Ok(left)) = (&kept, left) {
                (*room, kept) = (left, store.put(*caller, PieceId::of(piece), piece));
            } else if kept.is_ok() {
                kept = Err(io::ErrorKind::StorageFull.into());
            }
        };
        let mut part = |part: PayloadPart<'_>| cut(cutter, part, &mut keep);
        match bytes.is_empty() {
            false => parts.push(&bytes, &mut part),
            true => {
                parts.end(&mut part);
                cutter.end(&mut keep);
            }
        }
        kept.map(|()| (!bytes.is_empty()).then_some(self))
    }
}
