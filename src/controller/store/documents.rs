//! Documents that control nodes share and that are no jobs: what the authority of a mesh keeps of its nodes.
//!
//! A document is replaced as a whole, and only by somebody who has read its latest version. What it says is not known here.

use super::Store;
use super::error::Error;
use super::sql::{Row, Sql, values};

/// A text by kind and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// What it is about, for instance `nodes`.
    pub kind: String,
    /// Its name, one of its kind.
    pub name: String,
    /// Rises with each change. It begins at random, so that a document is not taken for one that was deleted before.
    pub version: i64,
    /// The text.
    pub body: String,
}

/// The table, which schema 3 has brought.
pub(super) const TABLE: &str = "CREATE TABLE document (
    kind TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, name)
)";
const COLUMNS: &str = "SELECT kind, name, version, body FROM document";

fn read(mut row: Row) -> Result<StoredDocument, Error> {
    let (kind, name, version) = (row.take()?, row.take()?, row.take()?);
    Ok(StoredDocument { kind, name, version, body: row.take()? })
}

impl Store {
    /// All documents of a kind, by name.
    ///
    /// # Errors
    /// The database is away.
    pub async fn documents(&self, kind: String) -> Result<Vec<StoredDocument>, Error> {
        let query = format!("{COLUMNS} WHERE kind = $1 ORDER BY name");
        self.read(move |sql| sql.query(&query, values![&kind])?.into_iter().map(read).collect()).await
    }

    /// One of them.
    ///
    /// # Errors
    /// The database is away.
    pub async fn document(&self, kind: String, name: String) -> Result<Option<StoredDocument>, Error> {
        let query = format!("{COLUMNS} WHERE kind = $1 AND name = $2");
        self.read(move |sql| sql.query(&query, values![&kind, &name])?.pop().map(read).transpose()).await
    }

    /// Writes the version that follows `version`, which is 0 for a new document. Returns whether that was the latest one:
    /// otherwise somebody else has written since, and nothing changes.
    ///
    /// # Errors
    /// The database is away.
    pub async fn write_document(&self, document: StoredDocument) -> Result<bool, Error> {
        let verb = move |sql: &mut dyn Sql| {
            let StoredDocument { kind, name, version, body } = &document;
            let (version, statement) = match *version {
                0 => (
                    i64::from(rand::random::<u32>()),
                    "INSERT INTO document (kind, name, version, body) VALUES ($1, $2, $3 + 1, $4) ON CONFLICT DO NOTHING",
                ),
                version => (
                    version,
                    "UPDATE document SET version = version + 1, body = $4 WHERE kind = $1 AND name = $2 AND version = $3",
                ),
            };
            Ok(sql.execute(statement, values![kind, name, version, body])? == 1)
        };
        self.write(verb).await
    }

    /// Deletes a document. Returns whether there was one.
    ///
    /// # Errors
    /// The database is away.
    pub async fn delete_document(&self, kind: String, name: String) -> Result<bool, Error> {
        let statement = "DELETE FROM document WHERE kind = $1 AND name = $2";
        self.write(move |sql| Ok(sql.execute(statement, values![&kind, &name])? == 1)).await
    }
}
