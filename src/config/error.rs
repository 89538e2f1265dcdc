//! What can be wrong with a configuration, and where.
//!
//! Owns the places (file and line, or argument of the command line), the faults and their wording. An
//! error says where, which directive and parameter, what was given and what is allowed. It refuses to know
//! how files are read and what a setting is for.

use std::fmt;
use std::path::{Path, PathBuf};
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
    /// Nobody wrote it: a default, or the configuration as a whole.
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

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A file or directory that cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file larger than any configuration.
    #[error("{path} is larger than {limit} bytes, which is no configuration file", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What is allowed, in bytes.
        limit: u64,
    },
    /// A directory given as configuration that holds no file of the right name.
    #[error("{path} holds no *.yml or *.yaml file", path = path.display())]
    EmptyDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Text that is no YAML, or exceeds the reader's limits.
    #[error("not valid YAML: {0}")]
    Yaml(String),
    /// YAML, or a command line, that does not have the shape of a configuration.
    #[error("{0}")]
    Shape(String),
    /// A directive that does not exist.
    #[error("unknown directive `{name}`: {hint}")]
    UnknownDirective {
        /// As written.
        name: String,
        /// What may have been meant.
        hint: Hint,
    },
    /// A parameter that the directive does not have.
    #[error("unknown parameter `{name}`: {hint}")]
    UnknownParameter {
        /// As written.
        name: String,
        /// What may have been meant.
        hint: Hint,
    },
    /// A required parameter that is not there.
    #[error("required, but not given")]
    Missing,
    /// A value without a parameter's name, where none is taken.
    #[error("{given} is given without a parameter's name: {hint}")]
    NoBareValue {
        /// What was given.
        given: String,
        /// The parameters there are.
        hint: Hint,
    },
    /// A value of another type.
    #[error("{given} is not {wanted}")]
    WrongType {
        /// What was given.
        given: String,
        /// The type that is allowed.
        wanted: &'static str,
    },
    /// A value of the right type that is not allowed.
    #[error("{given} is not allowed: {reason}")]
    Invalid {
        /// What was given.
        given: String,
        /// What is allowed.
        reason: String,
    },
    /// A rule of its own, most often about several parameters.
    #[error("{0}")]
    Rule(String),
    /// A directive that may occur once.
    #[error("only one is allowed, the first is at {first}")]
    Repeated {
        /// Where the first is.
        first: Location,
    },
    /// A directive that stands alone.
    #[error("this is a command of its own: no other directive may be given with it")]
    Exclusive,
    /// A name that must be unique and is not.
    #[error("\"{name}\" is already the name of a {what} at {first}: choose another")]
    Duplicate {
        /// What kind of name.
        what: &'static str,
        /// The name.
        name: String,
        /// Where it occurs first.
        first: Location,
    },
    /// A name that no directive defines.
    #[error("there is no {directive} named \"{name}\": {hint}")]
    Dangling {
        /// The directive that would define it.
        directive: &'static str,
        /// The name.
        name: String,
        /// Which names there are.
        hint: Hint,
    },
    /// The node has no name and cannot take the machine's.
    #[error("no node ID given and the host name is {host}: set one, as in `- node: {{id: my-name}}`")]
    NoNodeId {
        /// The host name, as far as known.
        host: String,
    },
    /// There is no place for the node's data.
    #[error("no data directory: neither HOME nor XDG_STATE_HOME is set; set `datadir`")]
    NoDataDir,
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

/// The known name closest to the given one, if it is close enough to be a slip of the finger.
fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    // Names are short; a long text is no slip, and the distance is quadratic in its length.
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
    /// What is wrong.
    pub fault: Fault,
}

impl ConfigError {
    /// An error that concerns no directive in particular.
    pub fn general(at: Location, fault: Fault) -> Self {
        Self { at, directive: None, parameter: None, fault }
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

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.fault.source()
    }
}

/// Everything that is wrong with a configuration; never empty. Printed, it is one line each, 50 at most.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nobody reads more, and the first errors are often the cause of the rest.
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

/// Something that works, but hardly as meant.
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
