//! The two notations' common result: directives as written, nothing checked but the shape.
//!
//! Owns what passes between a reader ([`super::yaml`], [`super::cmdline`]) and the check, and the place where
//! readers leave errors and warnings. It refuses to know the schema.

use super::error::{ConfigError, Location, Warning};
use super::value::Located;

/// A directive as written.
#[derive(Debug)]
pub(super) struct RawItem {
    pub(super) at: Location,
    pub(super) name: String,
    pub(super) params: Vec<RawParam>,
}

/// A parameter as written.
#[derive(Debug)]
pub(super) struct RawParam {
    /// None for a value without a name.
    pub(super) name: Option<String>,
    pub(super) at: Location,
    pub(super) value: Located,
}

/// What has come up so far; reading goes on after an error, to find them all at once.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<Warning>,
}

impl Report {
    /// Notes an error that concerns no known directive.
    pub(super) fn general(&mut self, at: &Location, fault: impl Into<String>) {
        self.errors.push(ConfigError::general(at.clone(), fault));
    }

    pub(super) fn warn(&mut self, at: &Location, text: String) {
        self.warnings.push(Warning { at: at.clone(), text });
    }
}
