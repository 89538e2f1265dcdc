//! Operations of a controller, asked for over the control socket.

use serde_json::{Map, Value};

use super::Context;
use super::exit::{Exit, Failure};
use crate::rpc::request::Request;

/// Has an operation carried out, and returns its result.
///
/// # Errors
/// The node cannot be reached, or refuses.
pub(super) async fn operate(
    context: &Context,
    op: &str,
    arguments: impl IntoIterator<Item = (&str, Value)>,
) -> Result<Value, Failure> {
    let mut operation: Map<String, Value> =
        arguments.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    operation.insert("op".to_owned(), op.into());
    let mut answer = context.client.command(&Request::Controller { operation }).await?;
    if answer["ok"] == true {
        return Ok(answer["result"].take());
    }
    let message = answer["error"]["message"].as_str().unwrap_or("the node did not say why it refuses");
    Err(Failure::new(Exit::Failed, message))
}

/// A list as a table on a terminal, else as JSON.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_list<const N: usize>(
    context: &Context,
    answer: &Value,
    rows: &str,
    columns: [(&str, &str); N],
) -> Result<Exit, Failure> {
    let output = context.output;
    if output.json || !output.is_terminal() {
        output.value(answer)?;
        return Ok(Exit::Success);
    }
    let rows = answer[rows].as_array().into_iter().flatten();
    let rows = rows.map(|row| columns.map(|(_, key)| cell(&row[key])));
    output.line(&super::table::render(columns.map(|(heading, _)| heading), rows))?;
    Ok(Exit::Success)
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
