//! What must be true of any history. It knows only what was seen of the nodes.
//!
//! - `story`: what happened to one job, from all notes; `unit`, `texts`: what the job's clients see.
//! - `attempts`: what the job's controller tries, and when; `together`: jobs that depend on or exclude each other.
//! - `capacity`, `order`: where jobs have room, and which is first. `forgotten`: jobs that a store or a node has lost.

mod attempts;
mod capacity;
mod forgotten;
mod order;
mod story;
mod texts;
mod together;
mod unit;

use std::collections::BTreeSet;
use std::time::Duration;

use super::history::{Note, losses};
use super::jobs::{Job, Kind};
use story::Story;

/// Everything in a history that must not be.
pub(super) fn check(notes: &[(Duration, Note)], jobs: &[Job]) -> Vec<String> {
    let stories = story::tell(notes, jobs);
    let struck = struck(notes);
    let mut missed = Vec::new();
    let losses = losses(notes);
    let is_timed = !notes.iter().any(|(_, note)| *note == Note::StoreClock);
    let is_known = |story: &Story<'_>| {
        story.robbed().is_empty()
            && (story.placed().is_none() || is_timed && forgotten::count(story, &losses) == 0)
    };
    let (known, others): (Vec<_>, Vec<_>) = stories.into_iter().partition(is_known);
    for story in &others {
        let of_job = forgotten::check(story, forgotten::count(story, &losses)).into_iter();
        missed.extend(of_job.map(|what| format!("{}: {what}", story.job.tag)));
    }
    for story in &known {
        let of_job = check_cause(story, &struck)
            .into_iter()
            .chain(unit::check(story))
            .chain(texts::check_payload(story))
            .chain(texts::check(story, Duration::ZERO))
            .chain(attempts::check(story));
        missed.extend(of_job.map(|what| format!("{}: {what}", story.job.tag)));
    }
    missed.extend(together::check(&known));
    missed.extend(capacity::check(&known));
    missed.extend(order::check(&known));
    missed
}

/// The nodes whose processes were ended by a fault.
fn struck(notes: &[(Duration, Note)]) -> BTreeSet<&str> {
    let mut struck = BTreeSet::new();
    for (_, note) in notes {
        if let Note::Struck { node } = note {
            struck.insert(node.as_str());
        }
    }
    struck
}

/// No job fails without a cause: its own failure, or a fault that ended its process or its node.
fn check_cause(story: &Story<'_>, struck: &BTreeSet<&str>) -> Option<String> {
    let job = story.job;
    let last = story.notes.iter().rev().find_map(|(_, note)| match note {
        Note::Seen { state, detail, .. } => Some((*state, detail)),
        _ => None,
    });
    let Some((3, detail)) = last else { return None };
    let is_struck = match &job.kind {
        Kind::Plain { on } => struck.contains(on.as_str()) || struck.contains(job.submitted_by.as_str()),
        Kind::Placed(_) => job.fails || job.dies || !struck.is_empty() || !story.is_certain(),
    };
    (!is_struck).then(|| format!("it failed without a cause: {detail}"))
}
