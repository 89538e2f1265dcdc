//! What must be true of jobs about which promised data was lost: by a store that has lost commits
//! (docs/controller-store.md), or by a node whose disk has lied or that was replaced. Less is checked than for other
//! jobs, because these may be sent again, or be unknown. The same is checked if the store's clock was wrong, because
//! the times in its rows prove nothing then.

use std::time::Duration;

use super::story::{Run, Story};
use super::{attempts, texts, unit};
use crate::command::history::Note;

/// How many of these losses of commits may concern this job. Losses of commits after the job's end do not.
pub(super) fn count(story: &Story<'_>, losses: &[Duration]) -> usize {
    if story.placed().is_none() {
        return 0;
    }
    let ended = story.notes.iter().find(|(_, note)| matches!(note, Note::Seen { state: 2.., .. }));
    losses.iter().filter(|since| ended.is_none_or(|(ended, _)| ended >= *since)).count()
}

/// Checks what is true however much was lost.
pub(super) fn check(story: &Story<'_>, losses: usize) -> Vec<String> {
    let (runs, robbed, mut missed) = (&story.runs, story.robbed(), Vec::new());
    let (usual, unconfirmed) =
        story.placed().map_or((1, false), |placed| (placed.retries + 1, placed.unconfirmed));
    let most = usual + losses + robbed.len();
    if runs.len() > most {
        missed.push(format!("it has started {} times of {most}, with all losses: {runs:?}", runs.len()));
    }
    missed.extend(attempts::check_once(story));
    missed.extend(unit::check_end(story, losses));
    for (at, run) in runs.iter().enumerate() {
        let beside = |earlier: &&Run| earlier.unit != run.unit && run.overlaps(earlier);
        if let Some(earlier) = runs[..at].iter().find(beside).filter(|_| !unconfirmed) {
            missed.push(format!("two attempts ran at once: {earlier:?} {run:?}"));
        }
    }
    let mut last = None;
    for (at, note) in &story.notes {
        match note {
            Note::Seen { state, .. } => last = Some(*state),
            Note::Started { .. } if robbed.is_empty() && last == Some(2) => {
                missed.push(format!("it has started at {at:?} after its success was seen"));
            }
            _ => {}
        }
    }
    // Another run writes again what a robbed node had written.
    if robbed.is_empty() && last == Some(2) {
        // The output of an attempt that was forgotten is cut off, and who has read it reads on from there.
        let over = runs.iter().filter_map(|run| run.to).max().filter(|_| losses > 0);
        missed.extend(texts::check(story, over.unwrap_or_default()));
    }
    missed
}
