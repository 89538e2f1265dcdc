//! What must be true of jobs of which somebody has forgotten what he had promised to keep: a store that has lost commits
//! (docs/controller-store.md), or a node whose disk has lied, or that was replaced. It is less than of others: they may be sent
//! again, and nothing may be known of them any more. It is also all that is asked where the store's clock was wrong: by the
//! times in its rows nothing can be judged then.

use std::time::Duration;

use super::story::Story;
use super::texts;
use crate::command::history::Note;

/// How many of these losses of a store's commits may be about this job: not those of what came after it had ended.
pub(super) fn count(story: &Story<'_>, losses: &[Duration]) -> usize {
    if story.placed().is_none() {
        return 0;
    }
    let ended = story.notes.iter().find(|(_, note)| matches!(note, Note::Seen { state: 2.., .. }));
    losses.iter().filter(|since| ended.is_none_or(|(ended, _)| ended >= *since)).count()
}

/// What is true however much of it was lost.
pub(super) fn check(story: &Story<'_>, losses: usize) -> Vec<String> {
    let (runs, robbed, mut missed) = (&story.runs, story.robbed(), Vec::new());
    let (usual, unconfirmed) =
        story.placed().map_or((1, false), |placed| (placed.retries + 1, placed.unconfirmed));
    let most = usual + losses + robbed.len();
    if runs.len() > most {
        missed.push(format!("it has started {} times of {most}, with all losses: {runs:?}", runs.len()));
    }
    for (at, run) in runs.iter().enumerate() {
        for earlier in &runs[..at] {
            let is_excused = robbed.iter().any(|at| (earlier.from..=run.from).contains(at));
            if run.unit == earlier.unit && !is_excused {
                missed.push(format!("one attempt ran twice: {earlier:?} {run:?}"));
            } else if run.unit != earlier.unit && !unconfirmed && run.overlaps(earlier) {
                missed.push(format!("two attempts ran at once: {earlier:?} {run:?}"));
            }
        }
    }
    let mut last: Option<(u64, &str, u64)> = None;
    // Its own node may know nothing of it any more.
    let mut may_be_gone = losses > 0;
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
            Note::Started { .. } if robbed.is_empty() && last.is_some_and(|(state, ..)| state == 2) => {
                missed.push(format!("it has started at {at:?} after its success was seen"));
            }
            _ => {}
        }
    }
    // What a robbed node had written is written again by another run.
    if robbed.is_empty() && last.is_some_and(|(state, ..)| state == 2) {
        missed.extend(texts::check(story));
    }
    missed
}
