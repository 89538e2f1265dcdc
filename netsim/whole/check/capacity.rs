//! No node has more to do than it can: the jobs that run at once take no more than there is of it, of the group that they
//! were placed through, and of their controller. A controller knows its own jobs alone.
//!
//! What a job takes of a group and of its controller is free once it was given up. What it takes of a node is not.

use std::collections::BTreeMap;

use super::story::{Run, Story};
use crate::command::jobs::{NARROW_FORKS, NARROW_JOBS, Placed};
use crate::command::runner::CAPACITY;

/// A job that runs: its name, what a controller knows of it, and its process.
type Running<'a> = (&'a str, &'a Placed, &'a Run);

pub(super) fn check(stories: &[Story<'_>]) -> Vec<String> {
    let mut of_node: BTreeMap<(&str, &str), Vec<Running<'_>>> = BTreeMap::new();
    let mut of_controller: BTreeMap<&str, Vec<Running<'_>>> = BTreeMap::new();
    for story in stories {
        let (Some(placed), by) = (story.placed(), story.job.submitted_by.as_str()) else { continue };
        for run in &story.runs {
            let running = (story.job.tag.as_str(), placed, run);
            of_node.entry((by, &run.node)).or_default().push(running);
            if story.is_certain() {
                of_controller.entry(by).or_default().push(running);
            }
        }
    }
    let mut missed = Vec::new();
    for ((_, node), all) in &of_node {
        missed.extend(too_much(all, node, |jobs| {
            // One that is larger than any node has one for itself.
            jobs.len() > 1 && impact(jobs) > CAPACITY
        }));
    }
    for (by, all) in &of_controller {
        missed.extend(too_much(all, by, |jobs| jobs.len() as u64 > CAPACITY));
        let narrow: Vec<Running<'_>> =
            all.iter().copied().filter(|(_, placed, _)| placed.is_narrow).collect();
        let is_over = |jobs: &[Running<'_>]| jobs.len() > NARROW_JOBS || impact(jobs) > NARROW_FORKS;
        missed.extend(too_much(&narrow, "the group", is_over));
    }
    missed
}

fn impact(jobs: &[Running<'_>]) -> u64 {
    jobs.iter().map(|(_, placed, _)| placed.impact()).sum()
}

/// The first moment at which what runs is too much. It grows with starts alone.
fn too_much(all: &[Running<'_>], of: &str, is_over: impl Fn(&[Running<'_>]) -> bool) -> Option<String> {
    all.iter().find_map(|(_, _, started)| {
        let at = started.from;
        let jobs: Vec<Running<'_>> = all.iter().copied().filter(|(_, _, run)| run.is_open_at(at)).collect();
        is_over(&jobs).then(|| {
            let tags: Vec<&str> = jobs.iter().map(|(tag, ..)| *tag).collect();
            format!("{of} has jobs with {} forks at {at:?}: {tags:?}", impact(&jobs))
        })
    })
}
