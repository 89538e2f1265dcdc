//! The output of a job as this node has it: which bytes are an attempt's, read from any of them, followed to the job's
//! end. A reader holds one piece of it, however long it is. It does not know who reads.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::core::JobId;
use super::driver::JobDriver;
use super::store::{Error, Kept};
use crate::work::jobs::JobUnit;
use crate::work::{Caller, Registry, ResultStream, WorkError};

/// Which bytes of a job's output are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPart {
    /// The first byte, counted from where the attempt begins if one is named. Beyond the end there is nothing.
    pub from: u64,
    /// To the end of the job; else to the end of what is there.
    pub follow: bool,
    /// The attempt; `None` for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The store failed, or knows no such job.
    #[error(transparent)]
    Store(#[from] Error),
    /// There is nothing of it on this node.
    #[error("the output of job {0} is not here")]
    Elsewhere(JobId),
    /// What was asked for does not exist.
    #[error("{0}")]
    Missing(String),
}

/// Reads an output.
#[derive(Debug)]
pub struct OutputReader {
    unit: JobUnit,
    results: ResultStream,
    /// Where the next bytes lie in the output.
    position: u64,
    until: Until,
    /// Bytes of the wanted attempt, or of all of them, when it was opened.
    size: u64,
    is_whole: bool,
}

/// Where a reader ends.
#[derive(Debug, Clone, Copy)]
enum Until {
    Byte(u64),
    /// With the job, or where the output of a later attempt begins.
    End {
        /// The attempt that is followed; `None` for all of them.
        attempt: Option<u32>,
    },
}

impl OutputReader {
    /// Opens the output that this node has of a job. That of a job whose end is not shown yet is known without the store.
    ///
    /// # Errors
    /// [`OutputError`]
    pub async fn open(
        driver: &JobDriver,
        registry: &Registry,
        job: JobId,
        part: OutputPart,
    ) -> Result<Self, OutputError> {
        let (unit, is_whole) = match driver.publisher.first_unit(job) {
            // It shows a job that has ended, and runs on as it is being fetched.
            Some(unit) => {
                let is_fetched = unit.extra().finished.is_some() && driver.publisher.is_followed(job);
                (unit, !is_fetched)
            }
            None => Self::find(driver, job).await?,
        };
        let OutputPart { from, follow, attempt } = part;
        let start = match attempt {
            Some(attempt) => start_of(driver, job, attempt, &unit).await?,
            None => 0,
        };
        let end = attempt.and_then(|attempt| next_start(&unit, attempt)).unwrap_or(unit.output_size());
        let until = if follow { Until::End { attempt } } else { Until::Byte(end) };
        let position = start.saturating_add(from);
        let position = if follow { position } else { position.min(end) };
        let results = registry.results(unit.id().as_str(), position, &Caller::local()).await;
        let results = results.map_err(|error| OutputError::Missing(error.to_string()))?;
        Ok(Self { unit, results, position, until, size: end.saturating_sub(start), is_whole })
    }

    /// The unit that has it, complete if there is such a one, and whether it is.
    async fn find(driver: &JobDriver, job: JobId) -> Result<(JobUnit, bool), OutputError> {
        let detail = driver.store.detail(job).await?;
        let holders = detail.holders.iter().filter(|(_, _, kept)| *kept == Kept::Output);
        let holders: Vec<_> = holders.map(|(node, unit, _)| (node.clone(), unit.clone())).collect();
        let unit = driver.publisher.leading(&detail.complete).or_else(|| driver.publisher.leading(&holders));
        let unit = unit.ok_or(OutputError::Elsewhere(job))?;
        let is_whole = !detail.row.state.is_final()
            || detail.is_whole(&driver.node, unit.id().as_str(), unit.output_size());
        Ok((unit, is_whole))
    }

    /// Whether its end is that of the job's output, if the job has ended.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The unit that has it.
    pub fn unit(&self) -> &JobUnit {
        &self.unit
    }

    /// Bytes that were there when it was opened, from the first one of the attempt or of the job.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next bytes; `None` at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The rest cannot be read.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WorkError> {
        if self.end().is_some_and(|end| end <= self.position) {
            return Ok(None);
        }
        let Some(mut bytes) = self.results.next().await? else { return Ok(None) };
        // After the read: where an attempt begins is noted before its output is written.
        let left = self.end().map_or(u64::MAX, |end| end.saturating_sub(self.position));
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.position += bytes.len() as u64;
        Ok((!bytes.is_empty()).then_some(bytes))
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
    unit.extra().output_starts.range(attempt.saturating_add(1)..).next().map(|(_, start)| *start)
}

/// Where the output of an attempt begins.
async fn start_of(driver: &JobDriver, job: JobId, attempt: u32, unit: &JobUnit) -> Result<u64, OutputError> {
    if let Some(start) = unit.extra().output_starts.get(&attempt) {
        return Ok(*start);
    }
    let attempts = driver.store.detail(job).await?.job.attempts;
    match attempts.iter().any(|known| known.n.0 == attempt) {
        // It has printed nothing so far, and whatever it prints comes behind what is there.
        true if attempts.last().is_some_and(|last| last.n.0 == attempt) => Ok(unit.output_size()),
        true => {
            Err(OutputError::Missing(format!("attempt {attempt} of job {job} printed nothing that is kept")))
        }
        false => Err(OutputError::Missing(format!("job {job} has no attempt {attempt}"))),
    }
}
