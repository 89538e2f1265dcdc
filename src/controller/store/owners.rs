//! Owners: leases and their epochs, heartbeats, losses, and takeover.
//!
//! It reads and writes the rows by which control nodes see that others live, and compares them with what its caller has
//! seen. The core decides who is lost and who inherits; this module makes each decision one transaction.

use std::collections::{BTreeMap, BTreeSet};

use super::error::Error;
use super::instances::{self, Observed};
use super::jobs::{self, OPEN, StoredJob};
use super::scene::{Loadout, Waits};
use super::sql::{Row, Sql, list, values};
use super::turn::{self, TurnLock};
use super::{Store, drive, holders, leases, registry};
use crate::controller::core::{
    AttemptNo, Evidence, Fence, InstanceName, Job, JobId, Lease, LeaseTimes, Loads, NodeState, OnLoss,
    Patience, Sighting, SightingKey, heir, is_newly_lost, lost_attempts,
};

/// What was lost since losses were last judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// Instances that are unavailable now.
    pub instances: Vec<InstanceName>,
    /// Attempts of the caller's jobs that count as lost now.
    pub attempts: Vec<(JobId, AttemptNo)>,
}

/// What a control node reads whenever something may have changed.
#[derive(Debug)]
pub struct Look {
    /// Some job is pending.
    pub has_pending: bool,
    /// The jobs for which the node has duties.
    pub driven: Vec<Job>,
    /// Jobs that the node shows and that have ended, with their last owners.
    pub ended: Vec<(JobId, Option<InstanceName>)>,
}

/// What a heartbeat has seen, and what it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// All leases as they were before the heartbeat.
    pub leases: Vec<Lease>,
    /// The caller's lease as it is now.
    pub own: Lease,
    /// Which node sees which instance now.
    pub sightings: Vec<(SightingKey, Sighting)>,
}

impl Store {
    /// All leases.
    pub async fn leases(&self) -> Result<Vec<Lease>, Error> {
        self.read(leases::load).await
    }

    /// The owners of these jobs; without jobs that are unknown or were never placed.
    pub async fn owners_of(&self, ids: Vec<JobId>) -> Result<BTreeMap<JobId, InstanceName>, Error> {
        self.read(move |sql| {
            let query = format!(
                "SELECT id, controller_node FROM job WHERE id IN ({}) AND controller_node IS NOT NULL",
                list(ids.iter().copied())
            );
            let read = |mut row: Row| Ok((row.take()?, row.take()?));
            sql.query(&query, &[])?.into_iter().map(read).collect()
        })
        .await
    }

    /// Which of these jobs the store does not have, although no operator deleted them.
    pub async fn lost(&self, ids: Vec<JobId>) -> Result<Vec<JobId>, Error> {
        self.read(move |sql| {
            let mut missing: BTreeSet<JobId> = ids.iter().copied().collect();
            let query = format!("SELECT id FROM job WHERE id IN ({})", list(ids.iter().copied()));
            for mut row in sql.query(&query, &[])? {
                missing.remove(&row.take()?);
            }
            let mut lost = Vec::new();
            for id in missing {
                let deleted = "SELECT 1 FROM audit WHERE op = 'job.delete' AND target = $1 LIMIT 1";
                if sql.query(deleted, values![id.to_string()])?.is_empty() {
                    lost.push(id);
                }
            }
            Ok(lost)
        })
        .await
    }

    /// Looks for what is to be done, in one transaction, because the database may be far away.
    pub async fn look(&self, by: Fence, shown: Vec<JobId>) -> Result<Look, Error> {
        self.read(move |sql| {
            let has_pending =
                !sql.query("SELECT 1 FROM job WHERE state = 'pending' LIMIT 1", &[])?.is_empty();
            let driven = drive::driven(sql, &by)?;
            let ended = if shown.is_empty() { Vec::new() } else { ended(sql, &shown)? };
            Ok(Look { has_pending, driven, ended })
        })
        .await
    }

    /// Starts a control node: takes its lease even from another process, and continues its jobs under the new epoch, or
    /// fails them if the configuration says so. Returns the fence for the node's writes.
    pub async fn start_owner(
        &self,
        node: InstanceName,
        times: LeaseTimes,
        on_loss: OnLoss,
    ) -> Result<Fence, Error> {
        self.write(move |sql| {
            turn::lock(sql, TurnLock::Pass)?;
            let former = leases::load_one(sql, &node)?;
            let lease = Lease::start(former.as_ref(), node.clone(), rand::random(), &times);
            leases::save(sql, &lease)?;
            // The node has not looked at the mesh yet.
            sql.execute("UPDATE seen SET routed = 0 WHERE observer = $1", values![&node])?;
            let fence = lease.fence();
            hand_over(sql, &node, on_loss, |_, _| Ok(fence.clone()))?;
            sql.announce();
            Ok(lease.fence())
        })
        .await
    }

    /// Renews the caller's lease, and saves which instances the caller sees.
    ///
    /// # Errors
    /// The lease was taken: the caller must stand down.
    pub async fn heartbeat(&self, by: Fence, times: LeaseTimes, seen: Vec<Observed>) -> Result<Beat, Error> {
        self.fenced_write(by, move |sql, by| {
            let now = sql.now();
            let mut own = leases::load_one(sql, &by.owner)?.ok_or_else(|| Error::fenced(by))?;
            let leases = leases::load(sql)?;
            own.renew(by, &times)?;
            leases::save(sql, &own)?;
            instances::save_sightings(sql, &by.owner, &seen)?;
            if absent(sql)?.iter().any(|name| seen.iter().any(|seen| seen.instance == *name)) {
                registry::change(sql, |registry| {
                    for Observed { instance, reachable, again: _ } in &seen {
                        if let Ok(record) = registry.instance_mut(instance) {
                            let sighting = Sighting { routed: *reachable, beat: 0, arrived: now };
                            record.instance.on_seen(by.owner.clone(), sighting, now);
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(Beat { leases, own, sightings: instances::sightings(sql)? })
        })
        .await
    }

    /// Judges who is lost: lost instances become unavailable, and attempts of the caller's jobs on them become lost.
    /// `said` has the attempts whose stream has shown its final status.
    ///
    /// # Errors
    /// The caller's lease was taken: it must stand down.
    pub async fn judge_losses(
        &self,
        by: Fence,
        patience: Patience,
        said: BTreeMap<(JobId, AttemptNo), Evidence>,
    ) -> Result<Losses, Error> {
        self.fenced_write(by, move |sql, by| {
            leases::check(sql, by)?;
            Ok(Losses {
                instances: lose_instances(sql, &patience)?,
                attempts: lose_attempts(sql, by, &patience, &said)?,
            })
        })
        .await
    }

    /// Takes over the jobs of a control node whose lease has stayed equal to `lost` for too long, and fences its later
    /// writes. Each job gets the heir that the core chooses, or the caller if no other node is fit. Returns the jobs
    /// and their new owners; none if the lease has changed.
    ///
    /// # Errors
    /// The caller's lease was taken: it must stand down.
    pub async fn take_over(
        &self,
        by: Fence,
        lost: Lease,
        on_loss: OnLoss,
    ) -> Result<Vec<(JobId, Fence)>, Error> {
        self.fenced_write(by, move |sql, by| {
            turn::lock(sql, TurnLock::Pass)?;
            leases::check(sql, by)?;
            let Some(mut lease) = leases::load_one(sql, &lost.node)? else { return Ok(Vec::new()) };
            if !lease.take_over(&lost) {
                return Ok(Vec::new());
            }
            leases::save(sql, &lease)?;
            let loadout = Loadout::load(sql, &Waits::default())?;
            let loads = Loads::sum(&loadout.instances, &loadout.groups, &loadout.claims);
            hand_over(sql, &lost.node, on_loss, |sql, loaded| {
                let holders = holders::of(sql, loaded.job.id, holders::Kept::Payload)?;
                let holders: Vec<_> = holders.into_iter().map(|(node, _)| node).collect();
                let live = &loadout.live;
                let heir = heir(&loaded.job, &holders, &loadout.instances, &loads, live);
                Ok(heir.unwrap_or_else(|| by.clone()))
            })
        })
        .await
    }
}

/// Gives the open jobs of a control node to others, or to the node itself under a new epoch.
fn hand_over(
    sql: &mut dyn Sql,
    former: &InstanceName,
    on_loss: OnLoss,
    heir: impl Fn(&mut dyn Sql, &StoredJob) -> Result<Fence, Error>,
) -> Result<Vec<(JobId, Fence)>, Error> {
    let now = sql.now();
    let condition = format!("{OPEN} AND job.controller_node = $1");
    let mut moved = Vec::new();
    for loaded in jobs::load(sql, &condition, values![former], true)? {
        let heir = heir(sql, &loaded)?;
        let mut job = loaded.job.clone();
        job.take_over(heir.clone(), on_loss, now);
        if !jobs::save(sql, &loaded.job, &job)? {
            return Err(Error::Raced);
        }
        moved.push((job.id, heir));
    }
    Ok(moved)
}

fn lose_instances(sql: &mut dyn Sql, patience: &Patience) -> Result<Vec<InstanceName>, Error> {
    let is_lost = |record: &instances::InstanceRecord| is_newly_lost(&record.instance, patience);
    if !instances::load(sql)?.iter().any(is_lost) {
        return Ok(Vec::new());
    }
    registry::change(sql, |registry| {
        let lost = registry.instances.iter_mut().filter(|record| is_lost(record));
        Ok(lost
            .map(|record| {
                record.instance.on_lost();
                record.instance.name.clone()
            })
            .collect())
    })
}

fn lose_attempts(
    sql: &mut dyn Sql,
    by: &Fence,
    patience: &Patience,
    said: &BTreeMap<(JobId, AttemptNo), Evidence>,
) -> Result<Vec<(JobId, AttemptNo)>, Error> {
    let now = sql.now();
    let instances: Vec<_> = instances::load(sql)?.into_iter().map(|record| record.instance).collect();
    let condition = format!("{OPEN} AND job.controller_node = $1 AND job.epoch = $2");
    let mut lost = Vec::new();
    for loaded in jobs::load(sql, &condition, values![&by.owner, by.epoch], false)? {
        let attempts = lost_attempts(&loaded.job, &instances, patience);
        if attempts.is_empty() {
            continue;
        }
        let before = jobs::load_one(sql, loaded.job.id)?;
        let mut job = before.clone();
        let mut driven = job.driven_by(by)?;
        for n in &attempts {
            driven.on_lost_after(*n, said.get(&(loaded.job.id, *n)), now);
        }
        if !jobs::save(sql, &before, &job)? {
            return Err(Error::Raced);
        }
        lost.extend(attempts.into_iter().map(|n| (job.id, n)));
    }
    Ok(lost)
}

/// Instances whose state a sighting may change.
fn absent(sql: &mut dyn Sql) -> Result<Vec<InstanceName>, Error> {
    let query = "SELECT name FROM instance WHERE node_state IN ($1, $2)";
    let rows = sql.query(query, values![NodeState::Installed, NodeState::Unavailable])?;
    rows.into_iter().map(|mut row| row.take()).collect()
}

/// Which of these jobs have ended, with their last owners.
fn ended(sql: &mut dyn Sql, ids: &[JobId]) -> Result<Vec<(JobId, Option<InstanceName>)>, Error> {
    let query = format!(
        "SELECT id, controller_node FROM job WHERE id IN ({}) AND state NOT IN ('pending', 'waiting', 'running')",
        list(ids.iter().copied())
    );
    let read = |mut row: Row| Ok((row.take()?, row.take()?));
    sql.query(&query, &[])?.into_iter().map(read).collect()
}
