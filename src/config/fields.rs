//! Reads the typed values out of one checked directive.
//!
//! Owns the step from a setting of the right kind to a value of its own type, with an error that names the
//! parameter. Each read notes its error and goes on, so that one run finds all of them. It refuses to know
//! which directive it reads.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use super::check::Item;
use super::error::Fault;
use super::raw::Report;
use super::value::{Located, Setting, quoted};
use crate::wire::ServiceName;

/// The values of one directive, to be read by parameter name.
pub(super) struct Fields<'a> {
    item: &'a Item,
    report: &'a mut Report,
}

/// The outer `None`: there was an error, and it has been noted. The inner: nothing was given.
pub(super) type Optional<T> = Option<Option<T>>;

impl<'a> Fields<'a> {
    pub(super) fn new(item: &'a Item, report: &'a mut Report) -> Self {
        Self { item, report }
    }

    fn setting(&self, name: &'static str) -> Option<&'a Setting> {
        debug_assert!(self.item.directive.parameter(name).is_some(), "{name} is not in the schema");
        self.item.settings.get(name).map(|given| &given.setting)
    }

    /// Notes an error about a parameter.
    pub(super) fn fail(&mut self, name: &'static str, fault: Fault) {
        self.report.errors.push(self.item.error(Some(name), fault));
    }

    /// Notes that a value is not allowed.
    pub(super) fn refuse(&mut self, name: &'static str, given: String, reason: impl Display) {
        self.fail(name, Fault::Invalid { given, reason: reason.to_string() });
    }

    /// Notes an error about several parameters.
    pub(super) fn conflict(&mut self, problem: impl Into<String>) {
        self.report.errors.push(self.item.error(None, Fault::Rule(problem.into())));
    }

    /// Notes what is allowed and hardly meant.
    pub(super) fn warn(&mut self, text: &str) {
        self.report.warn(&self.item.at, format!("{}: {text}", self.item.directive.name));
    }

    /// A text; nothing if it is empty.
    pub(super) fn text(&self, name: &'static str) -> Option<&'a str> {
        match self.setting(name)? {
            Setting::Text(text) => Some(text.as_str()).filter(|text| !text.is_empty()),
            _ => None,
        }
    }

    /// A text, owned.
    pub(super) fn string(&self, name: &'static str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// A text, or no characters.
    pub(super) fn or_empty(&self, name: &'static str) -> String {
        self.string(name).unwrap_or_default()
    }

    /// A file's path.
    pub(super) fn path(&self, name: &'static str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub(super) fn flag(&self, name: &'static str) -> bool {
        matches!(self.setting(name), Some(Setting::Flag(true)))
    }

    /// A text that is parsed, if it is given.
    pub(super) fn parse<T, E: Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Optional<T> {
        let Some(text) = self.text(name) else { return Some(None) };
        match parse(text) {
            Ok(value) => Some(Some(value)),
            Err(reason) => {
                self.refuse(name, quoted(text), reason);
                None
            }
        }
    }

    /// A text that is parsed and may not be empty.
    pub(super) fn must_parse<T, E: Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.must(name)?;
        self.parse(name, parse)?
    }

    /// A text that may not be empty.
    pub(super) fn must(&mut self, name: &'static str) -> Option<String> {
        let text = self.string(name);
        // Absence has been noted when the directive was checked.
        if text.is_none() && self.setting(name).is_some() {
            self.fail(name, Fault::Rule("may not be empty".to_owned()));
        }
        text
    }

    /// A path that may not be empty.
    pub(super) fn must_path(&mut self, name: &'static str) -> Option<PathBuf> {
        self.must(name).map(PathBuf::from)
    }

    /// The name of a service that this node offers; reserved ones are refused.
    pub(super) fn own_service(&mut self, name: &'static str) -> Option<ServiceName> {
        self.must_parse(name, |text| match ServiceName::new(text) {
            Ok(service) if service.is_reserved() => Err(format!("the service {text:?} is reserved")),
            Ok(service) => Ok(service),
            Err(error) => Err(error.to_string()),
        })
    }

    /// The name of a service on another node.
    pub(super) fn remote_service(&mut self, name: &'static str) -> Option<ServiceName> {
        self.must_parse(name, ServiceName::new)
    }

    pub(super) fn duration(&mut self, name: &'static str) -> Optional<Duration> {
        // The message alone: the value stands before it already.
        self.parse(name, |text| {
            crate::duration::parse(text).map_err(|_| "write for example 1.5h, 30m or 30m10s")
        })
    }

    /// A whole number between two others, both allowed.
    pub(super) fn number<T: TryFrom<i64>>(
        &mut self,
        name: &'static str,
        from: i64,
        to: i64,
        what: &str,
    ) -> Optional<T> {
        let Some(Setting::Int(number)) = self.setting(name) else { return Some(None) };
        let fits = (from..=to).contains(number);
        let value = T::try_from(*number).ok().filter(|_| fits);
        if value.is_none() {
            self.refuse(name, number.to_string(), what);
        }
        value.map(Some)
    }

    /// A port that must be there; 0 lets the system choose.
    pub(super) fn port(&mut self, name: &'static str) -> Option<u16> {
        self.number(name, 0, 65_535, "a port is 0 to 65535")?
    }

    pub(super) fn float(&self, name: &'static str) -> Option<f64> {
        match self.setting(name)? {
            Setting::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// Every text of a list, parsed; all wrong ones are noted.
    pub(super) fn each<T, E: Display>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let Some(Setting::Texts(texts)) = self.setting(name) else { return Some(Vec::new()) };
        let values: Vec<_> = texts.iter().filter_map(|text| self.entry(name, text, parse(text))).collect();
        (values.len() == texts.len()).then_some(values)
    }

    /// One entry of a list or map, its error noted.
    pub(super) fn entry<T, E: Display>(
        &mut self,
        name: &'static str,
        given: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|reason| self.refuse(name, quoted(given), reason)).ok()
    }

    /// A map of names to numbers, in the order of the names.
    pub(super) fn costs(&self, name: &'static str) -> impl Iterator<Item = (&'a str, f64)> + use<'a> {
        let costs = match self.setting(name) {
            Some(Setting::Costs(costs)) => Some(costs),
            _ => None,
        };
        costs.into_iter().flatten().map(|(name, cost)| (name.as_str(), *cost))
    }

    /// The entries of a list of firewall rules.
    pub(super) fn rules(&self, name: &'static str) -> &'a [Located] {
        match self.setting(name) {
            Some(Setting::Rules(rules)) => rules,
            _ => &[],
        }
    }

    pub(super) fn free(&self, name: &'static str) -> serde_json::Map<String, serde_json::Value> {
        match self.setting(name) {
            Some(Setting::Free(map)) => map.clone(),
            _ => serde_json::Map::new(),
        }
    }

    /// Warns of an entry at a place of its own.
    pub(super) fn warn_at(&mut self, name: &'static str, node: &Located, text: impl Display) {
        self.report.warn(&node.at, format!("{}: {name}: {text}", self.item.directive.name));
    }

    /// Notes an error about an entry at a place of its own.
    pub(super) fn fail_at(&mut self, name: &'static str, node: &Located, fault: Fault) {
        let mut error = self.item.error(Some(name), fault);
        error.at = node.at.clone();
        self.report.errors.push(error);
    }
}
