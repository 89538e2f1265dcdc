//! What the verbs on units share: the table of units, and the outcomes of an operation on many units, of which some may
//! fail.

use serde_json::{Map, Value, json};

use crate::cli::{
    CliContext,
    exit::{Exit, Failure},
    table::{Column, always, size, telling},
};
use crate::rpc::request::{Request, WorkRequest};
use crate::rpc::{CallError, Client, UnitReport};

/// The unit IDs of a `work list` answer, sorted.
pub(crate) fn ids(answer: &Value) -> Vec<String> {
    let mut ids: Vec<String> = answer.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    ids.sort();
    ids
}

/// A unit with its ID.
pub(crate) type ListedUnit = (String, UnitReport);

pub(crate) const COLUMNS: &[Column<ListedUnit>] = &[
    always("UNIT", |(id, _), _| id.clone()),
    always("STATE", |(_, one), _| one.state.name().to_owned()),
    always("TYPE", |(_, one), _| one.remote().map_or(&*one.work_type, |(_, remote)| remote).to_owned()),
    telling("NODE", |(_, one), _| one.remote().map_or("", |(node, _)| node).to_owned()),
    always("OUTPUT", |(_, one), _| size(one.stdout_size)),
    // The detail may be several lines of a runner's last output.
    always("DETAIL", |(_, one), _| one.detail.clone()),
];

/// The units of an answer.
pub(crate) fn read(answer: &Value) -> Result<Vec<ListedUnit>, CallError> {
    ids(answer).into_iter().map(|id| Ok((id.clone(), UnitReport::from_answer(&answer[&id])?))).collect()
}

/// Asks a node to end a unit, and returns what the node says it did, such as `released` or `cancel pending`.
pub(crate) async fn operate(client: &Client, request: WorkRequest) -> Result<String, CallError> {
    let answer = client.long_command(&Request::Work(request)).await?;
    let done = answer.as_object().and_then(|members| members.keys().next());
    done.cloned()
        .ok_or_else(|| CallError::Protocol { question: "an operation on a unit", answer: answer.to_string() })
}

/// The request that releases a unit.
pub(crate) fn release(unit: &str, force: bool) -> WorkRequest {
    WorkRequest::Release { unit: unit.to_owned(), force, sweep: false, signature: None }
}

/// What became of each unit. A unit that fails does not stop the others.
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
    pub(crate) fn print(self, context: &CliContext) -> Result<Exit, Failure> {
        let mut exit = Exit::Success;
        let mut members = Map::new();
        for (unit, outcome) in self.rows {
            match outcome {
                Ok(done) if context.output.json => drop(members.insert(unit, json!(done))),
                Ok(done) => context.output.line(&format!("{unit}: {done}"))?,
                Err(error) => {
                    context.output.error(&format!("meshctl: {unit}: {error}"));
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
    use crate::cli::table::{self, Layout};
    use jiff::Zoned;

    #[test]
    fn units_are_a_table() {
        let answer = json!({
            "bbbb": {"State": 3, "Detail": "exit status 2\nmore", "StdoutSize": 2048, "WorkType": "remote",
                "ExtraData": {"RemoteNode": "execution", "RemoteWorkType": "sh"}},
            "aaaa": {"State": 1, "Detail": "Running: PID 7", "StdoutSize": 0, "WorkType": "sh", "ExtraData": null}});
        let units = read(&answer).unwrap();
        let expected = "\
UNIT  STATE    TYPE  NODE       OUTPUT   DETAIL
aaaa  Running  sh               0 B      Running: PID 7
bbbb  Failed   sh    execution  2.0 KiB  exit status 2";
        assert_eq!(table::list(&units, COLUMNS, Layout::default(), 80, &Zoned::now()), expected);
    }
}
