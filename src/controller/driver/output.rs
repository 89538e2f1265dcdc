//! What one attempt adds to the output of its job: byte for byte what its worker writes. If a retry may follow, only
//! whole lines and whole zips are added, so that another attempt's output can come after them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;

use super::measure::{self, Measure, measure};
use crate::controller::core::{AttemptNo, Job};
use crate::controller::store::{Error, Figures, HeldOutput, Store};
use crate::controller::stream::{StoredZip, WorkerOutput, lost_line};
use crate::work::jobs::{HeldBack, JobOutput, JobUnit};

/// The last line that a worker writes.
const END_LINE: &str = "{\"eof\": true}\n";

pub(super) struct AttemptOutput {
    /// `None` if the unit of the job is gone, or a later attempt has begun; the output is then read and discarded.
    pub(super) job_output: Option<JobOutput>,
    pub(super) parser: WorkerOutput,
    /// A retry may follow.
    holds_back: bool,
    /// The output that this process has received but not yet added to the output of the job.
    held: HeldBack,
    /// Bytes of this attempt in the output of the job.
    written: u64,
    /// Measures the output of the job from its first byte.
    measured: Measure,
    attempt: AttemptNo,
}

impl AttemptOutput {
    /// Begins the output of an attempt, or continues it where an earlier process stopped.
    ///
    /// # Errors
    /// The existing output cannot be read or cut.
    pub(super) async fn begin(
        store: &Store,
        unit: Option<JobUnit>,
        job: &Job,
        n: AttemptNo,
        last_words: &str,
    ) -> Result<Self, Error> {
        let (mut parser, mut measured) = (WorkerOutput::default(), Measure::default());
        let begun = begin(store, unit, job, n, last_words).await?;
        if let Some((output, from)) = &begun {
            (parser, measured) = replay(output.unit(), *from).await?;
            if reopen(output, &parser).await? {
                (parser, measured) = replay(output.unit(), *from).await?;
            }
        }
        let job_output = begun.map(|(output, _)| output);
        let written = parser.position();
        let holds_back = job.retry.max > 0;
        let held = HeldBack::default();
        Ok(Self { job_output, parser, holds_back, held, written, measured, attempt: n })
    }

    /// The byte of the worker's output at which to read on.
    pub(super) fn position(&self) -> u64 {
        self.parser.position()
    }

    /// Writes the output that was held back, because nothing more will come. Leaves out what `ansible-runner process`
    /// could not read if a retry follows, or if the worker never wrote its end line.
    pub(super) async fn write_held(&mut self, is_final: bool) -> Result<(), Error> {
        let is_whole = !self.holds_back || (is_final && self.parser.has_ended());
        self.write_up_to(if is_whole { self.parser.position() } else { self.parser.whole() }).await
    }

    /// Writes the held-back output that comes before this byte of the worker's output.
    async fn write_up_to(&mut self, byte: u64) -> Result<(), Error> {
        while let left @ 1.. = byte.saturating_sub(self.written).min(self.held.length()) {
            let taken = self.held.take(left).await;
            let path = || self.job_output.as_ref().map(|output| output.unit().output()).unwrap_or_default();
            let bytes = taken.map_err(|source| Error::File { path: path(), source })?;
            self.write(bytes).await;
        }
        Ok(())
    }

    /// Writes the worker's end line if only this line is missing: an earlier process held it back, and nobody else has
    /// it.
    pub(super) async fn write_end(&mut self) {
        if !self.parser.has_ended() && self.parser.zip().is_some() {
            let line = Bytes::from_static(END_LINE.as_bytes());
            self.parser.push(&line);
            self.write(line).await;
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// The output that was held back before cannot be read.
    pub(super) async fn push(&mut self, bytes: Bytes) -> Result<(), Error> {
        let status = self.parser.last_status().map(str::to_owned);
        let written = self.job_output.as_ref().filter(|_| !self.holds_back);
        let (parser, measured) = (&mut self.parser, &mut self.measured);
        // The bytes are parsed while they are written.
        let write = async {
            if let Some(output) = written {
                output.append(bytes.clone()).await;
            }
        };
        let read = async {
            parser.push(&bytes);
            if written.is_some() {
                measured.add(&bytes);
            }
        };
        tokio::join!(write, read);
        let Some(output) = &self.job_output else { return Ok(()) };
        if let Some(last) = self.parser.last_status().filter(|last| Some(*last) != status.as_deref()) {
            output.unit().note_status(last).await;
        }
        if !self.holds_back {
            self.written += bytes.len() as u64;
            return Ok(());
        }
        self.held.add(&bytes, output).await;
        self.write_up_to(self.parser.whole()).await
    }

    /// Adds the attempt's next bytes to the output of the job.
    async fn write(&mut self, bytes: Bytes) {
        self.written += bytes.len() as u64;
        if let Some(output) = &self.job_output {
            self.measured.add(&bytes);
            output.append(bytes).await;
        }
    }

    /// The job's output, once all of it is written. If there are last words, because a retry may follow or could have
    /// followed, closes the output with them.
    ///
    /// # Errors
    /// The existing output cannot be read or cut, or somebody else writes it.
    pub(super) async fn end(&self, last_words: Option<&str>) -> Result<Option<HeldOutput>, Error> {
        let Some(output) = &self.job_output else { return Ok(None) };
        if !output.is_latest().await && !output.unit().is_final() {
            return Err(Error::Unready("its output has another writer by now".into()));
        }
        let end = self.measured.end();
        match last_words {
            None if end.bytes == output.unit().output_size() => {
                measure::keep(output.unit()).await?;
                Ok(Some(HeldOutput { unit: output.unit().id().to_string(), end }))
            }
            None | Some(_) => held(output, last_words).await.map(Some),
        }
    }

    /// The counters. They include the recap only once the stream has told its final status or the attempt is over,
    /// because until then another recap may follow.
    pub(super) async fn figures(&self, is_over: bool) -> Figures {
        let is_last = is_over || self.parser.final_status().is_some();
        Figures {
            attempt: self.attempt,
            events: self.parser.events(),
            output_bytes: self.job_output.as_ref().map_or(0, |output| output.unit().output_size()),
            rc: self.exit_code().await,
            revision: None,
            recap: self.parser.recap().filter(|_| is_last).cloned(),
            failure: self.parser.failure().filter(|_| is_last),
        }
    }

    /// The exit code of the program that the runner ran; `None` until the zip with it is in the job's output.
    async fn exit_code(&self) -> Option<i32> {
        let (zip, unit) = (self.parser.zip()?, self.job_output.as_ref()?.unit());
        let (path, extra) = (unit.output(), unit.extra());
        if extra.output_attempt != self.attempt.0 {
            return None;
        }
        let zip = StoredZip { start: extra.output_from + zip.start, ..zip };
        tokio::task::spawn_blocking(move || zip.exit_code(&mut File::open(path).ok()?)).await.ok()?
    }
}

/// Begins an attempt's part of its job's output unless it has begun already. Closes the former attempt's part with
/// these words. From then on the unit durably names its job and its child. Returns the part's writer and where the part
/// begins; `None` if there is no unit, or a later attempt writes.
///
/// # Errors
/// The existing output cannot be read or cut.
pub(super) async fn begin(
    store: &Store,
    unit: Option<JobUnit>,
    job: &Job,
    n: AttemptNo,
    last_words: &str,
) -> Result<Option<(JobOutput, u64)>, Error> {
    let Some(unit) = unit else { return Ok(None) };
    let Some(output) = writer(store, &unit, job, n).await? else { return Ok(None) };
    if unit.extra().output_attempt != n.0 {
        // The former attempt's end line is there if the attempt was declared lost while its end was being saved.
        close(&output, last_words, true).await?;
    }
    let attempt = job.attempt(n);
    let node = attempt.and_then(|attempt| attempt.node.as_ref()).map(ToString::to_string);
    let from = output.begin(attempt.map(|attempt| attempt.unit.to_string()), node).await;
    Ok(Some((output, from)))
}

/// Makes a new writer of an attempt's part of its job's output; `None` if a later attempt writes. Deletes the output of
/// attempts that the store has forgotten, because other attempts get their numbers.
///
/// # Errors
/// Those of the store; the existing output cannot be cut.
pub(super) async fn writer(
    store: &Store,
    unit: &JobUnit,
    job: &Job,
    n: AttemptNo,
) -> Result<Option<JobOutput>, Error> {
    if first_forgotten(unit, job).is_some() {
        // This row of the job may be older than an attempt that has begun since.
        let lock = unit.lock_output().await;
        if let Some(first) = first_forgotten(unit, &store.job(job.id).await?) {
            let cleared = lock.clear(first).await;
            cleared.map_err(|source| Error::File { path: unit.output(), source })?;
        }
    }
    Ok(unit.write_output(n.0).await)
}

/// The first attempt in a job's output that the job's row does not know any more.
fn first_forgotten(unit: &JobUnit, job: &Job) -> Option<u32> {
    let latest = job.current().map_or(0, |latest| latest.n.0);
    let is_forgotten = |(n, child): &(&u32, &String)| match job.attempt(AttemptNo(**n)) {
        Some(attempt) => attempt.unit.to_string() != **child,
        // An earlier attempt that is missing was not lost: the store deletes attempts in which nothing ran.
        None => **n > latest,
    };
    unit.extra().output_children.iter().find(is_forgotten).map(|(first, _)| *first)
}

/// Closes the output of a job with these words, if there are any, and measures it.
///
/// # Errors
/// The existing output cannot be read or cut.
pub(super) async fn held(output: &JobOutput, last_words: Option<&str>) -> Result<HeldOutput, Error> {
    if let Some(words) = last_words {
        close(output, words, false).await?;
    }
    let end = measure(output.unit()).await?;
    Ok(HeldOutput { unit: output.unit().id().to_string(), end })
}

/// Closes the output of a retriable job with a status line that says why, unless the worker's end line is there and
/// nothing follows it. First cuts off everything from an unfinished line or zip on, or from where `ansible-runner
/// process` would stop reading.
///
/// # Errors
/// The existing output cannot be read or cut.
async fn close(output: &JobOutput, why: &str, is_followed: bool) -> Result<(), Error> {
    let unit = output.unit();
    if unit.output_size() == 0 {
        return Ok(());
    }
    let from = unit.extra().output_from;
    let (known, _) = replay(unit, from).await?;
    if known.has_ended() && !is_followed {
        return Ok(());
    }
    if known.whole() < known.position() {
        let cut = output.cut(from + known.whole()).await;
        cut.map_err(|source| Error::File { path: unit.output(), source })?;
    }
    if known.final_explanation() != Some(why) {
        output.append(lost_line(why).into()).await;
    }
    Ok(())
}

/// Removes the closing words of an attempt that goes on because the store has forgotten its end. Its output is read on
/// from the first byte that is missing here, and the words are not part of it. Returns whether there were any words. If
/// the worker itself wrote this line, the line comes again.
async fn reopen(output: &JobOutput, known: &WorkerOutput) -> Result<bool, Error> {
    let Some(words) = known.final_explanation().map(lost_line) else { return Ok(false) };
    let path = output.unit().output();
    let failed = |source| Error::File { path: output.unit().output(), source };
    let before = tokio::task::spawn_blocking(move || {
        let file = File::open(path)?;
        let Some(before) = file.metadata()?.len().checked_sub(words.len() as u64) else { return Ok(None) };
        let mut last = vec![0; words.len()];
        file.read_exact_at(&mut last, before)?;
        Ok((last == words.as_bytes()).then_some(before))
    });
    let before = before.await.map_err(std::io::Error::other).flatten().map_err(failed)?;
    if let Some(before) = before {
        output.cut(before).await.map_err(failed)?;
    }
    Ok(before.is_some())
}

/// Reads again what an earlier process wrote: parses the attempt that begins at this byte, and measures the whole
/// output.
async fn replay(unit: &JobUnit, from: u64) -> Result<(WorkerOutput, Measure), Error> {
    measure::read(unit, Default::default(), move |(parser, measured): &mut (WorkerOutput, Measure), bytes| {
        let before = usize::try_from(from.saturating_sub(measured.bytes())).unwrap_or(usize::MAX);
        parser.push(bytes.get(before..).unwrap_or_default());
        measured.add(bytes);
    })
    .await
}
