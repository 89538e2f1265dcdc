//! The shape of the grammar: what a directive and a parameter can be.
//!
//! Owns the types of the schema and the look-up by name, which ignores case. The table itself is in
//! `directives`; reading, checking, cross-checking and the help text all follow it, so a directive
//! is described in one place only. It refuses to know what a setting is for.

use super::directives::DIRECTIVES;

/// What values a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text; numbers and booleans are taken as text.
    Text,
    /// A whole number; as text also `0660`, `0x1b0`.
    Int,
    /// A number.
    Float,
    /// True or false.
    Flag,
    /// A list of texts; a single text is a list of one.
    TextList,
    /// A map of node ID to cost.
    NodeCosts,
    /// A list of maps, each a firewall rule.
    FirewallRules,
    /// A map of anything.
    FreeMap,
}

impl Kind {
    /// The kind as an error message names it.
    pub const fn wanted(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int => "a whole number",
            Self::Float => "a number",
            Self::Flag => "true or false",
            Self::TextList => "a list of texts",
            Self::NodeCosts => "a map of node IDs to costs",
            Self::FirewallRules => "a list of firewall rules",
            Self::FreeMap => "a map",
        }
    }
}

/// What a name in a parameter means to the rest of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Plain,
    /// It names a thing of this kind, and no other may have the same name.
    Defines(&'static str),
    /// It is the `name` of a directive of this kind.
    Refers(&'static str),
    /// If true, this directive must be there.
    Needs(&'static str),
}

/// A parameter of a directive.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// In lower case.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What it means for other directives.
    pub role: Role,
    /// Its value if it is not given, as text.
    pub default: Option<&'static str>,
    /// True if it must be given.
    pub required: bool,
    /// True if its name may be left out.
    pub bare: bool,
    /// One line for the help text.
    pub help: &'static str,
}

impl Parameter {
    /// An optional parameter without a default.
    pub(super) const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, role: Role::Plain, default: None, required: false, bare: false, help }
    }

    /// The same, of text.
    pub(super) const fn text(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Text, help)
    }

    /// The same, a switch that is off.
    pub(super) const fn flag(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Flag, help).or("false")
    }

    pub(super) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    pub(super) const fn bare(self) -> Self {
        Self { bare: true, ..self }
    }

    pub(super) const fn or(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    pub(super) const fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// The sections of the help text, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The node itself.
    Node,
    /// Links to neighbours.
    Backends,
    /// The control service and proxies.
    Services,
    /// Work types and signatures.
    Work,
    /// TLS profiles.
    Tls,
    /// Commands that make certificates and end.
    Certificates,
}

impl Group {
    /// All groups, in the order of the help text.
    pub const ALL: [Self; 6] =
        [Self::Node, Self::Backends, Self::Services, Self::Work, Self::Tls, Self::Certificates];

    /// The heading of the section.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Node => "The node",
            Self::Backends => "Links to neighbours",
            Self::Services => "Control service and other services",
            Self::Work => "Work",
            Self::Tls => "TLS profiles",
            Self::Certificates => "Certificates (each is a command of its own)",
        }
    }
}

/// A directive.
#[derive(Debug)]
pub struct Directive {
    /// In lower case.
    pub name: &'static str,
    /// Its section in the help text.
    pub group: Group,
    /// One line for the help text.
    pub help: &'static str,
    /// Its parameters, in the order of the help text.
    pub parameters: &'static [Parameter],
    /// True if it may occur only once.
    pub singleton: bool,
    /// True if no other directive may occur with it.
    pub exclusive: bool,
}

impl Directive {
    pub(super) const fn new(
        name: &'static str,
        group: Group,
        help: &'static str,
        parameters: &'static [Parameter],
    ) -> Self {
        Self { name, group, help, parameters, singleton: false, exclusive: false }
    }

    pub(super) const fn singleton(self) -> Self {
        Self { singleton: true, ..self }
    }

    pub(super) const fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// The directive of this name in any case.
    pub fn find(name: &str) -> Option<&'static Self> {
        DIRECTIVES.iter().find(|directive| directive.name.eq_ignore_ascii_case(name))
    }

    /// The parameter of this name in any case.
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.parameters.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
    }

    /// The parameter whose name may be left out.
    pub fn bare_parameter(&self) -> Option<&'static Parameter> {
        self.parameters.iter().find(|parameter| parameter.bare)
    }
}
