//! Checks directives as written against the schema.
//!
//! Owns everything that the schema alone decides: names in any case, types, required and bare parameters,
//! defaults, directives that occur once or alone, names that must be unique or must exist. It refuses to
//! know what a setting is for.

use std::collections::BTreeMap;

use super::directives::DIRECTIVES;
use super::error::{ConfigError, Fault, Hint, Location, shown};
use super::raw::{RawItem, RawParam, Report};
use super::schema::{Directive, Kind, Parameter, Role};
use super::value::{Located, Setting, Value};

/// A directive whose parameters have the schema's names and types; defaults are filled in.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) at: Location,
    pub(super) directive: &'static Directive,
    pub(super) settings: BTreeMap<&'static str, Given>,
}

/// A parameter's value and where it was written; a default was written where the directive is.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) at: Location,
    pub(super) setting: Setting,
}

impl Item {
    /// A directive that nobody wrote: all its defaults.
    pub(super) fn implicit(directive: &str) -> Option<Self> {
        let directive = Directive::find(directive)?;
        let mut item = Self { at: Location::Implicit, directive, settings: BTreeMap::new() };
        // The caller names a directive that requires nothing.
        fill_in(&mut item, &[], &mut Report::default());
        Some(item)
    }

    /// An error about this directive, or one of its parameters.
    pub(super) fn error(&self, parameter: Option<&'static str>, fault: Fault) -> ConfigError {
        let given = parameter.and_then(|name| self.settings.get(name));
        let at = given.map_or(&self.at, |given| &given.at).clone();
        ConfigError { at, directive: Some(self.directive.name), parameter, fault }
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
        report.general(&raw.at, Fault::UnknownDirective { name: shown(&raw.name), hint });
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

fn find_parameter(item: &Item, param: &RawParam) -> Result<&'static Parameter, Fault> {
    let known = || item.directive.parameters.iter().map(|parameter| parameter.name);
    match &param.name {
        Some(name) => item
            .directive
            .parameter(name)
            .ok_or_else(|| Fault::UnknownParameter { name: shown(name), hint: Hint::new(name, known()) }),
        None if item.directive.parameters.is_empty() => {
            Err(Fault::Rule(format!("takes no parameters, but {} was given", param.value.show())))
        }
        None => item.directive.bare_parameter().ok_or_else(|| Fault::NoBareValue {
            given: param.value.show(),
            hint: Hint::OneOf(known().map(str::to_owned).collect()),
        }),
    }
}

/// Converts a value and keeps it. Repeated lists on the command line grow, anything else is replaced.
fn put(item: &mut Item, parameter: &'static Parameter, param: &RawParam, report: &mut Report) {
    let setting = match param.value.convert(parameter.kind) {
        Ok(setting) => setting,
        Err(fault) => {
            let at = param.at.clone();
            let (directive, parameter) = (Some(item.directive.name), Some(parameter.name));
            report.errors.push(ConfigError { at, directive, parameter, fault });
            return;
        }
    };
    let on_command_line = matches!(param.at, Location::Argument(_));
    match (item.settings.get_mut(parameter.name).map(|given| &mut given.setting), setting) {
        (Some(Setting::Texts(list)), Setting::Texts(more)) if on_command_line => list.extend(more),
        (Some(Setting::Costs(costs)), Setting::Costs(more)) if on_command_line => costs.extend(more),
        (Some(Setting::Rules(rules)), Setting::Rules(more)) if on_command_line => rules.extend(more),
        (before, setting) => {
            if before.is_some() {
                report.warn(
                    &param.at,
                    format!("`{}` is given more than once, the last one counts", parameter.name),
                );
            }
            item.settings.insert(parameter.name, Given { at: param.at.clone(), setting });
        }
    }
}

/// Adds the defaults and complains about what must be given and is not.
fn fill_in(item: &mut Item, seen: &[&str], report: &mut Report) {
    for parameter in item.directive.parameters.iter().filter(|parameter| !seen.contains(&parameter.name)) {
        if parameter.required {
            report.errors.push(item.error(Some(parameter.name), Fault::Missing));
        } else if let Some(setting) = default_of(parameter) {
            item.settings.insert(parameter.name, Given { at: item.at.clone(), setting });
        }
    }
}

/// The default as a value. The schema's tests prove that each default has its parameter's kind.
pub(super) fn default_of(parameter: &Parameter) -> Option<Setting> {
    let value = Value::Text(parameter.default?.to_owned());
    Located { at: Location::Implicit, value }.convert(parameter.kind).ok()
}

fn check_occurrence(items: &[Item], report: &mut Report) {
    let mut first: BTreeMap<&str, &Location> = BTreeMap::new();
    for item in items.iter().filter(|item| item.directive.singleton) {
        match first.get(item.directive.name) {
            Some(&place) => report.errors.push(item.error(None, Fault::Repeated { first: place.clone() })),
            None => {
                first.insert(item.directive.name, &item.at);
            }
        }
    }
    if items.len() > 1 {
        let exclusive = items.iter().filter(|item| item.directive.exclusive);
        report.errors.extend(exclusive.map(|item| item.error(None, Fault::Exclusive)));
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
                let fault = Fault::Duplicate { what, name: shown(name), first: first.clone() };
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
            let fault = Fault::Dangling { directive, name: shown(name), hint: Hint::new(name, known) };
            report.errors.push(item.error(Some(parameter.name), fault));
        }
    }
    check_needs(items, report);
}

fn check_needs(items: &[Item], report: &mut Report) {
    for item in items {
        for parameter in item.directive.parameters {
            let Role::Needs(directive) = parameter.role else { continue };
            let on = item.settings.get(parameter.name).is_some_and(|given| !given.setting.is_blank());
            if on && !items.iter().any(|item| item.directive.name == directive) {
                let fault = Fault::Rule(format!("needs the directive `{directive}`"));
                report.errors.push(item.error(Some(parameter.name), fault));
            }
        }
    }
}

/// All texts that are not empty, with their parameters.
fn texts(items: &[Item]) -> impl Iterator<Item = (&Item, &'static Parameter, &str)> {
    items.iter().flat_map(|item| {
        let texts = item.directive.parameters.iter().filter(|parameter| parameter.kind == Kind::Text);
        texts.filter_map(move |parameter| match &item.settings.get(parameter.name)?.setting {
            Setting::Text(text) if !text.is_empty() => Some((item, parameter, text.as_str())),
            _ => None,
        })
    })
}
