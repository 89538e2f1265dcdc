//! Reads the keys of one JSON object, each once, and refuses what is left. Every error has the key's path.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::controller::refusal::HeaderFault;
use crate::duration;

/// The keys of an object that are not read yet.
pub(super) struct Fields {
    path: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
}

/// One value, with its path.
pub(super) struct Field {
    pub path: String,
    pub value: Value,
}

type Read<T> = Result<T, HeaderFault>;

impl Fields {
    /// The header itself.
    ///
    /// # Errors
    /// It is no object.
    pub(super) fn of_header(value: Value) -> Read<Self> {
        match value {
            Value::Object(left) => Ok(Self { path: String::new(), left, known: Vec::new() }),
            _ => Err(HeaderFault::NotAnObject),
        }
    }

    /// Takes a key, if it is given.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Field> {
        self.known.push(key);
        let value = self.left.remove(key)?;
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Some(Field { path, value })
    }

    /// Takes a key for which `null` is the same as none.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<Field> {
        self.take(key).filter(|field| !field.value.is_null())
    }

    /// Refuses the keys that nobody took.
    ///
    /// # Errors
    /// [`HeaderFault::UnknownKey`] for the first.
    pub(super) fn end(self) -> Read<()> {
        let Some(key) = self.left.keys().next() else { return Ok(()) };
        let shown: String = key.chars().take(64).flat_map(char::escape_debug).collect();
        let path = if self.path.is_empty() { shown } else { format!("{}.{shown}", self.path) };
        Err(HeaderFault::UnknownKey { path, known: self.known.join(", ") })
    }
}

impl Field {
    pub(super) fn refuse<T>(&self, wanted: impl Into<String>) -> Read<T> {
        Err(HeaderFault::Value { path: self.path.clone(), wanted: wanted.into() })
    }

    pub(super) fn fields(self) -> Read<Fields> {
        match self.value {
            Value::Object(left) => Ok(Fields { path: self.path, left, known: Vec::new() }),
            _ => self.refuse("it is an object"),
        }
    }

    pub(super) fn flag(self) -> Read<bool> {
        self.value.as_bool().map_or_else(|| self.refuse("it is true or false"), Ok)
    }

    /// A whole number between two others.
    pub(super) fn int<T: TryFrom<i64>>(self, least: i64, most: i64) -> Read<T> {
        let number = self.value.as_i64().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.map_or_else(|| self.refuse(format!("it is a whole number from {least} to {most}")), Ok)
    }

    /// A text for people and tables: not empty, not too long, without control characters.
    pub(super) fn text(self, longest: usize) -> Read<String> {
        match self.value {
            Value::String(text) if is_plain(&text, longest) => Ok(text),
            _ => self.refuse(plain_rule(longest)),
        }
    }

    /// A duration above zero.
    pub(super) fn duration(self) -> Read<Duration> {
        let parsed = self.value.as_str().and_then(|text| duration::parse(text).ok());
        parsed
            .filter(|duration| !duration.is_zero())
            .map_or_else(|| self.refuse("it is a duration above zero, as in 1.5h, 30m or 30m10s"), Ok)
    }

    /// A text of another type.
    pub(super) fn parsed<T, E: std::fmt::Display>(self, parse: impl Fn(&str) -> Result<T, E>) -> Read<T> {
        match self.value.as_str().map(parse) {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => self.refuse(error.to_string()),
            None => self.refuse("it is a text"),
        }
    }

    /// One of several names.
    pub(super) fn choice<T: Copy>(self, all: &[T], name: impl Fn(T) -> &'static str) -> Read<T> {
        let found = self.value.as_str().and_then(|text| all.iter().find(|value| name(**value) == text));
        found.copied().map_or_else(
            || {
                let names: Vec<_> = all.iter().map(|value| name(*value)).collect();
                self.refuse(format!("it is one of {}", names.join(", ")))
            },
            Ok,
        )
    }

    /// A list of a bounded length.
    pub(super) fn list<T>(self, most: usize, read: impl Fn(Self) -> Read<T>) -> Read<Vec<T>> {
        match self.value {
            Value::Array(items) if items.len() <= most => {
                let field = |(at, value)| Self { path: format!("{}[{at}]", self.path), value };
                items.into_iter().enumerate().map(field).map(read).collect()
            }
            _ => self.refuse(format!("it is a list of at most {most}")),
        }
    }
}

pub(super) fn is_plain(text: &str, longest: usize) -> bool {
    !text.is_empty() && text.chars().count() <= longest && !text.contains(char::is_control)
}

pub(super) fn plain_rule(longest: usize) -> String {
    format!("it is a text of 1 to {longest} characters without control characters")
}
