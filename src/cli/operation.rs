//! What is printed of a controller's answers: the node's JSON, or on a terminal tables. What can be asked, and what the
//! answers are, is `rpc`'s to say.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Context;
use super::exit::{Exit, Failure};
use super::table;
use super::terminal::{self, Colours};
use crate::rpc::operation::{Answered, OperationError, Question};

/// The columns of a list: headings, and what stands below them.
pub(super) type Columns<T> = &'static [(&'static str, fn(&T) -> String)];

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Call(error) => error.into(),
            OperationError::Refused(refused) => Self::new(Exit::Failed, refused.message),
        }
    }
}

/// Asks, and prints the answer.
///
/// # Errors
/// The node cannot be reached or refuses, or standard output cannot be written.
pub(super) async fn print_answer<A: DeserializeOwned>(
    context: &Context,
    question: Question<A>,
) -> Result<Exit, Failure> {
    print_one(context, &question.ask(&context.client).await?.json)
}

/// Asks, and prints the answer: as JSON, or as this text for people.
///
/// # Errors
/// As [`print_answer`].
pub(super) async fn print_as<A: DeserializeOwned>(
    context: &Context,
    question: Question<A>,
    text: impl FnOnce(&Answered<A>) -> String,
) -> Result<Exit, Failure> {
    let answer = question.ask(&context.client).await?;
    if is_for_people(context) {
        context.output.line(&text(&answer))?;
    } else {
        context.output.value(&answer.json)?;
    }
    Ok(Exit::Success)
}

/// Has the same done to each of several things, and prints what became of them. One that is refused does not keep the
/// others from their turn.
///
/// # Errors
/// The last refusal, or standard output cannot be written.
pub(super) async fn print_each<A: DeserializeOwned>(
    context: &Context,
    questions: impl IntoIterator<Item = Question<A>>,
) -> Result<Exit, Failure> {
    let mut last = Ok(Exit::Success);
    for question in questions {
        match question.ask(&context.client).await {
            Ok(answer) => drop(print_one(context, &answer.json)?),
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
    match is_for_people(context) {
        true => context.output.line(&describe(value))?,
        false => context.output.value(value)?,
    }
    Ok(Exit::Success)
}

/// Whether a person reads the result.
pub(super) fn is_for_people(context: &Context) -> bool {
    !context.output.json && context.output.is_terminal()
}

/// A list of things with this name as a table.
pub(super) fn rows<T>(name: &str, list: &[T], columns: Columns<T>) -> String {
    if list.is_empty() {
        return format!("No {name}.");
    }
    let headings: Vec<_> = columns.iter().map(|(heading, _)| *heading).collect();
    let row = |one: &T| columns.iter().map(|(_, text)| line(&text(one))).collect::<Vec<_>>();
    table::render(headings, list.iter().map(row))
}

/// Yes or no.
pub(super) fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

/// A text that may be missing.
pub(super) fn given(text: &Option<String>) -> String {
    text.clone().unwrap_or_default()
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
        Value::String(text) => text.clone(),
        Value::Bool(is_so) => yes(*is_so),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    };
    line(&text)
}

/// The first line of a text, as a terminal may have it.
fn line(text: &str) -> String {
    terminal::shown(&text.lines().next().unwrap_or_default().replace('\t', " "), Colours::Dropped)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        const COLUMNS: Columns<(u8, bool)> = &[("ID", |one| one.0.to_string()), ("OK", |one| yes(one.1))];
        assert_eq!(rows("jobs", &[(1, true)], COLUMNS), "ID  OK\n1   yes");
        assert_eq!(rows("jobs", &[], COLUMNS), "No jobs.");
    }
}
