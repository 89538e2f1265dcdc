//! Groups as rows of `grp`, and their members as rows of `member`.
//!
//! This module loads and saves; `registry` holds the lock and decides.

use std::collections::BTreeMap;

use super::error::Error;
use super::sql::{Row, Sql, SqlValue, from_json, insert, to_json, values};
use crate::controller::core::{Backing, Group, GroupName, InstanceName, Member, MemberChange, Policy};

/// A group, with what its pods need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    /// The group and its members.
    pub group: Group,
    /// The credential of a container group's cluster, by name.
    pub cluster: Option<String>,
    /// The namespace of its pods.
    pub namespace: Option<String>,
    /// The operator's text that is merged into the pods' specification.
    pub pod_spec_override: Option<String>,
    /// The credential of its registry, by name.
    pub registry: Option<String>,
}

impl From<Group> for GroupRecord {
    fn from(group: Group) -> Self {
        Self { group, cluster: None, namespace: None, pod_spec_override: None, registry: None }
    }
}

/// Where rows made by [`row`] go.
pub(super) const INTO: &str = "grp (name, position, is_container_group, policy_instance_percentage, \
    policy_instance_minimum, policy_instance_list, max_concurrent_jobs, max_forks, cluster, namespace, \
    pod_spec_override, registry)";

/// All groups with their members, in the order in which they were created.
pub(super) fn load(sql: &mut dyn Sql) -> Result<Vec<GroupRecord>, Error> {
    let mut members: BTreeMap<GroupName, Vec<Member>> = BTreeMap::new();
    for mut row in sql.query("SELECT grp, instance, origin FROM member ORDER BY grp, instance", &[])? {
        let of = members.entry(row.take()?).or_default();
        of.push(Member { name: row.take()?, origin: row.take()? });
    }
    let rows = sql.query(
        "SELECT name, is_container_group, policy_instance_percentage, policy_instance_minimum, \
         policy_instance_list, max_concurrent_jobs, max_forks, cluster, namespace, pod_spec_override, registry \
         FROM grp ORDER BY position, name",
        &[],
    )?;
    rows.into_iter().map(|row| read(row, &mut members)).collect()
}

fn read(mut row: Row, members: &mut BTreeMap<GroupName, Vec<Member>>) -> Result<GroupRecord, Error> {
    let name = row.take()?;
    let backing = match row.take()? {
        true => Backing::Containers,
        false => Backing::Instances(members.remove(&name).unwrap_or_default()),
    };
    let percentage = row.take()?;
    let minimum: u32 = row.take()?;
    let list: Vec<InstanceName> = from_json(&row.take::<String>()?)?;
    let policy = Policy { percentage, minimum: minimum as usize, list };
    Ok(GroupRecord {
        group: Group { name, policy, backing, max_concurrent_jobs: row.take()?, max_forks: row.take()? },
        cluster: row.take()?,
        namespace: row.take()?,
        pod_spec_override: row.take()?,
        registry: row.take()?,
    })
}

/// Saves records that differ from what was loaded, and deletes those that are gone; members are not saved. Returns
/// whether anything changed.
pub(super) fn save(sql: &mut dyn Sql, before: &[GroupRecord], after: &[GroupRecord]) -> Result<bool, Error> {
    let changed = after.iter().enumerate().filter(|(_, record)| !before.contains(record));
    let rows: Vec<_> = changed.map(|(at, record)| row(record, at as u64)).collect();
    let gone = before.iter().map(|record| &record.group.name);
    let gone: Vec<_> = gone.filter(|name| !after.iter().any(|kept| kept.group.name == **name)).collect();
    let changed = !rows.is_empty() || !gone.is_empty();
    // An existing group keeps its position, even if groups before it were deleted.
    insert(
        sql,
        INTO,
        rows,
        "ON CONFLICT (name) DO UPDATE SET is_container_group = excluded.is_container_group, \
         policy_instance_percentage = excluded.policy_instance_percentage, \
         policy_instance_minimum = excluded.policy_instance_minimum, \
         policy_instance_list = excluded.policy_instance_list, \
         max_concurrent_jobs = excluded.max_concurrent_jobs, max_forks = excluded.max_forks, \
         cluster = excluded.cluster, namespace = excluded.namespace, \
         pod_spec_override = excluded.pod_spec_override, registry = excluded.registry",
    )?;
    for name in gone {
        sql.execute("DELETE FROM grp WHERE name = $1", values![name])?;
        sql.execute("DELETE FROM member WHERE grp = $1", values![name])?;
    }
    Ok(changed)
}

/// Saves what the policies changed.
pub(super) fn save_members(sql: &mut dyn Sql, changes: &[MemberChange]) -> Result<(), Error> {
    for change in changes {
        sql.execute("DELETE FROM member WHERE grp = $1", values![&change.group])?;
        let row = |member: &Member| values![&change.group, &member.name, member.origin].to_vec();
        insert(sql, "member (grp, instance, origin)", change.members.iter().map(row).collect(), "")?;
    }
    Ok(())
}

/// A row of [`INTO`].
pub(super) fn row(record: &GroupRecord, position: u64) -> Vec<SqlValue> {
    let GroupRecord { group, cluster, namespace, pod_spec_override, registry } = record;
    let Policy { percentage, minimum, list } = &group.policy;
    values![
        &group.name,
        position,
        group.is_container_group(),
        *percentage,
        *minimum as u64,
        to_json(list),
        group.max_concurrent_jobs,
        group.max_forks,
        cluster.clone(),
        namespace.clone(),
        pod_spec_override.clone(),
        registry.clone(),
    ]
    .to_vec()
}
