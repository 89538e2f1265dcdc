//! A unit as its clients see it: its state goes forward, its end stays and is true.

use std::time::Duration;

use super::story::{Run, Story};
use crate::command::history::Note;

pub(super) fn check(story: &Story<'_>) -> Vec<String> {
    let mut missed = Vec::new();
    let mut last: Option<(u64, &str, u64)> = None;
    let runs = &story.runs;
    for (at, note) in &story.notes {
        if let Note::Gone { unit, .. } = note {
            missed.push(format!("unit {unit} is gone at {at:?}"));
        }
        let Note::Seen { state, detail, size, .. } = note else { continue };
        let now = (*state, detail.as_str(), *size);
        match last {
            Some(before) if before.0 >= 2 && before != now => {
                missed.push(format!("its end changed from {before:?} to {now:?} at {at:?}"));
            }
            Some(before) if before.0 > now.0 => {
                missed.push(format!("its state went back from {before:?} to {now:?} at {at:?}"));
            }
            _ => {}
        }
        if now.0 == 2 && last.is_none_or(|last| last.0 != 2) && !has_succeeded(story, *at) {
            missed.push(format!("it succeeded, and no run of it had come to its end: {runs:?}"));
        }
        // Of a run under its node's name elsewhere nobody tells once that has other neighbours.
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

/// One that was given up after it had said how the playbook ended counts by that.
fn has_succeeded(story: &Story<'_>, at: Duration) -> bool {
    let is_over = |run: &Run| run.to.is_some_and(|to| to <= at);
    let counts = |run: &Run| run.whole || story.placed().is_some();
    story.runs.iter().any(|run| is_over(run) && counts(run))
}
