//! `meshctl traceroute`: shows the nodes on the way to another one, by pings of growing reach.

use clap::Args;
use serde_json::Value;

use super::{
    CliContext,
    completion::nodes,
    exit::{Exit, Failure},
};
use crate::rpc::CallError;
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(super) struct Traceroute {
    /// Node to reach
    #[arg(add = nodes())]
    node: String,
}

impl Traceroute {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let answer = context.client.command(&Request::Traceroute { target: self.node }).await?;
        let hops = hops(&answer)?;
        if context.output.json {
            context.output.value(&answer)?;
        } else {
            for (number, hop) in &hops {
                print(context, *number, hop)?;
            }
        }
        let arrived = hops.last().is_some_and(|(_, hop)| hop.get("Error").is_none());
        Ok(if arrived { Exit::Success } else { Exit::NoReply })
    }
}

/// The answer's members, in the order of their numbers.
pub(super) fn hops(answer: &Value) -> Result<Vec<(u32, &Value)>, CallError> {
    let unexpected = |answer: String| CallError::Protocol { question: "traceroute", answer };
    let members = answer.as_object().ok_or_else(|| unexpected("not an object".to_owned()))?;
    let mut hops = members
        .iter()
        .map(|(key, hop)| Ok((key.parse().map_err(|_| unexpected(format!("hop {key:?}")))?, hop)))
        .collect::<Result<Vec<(u32, &Value)>, CallError>>()?;
    hops.sort_by_key(|(number, _)| *number);
    Ok(hops)
}

fn print(context: &CliContext, number: u32, hop: &Value) -> Result<(), Failure> {
    let text = |key: &str| hop[key].as_str().unwrap_or_default();
    match hop["Error"].as_str() {
        None => context.output.line(&format!("{number}: {} in {}", text("From"), text("TimeStr"))),
        Some(error) if text("From").is_empty() => {
            context.output.error(&format!("{number}: {error}, after {}", text("TimeStr")));
            Ok(())
        }
        Some(error) => {
            context.output.error(&format!("{number}: {error} from {} in {}", text("From"), text("TimeStr")));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hops_are_numbers_not_words() {
        let members: Value = (0..12).map(|n| (n.to_string(), json!({"From": n}))).collect();
        let numbers: Vec<u32> = hops(&members).unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(numbers, (0..12).collect::<Vec<_>>());
        assert!(hops(&json!({"x": {}})).is_err());
        assert!(hops(&json!([])).is_err());
    }
}
