//! Reads a YAML file into directives.
//!
//! Owns locations, duplicate keys (the last one counts, with a warning), and the two forms of a file. Version 1 is a list of directives. Version 2 is a map: a directive that
//! may occur many times is under its plural name, with a list, and any other under its own name. It refuses to
//! know what a directive means.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::directives;
use super::error::{Report, Source, shown};
use super::item::Item;
use super::value::{Located, Value};
use crate::yaml;

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) items: Vec<Item>,
    /// True if it is in version 2.
    pub(super) version2: bool,
}

/// Reads the text of a file; errors and warnings go to the report.
pub(super) fn read(path: &Path, text: &str, report: &mut Report) -> Document {
    let mut reader = YamlReader { source: Source::File(Arc::from(path)), items: Vec::new(), report };
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
    match yaml::parse(text) {
        Ok(mut root) => {
            reader.check_keys(&mut root);
            let version2 = reader.document(root);
            Document { items: reader.items, version2 }
        }
        Err(fault) => {
            reader.error(fault.line, fault.text);
            Document::default()
        }
    }
}

/// If the file is in another language, its first line that is no comment, and the name of the language.
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

/// The key that only a file of version 2 has.
const VERSION: &str = "version";

struct YamlReader<'a> {
    source: Source,
    items: Vec<Item>,
    report: &'a mut Report,
}

impl YamlReader<'_> {
    fn error(&mut self, line: u64, fault: impl Into<String>) {
        self.report.error(self.source.at(line), fault);
    }

    /// Keeps only keys that are names, and of equal keys the last one.
    fn check_keys(&mut self, node: &mut Located) {
        if let Value::List(items) = &mut node.value {
            items.iter_mut().for_each(|item| self.check_keys(item));
        }
        let Value::Map(entries) = &mut node.value else { return };
        let mut known = BTreeMap::new();
        for (key, mut value) in std::mem::take(entries) {
            let Some(name) = self.key(&key) else { continue };
            self.check_keys(&mut value);
            // The value may come from an anchor elsewhere; a person looks at the line of the key.
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
        key.key().map_err(|fault| self.error(key.position, fault)).ok()
    }

    /// Reads a list, or a map with a version; an empty file is an empty list. True if it is in version 2.
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

    /// Reads one item of version 1: a name, or a map of one name to its parameters.
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
            Value::Int(_) | Value::Float(_) | Value::Flag(_) => format!("{} is not a directive", item.show()),
        };
        self.error(item.position, fault);
    }

    /// Reads one key of version 2: a list has an item for each directive, any other value is one directive.
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
                "{shown} is not a version of the configuration: write `version: 2`, or a list of directives"
            );
            self.error(version.position, fault);
        }
    }

    fn not_parameters(&mut self, name: &str, line: u64, example: &str) {
        self.error(line, format!("{}: parameters are a map{example}, not a list", shown(name)));
    }

    /// Reads a directive, given a map of parameters or the value of its bare parameter.
    fn directive(&mut self, name: &str, line: u64, given: Option<&Located>) {
        let Some(mut item) = directives::begin(name, self.source.at(line), self.report) else { return };
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

/// The directive's name for a plural key. An unknown key stays unchanged, so that the error names it as written.
fn singular(key: &str) -> &str {
    // Receptor's spelling of the plural has no hyphen, unlike all its other names.
    if key.eq_ignore_ascii_case("iprouters") {
        return "ip-router";
    }
    let stem = key.strip_suffix(['s', 'S']);
    stem.filter(|stem| directives::find(key).is_none() && directives::find(stem).is_some()).unwrap_or(key)
}

/// Whether a directive without parameters is switched on, by `true`, or by `local: true` as in receptor's own
/// examples. `None` for other directives and values.
fn switch(name: &str, given: &Located) -> Option<bool> {
    directives::find(name).filter(|directive| directive.current().next().is_none())?;
    match (&given.value, given.entries()) {
        (Value::Flag(on), _) => Some(*on),
        (_, [(name, Located { value: Value::Flag(on), .. })]) => {
            name.name().eq_ignore_ascii_case("local").then_some(*on)
        }
        _ => None,
    }
}
