//! The second notation of a file: one map, with a key for each kind of directive.
//!
//! Owns how that map becomes directives as written: a kind that may occur many times stands under its plural name
//! with a list, any other under its own. It refuses to know what a directive means. The kind of a key is looked up
//! in the schema, because only that says whether a name is a plural.

use super::error::{Location, shown};
use super::raw::{RawItem, RawParam, Report};
use super::schema::Directive;
use super::value::{Located, Value};

/// The key that tells this notation from the first.
const VERSION: &str = "version";

/// True if a map is in this notation, or in one to come.
pub(super) fn is_meant(map: &[(String, Located)]) -> bool {
    map.iter().any(|(key, _)| key.eq_ignore_ascii_case(VERSION))
}

/// The directives of a map, in its order.
pub(super) fn items(map: Vec<(String, Located)>, report: &mut Report) -> Vec<RawItem> {
    let mut items = Vec::new();
    for (key, value) in map {
        if key.eq_ignore_ascii_case(VERSION) {
            check_version(&value, report);
        } else {
            entry(&key, value, &mut items, report);
        }
    }
    items
}

fn check_version(value: &Located, report: &mut Report) {
    if value.as_text().as_deref() != Some("2") {
        let problem = format!(
            "{} is no version of the configuration: write `version: 2`, or a list of directives",
            value.show()
        );
        report.general(&value.at, problem);
    }
}

/// One key: a list has an item for each directive, anything else is one directive.
fn entry(key: &str, value: Located, items: &mut Vec<RawItem>, report: &mut Report) {
    let name = singular(key);
    match value.value {
        Value::List(values) => {
            for value in values {
                items.extend(item(&name, value, report));
            }
        }
        _ => items.extend(item(&name, value, report)),
    }
}

/// The directive's own name. An unknown one stays as it is, so that the error names it as written.
fn singular(key: &str) -> String {
    let stem = key.strip_suffix('s').or_else(|| key.strip_suffix('S'));
    match stem.filter(|stem| Directive::find(key).is_none() && Directive::find(stem).is_some()) {
        Some(stem) => stem.to_owned(),
        None => key.to_owned(),
    }
}

fn item(name: &str, value: Located, report: &mut Report) -> Option<RawItem> {
    let (at, given) = (value.at.clone(), value.show());
    let takes_nothing = Directive::find(name).is_some_and(|directive| directive.parameters.is_empty());
    let params = match value.value {
        Value::Null => Vec::new(),
        // A switch: there or not there.
        Value::Flag(on) if takes_nothing => {
            return on.then(|| RawItem { at, name: name.to_owned(), params: Vec::new() });
        }
        // The same in the words of receptor's own examples.
        Value::Map(map) if takes_nothing && local_switch(&map).is_some() => {
            return local_switch(&map)?.then(|| RawItem { at, name: name.to_owned(), params: Vec::new() });
        }
        Value::Map(map) => map.into_iter().map(|(name, value)| param(Some(name), value)).collect(),
        Value::Text(_) | Value::Int(_) | Value::Float(_) | Value::Flag(_) => vec![param(None, value)],
        Value::List(_) => {
            return refuse(&at, format!("{}: parameters are a map, not {given}", shown(name)), report);
        }
    };
    Some(RawItem { at, name: name.to_owned(), params })
}

/// What `local: true` or `local: false` alone says.
fn local_switch(map: &[(String, Located)]) -> Option<bool> {
    match map {
        [(name, Located { value: Value::Flag(on), .. })] if name.eq_ignore_ascii_case("local") => Some(*on),
        _ => None,
    }
}

fn param(name: Option<String>, value: Located) -> RawParam {
    RawParam { name, at: value.at.clone(), value }
}

fn refuse<T>(at: &Location, problem: String, report: &mut Report) -> Option<T> {
    report.general(at, problem);
    None
}
