//! The conversion of values as they were written to the kinds of the schema.
//!
//! Owns the rules of conversion: text can become numbers and booleans, these can become text, and JSON text can become
//! lists and maps. The YAML reader and the command line fill the same tree. It refuses to know which values a parameter
//! allows beyond its kind.

use super::error::{invalid, wrong_type};
use super::schema::ValueKind;
pub(super) use crate::yaml::{Located, Value, quoted};

impl Located {
    pub(super) fn is_true(&self) -> bool {
        matches!(self.value, Value::Flag(true))
    }

    /// Converts the value to a kind: texts to numbers and booleans, these to texts, and JSON text to the lists or
    /// maps that it stands for.
    pub(super) fn shaped(self, kind: ValueKind) -> Result<Self, String> {
        let given = self.unpacked(kind)?;
        let value = match (kind, &given.value) {
            (ValueKind::Text, _) => given.as_text().map(Value::Text),
            (ValueKind::Int, _) => given.as_int().map(Value::Int),
            (ValueKind::Float, _) => given.as_float().map(Value::Float),
            (ValueKind::Flag, _) => given.as_flag().map(Value::Flag),
            (ValueKind::TextList | ValueKind::FirewallRules, Value::Null) => Some(Value::List(Vec::new())),
            (ValueKind::NodeCosts | ValueKind::FreeMap, Value::Null) => Some(Value::Map(Vec::new())),
            (ValueKind::TextList, Value::List(items)) => {
                let texts = items.iter().map(|item| item.clone().shaped(ValueKind::Text));
                Some(Value::List(texts.collect::<Result<_, _>>()?))
            }
            (ValueKind::TextList, _) => {
                let text = given.as_text();
                text.map(|text| Value::List(vec![Self::text(given.position, text)]))
            }
            (ValueKind::NodeCosts, Value::Map(entries)) => {
                let cost =
                    |(node, cost): &(Self, Self)| Ok((node.clone(), cost.clone().shaped(ValueKind::Float)?));
                Some(Value::Map(entries.iter().map(cost).collect::<Result<_, String>>()?))
            }
            (ValueKind::FirewallRules, Value::List(_)) | (ValueKind::FreeMap, Value::Map(_)) => {
                return Ok(given);
            }
            (ValueKind::NodeCosts | ValueKind::FirewallRules | ValueKind::FreeMap, _) => None,
        };
        let wrong = || wrong_type(&given.show(), kind.wanted());
        Ok(Self { value: value.ok_or_else(wrong)?, ..given })
    }

    /// Adds a repeated list or map to this one, if its kind grows by repetition. False if the new one replaces it.
    pub(super) fn grow(&mut self, kind: ValueKind, more: &Self) -> bool {
        match (kind, &mut self.value) {
            (ValueKind::TextList | ValueKind::FirewallRules, Value::List(list)) => {
                list.extend_from_slice(more.items());
                true
            }
            (ValueKind::NodeCosts, Value::Map(map)) => {
                map.retain(|(key, _)| more.entries().iter().all(|(other, _)| other.name() != key.name()));
                map.extend_from_slice(more.entries());
                true
            }
            _ => false,
        }
    }

    /// True if the value means the same as leaving the parameter out.
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

    /// The value as text, unless it is a list, a map or nothing. A fraction prints as Go prints it.
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
        /// Up to this size every whole float is exact.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match &self.value {
            Value::Int(number) => Some(*number),
            // YAML reads `08` as the float 8, because it is not an octal number.
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

    /// Parses JSON text that begins with the bracket of the kind; other values stay as they are.
    fn unpacked(self, kind: ValueKind) -> Result<Self, String> {
        let bracket = match kind {
            ValueKind::TextList | ValueKind::FirewallRules => '[',
            ValueKind::NodeCosts | ValueKind::FreeMap => '{',
            ValueKind::Text | ValueKind::Int | ValueKind::Float | ValueKind::Flag => return Ok(self),
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
    // The standard library would accept a second sign.
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
