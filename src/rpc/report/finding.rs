//! Something that is wrong, or probably not intended, as `meshd check` and `meshctl doctor` report it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::names;

names! {
    /// How bad a finding is.
    enum Severity {
        /// It is allowed, but probably not intended.
        Warning = "warning",
        /// It keeps something from working.
        Error = "error",
        /// It could not be asked or looked at: nothing is known of it.
        NotAsked = "not asked",
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What is so.
    pub what: String,
    /// A directive, a file with its line, or a part of the node; empty if `what` says it.
    #[serde(rename = "where")]
    pub place: String,
    /// How bad it is.
    pub severity: Severity,
    /// What to do.
    pub remedy: Option<String>,
}

impl Finding {
    /// A finding with its remedy.
    pub fn new(
        severity: Severity,
        place: impl fmt::Display,
        what: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        let (place, what, remedy) = (place.to_string(), what.to_string(), Some(remedy.to_string()));
        Self { what, place, severity, remedy }
    }

    /// A finding that keeps something from working.
    pub fn fault(place: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::new(Severity::Error, place, what, remedy)
    }

    /// A finding of something that is probably not intended.
    pub fn advice(place: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::new(Severity::Warning, place, what, remedy)
    }

    /// The same with the name of the node that gives the advice, so that nobody takes it for this node's.
    pub fn said_by(self, node: &str) -> Self {
        Self { remedy: self.remedy.map(|remedy| format!("{node} says: {remedy}")), ..self }
    }

    /// Something that could not be looked at.
    pub fn not_asked(place: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::new(Severity::NotAsked, place, what, remedy)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity)?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.what)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}
