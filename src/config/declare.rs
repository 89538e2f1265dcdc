//! How a directive is declared, once: `directive!` makes its entry in the table, its type and its reader.
//!
//! A declaration looks like the struct that it makes. The comment of a field is the help text of its parameter. The
//! field's type says how the parameter is written and which value it becomes (see [`FromParameters`]):
//!
//! ```text
//! directive! {
//!     /// Accepts neighbours over TCP
//!     "tcp-listener" in Backends;
//!     struct TcpListener {
//!         /// TCP port to listen on
//!         bind "port": Bind<TCP> [required, bare],
//!         /// tls-server profile
//!         tls: Option<TlsServerName>,
//!         /// terms of its links
//!         policy: ListenPolicy,
//!     }
//! }
//! ```
//!
//! A quoted name is the parameter's, if it differs from the field's. Each word in `[...]` sets a flag of its
//! [`Parameter`], and `= "..."` is the default. With `Marker => Type { ... }`, the directive is read into a type of
//! another room: field by field if the fields are the same, else by `make`. `check rule(field, ...);` names a
//! function that says what is wrong with several fields together; it is called if each of them could be read.
//! `warn` does the same for settings that are allowed but probably not intended.

use std::fmt::Display;

use super::components::ComponentFacts;
use super::environment::Environment;
use super::error::{ConfigError, Report, invalid};
use super::item::Item;
use super::schema::{Directive, HelpSection, Parameter, ValueKind, ValueRole};
use super::value::{Located, quoted};

/// One parameter or several, read as one value.
pub trait FromParameters {
    /// The value.
    type Value;

    /// The parameters that make the value; `declared` is the declaration's entry for the first of them.
    fn parameters(declared: Parameter) -> Vec<Parameter>;

    /// Reads the value. `None` after an error, which has been noted.
    fn read(reader: &mut DirectiveReader<'_>) -> Option<Self::Value>;

    /// Adds what the value says about the component that it configures.
    fn describe(_value: &Self::Value, _facts: &mut ComponentFacts) {}
}

/// A directive.
pub(super) trait Declared: FromParameters {
    /// Its name, in lower case.
    const NAME: &'static str;
    /// Its section in the help text.
    const GROUP: HelpSection;

    /// Its entry in the table.
    fn directive() -> Directive;

    /// The facts of the component that it configures.
    fn facts(settings: &Self::Value) -> ComponentFacts {
        let mut facts = ComponentFacts::default();
        Self::describe(settings, &mut facts);
        facts.for_directive(Self::NAME, Self::GROUP)
    }
}

/// How one parameter is written, and the value that it becomes.
pub trait Single {
    /// The value.
    type Value;
    /// The kind of the written value.
    const KIND: ValueKind = ValueKind::Text;
    /// Its meaning for other directives.
    const ROLE: ValueRole = ValueRole::Plain;
    /// True if an empty text means the same as no text; else an empty text is an error.
    const EMPTY_IS_ABSENT: bool = false;

    /// Reads the given value, already in the shape of the kind. `None` after an error, which has been noted. A
    /// missing required value was noted earlier.
    fn read(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Self::Value>;

    /// See [`FromParameters::describe`].
    fn describe(_value: &Self::Value, _facts: &mut ComponentFacts) {}
}

impl<T: Single> FromParameters for T {
    type Value = T::Value;

    fn parameters(declared: Parameter) -> Vec<Parameter> {
        vec![Parameter { kind: T::KIND, role: T::ROLE, ..declared }]
    }

    fn read(reader: &mut DirectiveReader<'_>) -> Option<T::Value> {
        let given = reader.item.settings.get(reader.parameter);
        let is_empty = given.is_some_and(Located::is_empty_text);
        if is_empty && !T::EMPTY_IS_ABSENT {
            reader.fail("may not be empty");
            return None;
        }
        T::read(given.filter(|_| !is_empty), reader)
    }

    fn describe(value: &T::Value, facts: &mut ComponentFacts) {
        T::describe(value, facts);
    }
}

/// `None` if the parameter is not given, or is an empty text.
impl<T: Single> Single for Option<T> {
    type Value = Option<T::Value>;
    const KIND: ValueKind = T::KIND;
    const ROLE: ValueRole = T::ROLE;
    const EMPTY_IS_ABSENT: bool = true;

    fn read(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Option<T::Value>> {
        if given.is_none() { Some(None) } else { T::read(given, reader).map(Some) }
    }

    fn describe(value: &Option<T::Value>, facts: &mut ComponentFacts) {
        value.iter().for_each(|value| T::describe(value, facts));
    }
}

/// A list of texts; each wrong one is noted.
impl<T: Single> Single for Vec<T> {
    type Value = Vec<T::Value>;
    const KIND: ValueKind = ValueKind::TextList;

    fn read(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Vec<T::Value>> {
        let items = given.map_or(&[][..], Located::items);
        let read: Vec<_> = items.iter().filter_map(|item| T::read(Some(item), reader)).collect();
        (read.len() == items.len()).then_some(read)
    }
}

/// Reads the values of one directive, and notes errors of the current parameter.
pub struct DirectiveReader<'a> {
    item: &'a Item,
    parameter: &'static str,
    /// The machine, on which defaults may depend.
    pub(super) environment: &'a Environment,
    report: &'a mut Report,
}

impl<'a> DirectiveReader<'a> {
    pub(super) fn new(item: &'a Item, environment: &'a Environment, report: &'a mut Report) -> Self {
        Self { item, parameter: item.directive.name, environment, report }
    }

    /// A reader of the same directive for another parameter.
    pub(super) fn at(&mut self, parameter: &'static str) -> DirectiveReader<'_> {
        DirectiveReader { item: self.item, parameter, environment: self.environment, report: self.report }
    }

    /// Reads a map as if it were a directive, which names the map's parameters.
    pub(super) fn nested<S: FromParameters>(
        &mut self,
        given: &Located,
        directive: &'static Directive,
    ) -> Option<S::Value> {
        let errors = self.report.errors.len();
        let mut item = Item::of(directive, self.item.at(given.position));
        for (name, value) in given.entries() {
            item.put(Some(name.name()), value.clone(), self.report);
        }
        let item = item.complete(self.report);
        let read = S::read(&mut DirectiveReader::new(&item, self.environment, self.report));
        read.filter(|_| self.report.errors.len() == errors)
    }

    /// True if another parameter has a value that differs from leaving it out.
    pub(super) fn is_given(&self, parameter: &str) -> bool {
        self.item.is_given(parameter)
    }

    /// Parses a text. `None` after an error, which has been noted.
    pub(super) fn parse<T, E: Display>(
        &mut self,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        parse(text).map_err(|reason| self.refuse(&quoted(text), &reason.to_string())).ok()
    }

    /// Notes an error of the current parameter.
    pub(super) fn fail(&mut self, fault: impl Into<String>) {
        self.report.errors.push(self.item.error(Some(self.parameter), fault));
    }

    /// Notes that a value is not allowed.
    pub(super) fn refuse(&mut self, given: &str, reason: &str) {
        self.fail(invalid(given, reason));
    }

    /// Notes an error about an entry that has a location of its own.
    pub(super) fn fail_at(&mut self, position: u64, fault: String) {
        let error = self.item.error(Some(self.parameter), fault);
        self.report.errors.push(ConfigError { at: self.item.at(position), ..error });
    }

    /// Warns of an entry that has a location of its own.
    pub(super) fn warn_at(&mut self, position: u64, text: &str) {
        let text = format!("{}: {}: {text}", self.item.directive.name, self.parameter);
        self.report.warn(self.item.at(position), text);
    }

    /// Notes that the directive lacks this parameter.
    pub(super) fn lacks(&mut self, what: &str) {
        self.conflict(&format!("`{}` is needed: {what}", self.parameter));
    }

    /// Notes an error about the directive as a whole.
    pub(super) fn conflict(&mut self, fault: &str) {
        self.report.errors.push(self.item.error(None, fault));
    }

    /// Warns of settings that are allowed but probably not intended.
    pub(super) fn warn(&mut self, text: &str) {
        let text = format!("{}: {text}", self.item.directive.name);
        self.report.warn(self.item.at.clone(), text);
    }
}

/// The name of a field's parameter: the quoted one, else the field's.
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// The value of a flag in a declaration: true, or the words that come with it.
macro_rules! flag {
    () => {
        true
    };
    ($why:literal) => {
        Some($why)
    };
}

/// Makes the value from what was read: by `make`, else as a struct of the fields.
macro_rules! make {
    ($value:ty { $($field:ident),* }) => {{
        type Made = $value;
        Made { $($field),* }
    }};
    ($value:ty { $($field:ident),* } $make:expr) => {
        $make
    };
}

/// Lets each field add to the facts, if the value has these fields.
macro_rules! describe {
    ($value:ident, $facts:ident, { $($field:ident: $type:ty),* }) => {
        $(<$type as $crate::config::declare::FromParameters>::describe(&$value.$field, $facts);)*
    };
    ($value:ident, $facts:ident, { $($field:ident: $type:ty),* } $make:expr) => {
        let (_, _) = ($value, $facts);
    };
}

/// Declares several parameters that become one value. See the module's documentation.
macro_rules! settings {
    ($marker:ident => $value:ty {
        $($(#[doc = $doc:literal])+ $field:ident $($name:literal)? : $type:ty $([$($flag:ident),+])? $(= $default:literal)?),* $(,)?
    } $(check $rule:ident($($of:ident),+);)* $(warn $doubt:ident($($about:ident),+);)* $(make $make:expr)?) => {
        impl $crate::config::declare::FromParameters for $marker {
            type Value = $value;

            fn parameters(_: $crate::config::schema::Parameter) -> Vec<$crate::config::schema::Parameter> {
                use $crate::config::schema::Parameter;
                let all: Vec<Vec<Parameter>> = vec![$(<$type as $crate::config::declare::FromParameters>::parameters(
                    Parameter {
                        $($($flag: true,)+)?
                        $(default: Some($default),)?
                        ..Parameter::new($crate::config::declare::name!($field $($name)?), &[$($doc),+])
                    }
                )),*];
                all.concat()
            }

            #[allow(unused_variables, reason = "a directive may have no parameters")]
            fn read(reader: &mut $crate::config::declare::DirectiveReader<'_>) -> Option<$value> {
                $(let $field = <$type as $crate::config::declare::FromParameters>::read(
                    &mut reader.at($crate::config::declare::name!($field $($name)?)),
                );)*
                $(if let ($(Some($of),)+) = ($($of.as_ref(),)+) && let Some(fault) = $rule($($of),+) {
                    reader.conflict(fault);
                })*
                $(if let ($(Some($about),)+) = ($($about.as_ref(),)+) && let Some(text) = $doubt($($about),+) {
                    reader.warn(text);
                })*
                $(let $field = $field?;)*
                Some($crate::config::declare::make!($value { $($field),* } $($make)?))
            }

            fn describe(value: &$value, facts: &mut $crate::config::components::ComponentFacts) {
                $crate::config::declare::describe!(value, facts, { $($field: $type),* } $($make)?);
            }
        }
    };
}

/// Declares a directive. See the module's documentation.
macro_rules! directive {
    // Makes a type of its own.
    ($(#[doc = $doc:literal])+ $name:literal in $group:ident $([$($flag:ident $(($why:literal))?),+])?;
    struct $value:ident {
        $($(#[doc = $help:literal])+ $field:ident $($parameter:literal)? : $type:ty $([$($option:ident),+])? $(= $default:literal)?),+ $(,)?
    } $($rest:tt)*) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $value {
            $($(#[doc = $help])+ pub $field: <$type as $crate::config::declare::FromParameters>::Value,)+
        }

        $crate::config::declare::directive! {
            @ [$($doc),+] $name $group [$($($flag $(($why))?),+)?] $value => $value {
                $($(#[doc = $help])+ $field $($parameter)? : $type $([$($option),+])? $(= $default)?),+
            } $($rest)*
        }
    };
    // Reads into another type.
    ($(#[doc = $doc:literal])+ $name:literal in $group:ident $([$($flag:ident $(($why:literal))?),+])?;
    $marker:ident => $($rest:tt)*) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy)]
        pub enum $marker {}

        $crate::config::declare::directive! {
            @ [$($doc),+] $name $group [$($($flag $(($why))?),+)?] $marker => $($rest)*
        }
    };
    (@ [$($doc:literal),+] $name:literal $group:ident [$($flag:ident $(($why:literal))?),*] $marker:ident => $($rest:tt)*) => {
        $crate::config::declare::settings! { $marker => $($rest)* }

        impl $crate::config::declare::Declared for $marker {
            const NAME: &'static str = $name;
            const GROUP: $crate::config::schema::HelpSection = $crate::config::schema::HelpSection::$group;

            fn directive() -> $crate::config::schema::Directive {
                use $crate::config::{declare::FromParameters, schema::{Directive, Parameter}};
                let parameters = <Self as FromParameters>::parameters(Parameter::new($name, &[]));
                Directive {
                    $($flag: $crate::config::declare::flag!($($why)?),)*
                    ..Directive::new($name, Self::GROUP, &[$($doc),+], parameters)
                }
            }
        }
    };
}

pub(super) use {describe, directive, flag, make, name, settings};
