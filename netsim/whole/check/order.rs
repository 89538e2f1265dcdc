//! The order of jobs. A controller places the pending job with the highest priority first, and of two such jobs the
//! older one. A job that fits nowhere is skipped. So no job is placed before an earlier pending job that needs no more
//! and waits for nothing else.

use std::cmp::Reverse;
use std::time::Duration;

use super::story::Story;
use crate::command::groups::Group;

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

/// When the later of two jobs was placed although the first could have been placed.
fn passed(first: &Story<'_>, later: &Story<'_>) -> Option<Duration> {
    let (one, other) = (first.placed()?, later.placed()?);
    let turn =
        |story: &Story<'_>| Some((Reverse(story.row?["priority"].as_i64()?), story.row?["id"].as_i64()?));
    let has_room = one.group == other.group || (one.group, other.group) == (Group::Default, Group::Narrow);
    let fits = has_room && one.impact() <= other.impact();
    if turn(first)? >= turn(later)? || !fits || one.need().is_some() {
        return None;
    }
    let (created, own) = (first.time("created")?, *first.attempts().first()?);
    // Only if its first attempt is known, because the beginning of a long list is forgotten.
    if own.number != 1 {
        return None;
    }
    let passes = later.attempts().into_iter().find(|attempt| {
        // The later job's words were free when it was placed first. If the first job holds the same words, they were
        // free for it, too.
        let has_words = one.words.is_empty() || one.words == other.words && attempt.number == 1;
        has_words && created < attempt.placed && attempt.placed < own.placed
    })?;
    Some(passes.placed)
}
