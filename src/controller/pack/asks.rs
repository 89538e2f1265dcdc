//! Finds what a playbook would ask at a terminal, because nobody can answer a job: variables of `vars_prompt`, and
//! pauses without an end. Reads YAML as it stands, and misses what only a run decides.

use serde_json::{Map, Value};

/// Larger files are not read, because they hold data.
const LARGEST: u64 = 1 << 20;

/// What a playbook asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asks {
    /// Variables that have no value unless somebody types one.
    pub variables: Vec<String>,
    /// Variables that have a default.
    pub defaults: Vec<String>,
    /// Whether it pauses until somebody answers.
    pub pauses: bool,
}

impl Asks {
    /// Reads a playbook or a file of tasks; `given` are variables that have a value.
    pub(super) fn of(text: &str, given: &Map<String, Value>) -> Self {
        let mut asks = Self::default();
        let options = serde_saphyr::options! { with_snippet: false };
        // What is no YAML for us may be YAML for ansible; if it is not, ansible reports that.
        let entries = serde_saphyr::from_str_with_options::<Vec<Value>>(text, options).unwrap_or_default();
        for entry in &entries {
            let asked = entry["vars_prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
            for one in asked {
                let Some(name) = one["name"].as_str().filter(|name| !given.contains_key(*name)) else {
                    continue;
                };
                let has_default = !one["default"].is_null();
                if has_default { &mut asks.defaults } else { &mut asks.variables }.push(name.to_owned());
            }
            asks.pauses |= pauses(entry);
        }
        asks
    }

    /// Whether a file is small enough to be read.
    pub(super) fn is_small(size: u64) -> bool {
        size <= LARGEST
    }
}

/// Whether a play, a block or a task pauses until somebody answers.
fn pauses(entry: &Value) -> bool {
    let lists = ["tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"];
    let below = |key: &&str| entry[*key].as_array().is_some_and(|tasks| tasks.iter().any(pauses));
    let own = ["pause", "ansible.builtin.pause"].iter().filter_map(|key| entry.get(key));
    let is_endless = |arguments: &Value| match arguments {
        Value::Object(arguments) => !["seconds", "minutes"].iter().any(|key| arguments.contains_key(*key)),
        Value::String(text) => !text.contains("seconds=") && !text.contains("minutes="),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
    };
    own.into_iter().any(is_endless) || lists.iter().any(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_playbook_asks_is_found() {
        let text = "- hosts: all\n  vars_prompt:\n  - {name: a}\n  - {name: b, default: 1}\n  - {name: c}\n  tasks:\n  \
            - block:\n    - pause:\n";
        let given = Map::from_iter([("c".to_owned(), Value::Null)]);
        let expected = Asks { variables: vec!["a".into()], defaults: vec!["b".into()], pauses: true };
        assert_eq!(Asks::of(text, &given), expected);
        for calm in
            ["- hosts: all\n  tasks:\n  - pause: {seconds: 1}\n  - pause: minutes=2\n", "{{ no", "a: 1"]
        {
            assert_eq!(Asks::of(calm, &given), Asks::default(), "{calm}");
        }
    }
}
