//! Leases as rows of `lease`. It loads and saves; `owners` and the core decide who has a lease.

use std::time::Duration;

use super::error::Error;
use super::sql::{Row, Sql, values};
use crate::controller::core::{Fence, InstanceName, Lease};

/// Selects leases that a node holds.
pub(super) const HELD: &str = "(lease.epoch & 4294967295) <> 0";

/// The control nodes that hold their lease.
pub(super) fn live(sql: &mut dyn Sql) -> Result<Vec<Fence>, Error> {
    let rows = sql.query(&format!("SELECT node, epoch FROM lease WHERE {HELD} ORDER BY node"), &[])?;
    let read = |mut row: Row| Ok(Fence { owner: row.take()?, epoch: row.take()? });
    rows.into_iter().map(read).collect()
}

/// Checks that the writer still holds its lease.
pub(super) fn check(sql: &mut dyn Sql, by: &Fence) -> Result<(), Error> {
    let held = load_one(sql, &by.owner)?.is_some_and(|lease| lease.fence() == *by);
    if held { Ok(()) } else { Err(Error::fenced(by)) }
}

const COLUMNS: &str = "SELECT node, epoch, beat, lasts FROM lease";

/// All leases.
pub(super) fn load(sql: &mut dyn Sql) -> Result<Vec<Lease>, Error> {
    sql.query(&format!("{COLUMNS} ORDER BY node"), &[])?.into_iter().map(read_lease).collect()
}

/// The lease of a control node. Its row is locked until the transaction ends.
pub(super) fn load_one(sql: &mut dyn Sql, node: &InstanceName) -> Result<Option<Lease>, Error> {
    let lock = sql.dialect().lock_row();
    let row = sql.query(&format!("{COLUMNS} WHERE node = $1{lock}"), values![node])?.pop();
    row.map(read_lease).transpose()
}

fn read_lease(mut row: Row) -> Result<Lease, Error> {
    let (node, epoch, beat) = (row.take()?, row.take()?, row.take()?);
    Ok(Lease { node, epoch, beat, lasts: Duration::from_millis(row.take()?) })
}

pub(super) fn save(sql: &mut dyn Sql, lease: &Lease) -> Result<(), Error> {
    let lasts = u64::try_from(lease.lasts.as_millis()).unwrap_or(u64::MAX);
    sql.execute(
        "INSERT INTO lease (node, epoch, beat, lasts) VALUES ($1, $2, $3, $4) ON CONFLICT (node) \
         DO UPDATE SET epoch = excluded.epoch, beat = excluded.beat, lasts = excluded.lasts",
        values![&lease.node, lease.epoch, lease.beat, lasts],
    )?;
    Ok(())
}
