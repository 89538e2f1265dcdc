//! What stands behind the `?` of a path, as the arguments of an operation. What the arguments mean is `rpc`'s to say.

use serde_json::{Map, Value};

use super::refusal::Refusal;

/// How a parameter becomes an argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    Number,
    /// `true` or `false`.
    Flag,
    /// Any number of texts.
    Texts,
}

/// The arguments; `known` are the parameters that there are.
///
/// # Errors
/// One is unknown, stands twice, or is not what it has to be.
pub(super) fn arguments(query: &str, known: &[(&str, Kind)]) -> Result<Map<String, Value>, Refusal> {
    let mut arguments = Map::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let Some((_, kind)) = known.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            return Err(Refusal::bad(format!(
                "there is no parameter {name}: there are {}",
                names.join(", ")
            )));
        };
        let wrong = |wanted| Refusal::bad(format!("{name}: it is {wanted}"));
        let value = match kind {
            Kind::Text | Kind::Texts => Value::from(value),
            Kind::Number => Value::from(value.parse::<i64>().map_err(|_| wrong("a whole number"))?),
            Kind::Flag => Value::from(value.parse::<bool>().map_err(|_| wrong("true or false"))?),
        };
        match (kind, arguments.get_mut(&*name)) {
            (Kind::Texts, Some(Value::Array(all))) => all.push(value),
            (Kind::Texts, _) => _ = arguments.insert(name.into_owned(), Value::Array(vec![value])),
            (_, None) => _ = arguments.insert(name.into_owned(), value),
            (_, Some(_)) => return Err(Refusal::bad(format!("{name}: it stands twice"))),
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
        let known =
            [("state", Kind::Texts), ("name", Kind::Text), ("limit", Kind::Number), ("follow", Kind::Flag)];
        let read =
            |query: &str| arguments(query, &known).map(Value::from).map_err(|refused| format!("{refused:?}"));
        assert_eq!(read(""), Ok(json!({})));
        assert_eq!(
            read("state=a&name=x%2Fy+z&state=b&limit=5&follow=true"),
            Ok(json!({"state": ["a", "b"], "name": "x/y z", "limit": 5, "follow": true}))
        );
        for (query, why) in [
            ("nome=x", "there is no parameter nome"),
            ("name=x&name=y", "name: it stands twice"),
            ("limit=x", "limit: it is a whole number"),
            ("follow=1", "follow: it is true or false"),
        ] {
            assert!(read(query).unwrap_err().contains(why), "{query}");
        }
    }
}
