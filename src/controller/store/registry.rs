//! Instances and groups together: changed under one lock, with the policies run after each change.
//!
//! The registry is loaded whole, changed in memory and saved by difference: it is small, and changes are rare.
//! Whether a change is allowed is decided here, from the registry and from the jobs that are still open.

use std::collections::BTreeSet;

use super::audit::Audit;
use super::error::Error;
use super::groups::{self, GroupRecord};
use super::holders::{self, Kept};
use super::instances::{self, InstanceRecord};
use super::jobs::{self, OPEN, SENT};
use super::sql::{Sql, SqlValue, from_json, values};
use super::turn::{self, TurnLock};
use super::{Store, leases, schema};
use crate::controller::core::{
    Attempt, Group, GroupName, Instance, InstanceName, JobId, MemberChange, NodeState, NodeType, Offer, Time,
    member_changes,
};

/// All instances and groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRegistry {
    /// In order of registration.
    pub instances: Vec<InstanceRecord>,
    /// In the order in which they were created.
    pub groups: Vec<GroupRecord>,
}

impl InstanceRegistry {
    /// The record of an instance.
    pub fn instance_mut(&mut self, name: &InstanceName) -> Result<&mut InstanceRecord, Error> {
        let found = self.instances.iter_mut().find(|record| record.instance.name == *name);
        found.ok_or_else(|| Error::NoInstance(name.clone()))
    }

    /// Whether a node is registered.
    pub fn has_instance(&self, name: &InstanceName) -> bool {
        self.instances.iter().any(|record| record.instance.name == *name)
    }

    /// The record of a group.
    pub fn group_mut(&mut self, name: &GroupName) -> Result<&mut GroupRecord, Error> {
        let found = self.groups.iter_mut().find(|record| record.group.name == *name);
        found.ok_or_else(|| Error::NoGroup(name.clone()))
    }

    /// Registers a node, unless it is registered already. Returns its record.
    ///
    /// # Errors
    /// A group has its name.
    pub fn add_instance(&mut self, record: InstanceRecord) -> Result<&mut InstanceRecord, Error> {
        let name = record.instance.name.clone();
        if self.groups.iter().any(|group| group.group.name.as_str() == name.as_str()) {
            return Err(Error::Conflict(format!("{name} is the name of a group")));
        }
        if self.instance_mut(&name).is_err() {
            self.instances.push(record);
        }
        self.instance_mut(&name)
    }

    /// Creates a group.
    ///
    /// # Errors
    /// A group or an instance has its name.
    pub fn create_group(&mut self, record: GroupRecord) -> Result<(), Error> {
        let name = record.group.name.as_str();
        let taken = self.groups.iter().any(|other| other.group.name.as_str() == name)
            || self.instances.iter().any(|other| other.instance.name.as_str() == name);
        if taken {
            return Err(Error::Conflict(format!("the name {name} belongs to a group or an instance")));
        }
        self.groups.push(record);
        Ok(())
    }

    /// Adds an instance to a group's list, which makes it a member.
    ///
    /// # Errors
    /// There is no such group or instance, or the group is a container group.
    pub fn add_to_group(&mut self, group: &GroupName, instance: &InstanceName) -> Result<(), Error> {
        self.instance_mut(instance)?;
        let record = self.group_mut(group)?;
        if record.group.is_container_group() {
            return Err(Error::Conflict(format!("{group} is a container group, which has no instances")));
        }
        let list = &mut record.group.policy.list;
        if !list.contains(instance) {
            list.push(instance.clone());
        }
        Ok(())
    }

    /// Removes an instance from a group's list.
    ///
    /// # Errors
    /// There is no such group.
    pub fn remove_from_group(&mut self, group: &GroupName, instance: &InstanceName) -> Result<(), Error> {
        self.group_mut(group)?.group.policy.list.retain(|listed| listed != instance);
        Ok(())
    }

    /// What the policies would change.
    pub fn policy_changes(&self) -> Vec<MemberChange> {
        member_changes(&self.plain_instances(), &self.plain_groups())
    }

    /// The instances as the core takes them.
    pub fn plain_instances(&self) -> Vec<Instance> {
        self.instances.iter().map(|record| record.instance.clone()).collect()
    }

    /// The groups as the core takes them.
    pub fn plain_groups(&self) -> Vec<Group> {
        self.groups.iter().map(|record| record.group.clone()).collect()
    }

    /// Checks that the reserved groups exist, have their own policy, and are no container groups.
    fn check_reserved(&self) -> Result<(), Error> {
        for reserved in Group::reserved() {
            let kept =
                self.groups.iter().map(|record| &record.group).find(|group| group.name == reserved.name);
            if kept.is_none_or(|group| group.policy != reserved.policy || group.is_container_group()) {
                return Err(Error::Conflict(format!(
                    "the group {} is reserved: to take a node out of it, set its managed_by_policy to false",
                    reserved.name
                )));
            }
        }
        Ok(())
    }

    pub(super) fn load(sql: &mut dyn Sql) -> Result<Self, Error> {
        Ok(Self { instances: instances::load(sql)?, groups: groups::load(sql)? })
    }
}

/// Changes the registry under its lock, and runs the policies.
pub(super) fn change<T>(
    sql: &mut dyn Sql,
    change: impl FnOnce(&mut InstanceRegistry) -> Result<T, Error>,
) -> Result<T, Error> {
    turn::lock(sql, TurnLock::Registry)?;
    let before = InstanceRegistry::load(sql)?;
    let mut after = before.clone();
    let result = change(&mut after)?;
    after.check_reserved()?;
    let saved = instances::save(sql, &before.instances, &after.instances)?
        | groups::save(sql, &before.groups, &after.groups)?;
    let members = after.policy_changes();
    groups::save_members(sql, &members)?;
    if saved || !members.is_empty() {
        sql.announce();
    }
    Ok(result)
}

impl Store {
    /// All instances and groups.
    pub async fn registry(&self) -> Result<InstanceRegistry, Error> {
        self.read(InstanceRegistry::load).await
    }

    /// How an instance runs jobs; `None` if it was removed. Units that were sent to it are still followed to their end.
    pub async fn offer_of(&self, name: InstanceName) -> Result<Option<Offer>, Error> {
        self.read(move |sql| {
            let found = sql.query("SELECT offer FROM instance WHERE name = $1", values![&name])?.pop();
            found.map(|mut row| from_json(&row.take::<String>()?)).transpose()
        })
        .await
    }

    /// Changes instances and groups, runs the policies and records the operator's request, if there was one. `change`
    /// may be called more than once.
    ///
    /// # Errors
    /// Those of `change`, or the change is not allowed for a reserved group. Nothing has changed then.
    pub async fn change_registry<T: Send + 'static>(
        &self,
        audit: Option<Audit>,
        change: impl Fn(&mut InstanceRegistry, Time) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.write(move |sql| {
            let now = sql.now();
            Audit::save(audit.as_ref(), sql)?;
            self::change(sql, |registry| change(registry, now))
        })
        .await
    }

    /// Deletes a group.
    ///
    /// # Errors
    /// It is reserved or does not exist, or a job was placed through it and has not ended.
    pub async fn delete_group(&self, audit: Audit, name: GroupName) -> Result<(), Error> {
        if name.is_reserved() {
            return Err(Error::Conflict(format!("the group {name} always exists: it cannot be deleted")));
        }
        self.write(move |sql| {
            turn::lock(sql, TurnLock::Pass)?;
            audit.clone().insert(sql)?;
            let active =
                "SELECT count(*) FROM job WHERE state IN ('waiting', 'running') AND instance_group = $1";
            let active: i64 = sql.query(active, values![&name])?.remove(0).take()?;
            match active {
                0 => {}
                1 => return Err(Error::Conflict(format!("1 job runs in the group {name}"))),
                more => return Err(Error::Conflict(format!("{more} jobs run in the group {name}"))),
            }
            change(sql, |registry| {
                registry.group_mut(&name)?;
                registry.groups.retain(|record| record.group.name != name);
                Ok(())
            })
        })
        .await
    }

    /// An operator declares a node dead: whatever ran there is over, its payloads are lost, and its record is removed.
    ///
    /// # Errors
    /// There is no such instance, or it is a control node that holds its lease.
    pub async fn declare_dead(&self, audit: Audit, name: InstanceName) -> Result<(), Error> {
        self.write(move |sql| {
            turn::lock(sql, TurnLock::Pass)?;
            let now = sql.now();
            audit.clone().insert(sql)?;
            if leases::live(sql)?.iter().any(|lease| lease.owner == name) {
                return Err(Error::Conflict(format!(
                    "control node {name} is alive: it has its lease. If it has just died, try again once another \
                     control node has missed it for ownerlostafter"
                )));
            }
            let mut held = BTreeSet::new();
            let gone = "DELETE FROM holder WHERE node = $1 RETURNING job, has, complete";
            for mut row in sql.query(gone, values![&name])? {
                let (job, kept): (JobId, Kept) = (row.take()?, row.take()?);
                match kept {
                    Kept::Payload => drop(held.insert(job)),
                    Kept::Output => holders::lose_output(sql, job, &name, row.take()?)?,
                }
            }
            for before in jobs::load(sql, OPEN, &[], true)? {
                let mut job = before.job.clone();
                job.on_declared_dead(&name, now);
                if held.contains(&job.id) && holders::of(sql, job.id, Kept::Payload)?.is_empty() {
                    job.on_payload_lost(&name, now);
                }
                jobs::save(sql, &before.job, &job)?;
            }
            remove(sql, &name)
        })
        .await
    }

    /// Drains an instance, and removes it if nothing runs on it. Returns whether it is removed.
    ///
    /// # Errors
    /// There is no such instance.
    pub async fn drain_instance(&self, audit: Option<Audit>, name: InstanceName) -> Result<bool, Error> {
        self.write(move |sql| {
            turn::lock(sql, TurnLock::Pass)?;
            Audit::save(audit.as_ref(), sql)?;
            let open = open_attempts(sql, &name)?;
            let removable = change(sql, |registry| {
                let instance = &mut registry.instance_mut(&name)?.instance;
                instance.drain();
                Ok(instance.is_removable(open))
            })?;
            if removable {
                remove(sql, &name)?;
            }
            Ok(removable)
        })
        .await
    }

    /// Removes drained instances on which nothing runs any more.
    pub async fn remove_drained(&self) -> Result<Vec<InstanceName>, Error> {
        self.write(|sql| {
            let drained = "SELECT name FROM instance WHERE node_state = $1 ORDER BY id";
            remove_idle(sql, drained, values![NodeState::Deprovisioning])
        })
        .await
    }

    /// Removes lost control nodes that nothing depends on: their jobs have other owners, no child of a job is left on
    /// them, and no pending job needs a payload of theirs.
    pub async fn remove_lost_control_nodes(&self) -> Result<Vec<InstanceName>, Error> {
        self.write(|sql| {
            let held = leases::HELD;
            let query = format!(
                "SELECT name FROM instance WHERE node_type = $1 AND node_state = $2 \
                 AND NOT EXISTS (SELECT 1 FROM lease WHERE node = instance.name AND {held}) \
                 AND NOT EXISTS (SELECT 1 FROM job WHERE controller_node = instance.name AND {OPEN}) \
                 AND NOT EXISTS (SELECT 1 FROM holder JOIN job ON job.id = holder.job \
                 WHERE holder.node = instance.name AND has = $3 AND state IN ('pending', 'waiting')) ORDER BY id"
            );
            let values = values![NodeType::Control, NodeState::Unavailable, Kept::Payload.name()];
            remove_idle(sql, &query, values)
        })
        .await
    }

    /// Whether an operator paused the controller.
    pub async fn is_paused(&self) -> Result<bool, Error> {
        self.read(paused).await
    }

    /// Pauses the controller, or ends the pause.
    pub async fn set_paused(&self, audit: Audit, on: bool) -> Result<(), Error> {
        self.write(move |sql| {
            audit.clone().insert(sql)?;
            schema::set(sql, "paused", if on { "1" } else { "0" })?;
            sql.announce();
            Ok(())
        })
        .await
    }
}

pub(super) fn paused(sql: &mut dyn Sql) -> Result<bool, Error> {
    Ok(schema::get(sql, "paused")?.as_deref() == Some("1"))
}

/// Removes the idle instances among those that a query names.
fn remove_idle(sql: &mut dyn Sql, candidates: &str, values: &[SqlValue]) -> Result<Vec<InstanceName>, Error> {
    let candidates = sql.query(candidates, values)?;
    if !candidates.is_empty() {
        // A pass may be placing a job there.
        turn::lock(sql, TurnLock::Pass)?;
    }
    let mut removed = Vec::new();
    for mut row in candidates {
        let name = row.take()?;
        if open_attempts(sql, &name)? == 0 {
            remove(sql, &name)?;
            removed.push(name);
        }
    }
    Ok(removed)
}

fn open_attempts(sql: &mut dyn Sql, node: &InstanceName) -> Result<usize, Error> {
    let open = jobs::load(sql, SENT, &[], false)?;
    let attempts = open.iter().flat_map(|loaded| &loaded.job.attempts);
    let is_there = |attempt: &&Attempt| attempt.is_open() && attempt.depends_on_node(node);
    Ok(attempts.filter(is_there).count())
}

fn remove(sql: &mut dyn Sql, name: &InstanceName) -> Result<(), Error> {
    change(sql, |registry| {
        registry.instance_mut(name)?;
        registry.instances.retain(|record| record.instance.name != *name);
        Ok(())
    })
}
