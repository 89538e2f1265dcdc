//! Reads the output of a job on this node: finds the bytes of an attempt, begins at any byte, and can follow the output
//! to the job's end. A reader holds one piece, however long the output is. It does not know who reads.

use bytes::Bytes;

use super::core::JobId;
use super::driver::JobDriver;
use super::peer::WantedOutput;
use super::store::{Error, Kept};
use crate::work::jobs::JobUnit;
use crate::work::{Caller, Registry, ResultStream, WorkError};

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The store failed, or knows no such job.
    #[error(transparent)]
    Store(#[from] Error),
    /// This node has nothing of the output.
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
    /// The place of the next bytes in the output.
    position: u64,
    until: Until,
    /// Bytes of the wanted attempt, or of all attempts, when the reader was opened.
    size: u64,
    is_whole: bool,
}

/// Where a reader ends.
#[derive(Debug, Clone, Copy)]
enum Until {
    Byte(u64),
    /// At the end of the job, or where the output of a later attempt begins.
    End {
        /// The attempt that is followed; `None` for all attempts.
        attempt: Option<u32>,
    },
}

impl OutputReader {
    /// Opens the output that this node has of a job. The store is asked only for a job whose end has been shown, or for
    /// an attempt that the unit does not know.
    pub async fn open(
        driver: &JobDriver,
        registry: &Registry,
        job: JobId,
        part: WantedOutput,
    ) -> Result<Self, OutputError> {
        let (unit, is_whole) = match driver.publisher.first_unit(job) {
            // The unit of a job that has ended is incomplete while a follower still fetches the output.
            Some(unit) => {
                let is_fetched = unit.extra().finished.is_some() && driver.publisher.is_followed(job);
                (unit, !is_fetched)
            }
            None => Self::find(driver, job).await?,
        };
        let WantedOutput { from, follow, attempt } = part;
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

    /// The unit that has the output, preferably all of it, and whether it has all.
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

    /// Whether all of the output is here, if the job has ended.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The unit that has the output.
    pub fn unit(&self) -> &JobUnit {
        &self.unit
    }

    /// Bytes from the beginning of the attempt or of the job, when the reader was opened.
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
        // The end is looked up after the read, because the start of a later attempt is noted before its output is
        // written.
        let left = self.end().map_or(u64::MAX, |end| end.saturating_sub(self.position));
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.position += bytes.len() as u64;
        Ok((!bytes.is_empty()).then_some(bytes))
    }

    /// Where the reader ends, if this is known.
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
        // The latest attempt has printed nothing so far, and its output will follow the present end.
        true if attempts.last().is_some_and(|last| last.n.0 == attempt) => Ok(unit.output_size()),
        true => {
            Err(OutputError::Missing(format!("attempt {attempt} of job {job} printed nothing that is kept")))
        }
        false => Err(OutputError::Missing(format!("job {job} has no attempt {attempt}"))),
    }
}
