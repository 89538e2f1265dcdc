//! A unit as its clients see it: its state only goes forward, and its end is true and stays.

use std::time::Duration;

use super::story::{Run, Story};
use crate::command::history::Note;

/// An end that was seen stays, and so does the unit, unless the node or store that promised this has lost it.
pub(super) fn check_end(story: &Story<'_>, losses: usize) -> Vec<String> {
    let mut missed = Vec::new();
    let (mut last, mut may_be_gone): (Option<(u64, &str, u64)>, _) = (None, losses > 0);
    for (at, note) in &story.notes {
        match note {
            Note::Seen { state, detail, size, .. } => {
                let now = (*state, detail.as_str(), *size);
                if let Some(before @ (2.., ..)) = last.filter(|before| *before != now) {
                    missed.push(format!("its end changed from {before:?} to {now:?} at {at:?}"));
                }
                last = Some(now);
            }
            Note::Robbed { node } if *node == story.job.submitted_by => (last, may_be_gone) = (None, true),
            Note::Gone { unit, .. } if !may_be_gone => missed.push(format!("unit {unit} is gone at {at:?}")),
            _ => {}
        }
    }
    missed
}

pub(super) fn check(story: &Story<'_>) -> Vec<String> {
    let mut missed = check_end(story, 0);
    let mut last: Option<(u64, &str, u64)> = None;
    let runs = &story.runs;
    for (at, note) in &story.notes {
        let Note::Seen { state, detail, size, .. } = note else { continue };
        let now = (*state, detail.as_str(), *size);
        if let Some(before @ (0..2, ..)) = last.filter(|before| before.0 > now.0) {
            missed.push(format!("its state went back from {before:?} to {now:?} at {at:?}"));
        }
        if now.0 == 2 && last.is_none_or(|last| last.0 != 2) && !has_succeeded(story, *at) {
            missed.push(format!("it succeeded, and no run of it had come to its end: {runs:?}"));
        }
        // Nobody reports a run at another node of the same name once the name has other neighbours.
        let is_elsewhere = |run: &Run| {
            story.notes.iter().any(|(at, note)| matches!(note, Note::Doubled { .. }) && *at >= run.from)
        };
        let open = runs.iter().find(|run| run.from < *at && run.is_open_at(*at) && !is_elsewhere(run));
        if let (2.., None, Some(open)) = (now.0, story.placed(), open) {
            missed.push(format!("its end {now:?} was seen at {at:?} while it ran: {open:?}"));
        }
        last = Some(now);
    }
    missed
}

/// A run that was given up after it had shown the playbook's status counts by this status.
fn has_succeeded(story: &Story<'_>, at: Duration) -> bool {
    let is_over = |run: &Run| run.to.is_some_and(|to| to <= at);
    let counts = |run: &Run| run.whole || story.placed().is_some();
    story.runs.iter().any(|run| is_over(run) && counts(run))
}
