//! Values as they were written, and their conversion to the kinds of the schema.
//!
//! Owns the tree that both the YAML reader and the command line fill, and the rules of conversion: text is
//! taken for numbers and booleans, numbers and booleans for text, JSON text for lists and maps. It refuses to
//! know which values a parameter allows beyond its kind.

use super::error::{invalid, wrong_type};
use super::schema::Kind;

/// A value and where it was written.
#[derive(Debug, Clone)]
pub struct Located {
    /// The line of the file, or the argument of the command line.
    pub(super) position: u64,
    pub(super) value: Value,
}

/// A value as written.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Located>),
    /// In the order of the file. Once a file is read, keys are texts and unique.
    Map(Vec<(Located, Located)>),
}

impl Located {
    pub(super) fn text(position: u64, text: impl Into<String>) -> Self {
        Self { position, value: Value::Text(text.into()) }
    }

    /// The value as an error message shows it.
    pub(super) fn show(&self) -> String {
        match &self.value {
            Value::Null => "an empty value".to_owned(),
            Value::Flag(flag) => flag.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Text(text) => quoted(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    /// The text of a key, or of a value shaped as one.
    pub(super) fn name(&self) -> &str {
        if let Value::Text(text) = &self.value { text } else { "" }
    }

    pub(super) fn is_true(&self) -> bool {
        matches!(self.value, Value::Flag(true))
    }

    /// The items of a list.
    pub(super) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> &[(Self, Self)] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The same value in the shape of a kind: texts as numbers and booleans, these as texts, JSON text as what it
    /// stands for.
    pub(super) fn shaped(self, kind: Kind) -> Result<Self, String> {
        let given = self.unpacked(kind)?;
        let value = match (kind, &given.value) {
            (Kind::Text, _) => given.as_text().map(Value::Text),
            (Kind::Int, _) => given.as_int().map(Value::Int),
            (Kind::Float, _) => given.as_float().map(Value::Float),
            (Kind::Flag, _) => given.as_flag().map(Value::Flag),
            (Kind::TextList | Kind::FirewallRules, Value::Null) => Some(Value::List(Vec::new())),
            (Kind::NodeCosts | Kind::FreeMap, Value::Null) => Some(Value::Map(Vec::new())),
            (Kind::TextList, Value::List(items)) => {
                let texts = items.iter().map(|item| item.clone().shaped(Kind::Text));
                Some(Value::List(texts.collect::<Result<_, _>>()?))
            }
            (Kind::TextList, _) => {
                let text = given.as_text();
                text.map(|text| Value::List(vec![Self::text(given.position, text)]))
            }
            (Kind::NodeCosts, Value::Map(entries)) => {
                let cost =
                    |(node, cost): &(Self, Self)| Ok((node.clone(), cost.clone().shaped(Kind::Float)?));
                Some(Value::Map(entries.iter().map(cost).collect::<Result<_, String>>()?))
            }
            (Kind::FirewallRules, Value::List(_)) | (Kind::FreeMap, Value::Map(_)) => return Ok(given),
            (Kind::NodeCosts | Kind::FirewallRules | Kind::FreeMap, _) => None,
        };
        let wrong = || wrong_type(&given.show(), kind.wanted());
        Ok(Self { value: value.ok_or_else(wrong)?, ..given })
    }

    /// Adds a repeated list or map to this one, if its kind grows by repetition. False if the new one replaces it.
    pub(super) fn grow(&mut self, kind: Kind, more: &Self) -> bool {
        match (kind, &mut self.value) {
            (Kind::TextList | Kind::FirewallRules, Value::List(list)) => {
                list.extend_from_slice(more.items());
                true
            }
            (Kind::NodeCosts, Value::Map(map)) => {
                map.retain(|(key, _)| more.entries().iter().all(|(other, _)| other.name() != key.name()));
                map.extend_from_slice(more.entries());
                true
            }
            _ => false,
        }
    }

    /// True for what says no more than leaving the parameter out.
    pub(super) fn is_blank(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Text(text) => text.is_empty(),
            Value::Flag(flag) => !flag,
            Value::List(list) => list.is_empty(),
            Value::Map(map) => map.is_empty(),
            Value::Int(_) | Value::Float(_) => false,
        }
    }

    /// True for a text without characters.
    pub(super) fn is_empty_text(&self) -> bool {
        matches!(&self.value, Value::Text(text) if text.is_empty())
    }

    /// The value as text, if it is a single one. A fraction prints as Go prints it.
    pub(super) fn as_text(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) => Some(text.clone()),
            Value::Int(number) => Some(number.to_string()),
            Value::Float(number) => Some(format!("{number:.6}")),
            Value::Flag(flag) => Some(flag.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    fn as_int(&self) -> Option<i64> {
        /// Below this every whole float is exact.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match &self.value {
            Value::Int(number) => Some(*number),
            // YAML reads `08` as the float 8, because it is no octal number.
            Value::Float(number) if number.fract() == 0.0 && number.abs() <= EXACT => Some(*number as i64),
            Value::Text(text) => parse_int(text),
            Value::Float(_) | Value::Null | Value::Flag(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    fn as_float(&self) -> Option<f64> {
        match &self.value {
            Value::Float(number) => Some(*number),
            Value::Int(number) => Some(*number as f64),
            Value::Text(text) => text.parse().ok(),
            Value::Null | Value::Flag(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    fn as_flag(&self) -> Option<bool> {
        match &self.value {
            Value::Flag(flag) => Some(*flag),
            Value::Int(0) => Some(false),
            Value::Int(1) => Some(true),
            Value::Text(text) => parse_flag(text),
            Value::Int(_) | Value::Float(_) | Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The tree in JSON text that begins with the bracket of the kind; other values as they are.
    fn unpacked(self, kind: Kind) -> Result<Self, String> {
        let bracket = match kind {
            Kind::TextList | Kind::FirewallRules => '[',
            Kind::NodeCosts | Kind::FreeMap => '{',
            Kind::Text | Kind::Int | Kind::Float | Kind::Flag => return Ok(self),
        };
        match &self.value {
            Value::Text(text) if text.starts_with(bracket) => {
                let json = serde_json::from_str(text)
                    .map_err(|error| invalid(&quoted(text), &format!("not valid JSON: {error}")))?;
                Ok(Self::from_json(self.position, json))
            }
            _ => Ok(self),
        }
    }

    fn from_json(position: u64, json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let nested = |json| Self::from_json(position, json);
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Flag(flag),
            Json::Number(number) => match number.as_i64() {
                Some(number) => Value::Int(number),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(text),
            Json::Array(items) => Value::List(items.into_iter().map(nested).collect()),
            Json::Object(map) => {
                let entry = |(key, value)| (Self::text(position, key), nested(value));
                Value::Map(map.into_iter().map(entry).collect())
            }
        };
        Self { position, value }
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Flag(flag) => Json::from(*flag),
            Value::Int(number) => Json::from(*number),
            Value::Float(number) => Json::from(*number),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(map) => {
                map.iter().map(|(key, value)| (key.name().to_owned(), value.to_json())).collect()
            }
        }
    }
}

/// A text as an error message shows it: quoted, escaped and not endless.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}

/// Reads a whole number in Go's notation: `0x`, `0b`, `0o` or a leading `0` choose the base, `_` separates.
fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = if let Some(hex) = lower.strip_prefix("0x") {
        (16, hex)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal)
    } else if let Some(octal) = lower.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        (8, octal)
    } else {
        (10, lower.as_str())
    };
    // The standard library would take a second sign.
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) || digits.ends_with('_') {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    i64::try_from(if negative { -number } else { number }).ok()
}

fn parse_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "y" | "true" | "yes" | "on" => Some(true),
        "0" | "f" | "n" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_as_go_reads_them() {
        for (text, number) in [
            ("0", 0),
            ("8", 8),
            ("0660", 0o660),
            ("0o660", 0o660),
            ("0x1F", 31),
            ("0b11", 3),
            ("1_000", 1000),
            ("-0660", -0o660),
            ("+7", 7),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_int(text), Some(number), "{text}");
        }
        for bad in ["", "-", "08", "0x", "--1", "0x-1", "1_", "_1", "a", "1.0", " 1", "9223372036854775808"] {
            assert_eq!(parse_int(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn booleans_in_the_usual_cases() {
        for yes in ["true", "True", "TRUE", "t", "T", "yes", "Yes", "Y", "y", "1", "on"] {
            assert_eq!(parse_flag(yes), Some(true), "{yes}");
        }
        for no in ["false", "False", "FALSE", "f", "F", "no", "No", "N", "n", "0", "off"] {
            assert_eq!(parse_flag(no), Some(false), "{no}");
        }
        assert_eq!(parse_flag("2"), None);
        assert_eq!(parse_flag(""), None);
    }
}
