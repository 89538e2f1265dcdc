//! Variables that may be given at the start of a saved job: their rules, and whether a given value fits them. Messages
//! name variables and rules and never show a value, which may be a secret.

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rpc::report::saved::VarKind;
use crate::yaml;

/// The largest compiled expression.
const LARGEST_PATTERN: usize = 256 << 10;
/// The most compiled expressions that are kept.
const MOST_PATTERNS: usize = 8;

/// The expressions that were used last. Files of one directory often have the same ones, and to compile one takes a tenth of
/// the time that it takes to read a whole file.
#[derive(Debug, Default)]
pub(super) struct Patterns(BTreeMap<String, Regex>);

impl Patterns {
    /// Whether a pattern matches the whole of a text.
    fn fits(&mut self, pattern: &str, text: &str) -> Result<bool, regex::Error> {
        if let Some(known) = self.0.get(pattern) {
            return Ok(known.is_match(text));
        }
        let compiled = RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(LARGEST_PATTERN).build()?;
        let fits = compiled.is_match(text);
        if self.0.len() == MOST_PATTERNS {
            self.0.clear();
        }
        self.0.insert(pattern.to_owned(), compiled);
        Ok(fits)
    }
}

/// A variable that may be given at the start.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a map, such as {type: int, default: 5}")]
pub(crate) struct SavedVar {
    /// For people.
    pub description: Option<String>,
    /// What its value is.
    #[serde(rename = "type")]
    pub kind: VarKind,
    /// Its value if none is given. Without one it must be given.
    pub default: Option<Value>,
    /// The values that it may have, if not any.
    pub choices: Vec<Value>,
    /// An expression that the whole text matches.
    pub pattern: Option<String>,
    /// It is asked for without showing it, and never kept outside the job's payload.
    pub secret: bool,
}

impl SavedVar {
    /// The key whose value contradicts the others, and why, if one does.
    pub(super) fn fault(&self, patterns: &mut Patterns) -> Option<(&'static str, String)> {
        if let Some(pattern) = &self.pattern {
            if self.kind != VarKind::Text {
                return Some(("pattern", format!("it is for texts, and this is of type {}", self.kind)));
            }
            // It is compiled when a value comes: for 10,000 files that would take as long as all else.
            if regex_syntax::parse(pattern).is_err() {
                return Some(("pattern", "it is not a regular expression".to_owned()));
            }
        }
        if self.secret && self.default.is_some() {
            return Some(("default", "a secret has none: whoever starts the job gives it".to_owned()));
        }
        if let Some(at) = self.choices.iter().position(|choice| self.shaped(choice).as_ref() != Some(choice))
        {
            return Some(("choices", format!("number {} is not {}", at + 1, self.wanted())));
        }
        let default = self.default.as_ref()?;
        match self.shaped(default).is_some_and(|shaped| shaped == *default) {
            true => self.read(default, patterns).err().map(|why| ("default", why)),
            false => Some(("default", format!("it is not {}", self.wanted()))),
        }
    }

    /// The kind as a message names it to whoever writes the file, where `1.10`, `yes` and `y` are no texts.
    const fn wanted(&self) -> &'static str {
        match self.kind {
            VarKind::Text => "a text: put it in quotes",
            VarKind::Int | VarKind::Number | VarKind::Flag | VarKind::Json => wanted(self.kind),
        }
    }

    /// The value that is meant by a given one.
    ///
    /// # Errors
    /// The rule that it breaks.
    fn read(&self, given: &Value, patterns: &mut Patterns) -> Result<Value, String> {
        let value = self.shaped(given).ok_or_else(|| format!("it is not {}", wanted(self.kind)))?;
        if !self.choices.is_empty() && !self.choices.contains(&value) {
            let choices: Vec<String> = self.choices.iter().map(plain).collect();
            return Err(match self.secret {
                true => "it is none of its choices".to_owned(),
                false => format!("it must be one of {}", choices.join(", ")),
            });
        }
        if let (Some(pattern), Value::String(text)) = (&self.pattern, &value) {
            let fits = patterns.fits(pattern, text).map_err(|_| "its pattern is too large".to_owned())?;
            if !fits {
                return Err(format!("it does not match {pattern}"));
            }
        }
        Ok(value)
    }

    /// The value in the shape of the type: a text may stand for any.
    fn shaped(&self, given: &Value) -> Option<Value> {
        let text = given.as_str();
        match self.kind {
            VarKind::Text => match given {
                Value::String(_) => Some(given.clone()),
                Value::Number(_) | Value::Bool(_) => Some(plain(given).into()),
                Value::Null | Value::Array(_) | Value::Object(_) => None,
            },
            VarKind::Int => {
                let number = given.as_i64().or_else(|| text?.trim().parse().ok())?;
                Some(number.into())
            }
            VarKind::Number if given.is_number() => Some(given.clone()),
            VarKind::Number => serde_json::Number::from_f64(text?.trim().parse().ok()?).map(Value::Number),
            VarKind::Flag if given.is_boolean() => Some(given.clone()),
            VarKind::Flag => match text?.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" => Some(true.into()),
                "false" | "no" | "off" => Some(false.into()),
                _ => None,
            },
            VarKind::Json => match text {
                Some(text) => serde_json::from_str(text).ok(),
                None => Some(given.clone()),
            },
        }
    }
}

/// The kind as a message names it to whoever gives a value.
const fn wanted(kind: VarKind) -> &'static str {
    match kind {
        VarKind::Text => "a text",
        VarKind::Int => "a whole number",
        VarKind::Number => "a number",
        VarKind::Flag => "true or false",
        VarKind::Json => "valid JSON",
    }
}

/// The variables with which a job starts: those that are given, and the defaults of the others.
///
/// # Errors
/// One that there is not, some that are missing, or one that does not fit its rule.
pub(super) fn settle(
    vars: &BTreeMap<String, SavedVar>,
    mut given: Map<String, Value>,
    patterns: &mut Patterns,
) -> Result<Map<String, Value>, String> {
    let mut settled = Map::new();
    let mut missing = Vec::new();
    for (name, var) in vars {
        let value = match (given.remove(name), &var.default) {
            (Some(value), _) => var.read(&value, patterns).map_err(|why| format!("{name}: {why}"))?,
            // Defaults fit their rules, or their file has a fault.
            (None, Some(default)) => default.clone(),
            (None, None) => {
                missing.push(name.as_str());
                continue;
            }
        };
        settled.insert(name.clone(), value);
    }
    if let Some(other) = given.keys().next() {
        let known: Vec<&str> = vars.keys().map(String::as_str).collect();
        let hint = match yaml::nearest(other, &known) {
            Some(name) => format!("did you mean {name}?"),
            None if known.is_empty() => "none may be given".to_owned(),
            None => format!("there are {}", known.join(", ")),
        };
        return Err(format!("there is no variable {}: {hint}", yaml::shown(other)));
    }
    if missing.is_empty() { Ok(settled) } else { Err(format!("missing: {}", missing.join(", "))) }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
