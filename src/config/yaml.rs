//! Reads a YAML file into directives.
//!
//! Owns the notation: YAML 1.1 scalars as go-yaml reads them, locations, duplicate keys (the last one counts, with a
//! warning), and the two forms of a file. In version 1 it is a list of directives; in version 2 a map, where a kind of
//! directive that may occur many times stands under its plural name with a list, any other under its own. The reader's
//! budget bounds what a hostile file can cost. It refuses to know what a directive means.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{DefaultMessageFormatter, Localizer, MessageFormatter, Spanned};

use super::error::{Report, Source, shown};
use super::item::Item;
use super::schema::Directive;
use super::value::{Located, Value};

/// How deep lists and maps may be nested. No directive needs half of it, and each level costs an unoptimised program some 40 KB
/// of a stack that has 2 MiB on a thread that reloads.
const DEEPEST: usize = 24;

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) items: Vec<Item>,
    /// True if it is in version 2.
    pub(super) version2: bool,
}

/// Reads the text of a file; errors and warnings go to the report.
pub(super) fn read(path: &Path, text: &str, report: &mut Report) -> Document {
    let mut reader = Reader { source: Source::File(Arc::from(path)), items: Vec::new(), report };
    if let Some((line, language)) = other_language(text) {
        reader.error(
            line,
            format!(
                "this is {language}: a configuration is YAML, a list of directives such as `- node: {{id: foo}}`; \
                 docs/configuration.md has them all"
            ),
        );
        return Document::default();
    }
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        // Both of two equal keys reach the visitor, so that the reader can warn.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: DEEPEST },
    };
    match serde_saphyr::from_str_with_options::<Located>(text, options) {
        Ok(mut root) => {
            reader.check_keys(&mut root);
            let version2 = reader.document(root);
            Document { items: reader.items, version2 }
        }
        Err(error) => {
            let line = error.location().map_or(0, |location| location.line());
            reader.error(line, format!("not valid YAML: {}", error.render_with_formatter(&WithoutLocation)));
            Document::default()
        }
    }
}

/// The first line of a file in another language that is no comment, and the language.
fn other_language(text: &str) -> Option<(u64, &'static str)> {
    let mut lines = text.lines().map(str::trim).zip(1..);
    let (line, number) = lines.find(|(line, _)| !line.is_empty() && !line.starts_with(['#', ';']))?;
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || " _-.".contains(c));
    let section = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let setting = line.split_once('=').map(|(key, _)| key);
    if section.is_some_and(|name| is_word(name) && text.contains('=')) || setting.is_some_and(is_word) {
        return Some((number, "INI or TOML, such as receptor had before 1.0, in Python"));
    }
    line.starts_with('<').then_some((number, "XML or HTML"))
}

/// The parser's words without the position, which the report gives itself.
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

/// The key that only version 2 has.
const VERSION: &str = "version";

struct Reader<'a> {
    source: Source,
    items: Vec<Item>,
    report: &'a mut Report,
}

impl Reader<'_> {
    fn error(&mut self, line: u64, fault: impl Into<String>) {
        self.report.error(self.source.at(line), fault);
    }

    /// Leaves the last of equal keys, and only those that are names.
    fn check_keys(&mut self, node: &mut Located) {
        if let Value::List(items) = &mut node.value {
            items.iter_mut().for_each(|item| self.check_keys(item));
        }
        let Value::Map(entries) = &mut node.value else { return };
        let mut known = BTreeMap::new();
        for (key, mut value) in std::mem::take(entries) {
            let Some(name) = self.key(&key) else { continue };
            self.check_keys(&mut value);
            // A value's own line may be that of an anchor; the key's is where a person looks.
            value.position = key.position;
            let entry = (Located::text(key.position, name.clone()), value);
            if let Some(&index) = known.get(&name) {
                let text = format!("`{}` is given more than once, the last one counts", shown(&name));
                self.report.warn(self.source.at(key.position), text);
                entries[index] = entry;
            } else {
                known.insert(name, entries.len());
                entries.push(entry);
            }
        }
    }

    fn key(&mut self, key: &Located) -> Option<String> {
        let fault = match &key.value {
            Value::Text(name) => return Some(name.clone()),
            Value::Int(number) => return Some(number.to_string()),
            Value::Flag(_) => {
                "a name reads as true or false, as y, n, yes, no, on and off do in YAML: quote it".to_owned()
            }
            Value::Null | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                format!("a name must be text, not {}", key.show())
            }
        };
        self.error(key.position, fault);
        None
    }

    /// A list, or a map with a version; an empty file is an empty list. True if it is in version 2.
    fn document(&mut self, root: Located) -> bool {
        match root.value {
            Value::List(items) => items.into_iter().for_each(|item| self.item(item)),
            Value::Null => {}
            Value::Map(map) if map.iter().any(|(key, _)| key.name().eq_ignore_ascii_case(VERSION)) => {
                map.into_iter().for_each(|(key, value)| self.entry(key.name(), value));
                return true;
            }
            Value::Map(_) => self.error(
                root.position,
                "a map is a configuration if it has `version: 2`: without, it is a list of directives, such as `- node: foo`",
            ),
            Value::Text(_) | Value::Int(_) | Value::Float(_) | Value::Flag(_) => {
                self.error(root.position, "a configuration is a list of directives, such as `- node: foo`");
            }
        }
        false
    }

    /// One item of version 1: a name, or a map of one name to its parameters.
    fn item(&mut self, item: Located) {
        let fault = match &item.value {
            Value::Text(name) => {
                self.report.bare_words.push((self.source.at(item.position), name.clone()));
                return self.directive(name, item.position, None);
            }
            Value::Map(map) => match map.as_slice() {
                [(name, Located { value: Value::List(_), position })] => {
                    return self.not_parameters(name.name(), *position, ", such as `{name: value}`");
                }
                [(name, given)] => {
                    return self.directive(name.name(), item.position, Some(given));
                }
                [] => "an item is empty".to_owned(),
                map => {
                    let names: Vec<_> = map.iter().take(4).map(|(name, _)| shown(name.name())).collect();
                    format!("an item holds one directive, this one holds {}: {}", map.len(), names.join(", "))
                }
            },
            Value::Null => "an item is empty".to_owned(),
            Value::List(_) => "an item is a directive, this one is a list".to_owned(),
            Value::Int(_) | Value::Float(_) | Value::Flag(_) => format!("{} is no directive", item.show()),
        };
        self.error(item.position, fault);
    }

    /// One key of version 2: a list has an item for each directive, anything else is one directive.
    fn entry(&mut self, key: &str, value: Located) {
        if key.eq_ignore_ascii_case(VERSION) {
            return self.check_version(&value);
        }
        let name = singular(key);
        let directives = match value.value {
            Value::List(items) => items,
            _ => vec![value],
        };
        for given in directives {
            match (&given.value, switch(name, &given)) {
                (_, Some(false)) => {}
                (_, Some(true)) => self.directive(name, given.position, None),
                (Value::List(_), None) => self.not_parameters(name, given.position, ""),
                (_, None) => self.directive(name, given.position, Some(&given)),
            }
        }
    }

    fn check_version(&mut self, version: &Located) {
        if version.as_text().as_deref() != Some("2") {
            let shown = version.show();
            let fault = format!(
                "{shown} is no version of the configuration: write `version: 2`, or a list of directives"
            );
            self.error(version.position, fault);
        }
    }

    fn not_parameters(&mut self, name: &str, line: u64, example: &str) {
        self.error(line, format!("{}: parameters are a map{example}, not a list", shown(name)));
    }

    /// A directive with a map of parameters, or the value of the one whose name may be left out.
    fn directive(&mut self, name: &str, line: u64, given: Option<&Located>) {
        let Some(mut item) = Item::begin(name, self.source.at(line), self.report) else { return };
        match given.map(|given| &given.value) {
            None | Some(Value::Null) => {}
            Some(Value::Map(map)) => {
                for (name, value) in map {
                    item.put(Some(name.name()), value.clone(), self.report);
                }
            }
            Some(_) => given.into_iter().for_each(|given| item.put(None, given.clone(), self.report)),
        }
        self.items.push(item.complete(self.report));
    }
}

/// The directive's own name. An unknown one stays as it is, so that the error names it as written.
fn singular(key: &str) -> &str {
    // Receptor's spelling: it names each other directive with hyphens.
    if key.eq_ignore_ascii_case("iprouters") {
        return "ip-router";
    }
    let stem = key.strip_suffix(['s', 'S']);
    stem.filter(|stem| Directive::find(key).is_none() && Directive::find(stem).is_some()).unwrap_or(key)
}

/// Whether a directive without parameters is switched on, as `true`, or as `local: true` in the words of receptor's own
/// examples.
fn switch(name: &str, given: &Located) -> Option<bool> {
    Directive::find(name).filter(|directive| directive.current().next().is_none())?;
    match (&given.value, given.entries()) {
        (Value::Flag(on), _) => Some(*on),
        (_, [(name, Located { value: Value::Flag(on), .. })]) => {
            name.name().eq_ignore_ascii_case("local").then_some(*on)
        }
        _ => None,
    }
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
