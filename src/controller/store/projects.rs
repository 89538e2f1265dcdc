//! Which commit of a project each control node has synced last.

use super::Store;
use super::error::Error;
use super::sql::values;
use crate::controller::core::{InstanceName, Time};

/// A project on one control node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Where it comes from, without credentials.
    pub url: String,
    /// The control node.
    pub node: InstanceName,
    /// The commit.
    pub commit: String,
    /// When it was synced.
    pub synced: Time,
    /// How the sync ended.
    pub status: String,
}

impl Store {
    /// A project on one control node, if it was ever synced there.
    pub async fn project(&self, url: String, node: InstanceName) -> Result<Option<Project>, Error> {
        self.read(move |sql| {
            let query =
                "SELECT url, node, \"commit\", synced, status FROM project WHERE url = $1 AND node = $2";
            let Some(mut row) = sql.query(query, values![url.as_str(), &node])?.pop() else {
                return Ok(None);
            };
            Ok(Some(Project {
                url: row.take()?,
                node: row.take()?,
                commit: row.take()?,
                synced: row.take()?,
                status: row.take()?,
            }))
        })
        .await
    }

    /// Records a sync. The time is the store's.
    pub async fn set_project(
        &self,
        url: String,
        node: InstanceName,
        commit: String,
        status: String,
    ) -> Result<(), Error> {
        self.write(move |sql| {
            let now = sql.now();
            sql.execute(
                "INSERT INTO project (url, node, \"commit\", synced, status) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (url, node) DO UPDATE SET \"commit\" = excluded.\"commit\", \
                 synced = excluded.synced, status = excluded.status",
                values![url.as_str(), &node, commit.as_str(), now, status.as_str()],
            )?;
            Ok(())
        })
        .await
    }
}
