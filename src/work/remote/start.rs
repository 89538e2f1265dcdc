//! The start of a unit on a node that takes all of it at once: the request, its payload and the wish to follow it go out
//! together, and the line that comes back says that the unit is durable there. Owns how a payload is sent, to Go nodes
//! too. Knows nothing of earlier attempts.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::Remotes;
use super::payload::PayloadReader;
use crate::rpc::follow::ANSWER;
use crate::rpc::report::unit::UnitStep;
use crate::rpc::request::{Request, SubmitRequest, WorkRequest};
use crate::work::WorkError;
use crate::work::far::{ControlSession, LIMITS, StepError};
use crate::work::store::Durability;
use crate::work::unit::Event;
use crate::work::units::{Entry, Started};

/// How long a node that takes no more may need to say why: its words are on their way by then.
const LAST_WORD: Duration = Duration::from_secs(2);

impl Remotes {
    /// Starts a unit while its payload becomes durable here: no status that tells of all of it is, before. The node gets the
    /// end of the payload after that.
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
            entry.apply(store, Event::PayloadCut(error.to_string())).await;
            return Err(error);
        }
        started
    }

    /// Has the other node take the unit with its payload, and tell of it on the same connection.
    pub(super) async fn start_there(
        &self,
        entry: &Arc<Entry>,
        mut session: ControlSession,
        request: SubmitRequest,
    ) -> Result<ControlSession, StepError> {
        let mut writer = entry.writer(self.units.store()).await;
        if writer.status().life.awaits_payload {
            // It is not the node that is waited for any more.
            writer.apply(Event::PayloadAwaited, Durability::Volatile).await;
        }
        drop(writer);
        let request = SubmitRequest { at_once: true, ..request };
        let line = Request::Work(WorkRequest::Submit(request)).to_line();
        let answer = self.send_all(entry, &mut session, line).await?;
        if !answer.starts_with(ANSWER) {
            return Err(StepError::Connection(format!("unexpected answer to work start: {answer}")));
        }
        // A restart that finds the ID alone starts it again, which is the same unit there.
        self.note_accepted(entry).await?;
        Ok(session)
    }

    /// Sends a line, if there is one, and the payload behind it. Gives the line that answers them.
    pub(super) async fn send_all(
        &self,
        entry: &Arc<Entry>,
        session: &mut ControlSession,
        line: String,
    ) -> Result<String, StepError> {
        let (link, store) = (entry.link(), self.units.store());
        let mut payload = PayloadReader::open(self, entry)?;
        let is_heard = AtomicBool::new(false);
        let (answers, writer) = session.connection.halves();
        let sending = async {
            writer.write_all(line.as_bytes()).await?;
            while let Some(chunk) = payload.next(&is_heard).await? {
                writer.write_all(&chunk).await?;
                // What is sent before the node is heard may go nowhere.
                if is_heard.load(Ordering::Relaxed) {
                    link.note_progress();
                }
            }
            // A restart must not find a unit that has started there with a payload that still comes.
            entry.save(store).await?;
            link.set_half_there(false);
            writer.shutdown().await?;
            entry.note_step(UnitStep::Sent);
            Ok::<_, StepError>(())
        };
        let mut answer = pin!(async {
            answers.greeted().await?;
            is_heard.store(true, Ordering::Relaxed);
            link.note_progress();
            Ok::<_, StepError>(answers.next("answer to the payload").await?)
        });
        tokio::select! {
            biased;
            // A refusal, or the end: nothing else comes before the end of the payload.
            early = &mut answer => early.and(Err(StepError::Connection("it answered too early".into()))),
            sent = sending => match sent {
                Ok(()) => timeout(LIMITS.answer, answer).await.unwrap_or_else(|_| {
                    Err(StepError::Connection(format!("no answer to the payload within {:?}", LIMITS.answer)))
                }),
                // Its words count more than our failure.
                Err(failed) => match timeout(LAST_WORD, answer).await {
                    Ok(Err(refused @ StepError::Refused(_))) => Err(refused),
                    Ok(_) | Err(_) => Err(failed),
                },
            },
        }
    }
}
