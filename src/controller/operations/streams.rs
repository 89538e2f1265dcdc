//! What a job has printed, and its events: read from its output on this node, or else from the control node that has it. A
//! reader holds one piece of the output and one line, however long the output is.

use bytes::Bytes;

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
    events: Option<EventFilter>,
}

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
        loop {
            let bytes = self.output.next().await?;
            match &mut self.events {
                None => return Some(bytes),
                Some(filter) => {
                    let found = filter.push(&bytes);
                    if !found.is_empty() {
                        return Some(found.into());
                    }
                }
            }
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
        let events = Some(EventFilter::new(from, host, failed));
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
