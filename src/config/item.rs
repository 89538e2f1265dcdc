//! A directive as written, checked against the table while it is read.
//!
//! Owns every check that needs only the table: types, required and bare parameters, defaults, directives that occur
//! once or alone, names that must be unique or must exist, and warnings of what this version does not do. It
//! refuses to know notations and what a setting is for.

use std::collections::BTreeMap;

use super::error::{ConfigError, Location, Report, Source, Warning, hint, list, shown, unknown_parameter};
use super::schema::{Directive, Parameter, ValueKind, ValueRole};
use super::value::{Located, Value};

/// A directive whose parameters have the table's names, and values of their kinds.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) directive: &'static Directive,
    pub(super) at: Location,
    /// The values by parameter; a default has the position of the directive.
    pub(super) settings: BTreeMap<&'static str, Located>,
    /// The parameters that are written, without defaults.
    pub(super) given: Vec<&'static str>,
    /// The parameters with a wrong value, which must not be reported as missing too.
    refused: Vec<&'static str>,
}

impl Item {
    /// A directive that is written nowhere, with all its defaults. It must have no required parameter.
    pub(super) fn implicit(directive: &'static Directive) -> Self {
        Self::of(directive, Source::Implicit.at(0)).complete(&mut Report::default())
    }

    /// A directive without parameters so far.
    pub(super) fn of(directive: &'static Directive, at: Location) -> Self {
        Self { directive, at, settings: BTreeMap::new(), given: Vec::new(), refused: Vec::new() }
    }

    /// An error about this directive, or one of its parameters.
    pub(super) fn error(&self, parameter: Option<&'static str>, fault: impl Into<String>) -> ConfigError {
        let at = parameter.map_or_else(|| self.at.clone(), |name| self.location_of(name));
        ConfigError { at, directive: Some(self.directive.name), parameter, fault: fault.into() }
    }

    /// Where the parameter is given, else where the directive is.
    pub(super) fn location_of(&self, parameter: &str) -> Location {
        self.settings.get(parameter).map_or_else(|| self.at.clone(), |given| self.at(given.position))
    }

    /// A location in the same source.
    pub(super) fn at(&self, position: u64) -> Location {
        self.at.source.at(position)
    }

    /// True if the value given differs from leaving the parameter out.
    pub(super) fn is_given(&self, parameter: &str) -> bool {
        self.settings.get(parameter).is_some_and(|given| !given.is_blank())
    }

    /// Takes a parameter, in the shape of its kind; without a name it is the bare one. A list repeated on the
    /// command line grows, any other value is replaced.
    pub(super) fn put(&mut self, name: Option<&str>, given: Located, report: &mut Report) {
        let at = self.at(given.position);
        let mut fail = |parameter, fault| {
            let (at, directive) = (at.clone(), Some(self.directive.name));
            report.errors.push(ConfigError { at, directive, parameter, fault });
        };
        let parameter = match self.parameter(name, &given) {
            Ok(parameter) => parameter,
            Err(fault) => return fail(None, fault),
        };
        let position = given.position;
        let given = match given.shaped(parameter.kind) {
            Ok(given) => Located { position, ..given },
            Err(fault) => {
                self.refused.push(parameter.name);
                return fail(Some(parameter.name), fault);
            }
        };
        if let Some(before) = self.settings.get_mut(parameter.name) {
            if at.source == Source::CommandLine && before.grow(parameter.kind, &given) {
                return;
            }
            report.warn(at, format!("`{}` is given more than once, the last one counts", parameter.name));
        }
        let default = default_of(parameter).filter(|_| parameter.empty_is_default && given.is_empty_text());
        let given = default.map(|default| Located { position, ..default }).unwrap_or(given);
        self.settings.insert(parameter.name, given);
        self.given.push(parameter.name);
    }

    fn parameter(&self, name: Option<&str>, given: &Located) -> Result<&'static Parameter, String> {
        let known: Vec<_> = self.directive.current().map(|parameter| parameter.name).collect();
        match name {
            Some(name) => self.directive.parameter(name).ok_or_else(|| unknown_parameter(name, &known)),
            None if known.is_empty() => Err(format!("takes no parameters, but {} was given", given.show())),
            None => self.directive.parameters.iter().find(|parameter| parameter.bare).ok_or_else(|| {
                format!("{} is given without a parameter's name: {}", given.show(), list(&known))
            }),
        }
    }

    /// Adds the defaults, and notes an error for each required parameter that is missing.
    pub(super) fn complete(mut self, report: &mut Report) -> Self {
        for parameter in &self.directive.parameters {
            let name = parameter.name;
            if self.settings.contains_key(name) || self.refused.contains(&name) {
                continue;
            }
            if parameter.required {
                report.errors.push(self.error(Some(name), "required, but not given"));
            } else if let Some(default) = default_of(parameter) {
                self.settings.insert(name, Located { position: self.at.position, ..default });
            }
        }
        self
    }

    /// All non-empty texts, with their parameters.
    fn texts(&self) -> impl Iterator<Item = (&'static Parameter, &str)> {
        let texts = self.directive.parameters.iter().filter(|parameter| parameter.kind == ValueKind::Text);
        let given =
            texts.filter_map(|parameter| Some((parameter, self.settings.get(parameter.name)?.name())));
        given.filter(|(_, text)| !text.is_empty())
    }
}

/// The default as a value. A test proves that each default has its parameter's kind.
pub(super) fn default_of(parameter: &Parameter) -> Option<Located> {
    let value = Value::Text(parameter.default?.to_owned());
    Located { position: 0, value }.shaped(parameter.kind).ok()
}

/// Checks the directives against each other.
pub(super) fn check(items: &[Item], directives: &[Directive], report: &mut Report) {
    check_occurrence(items, report);
    check_names(items, report);
    check_needs(items, report);
    report.warnings.extend(directives.iter().filter_map(|directive| without_effect(items, directive)));
}

fn check_occurrence(items: &[Item], report: &mut Report) {
    const EXCLUSIVE: &str = "this is a command of its own: no other directive may be given with it";
    let mut first: BTreeMap<&str, &Location> = BTreeMap::new();
    for item in items.iter().filter(|item| item.directive.singleton) {
        if let Some(first) = first.get(item.directive.name) {
            report.errors.push(item.error(None, format!("only one is allowed, the first is at {first}")));
        } else {
            first.insert(item.directive.name, &item.at);
        }
    }
    if items.len() > 1 {
        let exclusive = items.iter().filter(|item| item.directive.exclusive);
        report.errors.extend(exclusive.map(|item| item.error(None, EXCLUSIVE)));
    }
}

/// Checks that every name is defined once, and every reference has a definition.
fn check_names(items: &[Item], report: &mut Report) {
    let mut defined: BTreeMap<(&str, &str), Location> = BTreeMap::new();
    let texts =
        || items.iter().flat_map(|item| item.texts().map(move |(parameter, name)| (item, parameter, name)));
    for (item, parameter, name) in texts() {
        let ValueRole::Defines(what) = parameter.role else { continue };
        if let Some(first) = defined.get(&(what, name)) {
            let name = shown(name);
            let fault = format!("\"{name}\" is already the name of a {what} at {first}: choose another");
            report.errors.push(item.error(Some(parameter.name), fault));
        } else {
            defined.insert((what, name), item.location_of(parameter.name));
        }
    }
    for (item, parameter, name) in texts() {
        let ValueRole::Refers(directive) = parameter.role else { continue };
        // The client profile `default` always exists: it uses the system's authorities and no certificate.
        let built_in = directive == "tls-client" && name == "default";
        if !built_in && !defined.contains_key(&(directive, name)) {
            let known = defined.keys().filter(|(what, _)| *what == directive).map(|(_, name)| *name);
            let (hint, name) = (hint(name, &known.collect::<Vec<_>>()), shown(name));
            let fault = format!("there is no {directive} named \"{name}\": {hint}");
            report.errors.push(item.error(Some(parameter.name), fault));
        }
    }
}

fn check_needs(items: &[Item], report: &mut Report) {
    for item in items {
        for parameter in &item.directive.parameters {
            if let ValueRole::Needs(directive) = parameter.role
                && item.is_given(parameter.name)
                && !items.iter().any(|item| item.directive.name == directive)
            {
                let fault = format!("needs the directive `{directive}`");
                report.errors.push(item.error(Some(parameter.name), fault));
            }
        }
    }
}

/// A warning if a directive without effect is used. A configuration written for receptor is loaded with it, but it
/// must never look as if it worked.
fn without_effect(items: &[Item], directive: &Directive) -> Option<Warning> {
    let instead = directive.without_effect?;
    let mut uses = items.iter().filter(|item| item.directive.name == directive.name);
    let (first, more) = (uses.next()?, uses.count());
    let count = if directive.singleton { String::new() } else { format!(" (used {} times)", more + 1) };
    Some(Warning { at: first.at.clone(), text: format!("{}{count}: {instead}", directive.name) })
}
