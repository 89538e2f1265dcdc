//! What SQLite can still write on a full disk.
//!
//! A cancel or the end of a job must be saved even on a full disk. So the log's space is allocated at the start, and
//! the database always has free pages that are allocated on disk. (Space after the end of its file would not do,
//! because each checkpoint cuts it off.) Both stay when the store is closed. A store that is first opened on a full
//! disk has no reserve.

use std::fs::{File, OpenOptions};
use std::path::Path;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rustix::fs::{FallocateFlags, fallocate};

use super::error::Error;

/// Bytes of the write-ahead log. At about half of this (`wal_autocheckpoint`) SQLite starts it again from its
/// beginning, unless a reader prevents that: then writes use the rest.
const LOG: u64 = 8 << 20;
/// A database with fewer free pages than `FEW` is topped up to `ENOUGH`. These pages fit into SQLite's cache, so
/// topping up writes none of them to the log.
const FEW: u32 = 256;
const ENOUGH: u32 = 384;

/// The reserve of one open database.
#[derive(Debug)]
pub(super) struct StoreReserve {
    /// Closed after all connections to it, because closing a file drops all locks that this process has on it.
    database: File,
    /// Bytes of the database that have space on disk.
    backed: u64,
}

impl StoreReserve {
    /// Allocates the space of the log at `path`, and keeps the log when `connection` is closed.
    pub(super) fn new(database: File, connection: &Connection, path: &Path) -> Result<Self, Error> {
        // Otherwise SQLite deletes the log when the last connection is closed.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Makes SQLite create the log.
        connection.execute_batch("BEGIN IMMEDIATE; COMMIT;")?;
        let log = OpenOptions::new().write(true).open(path);
        let taken = log.and_then(|log| Ok(fallocate(log, FallocateFlags::empty(), 0, LOG)?));
        if let Err(error) = taken {
            tracing::debug!(%error, "cannot reserve space for the store in case the disk is full");
        }
        let mut reserve = Self { database, backed: 0 };
        reserve.top_up(connection)?;
        Ok(reserve)
    }

    /// Adds free pages if there are too few and the disk has room for more.
    pub(super) fn top_up(&mut self, connection: &Connection) -> Result<(), Error> {
        let query = "SELECT freelist_count, page_count, page_size \
                     FROM pragma_freelist_count, pragma_page_count, pragma_page_size";
        let mut query = connection.prepare_cached(query)?;
        let [free, pages, page]: [u32; 3] =
            query.query_row([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?;
        let size = u64::from(pages) * u64::from(page);
        // One more page, because SQLite lists the free pages in pages of their own.
        let missing = if free < FEW { ENOUGH - free + 1 } else { 0 };
        let wanted = size + u64::from(missing) * u64::from(page);
        if wanted <= self.backed {
            return Ok(());
        }
        // The file's size stays: SQLite sets it, at checkpoints.
        let more = wanted - self.backed;
        if fallocate(&self.database, FallocateFlags::KEEP_SIZE, self.backed, more).is_err() {
            return Ok(());
        }
        self.backed = size;
        if missing > 0 {
            // The table also takes the pages that are free already, so it gets `ENOUGH` pages in all.
            let transaction = connection.unchecked_transaction()?;
            transaction.execute_batch(&format!(
                "CREATE TABLE reserve (pages BLOB); INSERT INTO reserve VALUES (zeroblob({})); DROP TABLE reserve;",
                ENOUGH * page
            ))?;
            transaction.commit()?;
        }
        Ok(())
    }
}
