//! Streams the output and the events of a job, from this node or else from a control node that has the output. A reader
//! holds one piece of the output and one line, however long the output is.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use super::missing;
use crate::controller::core::{InstanceName, JobId};
use crate::controller::output::{OutputError, OutputReader};
use crate::controller::peer::{PeerAnswer, PeerError, PeerStream, PeerVerb, WantedOutput};
use crate::controller::service::Service;
use crate::controller::store::Kept;
use crate::controller::stream::EventReader;
use crate::rpc::operation::{self, Answer, Operated, OperationCode, OperationRefusal};
use crate::rpc::report::controller::{EventsBegin, OutputBegins};

/// Bytes that follow an answer.
struct JobStream {
    output: OutputSource,
    /// If present, only events are passed on.
    events: Option<EventParser>,
}

/// Finds events in an output. It works on another thread and takes turns with other parsers, because parsing a long
/// output takes processor time and must delay nothing else.
#[derive(Debug)]
struct EventParser {
    /// Absent while it is at work.
    filter: Option<EventReader>,
    unread: Option<Bytes>,
    /// Kept here so that a cancelled read loses nothing.
    parsing: Option<JoinHandle<(EventReader, Vec<u8>)>>,
}

/// Limits the parsers of all readers that work at a time.
static PARSERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2)));

/// Where the bytes come from.
#[derive(Debug)]
enum OutputSource {
    /// A unit of this node.
    Here(OutputReader),
    /// Another control node, which sends only the wanted bytes.
    Elsewhere(JobId, PeerStream),
}

impl JobStream {
    fn pieces(self) -> BoxStream<'static, Bytes> {
        let pieces = unfold(self, async |mut stream| {
            let piece = match &mut stream.events {
                None => stream.output.next().await,
                Some(events) => events.next(&mut stream.output).await,
            };
            piece.map(|piece| (piece, stream))
        });
        pieces.boxed()
    }
}

impl EventParser {
    fn new(filter: EventReader) -> Self {
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
            // The semaphore is never closed.
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
                tracing::warn!(unit = %reader.unit().id(), %error, "cannot read the rest of a job's output");
                None
            }),
            Self::Elsewhere(job, stream) => stream.next().await.unwrap_or_else(|error| {
                tracing::warn!(%job, %error, "cannot read the rest of a job's output on another control node");
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
    pub(super) async fn stream_output(&self, asked: operation::OutputPart) -> Operated {
        let operation::OutputPart { id, from, attempt, follow } = asked;
        let (size, output, missing) = self.output(JobId(id), WantedOutput { from, follow, attempt }).await?;
        let answer = Answer::ReadOutput(OutputBegins { id, from, size, missing });
        Ok((answer, Some(JobStream { output, events: None }.pieces())))
    }

    pub(super) async fn stream_events(&self, asked: operation::EventFilter) -> Operated {
        let operation::EventFilter { id, from, host, failed, follow } = asked;
        let part = WantedOutput { from: 0, follow, attempt: None };
        let (_, output, missing) = self.output(JobId(id), part).await?;
        if let Some(why) = missing {
            return Err(OperationRefusal::new(OperationCode::OwnerAway, why));
        }
        let events = Some(EventParser::new(EventReader::new(from, host, failed)));
        Ok((Answer::ReadEvents(EventsBegin { id }), Some(JobStream { output, events }.pieces())))
    }

    /// The output of a job, from this node or another: how many bytes there are now, their source, and why the rest is
    /// missing, if it is.
    async fn output(
        &self,
        id: JobId,
        part: WantedOutput,
    ) -> Result<(u64, OutputSource, Option<String>), OperationRefusal> {
        let here = match OutputReader::open(&self.driver, &self.registry, id, part).await {
            // A follower also gets bytes that are still being fetched.
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

    /// The output of a job from another control node, because this node lacks some or all of it: how many bytes that
    /// node has now, and the wanted ones.
    ///
    /// # Errors
    /// No control node has the output, or no node that has it answers.
    async fn output_elsewhere(
        &self,
        job: JobId,
        part: WantedOutput,
    ) -> Result<(PeerAnswer, PeerStream), PeerError> {
        let detail = self.driver.store.detail(job).await?;
        let peers = self.driver.base.peers.get().ok_or(PeerError::NoHolder)?;
        let holders = detail.holders.iter().filter(|(_, _, kept)| *kept == Kept::Output);
        let mut others: Vec<&InstanceName> =
            holders.map(|(node, _, _)| node).filter(|node| **node != self.driver.node).collect();
        // Nodes with all of the output come first, then the owner; the others may lack its end.
        let is_complete = |node: &InstanceName| detail.complete.iter().any(|(holder, _)| holder == node);
        others.sort_by_key(|node| (!is_complete(node), Some(*node) != detail.row.controller_node.as_ref()));
        others.dedup();
        let mut last = PeerError::NoHolder;
        for node in others {
            match peers.ask(node, PeerVerb::Output(part), job).await {
                Ok((PeerAnswer { partial: true, .. }, _)) => {
                    let why = "it has not got all of it yet".to_owned();
                    last = PeerError::Refused { node: node.clone(), why };
                }
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
