//! The arguments of an operation, taken one by one; what is left at the end is refused by name.

use serde_json::{Map, Value};

use super::Refused;
use crate::controller::core::{JobId, Time};

/// The arguments of an operation; each is taken once.
pub(super) struct Arguments {
    pub(super) op: String,
    pub(super) left: Map<String, Value>,
}

impl Arguments {
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, Refused> {
        self.take(key)
            .map(|value| {
                value.as_str().map(str::to_owned).ok_or_else(|| Refused::bad(format!("{key}: it is a text")))
            })
            .transpose()
    }

    pub(super) fn name(&mut self, key: &str) -> Result<String, Refused> {
        let name = self.text(key)?.ok_or_else(|| Refused::bad(format!("{key}: it is missing")))?;
        let is_name = !name.is_empty() && name.len() <= 255 && !name.contains(char::is_control);
        if is_name { Ok(name) } else { Err(Refused::bad(format!("{key}: it is no name"))) }
    }

    pub(super) fn number(&mut self, key: &str) -> Result<Option<i64>, Refused> {
        self.take(key)
            .map(|value| value.as_i64().ok_or_else(|| Refused::bad(format!("{key}: it is a whole number"))))
            .transpose()
    }

    pub(super) fn count(&mut self, key: &str) -> Result<Option<u32>, Refused> {
        self.number(key)?
            .map(|number| {
                u32::try_from(number).map_err(|_| Refused::bad(format!("{key}: it is a number from 0 on")))
            })
            .transpose()
    }

    /// A number of bytes or of an event; 0 if it is not given.
    pub(super) fn position(&mut self, key: &str) -> Result<u64, Refused> {
        let from_zero = |number| {
            u64::try_from(number).map_err(|_| Refused::bad(format!("{key}: it is a number from 0 on")))
        };
        self.number(key)?.map_or(Ok(0), from_zero)
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, Refused> {
        self.take(key)
            .map(|value| value.as_bool().ok_or_else(|| Refused::bad(format!("{key}: it is true or false"))))
            .transpose()
    }

    pub(super) fn texts(&mut self, key: &str) -> Result<Vec<String>, Refused> {
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let texts =
            value.as_array().map(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect());
        texts.flatten().ok_or_else(|| Refused::bad(format!("{key}: it is a list of texts")))
    }

    pub(super) fn job(&mut self) -> Result<JobId, Refused> {
        self.number("id")?.map(JobId).ok_or_else(|| Refused::bad("id: it is missing"))
    }

    pub(super) fn time(&mut self, key: &str) -> Result<Option<Time>, Refused> {
        let parse = |text: String| {
            let time: Result<jiff::Timestamp, _> = text.parse();
            time.map(|time| Time(time.as_millisecond()))
                .map_err(|_| Refused::bad(format!("{key}: it is a time such as 2026-01-31T12:00:00Z")))
        };
        self.text(key)?.map(parse).transpose()
    }

    pub(super) fn end(self) -> Result<(), Refused> {
        let unknown = self.left.keys().next();
        unknown.map_or(Ok(()), |key| Err(Refused::bad(format!("{} takes no `{key}`", self.op))))
    }
}
