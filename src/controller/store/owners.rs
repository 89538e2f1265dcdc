//! Owners: leases and their epochs, heartbeats, who is lost, and takeover.
//!
//! All times are the store's clock, so no control node's own clock decides about another one. The core decides who is
//! lost and who inherits; here that becomes one transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::Error;
use super::instances;
use super::jobs::{self, OPEN, StoredJob};
use super::scene::Loadout;
use super::sql::{Lock, Row, Sql, list, values};
use super::{Store, holders, registry};
use crate::controller::core::{
    AttemptNo, Evidence, Fence, InstanceName, JobId, Lease, LeaseTimes, Loads, NodeState, OnLoss, Patience,
    Sighting, Time, heir, is_newly_lost, lost_attempts,
};

/// How a control node sees an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The instance.
    pub instance: InstanceName,
    /// There is a route to it.
    pub routed: bool,
    /// How long ago its latest advertisement arrived, by the observer's monotonic clock.
    pub age: Duration,
}

/// What was lost since it was last judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// Instances that are unavailable now.
    pub instances: Vec<InstanceName>,
    /// Attempts of the caller's jobs that count as lost now.
    pub attempts: Vec<(JobId, AttemptNo)>,
    /// Control nodes whose lease has expired and which own jobs: take them over.
    pub owners: Vec<InstanceName>,
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is still the writer's, even if it has expired.
    Held,
    /// Another control node took over its jobs, and nobody has it now.
    TakenOver,
    /// Another process has a newer one for the same node ID.
    Replaced,
}

impl Store {
    /// What became of the lease that a fence is from.
    pub async fn standing(&self, by: Fence) -> Result<Standing, Error> {
        self.read(move |sql| {
            let now = sql.now();
            Ok(match lease(sql, &by.owner)? {
                Some(lease) if lease.fence() == by => Standing::Held,
                Some(lease) if now < lease.expires => Standing::Replaced,
                Some(_) | None => Standing::TakenOver,
            })
        })
        .await
    }

    /// The control nodes that these jobs belong to; jobs that are unknown, or were never placed, are missing.
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

    /// Those of these jobs that have ended, with their last owner.
    pub async fn ended(&self, ids: Vec<JobId>) -> Result<Vec<(JobId, Option<InstanceName>)>, Error> {
        self.read(move |sql| {
            let query = format!(
                "SELECT id, controller_node FROM job WHERE id IN ({}) \
                 AND state NOT IN ('pending', 'waiting', 'running')",
                list(ids.iter().copied())
            );
            let read = |mut row: Row| Ok((row.take()?, row.take()?));
            sql.query(&query, &[])?.into_iter().map(read).collect()
        })
        .await
    }

    /// A control node starts: it gets its lease, whoever had it, and its jobs continue under the new epoch, or fail if
    /// the configuration says so. Returns the fence for its writes.
    pub async fn start_owner(
        &self,
        node: InstanceName,
        times: LeaseTimes,
        on_loss: OnLoss,
    ) -> Result<Fence, Error> {
        self.write(move |sql| {
            sql.lock(Lock::Pass)?;
            let former = lease(sql, &node)?;
            let lease = Lease::start(former.as_ref(), node.clone(), sql.now(), &times);
            save_lease(sql, &lease)?;
            // With SQLite a former process may have had a clock that was ahead.
            let now = sql.now();
            sql.execute("UPDATE seen SET at = $1 WHERE at > $1", values![now])?;
            let fence = lease.fence();
            hand_over(sql, &node, on_loss, |_, _| Ok(fence.clone()))?;
            sql.announce();
            Ok(lease.fence())
        })
        .await
    }

    /// Renews the caller's lease, and saves whom it sees.
    ///
    /// # Errors
    /// The lease was taken: the caller must stand down.
    pub async fn heartbeat(&self, by: Fence, times: LeaseTimes, seen: Vec<Observed>) -> Result<(), Error> {
        self.fenced_write(by, move |sql, by| {
            let now = sql.now();
            let mut lease = lease(sql, &by.owner)?.ok_or_else(|| Error::fenced(by))?;
            lease.renew(by, now, &times)?;
            save_lease(sql, &lease)?;
            let sighting = |seen: &Observed| {
                let age = i64::try_from(seen.age.as_millis()).unwrap_or(i64::MAX);
                let arrived = Time(now.0.saturating_sub(age));
                (seen.instance.clone(), Sighting { routed: seen.routed, arrived })
            };
            let seen: Vec<_> = seen.iter().map(sighting).collect();
            instances::save_sightings(sql, &by.owner, &seen)?;
            if absent(sql)?.iter().any(|name| seen.iter().any(|(seen, _)| seen == name)) {
                registry::change(sql, |registry| {
                    for (name, sighting) in &seen {
                        if let Ok(record) = registry.instance_mut(name) {
                            record.instance.on_seen(by.owner.clone(), *sighting, now);
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })
        .await
    }

    /// Judges who is lost: instances become unavailable, and attempts of the caller's jobs on them are lost. `said` has
    /// those whose stream has told its final status.
    ///
    /// # Errors
    /// The caller's lease was taken: it must stand down. Or it has expired, until it is renewed.
    pub async fn judge_losses(
        &self,
        by: Fence,
        patience: Patience,
        said: BTreeMap<(JobId, AttemptNo), Evidence>,
    ) -> Result<Losses, Error> {
        self.fenced_write(by, move |sql, by| {
            check(sql, by)?;
            Ok(Losses {
                instances: lose_instances(sql, &patience)?,
                attempts: lose_attempts(sql, by, &patience, &said)?,
                owners: expired(sql)?,
            })
        })
        .await
    }

    /// Takes over the jobs of a lost control node, whose later writes are fenced. Each job gets the heir that the core
    /// chooses, or the caller if no other is fit. Returns the jobs and their owners; none if the node is not lost.
    ///
    /// # Errors
    /// The caller's lease was taken: it must stand down. Or it has expired, until it is renewed.
    pub async fn take_over(
        &self,
        by: Fence,
        lost: InstanceName,
        on_loss: OnLoss,
    ) -> Result<Vec<(JobId, Fence)>, Error> {
        self.fenced_write(by, move |sql, by| {
            sql.lock(Lock::Pass)?;
            check(sql, by)?;
            let Some(mut lease) = lease(sql, &lost)? else { return Ok(Vec::new()) };
            if !lease.take_over(sql.now()) {
                return Ok(Vec::new());
            }
            save_lease(sql, &lease)?;
            let loadout = Loadout::load(sql)?;
            let loads = Loads::sum(&loadout.instances, &loadout.groups, &loadout.claims);
            hand_over(sql, &lost, on_loss, |sql, loaded| {
                let holders = holders::of(sql, loaded.job.id, holders::Kept::Payload)?;
                let holders: Vec<_> = holders.into_iter().map(|(node, _)| node).collect();
                let live = &loadout.live;
                let heir = heir(&loaded.job, &holders, &loadout.instances, &loads, live, loadout.now);
                Ok(heir.unwrap_or_else(|| by.clone()))
            })
        })
        .await
    }
}

/// Gives the open jobs of a control node to others, or to itself under a new epoch.
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
    let now = sql.now();
    let is_lost = |record: &instances::InstanceRecord| is_newly_lost(&record.instance, patience, now);
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
        let attempts = lost_attempts(&loaded.job, &instances, patience, now);
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

/// Instances that a sighting may change.
fn absent(sql: &mut dyn Sql) -> Result<Vec<InstanceName>, Error> {
    let query = "SELECT name FROM instance WHERE node_state IN ($1, $2)";
    let rows = sql.query(query, values![NodeState::Installed, NodeState::Unavailable])?;
    rows.into_iter().map(|mut row| row.take()).collect()
}

/// Control nodes whose lease has expired and which own jobs.
fn expired(sql: &mut dyn Sql) -> Result<Vec<InstanceName>, Error> {
    let query = format!(
        "SELECT DISTINCT lease.node FROM lease JOIN job ON job.controller_node = lease.node \
         WHERE lease.expires < $1 AND {OPEN} ORDER BY lease.node"
    );
    let now = sql.now();
    sql.query(&query, values![now])?.into_iter().map(|mut row| row.take()).collect()
}

/// The control nodes whose lease is valid.
pub(super) fn live(sql: &mut dyn Sql) -> Result<Vec<Fence>, Error> {
    let now = sql.now();
    let rows = sql.query("SELECT node, epoch FROM lease WHERE expires > $1 ORDER BY node", values![now])?;
    let read = |mut row: Row| Ok(Fence { owner: row.take()?, epoch: row.take()? });
    rows.into_iter().map(read).collect()
}

/// Checks that a lease is the writer's and valid.
pub(super) fn check(sql: &mut dyn Sql, by: &Fence) -> Result<(), Error> {
    let now = sql.now();
    match lease(sql, &by.owner)?.filter(|lease| lease.fence() == *by) {
        None => Err(Error::fenced(by)),
        Some(lease) if lease.is_expired(now) => Err(Error::Expired(by.clone())),
        Some(_) => Ok(()),
    }
}

fn lease(sql: &mut dyn Sql, node: &InstanceName) -> Result<Option<Lease>, Error> {
    let lock = sql.dialect().lock_row();
    let query = format!("SELECT node, epoch, expires FROM lease WHERE node = $1{lock}");
    let row = sql.query(&query, values![node])?.pop();
    row.map(|mut row| Ok(Lease { node: row.take()?, epoch: row.take()?, expires: row.take()? })).transpose()
}

fn save_lease(sql: &mut dyn Sql, lease: &Lease) -> Result<(), Error> {
    sql.execute(
        "INSERT INTO lease (node, epoch, expires) VALUES ($1, $2, $3) \
         ON CONFLICT (node) DO UPDATE SET epoch = excluded.epoch, expires = excluded.expires",
        values![&lease.node, lease.epoch, lease.expires],
    )?;
    Ok(())
}
