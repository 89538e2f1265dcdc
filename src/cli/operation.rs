//! Operations of a controller, asked for over the control socket, and what is printed of their results: JSON, or on a
//! terminal tables. What operations there are is the node's business.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Context;
use super::exit::{Exit, Failure};
use super::table;
use super::terminal::{self, Colours};
use crate::rpc::request::Request;
use crate::rpc::{CallError, Client, ControlConnection};

/// Where the result of a list is, and its columns: heading and key.
pub(super) type Columns = (&'static str, &'static [(&'static str, &'static str)]);

/// An operation with its arguments.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    name: &'static str,
    arguments: Map<String, Value>,
}

/// Why an operation has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum OperationError {
    /// No answer came.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The controller refuses.
    #[error("{message}")]
    Refused {
        /// For programs, such as `store_away`.
        code: String,
        /// For people.
        message: String,
    },
}

impl OperationError {
    /// Whether the same question may be answered a little later: the node or its store is away.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Call(error) => match error {
                CallError::Unreachable(_)
                | CallError::TimedOut { .. }
                | CallError::Closed(_)
                | CallError::Io { .. }
                | CallError::Absent { .. } => true,
                CallError::NotControl { .. }
                | CallError::Refused(_)
                | CallError::Protocol { .. }
                | CallError::Payload(_)
                | CallError::Truncated { .. } => false,
            },
            Self::Refused { code, .. } => ["store_away", "owner_away"].contains(&code.as_str()),
        }
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Call(error) => error.into(),
            OperationError::Refused { message, .. } => Self::new(Exit::Failed, message),
        }
    }
}

impl Operation {
    /// One without arguments.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, arguments: Map::new() }
    }

    /// One whose arguments are the fields of a struct.
    pub(super) fn of(name: &'static str, fields: &impl Serialize) -> Self {
        let arguments = match json!(fields) {
            Value::Object(fields) => fields,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Map::new()
            }
        };
        Self { name, arguments }
    }

    /// The same with one more argument.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.arguments.insert(key.to_owned(), value.into());
        self
    }

    /// Has it carried out, and returns its result.
    ///
    /// # Errors
    /// The node cannot be reached, or refuses.
    pub(super) async fn ask(&self, client: &Client) -> Result<Value, OperationError> {
        self.begin(client).await.map(|(result, _)| result)
    }

    /// The same; what else the node sends is behind the result, on the connection.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) async fn begin(&self, client: &Client) -> Result<(Value, ControlConnection), OperationError> {
        let mut operation = self.arguments.clone();
        operation.insert("op".to_owned(), self.name.into());
        let mut connection = client.connect().await?;
        let mut answer = connection.command(&Request::Controller { operation }).await?;
        if answer["ok"] == true {
            return Ok((answer["result"].take(), connection));
        }
        let text = |key: &str| answer["error"][key].as_str();
        let message = text("message").unwrap_or("the node did not say why it refuses").to_owned();
        Err(OperationError::Refused { code: text("code").unwrap_or_default().to_owned(), message })
    }

    /// Has it carried out and prints its result.
    ///
    /// # Errors
    /// Those of [`Self::ask`], or standard output cannot be written.
    pub(super) async fn print(&self, context: &Context) -> Result<Exit, Failure> {
        let result = self.ask(&context.client).await?;
        print_one(context, &result)
    }

    /// Has it carried out and prints its result, a list.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub(super) async fn print_list(&self, context: &Context, columns: Columns) -> Result<Exit, Failure> {
        let result = self.ask(&context.client).await?;
        let text = if is_for_people(context) { Some(rows(&result, columns)) } else { None };
        print(context, &result, text)
    }
}

/// Has the same done to each of several things, and prints what became of them. One that is refused does not keep the
/// others from their turn.
///
/// # Errors
/// The last refusal, or standard output cannot be written.
pub(super) async fn print_each(
    context: &Context,
    operations: impl IntoIterator<Item = Operation>,
) -> Result<Exit, Failure> {
    let mut last = Ok(Exit::Success);
    for operation in operations {
        match operation.ask(&context.client).await {
            Ok(result) => drop(print_one(context, &result)?),
            Err(error) => {
                if let Err(before) = std::mem::replace(&mut last, Err(error.into())) {
                    context.output.failure(&before);
                }
            }
        }
    }
    last
}

/// One thing: JSON, or on a terminal its keys and values.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_one(context: &Context, value: &Value) -> Result<Exit, Failure> {
    let text = if is_for_people(context) { Some(describe(value)) } else { None };
    print(context, value, text)
}

/// A result as JSON, or as the text for people if there is one.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print(context: &Context, value: &Value, text: Option<String>) -> Result<Exit, Failure> {
    match text {
        Some(text) => context.output.line(&text)?,
        None => context.output.value(value)?,
    }
    Ok(Exit::Success)
}

/// Whether a person reads the result.
pub(super) fn is_for_people(context: &Context) -> bool {
    !context.output.json && context.output.is_terminal()
}

/// A list as a table.
pub(super) fn rows(answer: &Value, (list, columns): Columns) -> String {
    let rows = answer[list].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return format!("No {list}.");
    }
    let rows = rows.iter().map(|row| columns.iter().map(|(_, key)| cell(&row[*key])).collect::<Vec<_>>());
    table::render(columns.iter().map(|(heading, _)| *heading).collect::<Vec<_>>(), rows)
}

/// Keys and values; what is a list of things is a table behind them.
pub(super) fn describe(value: &Value) -> String {
    let Value::Object(fields) = value else { return cell(value) };
    let (tables, plain): (Vec<_>, Vec<_>) = fields.iter().partition(|(_, value)| is_table(value));
    let plain = plain.into_iter().filter(|(_, value)| !value.is_null());
    let mut text = table::render(["", ""], plain.map(|(key, value)| [key.clone(), cell(value)]));
    // The headings are empty.
    text = text.trim_start_matches('\n').to_owned();
    for (key, rows) in tables {
        let rows: Vec<Map<String, Value>> = rows
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .filter_map(Value::as_object)
            .cloned()
            .collect();
        let Some(first) = rows.first() else { continue };
        let headings: Vec<String> = first.keys().map(|key| key.to_uppercase()).collect();
        let cells = rows.iter().map(|row| first.keys().map(|key| cell(&row[key])).collect::<Vec<_>>());
        text.push_str(&format!("\n\n{key}:\n{}", table::render(headings, cells)));
    }
    text
}

fn is_table(value: &Value) -> bool {
    value.as_array().is_some_and(|rows| rows.iter().all(Value::is_object) && !rows.is_empty())
}

/// One line.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.lines().next().unwrap_or_default().to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    };
    terminal::shown(&text.replace('\t', " "), Colours::Dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_keys_values_and_tables() {
        let value = json!({"id": 4, "name": null, "state": "failed", "explanation": "a\u{1b}[2J\nb",
            "groups": ["x", "y"], "attempts": [{"n": 1, "node": "e1"}, {"n": 2, "node": "e2"}]});
        let expected = "\
id           4
state        failed
explanation  a�[2J
groups       x, y

attempts:
N  NODE
1  e1
2  e2";
        assert_eq!(describe(&value), expected);
    }

    #[test]
    fn a_list_is_a_table_of_the_columns() {
        let answer = json!({"jobs": [{"id": 1, "ok": true, "more": 7}], "none": []});
        assert_eq!(rows(&answer, ("jobs", &[("ID", "id"), ("OK", "ok")])), "ID  OK\n1   yes");
        assert_eq!(rows(&answer, ("none", &[("ID", "id")])), "No none.");
    }
}
