//! What a node says of itself, of its units and of its controller: written by the server, read by every client. Plain
//! data: it does not know where a report comes from, nor how it is shown.
//!
//! Nodes of other releases and of receptor leave keys out, write null for empty, or add keys that are unknown here. So
//! every key has a default, unknown keys are skipped, and [`read`] treats null as absent.

pub mod cache;
pub mod controller;
pub mod doctor;
pub mod enrolment;
pub mod events;
pub mod finding;
pub mod link;
pub(crate) mod names;
pub mod node;
pub mod outage;
pub mod saved;
pub mod unit;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::names::{JobKind, JobState, Lenient};

/// Reads a report from an answer.
///
/// # Errors
/// A key has a value of the wrong type.
pub fn read<T: DeserializeOwned>(answer: &Value) -> serde_json::Result<T> {
    serde_json::from_value(without_nulls(answer))
}

/// Leaves out every member that is null, so that "empty" has one spelling.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, member)| !member.is_null());
            members.map(|(key, member)| (key.clone(), without_nulls(member))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
