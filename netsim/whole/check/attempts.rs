//! What is tried for a job: how often, one after the other, and never once it is over. A plain unit is its own only attempt.

use std::time::Duration;

use super::story::{Attempt, Run, Story};
use crate::command::history::Note;
use crate::command::jobs::Kind;

/// Nothing has run in an attempt that ended so, and it counts as no retry.
const IDLE: [&str; 2] = ["not_accepted", "quota"];
/// What the jobs here are tried again after.
const RETRIED: [&str; 2] = ["lost", "error"];

pub(super) fn check(story: &Story<'_>) -> Vec<String> {
    let (runs, attempts) = (&story.runs, story.attempts());
    let mut missed = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        if let Some(earlier) = runs[..at].iter().find(|earlier| earlier.unit == run.unit) {
            missed.push(format!("one attempt ran twice: {earlier:?} {run:?}"));
        }
        if story.row.is_some() && !attempts.iter().any(|attempt| attempt.unit == run.unit) {
            missed.push(format!("it ran as what is no attempt of it: {run:?}"));
        }
    }
    missed.extend(check_count(story, &attempts));
    missed.extend(check_sequence(story, &attempts));
    missed.extend(check_over(story, &attempts));
    missed
}

/// A job is tried as often as its header says, and not less.
fn check_count(story: &Story<'_>, attempts: &[Attempt<'_>]) -> Option<String> {
    let most = story.placed().map_or(1, |placed| placed.retries + 1);
    if story.runs.len() > most {
        return Some(format!("it has started {} times of {most}: {:?}", story.runs.len(), story.runs));
    }
    let row = story.row?;
    let count = attempts.iter().filter(|attempt| !IDLE.contains(&attempt.outcome)).count();
    let last = attempts.last()?;
    let is_given_up = ["failed", "error"].iter().any(|state| row["state"] == *state)
        && row["cancel_requested"] == false
        && RETRIED.contains(&last.outcome);
    if count > most || is_given_up && count < most {
        return Some(format!("it was tried {count} times of {most}: {attempts:?}"));
    }
    None
}

/// An attempt is placed after one that failed, and once that does not run any more; if it may run unconfirmed, before that.
fn check_sequence(story: &Story<'_>, attempts: &[Attempt<'_>]) -> Vec<String> {
    let mut missed = Vec::new();
    for (former, next) in attempts.iter().zip(attempts.iter().skip(1)) {
        if !IDLE.contains(&former.outcome) && !RETRIED.contains(&former.outcome) {
            missed.push(format!("{next:?} follows {former:?}"));
        }
        let is_open =
            |run: &&Run| run.unit == former.unit && run.to.is_none_or(|to| to > next.placed + MILLI);
        if let Some(run) = story.runs.iter().find(is_open)
            && story.placed().is_some_and(|placed| !placed.unconfirmed)
        {
            missed.push(format!("{next:?} was placed beside {run:?}"));
        }
    }
    missed
}

/// The times of a row are cut to these.
const MILLI: Duration = Duration::from_millis(1);

/// After its end, and after a client was told that it is cancelled, no attempt is placed. One that was placed before may be
/// under way to its node, and so may what a client submits to another node.
fn check_over(story: &Story<'_>, attempts: &[Attempt<'_>]) -> Vec<String> {
    let over = story.notes.iter().find(|(_, note)| match note {
        Note::Cancelled { .. } => true,
        Note::Seen { state, .. } => *state >= 2,
        _ => false,
    });
    let Some((over, note)) = over else { return Vec::new() };
    let is_late = |at: Duration| at > *over + MILLI;
    let is_here = matches!(&story.job.kind, Kind::Plain { on } if *on == story.job.submitted_by);
    let starts = story.runs.iter().filter(|run| is_here && is_late(run.from));
    let placed = attempts.iter().filter(|attempt| is_late(attempt.placed));
    starts
        .map(|run| format!("{run:?} started after {note:?} at {over:?}"))
        .chain(placed.map(|attempt| format!("{attempt:?} was placed after {note:?} at {over:?}")))
        .collect()
}
