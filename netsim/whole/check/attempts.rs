//! The attempts of a job: how many, one after the other, and none after the job's end. A plain unit is its own only
//! attempt.

use std::time::Duration;

use super::story::{Attempt, Run, Story};
use crate::command::history::Note;
use crate::command::jobs::Kind;

/// Outcomes of attempts in which nothing ran; these do not count as retries.
const IDLE: [&str; 2] = ["not_accepted", "quota"];
/// Outcomes after which these jobs are tried again.
const RETRIED: [&str; 2] = ["lost", "error"];

pub(super) fn check(story: &Story<'_>) -> Vec<String> {
    let (runs, attempts) = (&story.runs, story.attempts());
    let mut missed = Vec::new();
    missed.extend(check_once(story));
    for run in runs {
        if story.row.is_some() && !attempts.iter().any(|attempt| attempt.unit == run.unit) {
            missed.push(format!("it ran as what is no attempt of it: {run:?}"));
        }
    }
    missed.extend(check_count(story, &attempts));
    missed.extend(check_sequence(story, &attempts));
    missed.extend(check_over(story, &attempts));
    missed
}

/// An attempt runs once, unless a node has lost what it knew of the attempt.
pub(super) fn check_once(story: &Story<'_>) -> Vec<String> {
    let (runs, robbed) = (&story.runs, story.robbed());
    let mut missed = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let is_again = |earlier: &&Run| {
            earlier.unit == run.unit && !robbed.iter().any(|at| (earlier.from..=run.from).contains(at))
        };
        if let Some(earlier) = runs[..at].iter().find(is_again) {
            missed.push(format!("one attempt ran twice: {earlier:?} {run:?}"));
        }
    }
    missed
}

/// A job is tried as often as its header says.
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

/// An attempt is placed only after a failed one that does not run any more; a job that may run unconfirmed need not
/// wait for its end.
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

/// The precision of the times in a row.
const MILLI: Duration = Duration::from_millis(1);

/// No attempt is placed after the job's end, or after a client was told that the job is cancelled. An attempt that was
/// placed before may still start, and so may a unit that was submitted for another node.
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
