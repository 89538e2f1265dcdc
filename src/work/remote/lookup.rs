//! A unit on a node that gave it an ID of its own, which never arrived here: receptor 1.4.9 ignores the ID that a
//! submission asks for, and its answer with another one may be lost. It is found by the private data directory in its
//! parameters, which is named after the ID here; one that has ended shows no parameters there, and is found by the
//! directory that its runner's first line names. Knows nothing of what is to be done with it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::Remotes;
use super::session::{ControlSession, LIMITS, StepError};
use super::submit::CHUNK;
use crate::rpc::CallLimits;
use crate::rpc::request::{Request, WorkRequest};
use crate::stream::Peer;
use crate::work::jobs::private_dir;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::units::Entry;

/// The list of some 50,000 units.
const LONGEST_LIST: usize = 32 << 20;
/// Ended units whose output is looked at.
const MOST_LOOKED_AT: usize = 256;
/// How much of it: the line that names the directory has the whole environment of the playbook, too.
const BEGINNING: usize = 256 << 10;
/// How long that may take for one unit: a Go node never ends the output of one that was cancelled.
const READ_WITHIN: Duration = Duration::from_secs(5);

impl Remotes {
    /// A node does not know a unit by the ID that was chosen for it: the unit may be there under another. If so, that one
    /// is durable here, and returned with the rest that is known of the other side.
    pub(super) async fn find_there(
        &self,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        peer: Peer,
    ) -> Result<Option<RemoteExtra>, StepError> {
        match peer {
            // They keep to the chosen ID, or answered before anything was written down.
            Peer::Current | Peer::Repeating | Peer::Earlier => return Ok(None),
            Peer::Receptor => {}
        }
        if *remote.remote_unit_id != *entry.id.as_str() {
            return Ok(None);
        }
        let directory = private_dir(entry.id.as_str());
        if !remote.remote_params.iter().any(|(name, value)| name == "params" && is_named(value, &directory)) {
            return Ok(None);
        }
        let limits = CallLimits { answer_size: LONGEST_LIST, ..LIMITS };
        let mut session = ControlSession::connect_within(&*self.dialer, remote, limits).await?;
        let list = Request::Work(WorkRequest::List { unit: None });
        let units = session.connection.command(&list).await?;
        let found = match find(&units, &directory) {
            Some(id) => Some(id.to_owned()),
            None => self.find_ended(remote, &units, &directory).await?,
        };
        let Some(found) = found else { return Ok(None) };
        tracing::info!(unit = %entry.id, there = found, "the node has the unit under an ID of its own");
        self.note(entry, Durability::Durable, |remote| remote.remote_unit_id = found.as_str().into()).await?;
        Ok(Some(RemoteExtra { remote_unit_id: found.into(), ..remote.clone() }))
    }

    /// The unit among those that have ended whose output begins with that directory.
    async fn find_ended(
        &self,
        remote: &RemoteExtra,
        units: &Value,
        directory: &str,
    ) -> Result<Option<String>, StepError> {
        for id in ended(units, &remote.remote_work_type).into_iter().take(MOST_LOOKED_AT) {
            let candidate = RemoteExtra { remote_unit_id: id.into(), ..remote.clone() };
            let mut session = match self.open_results(&candidate, 0).await {
                // Released meanwhile.
                Err(StepError::Refused(_)) => continue,
                opened => opened?,
            };
            let mut beginning = Vec::new();
            let read = async {
                let reader = session.connection.reader();
                let mut buffer = vec![0; CHUNK];
                while beginning.len() < BEGINNING && !names(&beginning, directory) {
                    match reader.read(&mut buffer).await? {
                        0 => break,
                        length => beginning.extend_from_slice(&buffer[..length]),
                    }
                }
                Ok::<_, std::io::Error>(())
            };
            // What was read counts, however it ended.
            let _read = timeout(READ_WITHIN, read).await;
            if names(&beginning, directory) {
                return Ok(Some(id.to_owned()));
            }
        }
        Ok(None)
    }
}

/// The units of a type that have ended with some output, and of which nothing else is known.
fn ended<'a>(units: &'a Value, work_type: &str) -> Vec<&'a str> {
    let is_one = |unit: &Value| {
        unit["State"].as_u64() > Some(1)
            && unit["WorkType"] == work_type
            && unit["StdoutSize"].as_u64() > Some(0)
            && unit.pointer("/ExtraData/Params").is_none()
    };
    let units = units.as_object().into_iter().flatten();
    units.filter(|(_, unit)| is_one(unit)).map(|(id, _)| id.as_str()).collect()
}

/// Whether some output has a path with that name. It ends with random digits, so that nothing else has it.
fn names(output: &[u8], directory: &str) -> bool {
    output.windows(directory.len()).any(|window| window == directory.as_bytes())
}

/// The unit with a directory of that name among its parameters.
fn find<'a>(units: &'a Value, directory: &str) -> Option<&'a str> {
    let mut units = units.as_object()?.iter();
    let (id, _) = units.find(|(_, unit)| {
        let params = unit.pointer("/ExtraData/Params").and_then(Value::as_str).unwrap_or_default();
        is_named(params, directory)
    })?;
    Some(id)
}

/// Whether a word of a command's parameters is a path that ends in that name.
fn is_named(params: &str, directory: &str) -> bool {
    params.split_whitespace().any(|word| word.rsplit('/').next() == Some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_unit_is_found_by_the_directory_in_its_parameters() {
        let unit = |params: &str| json!({"State": 0, "ExtraData": {"Pid": 0, "Params": params}});
        let mut units = json!({
            "ended": {"State": 3, "ExtraData": null},
            "other": unit("worker --private-data-dir=/tmp/meshd_c1n12 --delete"),
            "remote": {"ExtraData": {"RemoteParams": {"params": "--private-data-dir=/tmp/meshd_c1n1"}}},
        });
        let directory = private_dir("c1n1");
        assert_eq!(find(&units, &directory), None);
        units["it"] = unit("worker --private-data-dir=/tmp/meshd_c1n1 --delete");
        assert_eq!(find(&units, &directory), Some("it"));
        assert_eq!(find(&json!([]), &directory), None);
    }

    #[test]
    fn only_units_of_its_type_that_have_ended_and_show_nothing_else_are_looked_at() {
        let unit = |state: u8, kind: &str, size: u64, extra: Value| json!({"State": state, "WorkType": kind, "StdoutSize": size, "ExtraData": extra});
        let params = json!({"Pid": 1, "Params": "x"});
        let units = json!({
            "runs": unit(1, "runner", 5, Value::Null),
            "shown": unit(2, "runner", 5, params),
            "other": unit(2, "cat", 5, Value::Null),
            "empty": unit(3, "runner", 0, Value::Null),
            "failed": unit(3, "runner", 5, Value::Null),
            "done": unit(2, "runner", 5, Value::Null),
        });
        let mut found = ended(&units, "runner");
        found.sort_unstable();
        assert_eq!(found, ["done", "failed"]);
        assert_eq!(ended(&json!([]), "runner"), [""; 0]);
        assert!(names(br#"{"cwd": "/tmp/meshd_c1n1/project"}"#, "meshd_c1n1"));
        assert!(!names(b"meshd_", "meshd_c1n1"));
    }
}
