//! One pass: the core decides about every pending job, and what it decides is stored.
//!
//! One control node at a time makes a pass. Each attempt is stored with its unit's ID in the transaction that
//! places it, before anybody can send it.

use std::collections::BTreeMap;

use super::error::Error;
use super::jobs::{self, StoredJob};
use super::scene::{Loadout, Waits};
use super::sql::{Sql, list, values};
use super::turn::{self, TurnLock};
use super::{Store, leases, schema};
use crate::controller::core::{ChildId, Decision, Fence, Job, JobId, Placement, pass};

/// What a pass depends on, and the limits that keep its transaction short.
#[derive(Debug, Clone)]
pub struct PassLimits {
    /// Jobs may only be sent over TLS.
    pub require_tls: bool,
    /// How long jobs have waited.
    pub waits: Waits,
    /// The most jobs that are placed or failed.
    pub changes: usize,
    /// The most explanations that are changed.
    pub explanations: usize,
}

impl Default for PassLimits {
    fn default() -> Self {
        Self { require_tls: false, waits: Waits::default(), changes: 200, explanations: 2000 }
    }
}

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// Another control node was making a pass, so this one did nothing.
    pub elsewhere: bool,
    /// The jobs that were placed, and who drives them.
    pub placed: Vec<(JobId, Fence)>,
    /// Jobs that failed without running.
    pub failed: Vec<JobId>,
    /// Jobs that are still pending.
    pub pending: usize,
    /// The limits were reached: another pass should follow at once.
    pub again: bool,
}

impl Store {
    /// Makes a pass, unless another control node makes one.
    ///
    /// # Errors
    /// The lease of the caller was taken: it must stand down.
    pub async fn pass(&self, by: Fence, limits: PassLimits) -> Result<Passed, Error> {
        self.fenced_write(by, move |sql, by| {
            // Without a pending job a pass would read a lot for nothing.
            if sql.query("SELECT 1 FROM job WHERE state = 'pending' LIMIT 1", &[])?.is_empty() {
                return Ok(Passed::default());
            }
            if !turn::try_lock(sql, TurnLock::Pass)? {
                return Ok(Passed { elsewhere: true, ..Passed::default() });
            }
            leases::check(sql, by)?;
            run(sql, &limits)
        })
        .await
    }
}

fn run(sql: &mut dyn Sql, limits: &PassLimits) -> Result<Passed, Error> {
    let loadout = Loadout::load(sql, &limits.waits)?;
    let decisions = pass(&loadout.scene(limits.require_tls), &loadout.pending);
    let jobs: BTreeMap<JobId, &StoredJob> =
        loadout.jobs.iter().map(|loaded| (loaded.job.id, loaded)).collect();
    let install = install(sql)?;
    let mut passed = Passed::default();
    let mut texts: BTreeMap<String, Vec<JobId>> = BTreeMap::new();
    let mut explained = 0;
    for decision in decisions {
        let full = passed.placed.len() + passed.failed.len() >= limits.changes;
        match decision {
            Decision::Place(_) | Decision::Fail(_, _) if full => {
                passed.pending += 1;
                passed.again = true;
            }
            Decision::Place(place) => {
                let fence = place_one(sql, &loadout, &jobs[&place.job].job, &place, install)?;
                passed.placed.extend(fence.map(|fence| (place.job, fence)));
            }
            Decision::Fail(id, end) => {
                let before = &jobs[&id].job;
                let mut job = before.clone();
                job.fail_pending(end, loadout.now);
                if jobs::save(sql, before, &job)? {
                    passed.failed.push(id);
                }
            }
            Decision::Wait(id, waiting) => {
                passed.pending += 1;
                let text = waiting.to_string();
                if jobs[&id].job.explanation != text {
                    explained += 1;
                    if explained <= limits.explanations {
                        texts.entry(text).or_default().push(id);
                    }
                }
            }
        }
    }
    passed.again |= explained > limits.explanations;
    explain_waiting(sql, texts)?;
    Ok(passed)
}

/// Stores one placement. Returns nothing if the job changed since it was loaded, for instance by a cancel.
fn place_one(
    sql: &mut dyn Sql,
    loadout: &Loadout,
    before: &Job,
    place: &Placement,
    install: u32,
) -> Result<Option<Fence>, Error> {
    let owner = loadout.live.iter().find(|fence| fence.owner == place.owner);
    let Some(fence) = owner.cloned() else { return Ok(None) };
    let mut job = before.clone();
    let unit = ChildId { install, job: job.id, attempt: job.next_attempt(), random: rand::random() };
    job.place(place, unit, fence.clone(), loadout.now)?;
    Ok(jobs::save(sql, before, &job)?.then_some(fence))
}

/// Saves explanations, with one statement for each text, because most jobs wait for the same thing. It wakes nobody.
fn explain_waiting(sql: &mut dyn Sql, texts: BTreeMap<String, Vec<JobId>>) -> Result<(), Error> {
    for (text, ids) in texts {
        let update =
            format!("UPDATE job SET explanation = $1 WHERE state = 'pending' AND id IN ({})", list(ids));
        sql.execute(&update, values![text])?;
    }
    Ok(())
}

/// The first 8 hex digits of the install ID.
pub(super) fn install(sql: &mut dyn Sql) -> Result<u32, Error> {
    let id = schema::get(sql, "install_id")?.unwrap_or_default();
    let digits = id.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    digits.ok_or_else(|| Error::Corrupt(format!("install_id in meta is {id:?}")))
}
