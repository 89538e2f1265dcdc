//! Instances as rows of `instance`, and which node sees them as rows of `seen`.
//!
//! It loads and saves; `registry` holds the lock and decides.

use std::collections::BTreeMap;

use super::error::Error;
use super::sql::{Row, Sql, SqlValue, from_json, insert, to_json, values};
use crate::controller::core::{
    Adjustment, Capacities, Instance, InstanceName, NodeType, Sighting, SightingKey, Time,
};

/// An instance, with details for operators only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRecord {
    /// The instance that the core knows.
    pub instance: Instance,
    /// Processors at its last good health check, in tenths.
    pub cpu: u32,
    /// Bytes of memory at its last good health check.
    pub memory: u64,
    /// When its health was last checked.
    pub last_health_check: Option<Time>,
    /// When it was registered.
    pub created: Time,
}

impl InstanceRecord {
    /// A new record.
    pub fn register(name: InstanceName, node_type: NodeType, enabled: bool, now: Time) -> Self {
        let instance = Instance::register(name, node_type, enabled, now);
        Self { instance, cpu: 0, memory: 0, last_health_check: None, created: now }
    }
}

/// How a control node sees an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The instance.
    pub instance: InstanceName,
    /// The control node can reach it.
    pub reachable: bool,
    /// The control node has seen it since the last report.
    pub again: bool,
}

/// All instances, in order of registration.
pub(super) fn load(sql: &mut dyn Sql) -> Result<Vec<InstanceRecord>, Error> {
    let mut seen: BTreeMap<InstanceName, BTreeMap<_, _>> = BTreeMap::new();
    for ((instance, observer), sighting) in sightings(sql)? {
        seen.entry(instance).or_default().insert(observer, sighting);
    }
    let rows = sql.query(
        "SELECT name, node_type, node_state, enabled, managed_by_policy, draining, capacity_adjustment, \
         cpu_capacity, mem_capacity, offer, signs, uuid, version, errors, health_due, health_failures, cpu, \
         memory, last_health_check, created FROM instance ORDER BY id",
        &[],
    )?;
    let mut records = rows.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    for record in &mut records {
        record.instance.seen = seen.remove(&record.instance.name).unwrap_or_default();
    }
    Ok(records)
}

fn read(mut row: Row) -> Result<InstanceRecord, Error> {
    let instance = Instance {
        name: row.take()?,
        node_type: row.take()?,
        node_state: row.take()?,
        enabled: row.take()?,
        managed_by_policy: row.take()?,
        draining: row.take()?,
        adjustment: Adjustment(row.take()?),
        capacities: Capacities { cpu: row.take()?, mem: row.take()? },
        offer: from_json(&row.take::<String>()?)?,
        signs: row.take()?,
        uuid: row.take()?,
        version: row.take()?,
        errors: from_json(&row.take::<String>()?)?,
        health_due: row.take()?,
        health_failures: row.take()?,
        seen: BTreeMap::new(),
    };
    Ok(InstanceRecord {
        instance,
        cpu: row.take()?,
        memory: row.take()?,
        last_health_check: row.take()?,
        created: row.take()?,
    })
}

/// Which node sees which instance, and how.
pub(super) fn sightings(sql: &mut dyn Sql) -> Result<Vec<(SightingKey, Sighting)>, Error> {
    let read = |mut row: Row| {
        let key = (row.take()?, row.take()?);
        Ok((key, Sighting { routed: row.take()?, beat: row.take()?, arrived: row.take()? }))
    };
    let rows = sql.query("SELECT instance, observer, routed, beat, at FROM seen", &[])?;
    rows.into_iter().map(read).collect()
}

/// Writes how one control node sees instances.
pub(super) fn save_sightings(
    sql: &mut dyn Sql,
    observer: &InstanceName,
    seen: &[Observed],
) -> Result<(), Error> {
    let now = sql.now();
    let row = |seen: &Observed| {
        values![&seen.instance, observer, seen.reachable, now, i64::from(seen.again)].to_vec()
    };
    insert(
        sql,
        "seen (instance, observer, routed, at, beat)",
        seen.iter().map(row).collect(),
        "ON CONFLICT (instance, observer) DO UPDATE SET routed = excluded.routed, \
         at = CASE WHEN excluded.beat > 0 THEN excluded.at ELSE seen.at END, beat = seen.beat + excluded.beat",
    )
}

/// Saves records that differ from the loaded ones, and deletes those that are gone with their sightings. New sightings
/// are not saved.
pub(super) fn save(
    sql: &mut dyn Sql,
    before: &[InstanceRecord],
    after: &[InstanceRecord],
) -> Result<bool, Error> {
    let rows: Vec<_> = after.iter().filter(|record| !before.contains(record)).map(row).collect();
    let gone = before.iter().map(|record| &record.instance.name);
    let gone: Vec<_> = gone.filter(|name| !after.iter().any(|kept| kept.instance.name == **name)).collect();
    let changed = !rows.is_empty() || !gone.is_empty();
    insert(
        sql,
        "instance (name, node_type, node_state, enabled, managed_by_policy, draining, capacity_adjustment, \
         cpu_capacity, mem_capacity, offer, signs, uuid, version, errors, health_due, health_failures, cpu, \
         memory, last_health_check, created)",
        rows,
        "ON CONFLICT (name) DO UPDATE SET node_type = excluded.node_type, node_state = excluded.node_state, \
         enabled = excluded.enabled, managed_by_policy = excluded.managed_by_policy, \
         draining = excluded.draining, capacity_adjustment = excluded.capacity_adjustment, \
         cpu_capacity = excluded.cpu_capacity, mem_capacity = excluded.mem_capacity, offer = excluded.offer, \
         signs = excluded.signs, uuid = excluded.uuid, version = excluded.version, errors = excluded.errors, \
         health_due = excluded.health_due, health_failures = excluded.health_failures, cpu = excluded.cpu, \
         memory = excluded.memory, last_health_check = excluded.last_health_check",
    )?;
    for name in gone {
        sql.execute("DELETE FROM instance WHERE name = $1", values![name])?;
        sql.execute("DELETE FROM seen WHERE instance = $1 OR observer = $1", values![name])?;
    }
    Ok(changed)
}

fn row(record: &InstanceRecord) -> Vec<SqlValue> {
    let InstanceRecord { instance, cpu, memory, last_health_check, created } = record;
    values![
        &instance.name,
        instance.node_type,
        instance.node_state,
        instance.enabled,
        instance.managed_by_policy,
        instance.draining,
        instance.adjustment.0,
        instance.capacities.cpu,
        instance.capacities.mem,
        to_json(&instance.offer),
        instance.signs,
        instance.uuid.clone(),
        instance.version.clone(),
        to_json(&instance.errors),
        instance.health_due,
        instance.health_failures,
        *cpu,
        *memory,
        *last_health_check,
        *created,
    ]
    .to_vec()
}
