//! Capacity: jobs that run at once take no more than their node, the group that they were placed through, and their
//! controller have. A controller knows only its own jobs.
//!
//! When an attempt is given up, the capacity of its group and controller is free, but that of its node is not.

use std::collections::BTreeMap;

use super::story::{Run, Story};
use crate::command::groups::{Group, NARROW_FORKS, NARROW_JOBS, PODS_JOBS};
use crate::command::jobs::Placed;
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
            if placed.group != Group::Pods {
                of_node.entry((by, &run.node)).or_default().push(running);
            }
            if story.is_certain() {
                of_controller.entry(by).or_default().push(running);
            }
        }
    }
    let mut missed = Vec::new();
    for ((_, node), all) in &of_node {
        missed.extend(too_much(all, node, |jobs| {
            // A job that is larger than any node gets a node for itself.
            jobs.len() > 1 && impact(jobs) > CAPACITY
        }));
    }
    for (by, all) in &of_controller {
        missed.extend(too_much(all, by, |jobs| jobs.len() as u64 > CAPACITY));
        let of = |group: Group| -> Vec<Running<'_>> {
            all.iter().copied().filter(|(_, placed, _)| placed.group == group).collect()
        };
        missed.extend(too_much(&of(Group::Narrow), "the group", |jobs| {
            jobs.len() > NARROW_JOBS || impact(jobs) > NARROW_FORKS
        }));
        missed.extend(too_much(&of(Group::Pods), "the group of pods", |jobs| jobs.len() > PODS_JOBS));
    }
    missed
}

fn impact(jobs: &[Running<'_>]) -> u64 {
    jobs.iter().map(|(_, placed, _)| placed.impact()).sum()
}

/// The first moment at which too much runs. Only starts are checked, because only they increase the load.
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
