//! What can be wrong with a configuration, and where.
//!
//! Owns the locations (file and line, or argument of the command line) and the words that several checks share. An
//! error says where, which directive and parameter, what was given and what is allowed. It refuses to know
//! how files are read and what a setting is for.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a piece of configuration was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A line of a file; line 0 is the file as a whole.
    File {
        /// The file, as it was named.
        path: Arc<Path>,
        /// Counted from 1.
        line: u64,
    },
    /// An argument of the command line, counted from 1.
    Argument(usize),
    /// Not written anywhere: a default, or the configuration as a whole.
    Implicit,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Argument(position) => write!(f, "command line argument {position}"),
            Self::Implicit => f.write_str("configuration"),
        }
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

/// The words for a parameter that is none, among those that are.
pub(super) fn unknown_parameter<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    format!("unknown parameter `{}`: {}", shown(name), Hint::new(name, known))
}

/// Help for a wrong name: the nearest right one, else all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The nearest right name.
    DidYouMean(String),
    /// All right names.
    OneOf(Vec<String>),
    /// Too many to print.
    SeeHelp,
}

impl Hint {
    /// The hint for a wrong name among the right ones.
    pub fn new<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        match nearest(given, &known) {
            Some(name) => Self::DidYouMean(name.to_owned()),
            None if known.len() > 16 => Self::SeeHelp,
            None => Self::OneOf(known.into_iter().map(str::to_owned).collect()),
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DidYouMean(name) => write!(f, "did you mean `{name}`?"),
            Self::OneOf(names) if names.is_empty() => f.write_str("there are none"),
            Self::OneOf(names) => write!(f, "there are {}", names.join(", ")),
            Self::SeeHelp => f.write_str("`meshd --help` lists them all"),
        }
    }
}

/// A name as a message carries it: without control characters and not endless.
pub(super) fn shown(name: &str) -> String {
    const SHOWN: usize = 80;
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    name.chars().take(SHOWN).map(escaped).collect()
}

/// The known name closest to the given one, if it is close enough to be a typing error.
fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    // Names are short; a long text is no typing error, and the distance is quadratic in its length.
    if given.len() > 64 {
        return None;
    }
    let given = given.to_lowercase().replace('_', "-");
    let allowed = (given.chars().count() / 3).clamp(1, 3);
    let near = known.iter().map(|name| (distance(&given, name), *name));
    near.filter(|(distance, _)| *distance <= allowed).min().map(|(_, name)| name)
}

/// The number of letters to insert, delete, replace or swap with the next that lead from one name to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // rows[i][j] is the distance between the first i letters of one and the first j of the other.
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
    /// What is wrong, and what is allowed instead.
    pub fault: String,
}

impl ConfigError {
    /// An error that concerns no directive in particular.
    pub fn general(at: Location, fault: impl Into<String>) -> Self {
        Self { at, directive: None, parameter: None, fault: fault.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        for name in [self.directive, self.parameter].into_iter().flatten() {
            write!(f, "{name}: ")?;
        }
        write!(f, "{}", self.fault)
    }
}

impl std::error::Error for ConfigError {}

/// Everything that is wrong with a configuration; never empty. Printed, it is one line each, 50 at most.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first errors are often the cause of the rest.
        const SHOWN: usize = 50;
        for (i, error) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
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
    /// What a person should look at.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.text)
    }
}
