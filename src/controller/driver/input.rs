//! What the child of a job reads: the runner's stream as the client sent it, or with its first line changed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::JobDriver;
use super::world::ChildInput;
use crate::controller::core::JobId;
use crate::controller::header::Header;
use crate::controller::refusal::LINE_LIMIT;
use crate::controller::store::Error;
use crate::controller::stream::KwargsChange;

impl JobDriver {
    /// What the child of a job reads: the runner's stream, without our header.
    pub(super) async fn input(&self, id: JobId) -> Result<Result<ChildInput, String>, Error> {
        let Some(unit) = self.first_unit(id) else {
            return Ok(Err("its payload is gone: its unit was released by force".to_owned()));
        };
        let header = self.header(id).await?;
        let in_pod = self.store.job(id).await?.current().is_some_and(|attempt| attempt.node.is_none());
        let path = unit.payload();
        let read = tokio::task::spawn_blocking(move || input(&path, &header, in_pod)).await;
        Ok(read.unwrap_or_else(|_| Err("its payload could not be read".to_owned())))
    }
}

/// Finds the runner's stream in a payload, and rewrites its first line if the header asks for that.
fn input(path: &Path, header: &Header, in_pod: bool) -> Result<ChildInput, String> {
    let broken = |error: std::io::Error| format!("its payload cannot be read: {error}");
    let mut file = BufReader::new(std::fs::File::open(path).map_err(broken)?);
    let mut line = |at: &mut u64| -> Result<Vec<u8>, String> {
        let mut line = Vec::new();
        let limit = LINE_LIMIT as u64 + 1;
        *at += (&mut file).take(limit).read_until(b'\n', &mut line).map_err(broken)? as u64;
        Ok(line)
    };
    let mut from = 0;
    let first = line(&mut from)?;
    let is_header = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&first)
        .is_ok_and(|object| object.contains_key("controller"));
    let kwargs_at = if is_header { from } else { 0 };
    let change = KwargsChange { in_pod, ..KwargsChange::of(header) };
    if change.is_none() {
        return Ok(ChildInput { head: Vec::new(), file: Some((path.to_owned(), kwargs_at)) });
    }
    let kwargs = if is_header { line(&mut from)? } else { first };
    let head = change.apply(&kwargs).map_err(|error| error.to_string())?;
    Ok(ChildInput { head, file: Some((path.to_owned(), from)) })
}
