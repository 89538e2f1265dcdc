//! What must be true of jobs of which a store has lost commits: less than of others, since it may send them again, or know
//! nothing of them any more (docs/controller-store.md).

use std::time::Duration;

use super::check::{check_text, overlap, runs_of};
use super::history::{Note, Text};
use super::jobs::{Job, Kind};

/// Since when a store has lost what it committed, once for each time.
pub(super) fn losses(notes: &[(Duration, Note)]) -> Vec<Duration> {
    let since = |note: &Note| if let Note::Lost { since } = note { Some(*since) } else { None };
    notes.iter().filter_map(|(_, note)| since(note)).collect()
}

/// How many of these losses may be about this job: not those of what came after it had ended.
pub(super) fn count(job: &Job, notes: &[(Duration, &Note)], losses: &[Duration]) -> usize {
    if matches!(job.kind, Kind::Plain { .. }) {
        return 0;
    }
    let ended =
        notes.iter().find(|(_, note)| matches!(note, Note::Seen { state: 2.., .. })).map(|(at, _)| *at);
    losses.iter().filter(|since| ended.is_none_or(|ended| ended >= **since)).count()
}

/// What is true however much of it was lost.
pub(super) fn check(job: &Job, notes: &[(Duration, &Note)], losses: usize) -> Vec<String> {
    let Kind::Placed(placed) = &job.kind else { return Vec::new() };
    let (runs, mut missed) = (runs_of(notes), Vec::new());
    if runs.len() > losses + placed.retries + 1 {
        missed.push(format!(
            "it has started {} times, and commits were lost {losses} times: {runs:?}",
            runs.len()
        ));
    }
    for (at, run) in runs.iter().enumerate() {
        for earlier in &runs[..at] {
            if run.unit == earlier.unit {
                missed.push(format!("one attempt ran twice: {earlier:?} {run:?}"));
            } else if !placed.unconfirmed && overlap(run, earlier) {
                missed.push(format!("two attempts ran at once: {earlier:?} {run:?}"));
            }
        }
    }
    let (mut last, mut read): (Option<(u64, &str, u64)>, Option<&Text>) = (None, None);
    for (at, note) in notes {
        match note {
            Note::Seen { state, detail, size, .. } => {
                let now = (*state, detail.as_str(), *size);
                if let Some(before @ (2.., ..)) = last.filter(|before| *before != now) {
                    missed.push(format!("its end changed from {before:?} to {now:?} at {at:?}"));
                }
                last = Some(now);
            }
            Note::Started { .. } if last.is_some_and(|(state, ..)| state == 2) => {
                missed.push(format!("it has started at {at:?} after its success was seen"));
            }
            Note::Read { text, .. } => {
                if let (Some(before), Some((2, ..))) = (read.filter(|before| *before != text), last) {
                    missed.push(format!("readers got different texts: {before:?} and {text:?}"));
                }
                read = Some(text);
            }
            _ => {}
        }
    }
    if let (Some((state @ 2, _, size)), Some(text)) = (last, read) {
        missed.extend(check_text(job, (state, size), text, &runs, true));
    }
    missed
}
