//! What a job has printed, and its events: read from the output of its unit, from any byte, followed to the job's end. A
//! reader holds one piece of the output and one line, however long the output is.

use bytes::Bytes;
use serde_json::json;

use super::arguments::Arguments;
use super::{Operated, Refused};
use crate::controller::core::JobId;
use crate::controller::service::Service;
use crate::controller::store::Kept;
use crate::controller::stream::EventFilter;
use crate::work::jobs::JobUnit;
use crate::work::{Caller, ResultStream};

/// Bytes that follow an answer.
#[derive(Debug)]
pub struct JobStream {
    unit: JobUnit,
    results: ResultStream,
    /// Where the next bytes lie in the output.
    position: u64,
    until: Until,
    /// Only events are passed on.
    events: Option<EventFilter>,
}

/// Where a stream ends.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// At this byte.
    Byte(u64),
    /// With the job, or where the output of a later attempt begins.
    End {
        /// The attempt that is followed; `None` for all of them.
        attempt: Option<u32>,
    },
}

impl JobStream {
    /// The next bytes; `None` at the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let bytes = self.next_bytes().await?;
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

    async fn next_bytes(&mut self) -> Option<Bytes> {
        if self.end().is_some_and(|end| end <= self.position) {
            return None;
        }
        let read = self.results.next().await;
        let mut bytes = read.unwrap_or_else(|error| {
            tracing::warn!(unit = %self.unit.id(), %error, "the output of a job ends early");
            None
        })?;
        // After the read: where an attempt begins is noted before its output is written.
        let left = self.end().map_or(u64::MAX, |end| end.saturating_sub(self.position));
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.position += bytes.len() as u64;
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Where it ends, if that is known.
    fn end(&self) -> Option<u64> {
        match self.until {
            Until::Byte(end) => Some(end),
            Until::End { attempt } => attempt.and_then(|attempt| next_start(&self.unit, attempt)),
        }
    }
}

/// Where the output of the attempt after this one begins.
fn next_start(unit: &JobUnit, attempt: u32) -> Option<u64> {
    unit.extra().output_starts.range(attempt + 1..).next().map(|(_, start)| *start)
}

impl Service {
    pub(super) async fn stream_output(&self, mut asked: Arguments) -> Result<Operated, Refused> {
        let id = asked.job()?;
        let from = asked.position("from")?;
        let attempt = asked.count("attempt")?;
        let follow = asked.flag("follow")?.unwrap_or(false);
        asked.end()?;
        let unit = self.unit_with_output(id).await?;
        let start = match attempt {
            Some(attempt) => self.start_of(id, attempt, &unit).await?,
            None => 0,
        };
        let there = attempt.and_then(|attempt| next_start(&unit, attempt)).unwrap_or(unit.output_size());
        let until = if follow { Until::End { attempt } } else { Until::Byte(there) };
        let line = json!({"id": id.0, "from": from, "size": there.saturating_sub(start)});
        self.stream(line, unit, start.saturating_add(from), until, None).await
    }

    pub(super) async fn stream_events(&self, mut asked: Arguments) -> Result<Operated, Refused> {
        let id = asked.job()?;
        let from = asked.position("from")?;
        let host = asked.text("host")?;
        let failed = asked.flag("failed")?.unwrap_or(false);
        let follow = asked.flag("follow")?.unwrap_or(false);
        asked.end()?;
        let unit = self.unit_with_output(id).await?;
        let until = if follow { Until::End { attempt: None } } else { Until::Byte(unit.output_size()) };
        let events = Some(EventFilter::new(from, host, failed));
        self.stream(json!({"id": id.0}), unit, 0, until, events).await
    }

    async fn stream(
        &self,
        line: serde_json::Value,
        unit: JobUnit,
        position: u64,
        until: Until,
        events: Option<EventFilter>,
    ) -> Result<Operated, Refused> {
        let results = self.registry.results(unit.id().as_str(), position, &Caller::local()).await;
        let results = results.map_err(|error| Refused::missing(error.to_string()))?;
        let stream = JobStream { unit, results, position, until, events };
        Ok(Operated::Stream(line, Box::new(stream)))
    }

    /// The unit here that has a job's output. That of a job that has not ended is known without the store.
    async fn unit_with_output(&self, id: JobId) -> Result<JobUnit, Refused> {
        if let Some(unit) = self.driver.first_unit(id) {
            return Ok(unit);
        }
        self.driver.store.job(id).await?;
        let holders = self.driver.store.holders(id, Kept::Output).await?;
        let (own, others): (Vec<_>, Vec<_>) =
            holders.into_iter().partition(|(node, _)| *node == self.driver.node);
        if let Some(unit) = own.iter().find_map(|(_, unit)| self.registry.job_unit(unit)) {
            return Ok(unit);
        }
        Err(match others.first() {
            Some((node, _)) => {
                let message = format!("the output of job {id} is on control node {node}: ask there");
                Refused { code: "owner_away", message }
            }
            None => Refused::missing(format!("the output of job {id} is not kept any more")),
        })
    }

    /// Where the output of an attempt begins.
    async fn start_of(&self, id: JobId, attempt: u32, unit: &JobUnit) -> Result<u64, Refused> {
        if let Some(start) = unit.extra().output_starts.get(&attempt) {
            return Ok(*start);
        }
        let attempts = self.driver.store.detail(id).await?.attempts;
        match attempts.iter().any(|known| known.n.0 == attempt) {
            // It has printed nothing so far, and whatever it prints comes behind what is there.
            true if attempts.last().is_some_and(|last| last.n.0 == attempt) => Ok(unit.output_size()),
            true => {
                Err(Refused::missing(format!("attempt {attempt} of job {id} printed nothing that is kept")))
            }
            false => Err(Refused::missing(format!("job {id} has no attempt {attempt}"))),
        }
    }
}
