//! What the verbs on units share: the table of units, and an operation over many of which some may fail.

use serde_json::{Map, Value, json};

use crate::cli::{
    Context,
    exit::{Exit, Failure},
    table,
};
use crate::rpc::request::WorkRequest;
use crate::rpc::{CallError, Client, UnitReport};

/// The unit IDs of a `work list` answer, sorted.
pub(crate) fn ids(answer: &Value) -> Vec<String> {
    let mut ids: Vec<String> = answer.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    ids.sort();
    ids
}

/// Units by ID as a table.
///
/// # Errors
/// [`CallError::Protocol`] if a status is none.
pub(crate) fn table(answer: &Value) -> Result<String, CallError> {
    let mut rows = Vec::new();
    for id in ids(answer) {
        let report = UnitReport::from_answer(&answer[&id])?;
        let (node, work_type) = report.remote().unwrap_or(("-", &report.work_type));
        let (node, work_type) = (node.to_owned(), work_type.to_owned());
        // A detail may be several lines of a runner's last words; a table has room for the first.
        let detail = report.detail.lines().next().unwrap_or_default().to_owned();
        rows.push([
            id,
            report.state.name().to_owned(),
            work_type,
            node,
            table::size(report.stdout_size),
            detail,
        ]);
    }
    if rows.is_empty() {
        return Ok("No units.".to_owned());
    }
    Ok(table::render(["UNIT", "STATE", "TYPE", "NODE", "OUTPUT", "DETAIL"], rows))
}

/// Asks for a unit's end and returns what the node says it did, such as `released` or `cancel pending`.
///
/// # Errors
/// As [`Client::end_unit`].
pub(crate) async fn operate(client: &Client, request: WorkRequest) -> Result<String, CallError> {
    let answer = client.end_unit(request).await?;
    let done = answer.as_object().and_then(|members| members.keys().next());
    done.cloned()
        .ok_or_else(|| CallError::Protocol { question: "an operation on a unit", answer: answer.to_string() })
}

/// The request that releases a unit.
pub(crate) fn release(unit: &str, force: bool) -> WorkRequest {
    WorkRequest::Release { unit: unit.to_owned(), force, sweep: false, signature: None }
}

/// What became of each unit. One that fails does not keep the others from their turn.
pub(crate) struct Outcomes {
    rows: Vec<(String, Result<String, CallError>)>,
}

impl Outcomes {
    /// No unit yet.
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a unit's outcome.
    pub(crate) fn add(&mut self, unit: String, outcome: Result<String, CallError>) {
        self.rows.push((unit, outcome));
    }

    /// Prints all of them; failed if any failed.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub(crate) fn print(self, context: &Context) -> Result<Exit, Failure> {
        let mut exit = Exit::Success;
        let mut members = Map::new();
        for (unit, outcome) in self.rows {
            match outcome {
                Ok(done) if context.output.json => drop(members.insert(unit, json!(done))),
                Ok(done) => context.output.line(&format!("{unit}: {done}"))?,
                Err(error) => {
                    context.output.note(&format!("meshctl: {unit}: {error}"));
                    members.insert(unit, json!({"error": error.to_string()}));
                    exit = Failure::from(error).exit;
                }
            }
        }
        if context.output.json {
            context.output.value(&Value::Object(members))?;
        }
        Ok(exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_a_table() {
        let answer = json!({
            "bbbb": {"State": 3, "Detail": "exit status 2\nmore", "StdoutSize": 2048, "WorkType": "remote",
                "ExtraData": {"RemoteNode": "execution", "RemoteWorkType": "sh"}},
            "aaaa": {"State": 1, "Detail": "Running: PID 7", "StdoutSize": 0, "WorkType": "sh", "ExtraData": null}});
        let expected = "\
UNIT  STATE    TYPE  NODE       OUTPUT   DETAIL
aaaa  Running  sh    -          0 B      Running: PID 7
bbbb  Failed   sh    execution  2.0 KiB  exit status 2";
        assert_eq!(table(&answer).unwrap(), expected);
        assert_eq!(table(&json!({})).unwrap(), "No units.");
    }
}
