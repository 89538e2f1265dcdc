//! A unit on a node that gave it an ID of its own, which never arrived here: receptor 1.4.9 ignores the ID that a
//! submission asks for, and its answer with another one may be lost. It is found by the private data directory in its
//! parameters, which is named after the ID here. Knows nothing of what is to be done with it.

use std::sync::Arc;

use serde_json::Value;

use super::Remotes;
use super::session::{ControlSession, LIMITS, StepError};
use crate::rpc::CallLimits;
use crate::rpc::request::{Request, WorkRequest};
use crate::stream::Peer;
use crate::work::jobs::private_dir;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::units::Entry;

/// The list of some 50,000 units.
const LONGEST_LIST: usize = 32 << 20;

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
            Peer::Current | Peer::Earlier => return Ok(None),
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
        let Some(found) = find(&units, &directory) else { return Ok(None) };
        tracing::info!(unit = %entry.id, there = found, "the node has the unit under an ID of its own");
        self.note(entry, Durability::Durable, |remote| remote.remote_unit_id = found.into()).await?;
        Ok(Some(RemoteExtra { remote_unit_id: found.into(), ..remote.clone() }))
    }
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
}
