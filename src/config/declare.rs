//! How a directive is declared, once: `directive!` makes its entry in the table, its type and its reader.
//!
//! A declaration looks like the struct that it makes. The comment of a field is the help text of its parameter, the
//! field's type says how the parameter is written and which value it becomes (see [`Settings`]):
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
//! A name in quotes is the parameter's, where it is not the field's. What stands in `[...]` is true in its
//! [`Parameter`], and `= "..."` is the default. What another room has a type for is read into that type: with
//! `Marker => Type { ... }`, as it is if the fields are the same, else by `make`. `check rule(field, ...);` names a
//! function that says what is wrong with several fields together; it is called if each of them could be read. `warn`
//! does the same for what is allowed but probably not intended.

use std::fmt::Display;

use super::Environment;
use super::components::Facts;
use super::error::{Report, invalid};
use super::item::Item;
use super::schema::{Directive, Group, Kind, Parameter, Role};
use super::value::{Located, quoted};

/// One parameter or several, read as one value.
pub trait Settings {
    /// The value.
    type Value;

    /// The parameters, as the declaration has the first of them.
    fn parameters(declared: Parameter) -> Vec<Parameter>;

    /// Reads the value. `None` after an error, which has been noted.
    fn read(reader: &mut Reader<'_>) -> Option<Self::Value>;

    /// Adds what the value says about a component that is configured by it.
    fn describe(_value: &Self::Value, _facts: &mut Facts) {}
}

/// A directive.
pub(super) trait Declared: Settings {
    /// Its name, in lower case.
    const NAME: &'static str;
    /// Its section in the help text.
    const GROUP: Group;

    /// Its entry in the table.
    fn directive() -> Directive;
}

/// How one parameter is written, and the value that it becomes.
pub trait Single {
    /// The value.
    type Value;
    /// The kind of the written value.
    const KIND: Kind = Kind::Text;
    /// Its meaning for other directives.
    const ROLE: Role = Role::Plain;
    /// True if an empty text is the same as none; else it is an error.
    const EMPTY_IS_ABSENT: bool = false;

    /// Reads what was given, in the shape of the kind. `None` after an error, which has been noted: that a required one
    /// is missing, before.
    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<Self::Value>;

    /// See [`Settings::describe`].
    fn describe(_value: &Self::Value, _facts: &mut Facts) {}
}

impl<T: Single> Settings for T {
    type Value = T::Value;

    fn parameters(declared: Parameter) -> Vec<Parameter> {
        vec![Parameter { kind: T::KIND, role: T::ROLE, ..declared }]
    }

    fn read(reader: &mut Reader<'_>) -> Option<T::Value> {
        let given = reader.item.settings.get(reader.parameter);
        let is_empty = given.is_some_and(Located::is_empty_text);
        if is_empty && !T::EMPTY_IS_ABSENT {
            reader.fail("may not be empty");
            return None;
        }
        T::read(given.filter(|_| !is_empty), reader)
    }

    fn describe(value: &T::Value, facts: &mut Facts) {
        T::describe(value, facts);
    }
}

/// Nothing, if the parameter is not given or an empty text.
impl<T: Single> Single for Option<T> {
    type Value = Option<T::Value>;
    const KIND: Kind = T::KIND;
    const ROLE: Role = T::ROLE;
    const EMPTY_IS_ABSENT: bool = true;

    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<Option<T::Value>> {
        if given.is_none() { Some(None) } else { T::read(given, reader).map(Some) }
    }

    fn describe(value: &Option<T::Value>, facts: &mut Facts) {
        value.iter().for_each(|value| T::describe(value, facts));
    }
}

/// A list of texts; all wrong ones are noted.
impl<T: Single> Single for Vec<T> {
    type Value = Vec<T::Value>;
    const KIND: Kind = Kind::TextList;

    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<Vec<T::Value>> {
        let items = given.map_or(&[][..], Located::items);
        let read: Vec<_> = items.iter().filter_map(|item| T::read(Some(item), reader)).collect();
        (read.len() == items.len()).then_some(read)
    }
}

/// Reads the values of one directive, and notes what is wrong with the parameter at hand.
pub struct Reader<'a> {
    item: &'a Item,
    parameter: &'static str,
    /// Defaults may depend on it.
    pub(super) environment: &'a Environment,
    report: &'a mut Report,
}

impl<'a> Reader<'a> {
    pub(super) fn new(item: &'a Item, environment: &'a Environment, report: &'a mut Report) -> Self {
        Self { item, parameter: item.directive.name, environment, report }
    }

    /// The same for another parameter.
    pub(super) fn at(&mut self, parameter: &'static str) -> Reader<'_> {
        Reader { item: self.item, parameter, environment: self.environment, report: self.report }
    }

    /// Reads a map as if it were a directive of its own, which names its parameters.
    pub(super) fn nested<S: Settings>(
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
        let read = S::read(&mut Reader::new(&item, self.environment, self.report));
        read.filter(|_| self.report.errors.len() == errors)
    }

    /// True if another parameter says more than leaving it out.
    pub(super) fn is_given(&self, parameter: &str) -> bool {
        self.item.is_given(parameter)
    }

    /// The value of a text. `None` after an error, which has been noted.
    pub(super) fn parse<T, E: Display>(
        &mut self,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        parse(text).map_err(|reason| self.refuse(&quoted(text), &reason.to_string())).ok()
    }

    /// Notes an error.
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
        self.report.errors.push(super::ConfigError { at: self.item.at(position), ..error });
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

    /// Warns of what is allowed but probably not intended.
    pub(super) fn warn(&mut self, text: &str) {
        let text = format!("{}: {text}", self.item.directive.name);
        self.report.warn(self.item.at.clone(), text);
    }
}

/// The name of a field's parameter.
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// The value of a directive's flag: true, or the words with it.
macro_rules! flag {
    () => {
        true
    };
    ($why:literal) => {
        Some($why)
    };
}

/// The value of what was read: as `make` says, else the value that has the fields.
macro_rules! make {
    ($value:ty { $($field:ident),* }) => {{
        type Made = $value;
        Made { $($field),* }
    }};
    ($value:ty { $($field:ident),* } $make:expr) => {
        $make
    };
}

/// Lets each field of a value add to the facts, where the value has the fields.
macro_rules! describe {
    ($value:ident, $facts:ident, { $($field:ident: $type:ty),* }) => {
        $(<$type as $crate::config::declare::Settings>::describe(&$value.$field, $facts);)*
    };
    ($value:ident, $facts:ident, { $($field:ident: $type:ty),* } $make:expr) => {
        let (_, _) = ($value, $facts);
    };
}

/// Declares several parameters that become one value. See the module.
macro_rules! settings {
    ($marker:ident => $value:ty {
        $($(#[doc = $doc:literal])+ $field:ident $($name:literal)? : $type:ty $([$($flag:ident),+])? $(= $default:literal)?),* $(,)?
    } $(check $rule:ident($($of:ident),+);)* $(warn $doubt:ident($($about:ident),+);)* $(make $make:expr)?) => {
        impl $crate::config::declare::Settings for $marker {
            type Value = $value;

            fn parameters(_: $crate::config::schema::Parameter) -> Vec<$crate::config::schema::Parameter> {
                use $crate::config::schema::Parameter;
                let all: Vec<Vec<Parameter>> = vec![$(<$type as $crate::config::declare::Settings>::parameters(
                    Parameter {
                        $($($flag: true,)+)?
                        $(default: Some($default),)?
                        ..Parameter::new($crate::config::declare::name!($field $($name)?), &[$($doc),+])
                    }
                )),*];
                all.concat()
            }

            #[allow(unused_variables, reason = "a directive may have no parameters")]
            fn read(reader: &mut $crate::config::declare::Reader<'_>) -> Option<$value> {
                $(let $field = <$type as $crate::config::declare::Settings>::read(
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

            fn describe(value: &$value, facts: &mut $crate::config::components::Facts) {
                $crate::config::declare::describe!(value, facts, { $($field: $type),* } $($make)?);
            }
        }
    };
}

/// Declares a directive. See the module.
macro_rules! directive {
    // With a type of its own.
    ($(#[doc = $doc:literal])+ $name:literal in $group:ident $([$($flag:ident $(($why:literal))?),+])?;
    struct $value:ident {
        $($(#[doc = $help:literal])+ $field:ident $($parameter:literal)? : $type:ty $([$($option:ident),+])? $(= $default:literal)?),+ $(,)?
    } $($rest:tt)*) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $value {
            $($(#[doc = $help])+ pub $field: <$type as $crate::config::declare::Settings>::Value,)+
        }

        $crate::config::declare::directive! {
            @ [$($doc),+] $name $group [$($($flag $(($why))?),+)?] $value => $value {
                $($(#[doc = $help])+ $field $($parameter)? : $type $([$($option),+])? $(= $default)?),+
            } $($rest)*
        }
    };
    // Whose value is of another type.
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
            const GROUP: $crate::config::schema::Group = $crate::config::schema::Group::$group;

            fn directive() -> $crate::config::schema::Directive {
                use $crate::config::{declare::Settings, schema::{Directive, Parameter}};
                let parameters = <Self as Settings>::parameters(Parameter::new($name, &[]));
                Directive {
                    $($flag: $crate::config::declare::flag!($($why)?),)*
                    ..Directive::new($name, Self::GROUP, &[$($doc),+], parameters)
                }
            }
        }
    };
}

pub(super) use {describe, directive, flag, make, name, settings};
