//! What a job has printed, and its events: read from its output on this node, or else from the control node that has it. A
//! reader holds one piece of the output and one line, however long the output is.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{Operated, missing};
use crate::controller::core::JobId;
use crate::controller::output::{OutputError, OutputPart, OutputReader};
use crate::controller::peer::{PeerError, PeerStream};
use crate::controller::service::Service;
use crate::controller::stream::EventFilter;
use crate::rpc::operation::{self, Answer, OperationCode, OperationRefusal};
use crate::rpc::report::controller::{EventsBegin, OutputBegins};

/// Bytes that follow an answer.
#[derive(Debug)]
pub struct JobStream {
    output: OutputSource,
    /// Only events are passed on.
    events: Option<EventParser>,
}

/// Finds events, which takes processor time, on another thread and after those who came before: readers of long outputs
/// keep nobody from anything else.
#[derive(Debug)]
struct EventParser {
    /// Unless it is at work.
    filter: Option<EventFilter>,
    unread: Option<Bytes>,
    /// Goes on where a reader has left it.
    parsing: Option<JoinHandle<(EventFilter, Vec<u8>)>>,
}

/// Parsers that work at a time, of all readers.
static PARSERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2)));

/// Where the bytes come from.
#[derive(Debug)]
enum OutputSource {
    /// A unit of this node.
    Here(OutputReader),
    /// Another control node, which sends what is wanted and nothing else.
    Elsewhere(JobId, PeerStream),
}

impl JobStream {
    /// The next bytes; `None` at the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        match &mut self.events {
            None => self.output.next().await,
            Some(events) => events.next(&mut self.output).await,
        }
    }
}

impl EventParser {
    fn new(filter: EventFilter) -> Self {
        Self { filter: Some(filter), unread: None, parsing: None }
    }

    async fn next(&mut self, output: &mut OutputSource) -> Option<Bytes> {
        loop {
            if let Some(parsing) = &mut self.parsing {
                let (filter, found) = parsing.await.ok()?;
                (self.filter, self.parsing) = (Some(filter), None);
                if !found.is_empty() {
                    return Some(found.into());
                }
            }
            if self.unread.is_none() {
                self.unread = Some(output.next().await?);
            }
            // It is never closed.
            let turn = PARSERS.clone().acquire_owned().await.ok()?;
            let (mut filter, bytes) = (self.filter.take()?, self.unread.take()?);
            self.parsing = Some(spawn_blocking(move || {
                let found = filter.push(&bytes);
                drop(turn);
                (filter, found)
            }));
        }
    }
}

impl OutputSource {
    async fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Here(reader) => reader.next().await.unwrap_or_else(|error| {
                tracing::warn!(unit = %reader.unit().id(), %error, "the output of a job ends early");
                None
            }),
            Self::Elsewhere(job, stream) => stream.next().await.unwrap_or_else(|error| {
                tracing::warn!(%job, %error, "the output of a job on another control node ends early");
                None
            }),
        }
    }
}

impl From<OutputError> for OperationRefusal {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::Store(error) => error.into(),
            OutputError::Elsewhere(_) | OutputError::Missing(_) => missing(error.to_string()),
        }
    }
}

impl Service {
    pub(super) async fn stream_output(
        &self,
        asked: operation::OutputPart,
    ) -> Result<Operated, OperationRefusal> {
        let operation::OutputPart { id, from, attempt, follow } = asked;
        let (size, output, missing) = self.output(JobId(id), OutputPart { from, follow, attempt }).await?;
        let answer = Answer::ReadOutput(OutputBegins { id, from, size, missing });
        Ok((answer, Some(Box::new(JobStream { output, events: None }))))
    }

    pub(super) async fn stream_events(
        &self,
        asked: operation::EventFilter,
    ) -> Result<Operated, OperationRefusal> {
        let operation::EventFilter { id, from, host, failed, follow } = asked;
        let part = OutputPart { from: 0, follow, attempt: None };
        let (_, output, missing) = self.output(JobId(id), part).await?;
        if let Some(why) = missing {
            return Err(OperationRefusal::new(OperationCode::OwnerAway, why));
        }
        let events = Some(EventParser::new(EventFilter::new(from, host, failed)));
        Ok((Answer::ReadEvents(EventsBegin { id }), Some(Box::new(JobStream { output, events }))))
    }

    /// The output of a job, wherever it is, how many bytes there are now, and why the rest is missing, if it is.
    async fn output(
        &self,
        id: JobId,
        part: OutputPart,
    ) -> Result<(u64, OutputSource, Option<String>), OperationRefusal> {
        let here = match OutputReader::open(&self.driver, &self.registry, id, part).await {
            // What follows it comes as it is fetched.
            Ok(reader) if reader.is_whole() || (part.follow && !reader.unit().is_final()) => {
                return Ok((reader.size(), OutputSource::Here(reader), None));
            }
            Ok(reader) => Some(reader),
            Err(OutputError::Elsewhere(_)) => None,
            Err(error @ (OutputError::Store(_) | OutputError::Missing(_))) => return Err(error.into()),
        };
        let error = match self.output_elsewhere(id, part).await {
            Ok((answer, stream)) => return Ok((answer.size, OutputSource::Elsewhere(id, stream), None)),
            Err(error) => error,
        };
        if let Some(reader) = here {
            let missing = format!("the rest of the output of job {id} is not here yet: {error}");
            return Ok((reader.size(), OutputSource::Here(reader), Some(missing)));
        }
        Err(match error {
            PeerError::NoHolder => missing(format!("the output of job {id} is not kept any more")),
            PeerError::Missing { .. } => missing(error.to_string()),
            PeerError::Store(error) => error.into(),
            PeerError::Unreachable { .. } | PeerError::Refused { .. } | PeerError::Signing { .. } => {
                let why = format!("the output of job {id}: {error}");
                OperationRefusal::new(OperationCode::OwnerAway, why)
            }
        })
    }
}
