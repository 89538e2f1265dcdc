//! The grammar's types: what a directive and a parameter can be.
//!
//! Owns the types of the table and the look-up of a parameter by name, which ignores case. The declarations in
//! `directives` make the table itself; reading, checking, help and reference all follow it. It refuses to know what
//! a setting is for.

/// The kind of a parameter's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Text; numbers and booleans are read as text.
    Text,
    /// A whole number; also a text such as `0660` or `0x1b0`.
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
    /// A list of maps; each is a firewall rule.
    FreeMap,
}

impl ValueKind {
    /// The kind as an error message names it.
    pub const fn wanted(self) -> &'static str {
        self.words().0
    }

    /// The kind as the help text shows it.
    pub const fn placeholder(self) -> &'static str {
        self.words().1
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Text => ("text", "TEXT"),
            Self::Int => ("a whole number", "INT"),
            Self::Float => ("a number", "NUMBER"),
            Self::Flag => ("true or false", "BOOL"),
            Self::TextList => ("a list of texts", "TEXT..."),
            Self::NodeCosts => ("a map of node IDs to costs", "{NODE: COST}"),
            Self::FirewallRules => ("a list of firewall rules", "[RULE, ...]"),
            Self::FreeMap => ("a map", "{...}"),
        }
    }
}

/// What a parameter's text means for the rest of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueRole {
    /// No meaning.
    Plain,
    /// It names a thing of this kind; no other of the kind may have the same name.
    Defines(&'static str),
    /// It is the `name` of a directive of this kind.
    Refers(&'static str),
    /// If the value is true, this directive must be given.
    Needs(&'static str),
}

/// A parameter of a directive.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its name, in lower case.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: ValueKind,
    /// Its meaning for other directives.
    pub role: ValueRole,
    /// Its default, as text.
    pub default: Option<&'static str>,
    /// True if an empty text also stands for the default.
    pub empty_is_default: bool,
    /// True if it must be given.
    pub required: bool,
    /// True if its name may be left out.
    pub bare: bool,
    /// True if it is only in the grammar for configurations of receptor.
    pub former: bool,
    /// Its declaration's comment: the first line is the help text, the rest is for the reference.
    pub docs: &'static [&'static str],
}

impl Parameter {
    /// An optional parameter without a default.
    pub(super) const fn new(name: &'static str, docs: &'static [&'static str]) -> Self {
        Self {
            name,
            kind: ValueKind::Text,
            role: ValueRole::Plain,
            default: None,
            empty_is_default: false,
            required: false,
            bare: false,
            former: false,
            docs,
        }
    }

    /// One line for the help text.
    pub fn help(&self) -> &'static str {
        self.docs.first().map_or("", |line| line.trim())
    }
}

/// The sections of the help text, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelpSection {
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

impl HelpSection {
    /// All sections, in the order of the help text.
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
    /// Its name, in lower case.
    pub name: &'static str,
    /// Its section in the help text.
    pub group: HelpSection,
    /// Its declaration's comment: the first line is the help text, the rest is for the reference.
    pub docs: &'static [&'static str],
    /// Its parameters, in the order of the help text.
    pub parameters: Vec<Parameter>,
    /// True if it may occur only once.
    pub singleton: bool,
    /// True if no other directive may occur with it.
    pub exclusive: bool,
    /// The consequence, if this version does nothing for the directive.
    pub without_effect: Option<&'static str>,
}

impl Directive {
    pub(super) fn new(
        name: &'static str,
        group: HelpSection,
        docs: &'static [&'static str],
        parameters: Vec<Parameter>,
    ) -> Self {
        Self { name, group, docs, parameters, singleton: false, exclusive: false, without_effect: None }
    }

    /// Its parameters, without those only for configurations of receptor.
    pub fn current(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|parameter| !parameter.former)
    }

    /// The parameter of this name, in any case.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
    }

    /// One line for the help text.
    pub fn help(&self) -> &'static str {
        self.docs.first().map_or("", |line| line.trim())
    }
}
