//! What happened to one job: its notes, its processes, and its attempts by its controller's row.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use meshd_machine as machine;
use serde_json::Value;

use crate::command::groups::Group;
use crate::command::history::Note;
use crate::command::jobs::{Job, Kind, Placed};

pub(super) struct Story<'a> {
    pub(super) job: &'a Job,
    pub(super) notes: Vec<(Duration, &'a Note)>,
    pub(super) runs: Vec<Run>,
    /// The controller's row of the job, if a client has read it.
    pub(super) row: Option<&'a Value>,
}

/// A process of a job.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) pid: u32,
    pub(super) node: String,
    pub(super) unit: String,
    pub(super) from: Duration,
    pub(super) to: Option<Duration>,
    /// It wrote everything and ended by itself.
    pub(super) whole: bool,
}

/// An attempt, as the controller's row shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) number: u64,
    pub(super) unit: &'a str,
    pub(super) placed: Duration,
    pub(super) ended: Option<Duration>,
    pub(super) outcome: &'a str,
}

/// The stories of all jobs.
pub(super) fn tell<'a>(notes: &'a [(Duration, Note)], jobs: &'a [Job]) -> Vec<Story<'a>> {
    let mut of_job: BTreeMap<&str, Vec<(Duration, &Note)>> = BTreeMap::new();
    for (at, note) in notes {
        if let Some(tag) = tag_of(note) {
            of_job.entry(tag).or_default().push((*at, note));
        }
        let ran_on = |job: &Job, node: &str| {
            let mut notes = of_job.get(job.tag.as_str()).into_iter().flatten();
            notes.any(|(_, note)| matches!(note, Note::Started { node: on, .. } if on == node))
        };
        let concerns = |job: &&Job| match (note, &job.kind) {
            (Note::Robbed { node }, Kind::Plain { on }) => job.submitted_by == *node || on == node,
            (Note::Robbed { node }, Kind::Placed(_)) => ran_on(job, node),
            (Note::Doubled { node }, Kind::Plain { on }) => on == node,
            _ => false,
        };
        let concerned: Vec<&Job> = jobs.iter().filter(concerns).collect();
        for job in concerned {
            of_job.entry(job.tag.as_str()).or_default().push((*at, note));
        }
    }
    let story = |job: &'a Job| {
        let notes = of_job.remove(job.tag.as_str()).unwrap_or_default();
        let row = notes
            .iter()
            .find_map(|(_, note)| if let Note::Row { row, .. } = note { Some(row) } else { None });
        let mut story = Story { job, runs: runs_of(&notes), notes, row };
        story.end_deleted_pods();
        story
    };
    jobs.iter().map(story).collect()
}

fn tag_of(note: &Note) -> Option<&str> {
    match note {
        Note::Started { tag, .. }
        | Note::Ended { tag, .. }
        | Note::Killed { tag, .. }
        | Note::Accepted { tag, .. }
        | Note::Cancelled { tag }
        | Note::Seen { tag, .. }
        | Note::Read { tag, .. }
        | Note::Row { tag, .. }
        | Note::Gone { tag, .. }
        | Note::Released { tag, .. } => Some(tag),
        Note::Struck { .. }
        | Note::Robbed { .. }
        | Note::Doubled { .. }
        | Note::Lost { .. }
        | Note::StoreClock
        | Note::Told { .. } => None,
    }
}

fn runs_of(notes: &[(Duration, &Note)]) -> Vec<Run> {
    let mut runs: BTreeMap<u32, Run> = BTreeMap::new();
    for (at, note) in notes {
        match note {
            Note::Started { pid, unit, node, .. } => {
                let (node, unit) = (node.clone(), unit.clone());
                runs.insert(*pid, Run { pid: *pid, node, unit, from: *at, to: None, whole: false });
            }
            Note::Ended { pid, .. } => {
                let run = runs.get_mut(pid).expect("it has started");
                (run.to, run.whole) = (Some(*at), true);
            }
            Note::Killed { pid, .. } => runs.get_mut(pid).expect("it has started").to = Some(*at),
            _ => {}
        }
    }
    runs.into_values().collect()
}

impl Run {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.is_open_at(other.from) || other.is_open_at(self.from)
    }

    pub(super) fn is_open_at(&self, at: Duration) -> bool {
        self.from <= at && self.to.is_none_or(|to| to > at)
    }
}

impl<'a> Story<'a> {
    /// Ends each run of a pod with its attempt, because a worker that outlives its attempt is about to be deleted.
    fn end_deleted_pods(&mut self) {
        if self.placed().is_none_or(|placed| placed.group != Group::Pods) {
            return;
        }
        let ends: Vec<_> =
            self.attempts().iter().filter_map(|attempt| Some((attempt.unit, attempt.ended?))).collect();
        for run in &mut self.runs {
            let end = ends.iter().find(|(unit, _)| *unit == run.unit).map(|(_, ended)| *ended);
            run.to = run.to.into_iter().chain(end).min();
        }
    }

    /// What the job's controller knows, if the job has a controller.
    pub(super) fn placed(&self) -> Option<&'a Placed> {
        match &self.job.kind {
            Kind::Placed(placed) => Some(placed),
            Kind::Plain { .. } => None,
        }
    }

    /// A time of the row, as time of the run. It is right because a store reads its host's clock when it is opened, and
    /// no node starts while its clock is wrong.
    pub(super) fn time(&self, of: &str) -> Option<Duration> {
        self.row.and_then(|row| time(&row[of]))
    }

    /// The attempts in the row. The first may be missing if nothing ran in them. An attempt that is older than the run
    /// was placed by a wrong clock, and is left out.
    pub(super) fn attempts(&self) -> Vec<Attempt<'a>> {
        let of_row = self.row.and_then(|row| row["attempts"].as_array());
        let attempt = |value: &'a Value| {
            Some(Attempt {
                number: value["n"].as_u64().expect("an attempt has a number"),
                unit: value["unit"].as_str().expect("an attempt has a unit"),
                placed: time(&value["placed"])?,
                ended: time(&value["ended"]),
                outcome: value["outcome"].as_str().unwrap_or_default(),
            })
        };
        of_row.into_iter().flatten().filter_map(attempt).collect()
    }

    /// When nodes that this job concerns have lost what they had promised to keep.
    pub(super) fn robbed(&self) -> Vec<Duration> {
        let notes = self.notes.iter().filter(|(_, note)| matches!(note, Note::Robbed { .. }));
        notes.map(|(at, _)| *at).collect()
    }

    /// Whether the job has ended and no attempt was given up while it might run: a given-up attempt frees what it held
    /// from other jobs.
    pub(super) fn is_certain(&self) -> bool {
        let Some(finished) = self.time("finished") else { return false };
        let is_over = |attempt: &Attempt<'_>| {
            attempt.outcome != "lost" && attempt.ended.is_some_and(|ended| ended <= finished)
        };
        self.attempts().iter().all(is_over)
    }
}

fn time(value: &Value) -> Option<Duration> {
    let time: Timestamp = value.as_str()?.parse().ok()?;
    let since = time.as_millisecond().checked_sub(machine::EPOCH as i64 * 1000)?;
    u64::try_from(since).ok().map(Duration::from_millis)
}
