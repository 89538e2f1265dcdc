//! Checks directives as written against the table.
//!
//! Owns everything that the table alone decides: names in any case, types, required and bare parameters,
//! defaults, directives that occur once or alone, names that must be unique or must exist. It refuses to
//! know what a setting is for.

use std::collections::BTreeMap;

use super::directives::DIRECTIVES;
use super::error::{ConfigError, Hint, Location, shown, unknown_parameter};
use super::raw::{RawItem, RawParam, Report};
use super::schema::{Directive, Kind, Parameter, Role};
use super::value::{Located, Value};

/// A directive whose parameters have the table's names, and values of their kinds; defaults are filled in.
#[derive(Debug)]
pub struct Item {
    pub(super) at: Location,
    pub(super) directive: &'static Directive,
    /// A default was written where the directive is.
    pub(super) settings: BTreeMap<&'static str, Located>,
}

impl Item {
    /// A directive that is not written anywhere: all its defaults.
    pub(super) fn implicit(directive: &'static Directive) -> Self {
        let mut item = Self { at: Location::Implicit, directive, settings: BTreeMap::new() };
        // The caller names a directive that requires nothing.
        fill_in(&mut item, &[], &mut Report::default());
        item
    }

    /// An error about this directive, or one of its parameters.
    pub(super) fn error(&self, parameter: Option<&'static str>, fault: impl Into<String>) -> ConfigError {
        let given = parameter.and_then(|name| self.settings.get(name));
        let at = given.map_or(&self.at, |given| &given.at).clone();
        ConfigError { at, directive: Some(self.directive.name), parameter, fault: fault.into() }
    }
}

/// Checks all directives; errors and warnings go to the report, what can be used comes back.
pub(super) fn check(raw: Vec<RawItem>, report: &mut Report) -> Vec<Item> {
    let items: Vec<Item> = raw.into_iter().filter_map(|item| resolve(item, report)).collect();
    check_occurrence(&items, report);
    check_names(&items, report);
    items
}

fn resolve(raw: RawItem, report: &mut Report) -> Option<Item> {
    let Some(directive) = Directive::find(&raw.name) else {
        let hint = Hint::new(&raw.name, DIRECTIVES.iter().map(|directive| directive.name));
        report.general(&raw.at, format!("unknown directive `{}`: {hint}", shown(&raw.name)));
        return None;
    };
    let mut item = Item { at: raw.at, directive, settings: BTreeMap::new() };
    // A wrong value must not also be reported as missing.
    let mut seen = Vec::new();
    for param in raw.params {
        match find_parameter(&item, &param) {
            Ok(parameter) => {
                seen.push(parameter.name);
                put(&mut item, parameter, &param, report);
            }
            Err(fault) => {
                let error =
                    ConfigError { at: param.at, directive: Some(directive.name), parameter: None, fault };
                report.errors.push(error);
            }
        }
    }
    fill_in(&mut item, &seen, report);
    Some(item)
}

fn find_parameter(item: &Item, param: &RawParam) -> Result<&'static Parameter, String> {
    let known = || item.directive.parameters.iter().map(|parameter| parameter.name);
    match &param.name {
        Some(name) => item.directive.parameter(name).ok_or_else(|| unknown_parameter(name, known())),
        None if item.directive.parameters.is_empty() => {
            Err(format!("takes no parameters, but {} was given", param.value.show()))
        }
        None => item.directive.bare_parameter().ok_or_else(|| {
            let hint = Hint::OneOf(known().map(str::to_owned).collect());
            format!("{} is given without a parameter\'s name: {hint}", param.value.show())
        }),
    }
}

/// Keeps a value in the shape of its kind. Repeated lists on the command line grow, anything else is replaced.
fn put(item: &mut Item, parameter: &'static Parameter, param: &RawParam, report: &mut Report) {
    let given = match param.value.shaped(parameter.kind) {
        Ok(given) => Located { at: param.at.clone(), ..given },
        Err(fault) => {
            let at = param.at.clone();
            let (directive, parameter) = (Some(item.directive.name), Some(parameter.name));
            report.errors.push(ConfigError { at, directive, parameter, fault });
            return;
        }
    };
    let on_command_line = matches!(param.at, Location::Argument(_));
    if let Some(before) = item.settings.get_mut(parameter.name) {
        if on_command_line && before.grow(parameter.kind, &given) {
            return;
        }
        report.warn(&param.at, format!("`{}` is given more than once, the last one counts", parameter.name));
    }
    match default_of(parameter).filter(|_| parameter.empty_is_default && given.is_empty_text()) {
        Some(default) => item.settings.insert(parameter.name, Located { at: given.at, ..default }),
        None => item.settings.insert(parameter.name, given),
    };
}

/// Adds the defaults and complains about what must be given and is not.
fn fill_in(item: &mut Item, seen: &[&str], report: &mut Report) {
    for parameter in item.directive.parameters.iter().filter(|parameter| !seen.contains(&parameter.name)) {
        if parameter.required {
            report.errors.push(item.error(Some(parameter.name), "required, but not given"));
        } else if let Some(default) = default_of(parameter) {
            item.settings.insert(parameter.name, Located { at: item.at.clone(), ..default });
        }
    }
}

/// The default as a value. A test proves that each default has its parameter's kind.
pub(super) fn default_of(parameter: &Parameter) -> Option<Located> {
    let value = Value::Text(parameter.default?.to_owned());
    Located { at: Location::Implicit, value }.shaped(parameter.kind).ok()
}

const EXCLUSIVE: &str = "this is a command of its own: no other directive may be given with it";

fn check_occurrence(items: &[Item], report: &mut Report) {
    let mut first: BTreeMap<&str, &Location> = BTreeMap::new();
    for item in items.iter().filter(|item| item.directive.singleton) {
        match first.get(item.directive.name) {
            Some(first) => {
                let fault = format!("only one is allowed, the first is at {first}");
                report.errors.push(item.error(None, fault));
            }
            None => {
                first.insert(item.directive.name, &item.at);
            }
        }
    }
    if items.len() > 1 {
        let exclusive = items.iter().filter(|item| item.directive.exclusive);
        report.errors.extend(exclusive.map(|item| item.error(None, EXCLUSIVE)));
    }
}

/// Every name is defined once, and every reference leads somewhere.
fn check_names(items: &[Item], report: &mut Report) {
    let mut defined: BTreeMap<(&str, &str), Location> = BTreeMap::new();
    for (item, parameter, name) in texts(items) {
        let Role::Defines(what) = parameter.role else { continue };
        let at = item.settings.get(parameter.name).map_or(&item.at, |given| &given.at);
        match defined.get(&(what, name)) {
            Some(first) => {
                let name = shown(name);
                let fault = format!("\"{name}\" is already the name of a {what} at {first}: choose another");
                report.errors.push(item.error(Some(parameter.name), fault));
            }
            None => {
                defined.insert((what, name), at.clone());
            }
        }
    }
    for (item, parameter, name) in texts(items) {
        let Role::Refers(directive) = parameter.role else { continue };
        // A client profile of this name always exists: the system's authorities, no certificate.
        let built_in = directive == "tls-client" && name == "default";
        if !built_in && !defined.contains_key(&(directive, name)) {
            let known = defined.keys().filter(|(what, _)| *what == directive).map(|(_, name)| *name);
            let (hint, name) = (Hint::new(name, known), shown(name));
            let fault = format!("there is no {directive} named \"{name}\": {hint}");
            report.errors.push(item.error(Some(parameter.name), fault));
        }
    }
    check_needs(items, report);
}

fn check_needs(items: &[Item], report: &mut Report) {
    for item in items {
        for parameter in &item.directive.parameters {
            let Role::Needs(directive) = parameter.role else { continue };
            let on = item.settings.get(parameter.name).is_some_and(|given| !given.is_blank());
            if on && !items.iter().any(|item| item.directive.name == directive) {
                let fault = format!("needs the directive `{directive}`");
                report.errors.push(item.error(Some(parameter.name), fault));
            }
        }
    }
}

/// All texts that are not empty, with their parameters.
fn texts(items: &[Item]) -> impl Iterator<Item = (&Item, &'static Parameter, &str)> {
    items.iter().flat_map(|item| {
        let texts = item.directive.parameters.iter().filter(|parameter| parameter.kind == Kind::Text);
        texts.filter_map(move |parameter| match &item.settings.get(parameter.name)?.value {
            Value::Text(text) if !text.is_empty() => Some((item, parameter, text.as_str())),
            _ => None,
        })
    })
}
