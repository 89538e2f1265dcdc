//! YAML as it was written: values with their lines.
//!
//! Owns the notation of all files that people write for a node: YAML 1.1 scalars as go-yaml reads them (`0660` is octal,
//! `yes` is true), a budget for what a hostile file may cost, and the hint at the name that was probably meant. It refuses
//! to know what any of them means.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{DefaultMessageFormatter, Localizer, MessageFormatter, Spanned};

/// How deep lists and maps may be nested. No directive needs half of this. Each level costs an unoptimised program
/// some 40 KB of stack, and a thread that reloads has 2 MiB.
const DEEPEST: usize = 24;

/// A value and where it was written.
#[derive(Debug, Clone)]
pub struct Located {
    /// The line of the file, or the argument of the command line.
    pub(crate) position: u64,
    pub(crate) value: Value,
}

/// A value as written.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Located>),
    /// Entries in the order of the file, as written: a key may be no text, or be there twice.
    Map(Vec<(Located, Located)>),
}

/// What is wrong with a text, and in which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct YamlFault {
    /// Counted from 1; 0 is the text as a whole.
    pub line: u64,
    /// For people.
    pub text: String,
}

/// Reads a text.
///
/// # Errors
/// It is not valid YAML, or too much.
pub(crate) fn parse(text: &str) -> Result<Located, YamlFault> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        // With this policy both equal keys reach the visitor, so that the reader can warn.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: DEEPEST },
    };
    serde_saphyr::from_str_with_options::<Located>(text, options).map_err(|error| YamlFault {
        line: error.location().map_or(0, |location| location.line()),
        text: format!("not valid YAML: {}", error.render_with_formatter(&WithoutLocation)),
    })
}

/// The parser's messages without the position, because the reader adds the location itself.
struct WithoutLocation;

impl Localizer for WithoutLocation {
    fn attach_location<'a>(&self, text: Cow<'a, str>, _: serde_saphyr::Location) -> Cow<'a, str> {
        text
    }
}

impl MessageFormatter for WithoutLocation {
    fn localizer(&self) -> &dyn Localizer {
        self
    }

    fn format_message<'a>(&self, error: &'a serde_saphyr::Error) -> Cow<'a, str> {
        match error {
            serde_saphyr::Error::MultipleDocuments { .. } => {
                "it holds more than one YAML document: remove the `---` between them".into()
            }
            other => DefaultMessageFormatter.format_message(other),
        }
    }
}

impl Located {
    pub(crate) fn text(position: u64, text: impl Into<String>) -> Self {
        Self { position, value: Value::Text(text.into()) }
    }

    /// The value as an error message shows it.
    pub(crate) fn show(&self) -> String {
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

    /// The text of a key, or of a value shaped as text.
    pub(crate) fn name(&self) -> &str {
        if let Value::Text(text) = &self.value { text } else { "" }
    }

    /// The name that a key is.
    ///
    /// # Errors
    /// It is no name, and what to do about it.
    pub(crate) fn key(&self) -> Result<String, String> {
        Err(match &self.value {
            Value::Text(name) => return Ok(name.clone()),
            Value::Int(number) => return Ok(number.to_string()),
            Value::Flag(_) => {
                "a name reads as true or false, as y, n, yes, no, on and off do in YAML: quote it".to_owned()
            }
            Value::Null | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                format!("a name must be text, not {}", self.show())
            }
        })
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// The entries of a map.
    pub(crate) fn entries(&self) -> &[(Self, Self)] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The value without lines. A key that is no text is left empty: see [`Self::check`].
    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Flag(flag) => Json::from(*flag),
            Value::Int(number) => Json::from(*number),
            Value::Float(number) => Json::from(*number),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(map) => {
                let entry = |(key, value): &(Self, Self)| (key.key().unwrap_or_default(), value.to_json());
                map.iter().map(entry).collect()
            }
        }
    }

    /// The object that a text is, without lines.
    ///
    /// # Errors
    /// It is something else, a key is no name, or a key is there twice.
    pub(crate) fn to_object(&self) -> Result<Map<String, Json>, YamlFault> {
        self.check()?;
        match self.to_json() {
            Json::Object(map) => Ok(map),
            Json::Null => Ok(Map::new()),
            _ => {
                Err(YamlFault { line: self.position, text: format!("it must be a map, not {}", self.show()) })
            }
        }
    }

    fn check(&self) -> Result<(), YamlFault> {
        self.items().iter().try_for_each(Self::check)?;
        let mut known = BTreeSet::new();
        for (key, value) in self.entries() {
            let fault = |text| YamlFault { line: key.position, text };
            let name = key.key().map_err(fault)?;
            let twice = format!("`{}` is given more than once", shown(&name));
            if !known.insert(name) {
                return Err(fault(twice));
            }
            value.check()?;
        }
        Ok(())
    }

    /// The line of what a path names, as in `vars.colour.choices[1]`, or else of what comes closest above it.
    pub(crate) fn line_of(&self, path: &str) -> u64 {
        let (mut here, mut line) = (self, self.position);
        for part in path.split(['.', '[']).map(|part| part.trim_end_matches(']')) {
            let entry = here.entries().iter().find(|(key, _)| key.key().is_ok_and(|key| key == part));
            let item = || part.parse().ok().and_then(|at: usize| here.items().get(at));
            (here, line) = match entry.map(|(key, value)| (value, key.position)) {
                Some(found) => found,
                None => match item() {
                    Some(item) => (item, item.position),
                    None => break,
                },
            };
        }
        line
    }
}

/// A text as an error message shows it: quoted, escaped and shortened.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}

/// A name as a message shows it: shortened, and without control characters.
pub(crate) fn shown(name: &str) -> String {
    const SHOWN: usize = 80;
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    name.chars().take(SHOWN).map(escaped).collect()
}

/// The known name closest to the given one, if it is close enough to be a typing error.
pub(crate) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    // Names are short. A long text is no typing error, and the distance takes quadratic time.
    if given.len() > 64 {
        return None;
    }
    let given = given.to_lowercase().replace('_', "-");
    let allowed = (given.chars().count() / 3).clamp(1, 3);
    let near = known.iter().map(|name| (strsim::osa_distance(&given, &name.replace('_', "-")), *name));
    near.filter(|(distance, _)| *distance <= allowed).min().map(|(_, name)| name)
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { position: node.referenced.line(), value: node.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_its_line() {
        let text = "a: 1\nvars:\n  colour:\n    choices:\n    - red\n    - 5\nb: {c: 1}\n";
        let found = parse(text).unwrap();
        for (path, line) in [
            ("a", 1),
            ("vars", 2),
            ("vars.colour", 3),
            ("vars.colour.choices[1]", 6),
            ("vars.colour.pattern", 3),
            ("b.c", 7),
            (".", 1),
            ("none", 1),
        ] {
            assert_eq!(found.line_of(path), line, "{path}");
        }
    }

    #[test]
    fn an_object_has_names_once() {
        let fault = |text: &str| parse(text).unwrap().to_object().unwrap_err();
        assert_eq!(fault("a: 1\nb: {c: 1,\n  c: 2}\n").line, 3);
        assert_eq!(fault("a: 1\nb:\n- yes: 1\n").line, 3);
        assert_eq!(fault("- a\n").text, "it must be a map, not a list");
        let whole = parse("a: {1: x}\nb: [yes, 0660, 1.5]\n").unwrap().to_object().unwrap();
        assert_eq!(Json::from(whole), serde_json::json!({"a": {"1": "x"}, "b": [true, 432, 1.5]}));
        assert_eq!(parse("# nothing\n").unwrap().to_object().unwrap(), Map::new());
    }

    #[test]
    fn a_typing_error_is_near_and_another_word_is_not() {
        let known = ["limit", "skip_tags", "extra_vars"];
        assert_eq!(nearest("limits", &known), Some("limit"));
        assert_eq!(nearest("skip-tags", &known), Some("skip_tags"));
        assert_eq!(nearest("colour", &known), None);
    }
}
