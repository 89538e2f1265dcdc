//! Turns the word in a path and the query after its `?` into the arguments of an operation. Owns which texts are valid,
//! also for the description of the API. Does not know what the arguments mean: `rpc` defines that.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use super::refusal::ApiRefusal;

/// How a parameter becomes an argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum ParameterKind {
    Text,
    /// A text of at most 255 letters.
    Word,
    /// A name, as operations take it.
    Name,
    /// A moment in the form of RFC 3339.
    Time,
    /// A whole number from the least to the most, both inclusive.
    Number(i64, i64),
    /// `true` or `false`.
    Flag,
    /// Any number of names, each of this JSON schema.
    Many(fn(&mut SchemaGenerator) -> Schema),
}

impl ParameterKind {
    /// The number of a job.
    pub(super) const ID: Self = Self::Number(1, i64::MAX);
    /// A place in a stream of bytes, or of events.
    pub(super) const PLACE: Self = Self::Number(0, i64::MAX);

    /// Any number of names of the type `T`.
    pub(super) const fn many<T: JsonSchema>() -> Self {
        Self::Many(SchemaGenerator::subschema_for::<T>)
    }

    /// The JSON schema of the argument.
    pub(super) fn schema(self, schemas: &mut SchemaGenerator) -> Schema {
        match self {
            Self::Text => json_schema!({"type": "string"}),
            Self::Word => json_schema!({"type": "string", "maxLength": 255}),
            Self::Name => json_schema!({"type": "string", "pattern": "^[ -.0-~]{1,255}$"}),
            Self::Time => json_schema!({"type": "string", "format": "date-time"}),
            Self::Number(least, most) => json_schema!({"type": "integer", "minimum": least, "maximum": most}),
            Self::Flag => json_schema!({"type": "boolean"}),
            Self::Many(of) => json_schema!({"type": "array", "items": of(schemas)}),
        }
    }

    /// The argument that a text stands for.
    ///
    /// # Errors
    /// What the text has to be instead.
    pub(super) fn read(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Text | Self::Word | Self::Name | Self::Time | Self::Many(_) => Ok(Value::from(text)),
            Self::Flag => text.parse::<bool>().map(Value::from).map_err(|_| "true or false".to_owned()),
            Self::Number(least, most) => {
                let number = text.parse::<i64>().ok().filter(|_| !text.starts_with('+'));
                let number = number.filter(|number| (least..=most).contains(number));
                number.map(Value::from).ok_or_else(|| match most {
                    i64::MAX => format!("a whole number from {least}"),
                    _ => format!("a whole number {least} to {most}"),
                })
            }
        }
    }
}

/// The arguments in a query; `known` are the valid parameters.
///
/// # Errors
/// A parameter is unknown, given twice or invalid.
pub(super) fn arguments(
    query: &str,
    known: &[(&str, ParameterKind)],
) -> Result<Map<String, Value>, ApiRefusal> {
    let mut arguments = Map::new();
    for (name, text) in form_urlencoded::parse(query.as_bytes()) {
        let Some((_, kind)) = known.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(ApiRefusal::bad(format!("there is no parameter {name}, but {names}")));
        };
        let value =
            kind.read(&text).map_err(|wanted| ApiRefusal::bad(format!("{name}: it must be {wanted}")))?;
        match (kind, arguments.get_mut(&*name)) {
            (ParameterKind::Many(_), Some(Value::Array(all))) => all.push(value),
            (_, Some(_)) => return Err(ApiRefusal::bad(format!("{name}: it is given twice"))),
            (ParameterKind::Many(_), None) => {
                _ = arguments.insert(name.into_owned(), Value::Array(vec![value]))
            }
            (_, None) => _ = arguments.insert(name.into_owned(), value),
        }
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_become_arguments_or_are_refused_by_name() {
        let known = [
            ("state", ParameterKind::many::<String>()),
            ("name", ParameterKind::Text),
            ("limit", ParameterKind::Number(1, 9)),
            ("follow", ParameterKind::Flag),
        ];
        let read =
            |query: &str| arguments(query, &known).map(Value::from).map_err(|refused| format!("{refused:?}"));
        assert_eq!(read(""), Ok(json!({})));
        assert!(arguments("x=1", &[]).is_err());
        assert_eq!(
            read("state=a&name=x%2Fy+z&state=b&limit=5&follow=true"),
            Ok(json!({"state": ["a", "b"], "name": "x/y z", "limit": 5, "follow": true}))
        );
        for (query, why) in [
            ("nome=x", "there is no parameter nome, but state, name, limit, follow"),
            ("name=x&name=y", "name: it is given twice"),
            ("limit=x", "limit: it must be a whole number 1 to 9"),
            ("limit=10", "limit: it must be a whole number 1 to 9"),
            ("follow=1", "follow: it must be true or false"),
        ] {
            assert!(read(query).unwrap_err().contains(why), "{query}");
        }
    }
}
