//! The end of an attempt. The rest of the job's output is written and the output is measured. One transaction then
//! saves length and hash with the end, and allows the release of the attempt's unit.

use super::attempts::Attempts;
use super::output::{self, AttemptOutput};
use super::world::ChildNews;
use crate::controller::core::{Attempt, AttemptNo, Driven, Ending, Job, JobId, Known, Refused, Time};
use crate::controller::store::{Error, HeldOutput, JobRecord};

/// Saves the end of an attempt. The rest of its output is written first, so that the length and the hash of the job's
/// output are saved with the end. After that the attempt's unit may be released.
pub(super) async fn conclude(
    on: &Attempts,
    id: JobId,
    n: AttemptNo,
    mut written: Option<&mut AttemptOutput>,
    report: impl Fn(&mut Driven<'_>, Time) -> Result<(), Refused> + Send + 'static,
) -> Result<JobRecord, Error> {
    let before = on.base.store.job(id).await?;
    // Predicts on a copy whether the job ends with this attempt or another attempt follows.
    let mut after = before.clone();
    report(&mut after.driven_by(&on.lease.fence()).map_err(Refused::from)?, Time(0))?;
    let is_final = after.state.is_final();
    let last_words = match after.attempt(n) {
        Some(attempt) if after.closes_output() => {
            Some(if is_final { after.explanation.clone() } else { last_words(attempt) })
        }
        Some(_) | None => None,
    };
    let mut held = None;
    if before.is_current(n) && !before.state.is_final() {
        if let Some(output) = &mut written {
            output.write_held(is_final).await?;
            held = output.end(last_words.as_deref()).await?;
        } else if let Some(unit) = on.publisher.first_unit(id)
            && let Some(output) = output::writer(&on.base.store, &unit, &before, n).await?
        {
            held = Some(output::held(&output, last_words.as_deref()).await?);
        }
    }
    let figures = match written {
        Some(output) => Some(output.figures(true).await),
        None => None,
    };
    on.base.store.drive_to_end(on.lease.fence(), (id, n), figures, held, report).await
}

/// Shows the end of a job in its units. After that the attempt's unit may be released. If the attempt's output was not
/// read to its end yet, the rest is read first.
pub(super) async fn complete(on: &Attempts, mut detail: JobRecord, n: AttemptNo) -> Result<(), Error> {
    let is_due = |attempt: &&Attempt| attempt.released_by.is_none() && !attempt.is_open();
    let job = &detail.job;
    if let Some(attempt) = job.attempt(n).filter(is_due) {
        let counts = job.is_current(n);
        let unread = Some(attempt).filter(|attempt| counts && attempt.has_unread_output());
        let held = match unread {
            Some(attempt) => read_ended(on, job, attempt).await?,
            // The attempt ended because it was lost.
            None if counts && job.state.is_final() && attempt.output.is_none() => {
                on.publisher.output_ended(job.id).await?;
                None
            }
            None => None,
        };
        detail = on.base.store.drive_to_end(on.lease.fence(), (job.id, n), None, held, |_, _| Ok(())).await?;
    }
    on.publisher.show_detail(&detail).await
}

/// Reads the rest of the output of an attempt that has ended. If its unit is gone, nobody has the rest.
async fn read_ended(on: &Attempts, job: &Job, attempt: &Attempt) -> Result<Option<HeldOutput>, Error> {
    let child = attempt.unit.to_string();
    if on.base.children.known(&child) != Known::Here {
        return Ok(None);
    }
    let (n, unit) = (attempt.n, on.publisher.first_unit(job.id));
    let mut output = AttemptOutput::begin(&on.base.store, unit, job, n, &words_before(job, n)).await?;
    let mut stream = on.base.children.follow(child.clone(), output.position()).await;
    let end = loop {
        match stream.next().await {
            ChildNews::Accepted | ChildNews::Missing => {}
            ChildNews::Output(bytes) => output.push(bytes).await?,
            ChildNews::Ended { end, .. } => break end,
        }
    };
    if end.is_gone() {
        return Ok(None);
    }
    output.write_held(job.state.is_final()).await?;
    output.end(Some(job.explanation.as_str()).filter(|_| job.closes_output())).await
}

/// The text in a job's output before an attempt that follows another one.
pub(super) fn words_before(job: &Job, n: AttemptNo) -> String {
    let former = n.0.checked_sub(1).and_then(|former| job.attempt(AttemptNo(former)));
    former.map_or_else(String::new, last_words)
}

/// The text in a job's output at the end of an attempt that is followed by another one.
fn last_words(attempt: &Attempt) -> String {
    let n = attempt.n;
    let place = attempt.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    match attempt.ending() {
        None | Some(Ending::Lost) => format!("attempt {n}{place} did not come to its end"),
        Some(ending) => format!("attempt {n}{place} ended: {}", ending.name()),
    }
}
