//! Starts a unit on a node that accepts all of it at once: the request, the payload and the wish to follow the unit are
//! sent together, and the answer says that the unit is durable there. Also knows how to send a payload, to Go nodes as
//! well. Knows nothing of earlier attempts.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::timeout;

use super::Remotes;
use super::payload::{PayloadReader, total};
use super::pieces::{ANSWERS_AHEAD, PieceTraffic};
use super::progress::SendProgress;
use crate::rpc::follow::{ANSWER, KEEPS_PIECES};
use crate::rpc::request::{Request, SubmitRequest, WorkRequest};
use crate::work::WorkError;
use crate::work::far::{ControlSession, LIMITS, StepError};
use crate::work::pieces::read_answer;
use crate::work::store::Durability;
use crate::work::unit::UnitEvent;
use crate::work::units::{Entry, Started};

/// How long to wait for a node that accepts no more bytes to say why: its answer is on its way by then.
const LAST_WORD: Duration = Duration::from_secs(2);

impl Remotes {
    /// Starts a unit while its payload becomes durable here. Until it is, no durable status says that the payload is
    /// complete, and the node does not get the payload's end.
    pub(crate) async fn start_flushed(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Started, WorkError> {
        let store = self.units.store();
        let payload = async {
            let unit = entry.clone();
            store.blocking(move || unit.flush_payload()).await?;
            entry.set_unflushed(None);
            Ok(())
        };
        let (flushed, started) = tokio::join!(payload, self.start(entry));
        if let Err(error) = flushed {
            let error = WorkError::io("write", entry.dir.file("stdin"), error);
            entry.apply(store, UnitEvent::PayloadCut(error.to_string())).await;
            return Err(error);
        }
        started
    }

    /// Sends the unit with its payload to the other node, which then reports on it over the same connection.
    pub(super) async fn start_there(
        &self,
        entry: &Arc<Entry>,
        mut session: ControlSession,
        request: SubmitRequest,
    ) -> Result<ControlSession, StepError> {
        let mut writer = entry.writer(self.units.store()).await;
        if writer.status().life.awaits_payload {
            // The unit no longer waits for the node, but for its payload.
            writer.apply(UnitEvent::PayloadAwaited, Durability::Volatile).await;
        }
        drop(writer);
        let (node, in_pieces) = (request.node.clone(), request.in_pieces);
        let request = SubmitRequest { at_once: true, ..request };
        let line = Request::Work(WorkRequest::Submit(request)).to_line();
        let (answer, carried) = self.send_all(entry, &mut session, line, in_pieces).await?;
        if !answer.starts_with(ANSWER) {
            return Err(StepError::Connection(format!("unexpected answer to work start: {answer}")));
        }
        self.keepers.note(&node, answer.ends_with(KEEPS_PIECES));
        // If a restart finds only the ID, it starts the unit again, which is the same unit there.
        self.note_accepted(entry, carried).await?;
        Ok(session)
    }

    /// Sends a line, if there is one, and then the payload. Returns the line that answers them, and what a payload in
    /// pieces cost.
    pub(super) async fn send_all(
        &self,
        entry: &Arc<Entry>,
        session: &mut ControlSession,
        line: String,
        in_pieces: bool,
    ) -> Result<(String, Option<PieceTraffic>), StepError> {
        let (link, store) = (entry.link(), self.units.store());
        let is_heard = AtomicBool::new(false);
        let (said, there) = mpsc::channel(ANSWERS_AHEAD);
        let (answers, writer) = session.connection.halves();
        let sending = async {
            writer.write_all(line.as_bytes()).await?;
            let carried = match in_pieces {
                true => Some(self.send_pieces(entry, writer, there, &is_heard).await?),
                false => self.send_plainly(entry, writer, &is_heard).await.map(|()| None)?,
            };
            // After a restart, a unit that has started there must not look as if its payload were still arriving.
            entry.save(store).await?;
            link.set_half_there(false);
            writer.shutdown().await?;
            Ok::<_, StepError>(carried)
        };
        let mut answer = pin!(async {
            answers.greeted().await?;
            is_heard.store(true, Ordering::Relaxed);
            link.note_progress();
            loop {
                let line = answers.next("answer to the payload").await?;
                let Some(signs) = read_answer(&line).filter(|_| in_pieces) else {
                    return Ok::<_, StepError>(line);
                };
                for is_there in signs {
                    if let Err(TrySendError::Full(_)) = said.try_send(is_there) {
                        return Err(StepError::Connection("it answers what it was not asked".into()));
                    }
                }
            }
        });
        tokio::select! {
            biased;
            // A refusal, or the end of the connection: nothing else can come before the payload has ended.
            early = &mut answer => early.and(Err(StepError::Connection("it answered too early".into()))),
            sent = sending => match sent {
                Ok(carried) => {
                    let late = |_| {
                        Err(StepError::Connection(format!("no answer to the payload within {:?}", LIMITS.answer)))
                    };
                    timeout(LIMITS.answer, answer).await.unwrap_or_else(late).map(|line| (line, carried))
                }
                // What the node says counts more than this node's failure to send.
                Err(failed) => match timeout(LAST_WORD, answer).await {
                    Ok(Err(refused @ StepError::Refused(_))) => Err(refused),
                    Ok(_) | Err(_) => Err(failed),
                },
            },
        }
    }

    /// Sends the payload as it is.
    async fn send_plainly(
        &self,
        entry: &Arc<Entry>,
        writer: &mut (impl AsyncWrite + Unpin),
        is_heard: &AtomicBool,
    ) -> Result<(), StepError> {
        let mut payload = PayloadReader::open(self, entry)?;
        let mut progress = SendProgress::begin();
        while let Some(chunk) = payload.next(is_heard).await? {
            writer.write_all(&chunk).await?;
            self.note_sent(entry, &mut progress, chunk.len(), is_heard).await;
        }
        Ok(())
    }

    /// Notes that so much more of the payload is under way.
    pub(super) async fn note_sent(
        &self,
        entry: &Arc<Entry>,
        progress: &mut SendProgress,
        length: usize,
        is_heard: &AtomicBool,
    ) {
        // Bytes that are sent before the node has answered may go nowhere.
        if is_heard.load(Ordering::Relaxed) {
            entry.link().note_progress();
        }
        if let Some(words) = progress.add(length, || total(entry)) {
            self.say(entry, UnitEvent::Waiting(words)).await;
        }
    }
}
