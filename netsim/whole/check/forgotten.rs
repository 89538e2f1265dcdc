//! What must be true of jobs of which a store has lost commits: less than of others, since it may send them again, or know
//! nothing of them any more (docs/controller-store.md). It is also all that is asked where the store's clock was wrong: by
//! the times in its rows nothing can be judged then.

use std::time::Duration;

use super::story::Story;
use super::texts;
use crate::command::history::{Note, Text};

/// How many of these losses may be about this job: not those of what came after it had ended.
pub(super) fn count(story: &Story<'_>, losses: &[Duration]) -> usize {
    if story.placed().is_none() {
        return 0;
    }
    let ended = story.notes.iter().find(|(_, note)| matches!(note, Note::Seen { state: 2.., .. }));
    losses.iter().filter(|since| ended.is_none_or(|(ended, _)| ended >= *since)).count()
}

/// What is true however much of it was lost.
pub(super) fn check(story: &Story<'_>, losses: usize) -> Vec<String> {
    let Some(placed) = story.placed() else { return Vec::new() };
    let (runs, mut missed) = (&story.runs, Vec::new());
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
            } else if !placed.unconfirmed && run.overlaps(earlier) {
                missed.push(format!("two attempts ran at once: {earlier:?} {run:?}"));
            }
        }
    }
    let (mut last, mut read): (Option<(u64, &str, u64)>, Option<&Text>) = (None, None);
    for (at, note) in &story.notes {
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
    if last.is_some_and(|(state, ..)| state == 2) {
        missed.extend(texts::check(story));
    }
    missed
}
