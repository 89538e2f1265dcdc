//! Errors and warnings about a configuration, and their locations.
//!
//! Owns the locations (file and line, or argument of the command line), the report that collects all errors, and
//! the texts that several checks share. An error says where it is, which directive and parameter it concerns, what
//! was given and what is allowed. It refuses to know how files are read and what a setting is for.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::yaml::nearest;
pub(super) use crate::yaml::shown;

/// The origin of a piece of configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, by the name that was given.
    File(Arc<Path>),
    /// The command line.
    CommandLine,
    /// No source: a default, or the configuration as a whole.
    Implicit,
}

impl Source {
    /// The location of a line of the file, or of an argument of the command line.
    pub(super) fn at(&self, position: u64) -> Location {
        Location { source: self.clone(), position }
    }
}

/// Where a piece of configuration was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file or command line.
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

/// The errors and warnings found so far. Reading goes on after an error, to find all errors at once.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<Warning>,
    /// Items of a file that are only a name.
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
    /// All errors found, in reading order: first the command line, then each file in the order of first mention.
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

/// The text for a value of another type.
pub(super) fn wrong_type(given: &str, wanted: &str) -> String {
    format!("{given} is not {wanted}")
}

/// The text for a value of the right type that is not allowed.
pub(super) fn invalid(given: &str, reason: &str) -> String {
    format!("{given} is not allowed: {reason}")
}

/// The text for an unknown parameter, with a hint at the known ones.
pub(super) fn unknown_parameter(name: &str, known: &[&str]) -> String {
    format!("unknown parameter `{}`: {}", shown(name), hint(name, known))
}

/// Help with a wrong name: the nearest right name, else all of them unless they are many.
pub(super) fn hint(given: &str, known: &[&str]) -> String {
    match nearest(given, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.len() > 16 => "`meshd --help` lists them all".to_owned(),
        None => list(known),
    }
}

/// The text that lists all right names.
pub(super) fn list(names: &[&str]) -> String {
    if names.is_empty() { "there are none".to_owned() } else { format!("there are {}", names.join(", ")) }
}

/// One fault, and where it is.
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
    /// The fault with its directive and parameter, but without the location.
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

/// All errors of a configuration; never empty. Printed one to a line, 50 at most.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// The most errors that are shown: the first are often the cause of the rest.
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

/// A setting that is allowed, but probably not intended.
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
