//! Errors and warnings about a configuration, and their locations.
//!
//! Owns the locations (file and line, or argument of the command line), the report that collects all errors, and the
//! words that several checks share. An error says where, which directive and parameter, what was given and what is
//! allowed. It refuses to know how files are read and what a setting is for.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The origin of a piece of configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, as it was named.
    File(Arc<Path>),
    /// The command line.
    CommandLine,
    /// Nothing: a default, or the configuration as a whole.
    Implicit,
}

impl Source {
    /// A line of the file, or an argument of the command line.
    pub(super) fn at(&self, position: u64) -> Location {
        Location { source: self.clone(), position }
    }
}

/// Where a piece of configuration was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// In what.
    pub source: Source,
    /// The line or argument, counted from 1; 0 is the source as a whole.
    pub position: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.source, self.position) {
            (Source::File(path), 0) => write!(f, "{}", path.display()),
            (Source::File(path), line) => write!(f, "{}:{line}", path.display()),
            (Source::CommandLine, position) => write!(f, "command line argument {position}"),
            (Source::Implicit, _) => f.write_str("configuration"),
        }
    }
}

/// The errors and warnings found so far; reading goes on after an error, to find them all at once.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<Warning>,
    /// Items of a file that are a name and no more.
    pub(super) bare_words: Vec<(Location, String)>,
}

impl Report {
    /// Notes an error that concerns no known directive.
    pub(super) fn error(&mut self, at: Location, fault: impl Into<String>) {
        self.errors.push(ConfigError { at, directive: None, parameter: None, fault: fault.into() });
    }

    pub(super) fn warn(&mut self, at: Location, text: String) {
        self.warnings.push(Warning { at, text });
    }

    /// The warnings, unless there is an error.
    ///
    /// # Errors
    /// All that were found, in the order a person reads: the command line, then file by file as first mentioned.
    pub(super) fn finish(self) -> Result<Vec<Warning>, ConfigErrors> {
        let mut errors = self.errors;
        if errors.is_empty() {
            return Ok(self.warnings);
        }
        let mut sources: Vec<Source> = Vec::new();
        for error in &errors {
            if !sources.contains(&error.at.source) {
                sources.push(error.at.source.clone());
            }
        }
        let rank = |source: &Source| match source {
            Source::CommandLine => 0,
            Source::File(_) => sources.iter().position(|known| known == source).map_or(1, |index| index + 1),
            Source::Implicit => usize::MAX,
        };
        errors.sort_by_key(|error| (rank(&error.at.source), error.at.position));
        Err(ConfigErrors(errors))
    }
}

/// The words for a value of another type.
pub(super) fn wrong_type(given: &str, wanted: &str) -> String {
    format!("{given} is not {wanted}")
}

/// The words for a value of the right type that is not allowed.
pub(super) fn invalid(given: &str, reason: &str) -> String {
    format!("{given} is not allowed: {reason}")
}

/// The words for an unknown parameter, among those that are known.
pub(super) fn unknown_parameter(name: &str, known: &[&str]) -> String {
    format!("unknown parameter `{}`: {}", shown(name), hint(name, known))
}

/// Help for a wrong name: the nearest right one, else all of them unless they are many.
pub(super) fn hint(given: &str, known: &[&str]) -> String {
    match nearest(given, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.len() > 16 => "`meshd --help` lists them all".to_owned(),
        None => list(known),
    }
}

/// All right names.
pub(super) fn list(names: &[&str]) -> String {
    if names.is_empty() { "there are none".to_owned() } else { format!("there are {}", names.join(", ")) }
}

/// The known name closest to the given one, if it is close enough to be a typing error.
pub(crate) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    // Names are short; a long text is no typing error, and the distance is quadratic in its length.
    if given.len() > 64 {
        return None;
    }
    let given = given.to_lowercase().replace('_', "-");
    let allowed = (given.chars().count() / 3).clamp(1, 3);
    let near = known.iter().map(|name| (strsim::osa_distance(&given, name), *name));
    near.filter(|(distance, _)| *distance <= allowed).min().map(|(_, name)| name)
}

/// A name as a message shows it: shortened, and without control characters.
pub(super) fn shown(name: &str) -> String {
    const SHOWN: usize = 80;
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    name.chars().take(SHOWN).map(escaped).collect()
}

/// One thing that is wrong, and where.
#[derive(Debug)]
pub struct ConfigError {
    /// Where it was written.
    pub at: Location,
    /// The directive concerned, in the schema's spelling.
    pub directive: Option<&'static str>,
    /// The parameter concerned, in the schema's spelling.
    pub parameter: Option<&'static str>,
    /// The fault, and what is allowed instead.
    pub fault: String,
}

impl ConfigError {
    /// What is wrong, without the place.
    pub fn what(&self) -> String {
        let names = [self.directive, self.parameter].into_iter().flatten().map(|name| format!("{name}: "));
        names.collect::<String>() + &self.fault
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what())
    }
}

impl std::error::Error for ConfigError {}

/// Everything that is wrong with a configuration; never empty. Printed, it is one line each, 50 at most.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// Those that are shown: the first are often the cause of the rest.
    pub const SHOWN: usize = 50;
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().take(Self::SHOWN).enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
        }
        match self.0.len().saturating_sub(Self::SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n... and {more} more"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// Something that is allowed, but probably not intended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it was written.
    pub at: Location,
    /// The advice.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.text)
    }
}
