//! Reads JSON that others wrote into our types, strictly. A refusal names the key and its rule and never shows a value,
//! which may be a secret. Null counts as absent.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// Most characters of a path that are shown.
const LONGEST_PATH: usize = 100;

/// Why an object is not of a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A key that does not exist, with its path.
    #[error("unknown key `{path}`: the keys are {known}")]
    UnknownKey {
        /// Where it is, as in `retry.maximum`.
        path: String,
        /// The keys that exist there.
        known: String,
    },
    /// A value that is not allowed, or missing.
    #[error("{path}: {rule}")]
    Value {
        /// The key, as in `retry.max`.
        path: String,
        /// The rule that it breaks.
        rule: String,
    },
}

/// Reads an object.
///
/// # Errors
/// [`Misfit`] names the first key that does not fit.
pub fn read<T: DeserializeOwned>(keys: Map<String, Value>) -> Result<T, Misfit> {
    serde_path_to_error::deserialize(Json(Value::Object(keys))).map_err(|error| {
        let place: String =
            error.path().to_string().chars().take(LONGEST_PATH).flat_map(char::escape_debug).collect();
        match error.into_inner() {
            Misfit::UnknownKey { known, .. } => Misfit::UnknownKey { path: place, known },
            Misfit::Value { path, rule } if path.is_empty() => Misfit::Value { path: place, rule },
            Misfit::Value { path, rule } if place == "." => Misfit::Value { path, rule },
            Misfit::Value { path, rule } => Misfit::Value { path: format!("{place}.{path}"), rule },
        }
    })
}

/// Errors without paths, which [`read`] adds. A missing key is kept here, because [`read`] only knows its parent's
/// path.
impl de::Error for Misfit {
    fn custom<T: std::fmt::Display>(rule: T) -> Self {
        Self::Value { path: String::new(), rule: rule.to_string() }
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("it is not {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("it is not {expected}"))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("it is not {expected}"))
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self::custom(format_args!("it must be one of {}", known.join(", ")))
    }

    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownKey { path: String::new(), known: known.join(", ") }
    }

    fn missing_field(key: &'static str) -> Self {
        Self::Value { path: key.to_owned(), rule: "it is missing".to_owned() }
    }
}

/// JSON for serde, with our own errors, because those of serde_json show values.
struct Json(Value);

impl IntoDeserializer<'_, Misfit> for Json {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Json {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => SeqDeserializer::new(items.into_iter().map(Json)).deserialize_any(visitor),
            Value::Object(keys) => {
                let given = keys.into_iter().filter(|(_, value)| !value.is_null());
                MapDeserializer::new(given.map(|(key, value)| (key, Json(value)))).deserialize_any(visitor)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(name.into_deserializer()),
            _ => Err(de::Error::unknown_variant("", known)),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct
        map struct identifier ignored_any
    }
}
