//! When a unit took its steps, as a table for people: one column for each node, whose own clock its times are. Owns what is
//! said where a node does not tell them; what a step means is in docs/work-engine.md.

use std::collections::BTreeSet;

use crate::cli::{Context, exit::Failure, table};
use crate::rpc::UnitReport;
use crate::rpc::report::unit::{StepTimes, UnitStep};
use crate::rpc::request::{Request, WorkRequest};

/// Asks for a unit's times and prints them to standard error.
pub(super) async fn print(context: &Context, unit: &str) -> Result<(), Failure> {
    let status = WorkRequest::Status { unit: unit.to_owned(), signature: None };
    let answer = context.client.command(&Request::Work(status)).await?;
    match context.output.json {
        true => context.output.value_note(&answer),
        false => context.output.error(&text(unit, &UnitReport::from_answer(&answer)?)),
    }
    Ok(())
}

/// The times in a report.
pub(super) fn text(unit: &str, report: &UnitReport) -> String {
    let times = &report.times;
    if times.is_empty() {
        return format!(
            "unit {unit}: its node knows no times of its steps: it has restarted since, or received many other units"
        );
    }
    let headings = ["STEP"].into_iter().chain(times.iter().map(|one| one.node.as_str()));
    let row = |step: &UnitStep| {
        let millis = |at: &u64| format!("{}.{:03}", at / 1000, at % 1000);
        let at = |one: &StepTimes| one.microseconds.get(step).map(millis).unwrap_or_default();
        [format!("{step:?}")].into_iter().chain(times.iter().map(at)).collect::<Vec<_>>()
    };
    let steps: BTreeSet<&UnitStep> = times.iter().flat_map(|one| one.microseconds.keys()).collect();
    let table = table::render(headings.collect::<Vec<_>>(), steps.into_iter().map(row));
    let silent = report.remote().filter(|(node, _)| times.iter().all(|one| one.node.as_str() != *node));
    let silent = silent.map(|(node, _)| {
        format!("\nnode {node} has told no times: it has not answered yet, or is a Go node")
    });
    format!("unit {unit}, in ms since each node received it:\n{table}{}", silent.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_column_and_who_tells_nothing_is_named() {
        let told = r#"{"State":2,"ExtraData":{"RemoteNode":"n2","RemoteWorkType":"sh"},"Times":[
            {"Node":"n1","Microseconds":{"Received":0,"Durable":1234,"Accepted":100007}},
            {"Node":"n2","Microseconds":{"Received":0,"Durable":42}}]}"#;
        let report: UnitReport = serde_json::from_str(told).unwrap();
        let expected = "\
unit x, in ms since each node received it:
STEP      n1       n2
Received  0.000    0.000
Durable   1.234    0.042
Accepted  100.007";
        assert_eq!(text("x", &report), expected);
        let first = UnitReport { times: report.times[..1].to_vec(), ..report.clone() };
        let silent = text("x", &first);
        assert!(silent.ends_with("\nnode n2 has told no times: it has not answered yet, or is a Go node"));
        assert!(text("x", &UnitReport { times: Vec::new(), ..report }).contains("knows no times"));
    }
}
