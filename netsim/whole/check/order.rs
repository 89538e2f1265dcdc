//! Who is first. A controller places the pending job of the highest priority first, of two the one that was created first, and
//! goes on to the next one if that fits nowhere. So no job is placed while an earlier one is pending that needs no more and waits
//! for nothing else.

use std::cmp::Reverse;
use std::time::Duration;

use super::story::Story;

pub(super) fn check(stories: &[Story<'_>]) -> Vec<String> {
    let mut missed = Vec::new();
    for first in stories {
        for later in stories.iter().filter(|later| later.job.submitted_by == first.job.submitted_by) {
            missed.extend(passed(first, later).map(|at| {
                format!("{} was placed at {at:?}, before {}, whose turn it was", later.job.tag, first.job.tag)
            }));
        }
    }
    missed
}

/// When the later one of two jobs was placed while the first one could have been.
fn passed(first: &Story<'_>, later: &Story<'_>) -> Option<Duration> {
    let (one, other) = (first.placed()?, later.placed()?);
    let turn =
        |story: &Story<'_>| Some((Reverse(story.row?["priority"].as_i64()?), story.row?["id"].as_i64()?));
    let fits = one.impact() <= other.impact() && (!one.is_narrow || other.is_narrow);
    if turn(first)? >= turn(later)? || !fits || one.need().is_some() {
        return None;
    }
    let (created, own) = (first.time("created")?, *first.attempts().first()?);
    // The beginning of a long list is forgotten.
    if own.number != 1 {
        return None;
    }
    let passes = later.attempts().into_iter().find(|attempt| {
        // The words of the later one were free when it was placed first: the same ones were free for the first job.
        let has_words = one.words.is_empty() || one.words == other.words && attempt.number == 1;
        has_words && created < attempt.placed && attempt.placed < own.placed
    })?;
    Some(passes.placed)
}
