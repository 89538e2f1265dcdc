//! What a stream asks of the runner, by its keyword arguments: enough to recognize a job. Arguments of modules,
//! variables and passwords are left out, because the store keeps what is read here.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::controller::core::readable;

/// Bytes of each text that are kept.
const LONGEST_TEXT: usize = 500;

/// What a stream asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Hosts at a time.
    pub forks: Option<u32>,
    /// What runs where.
    pub run: RunSummary,
}

/// What a job runs, and on what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSummary {
    /// Its playbook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub playbook: Option<String>,
    /// Its module, without arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Hosts that it is limited to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Tags that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// Tags that do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_tags: Option<String>,
    /// It runs in check mode, which changes nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
}

impl RunSummary {
    /// The name of a job that nobody has named.
    pub fn title(&self) -> Option<&String> {
        self.playbook.as_ref().or(self.module.as_ref())
    }

    /// Takes what a command line of ansible says.
    fn take_words(&mut self, line: &str) {
        let words = shlex::split(line).unwrap_or_default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (flag, value) =
                word.split_once('=').map_or((&**word, None), |(flag, value)| (flag, Some(value)));
            let place = match flag {
                "-C" | "--check" => {
                    self.check = true;
                    continue;
                }
                "-l" | "--limit" => &mut self.limit,
                "-t" | "--tags" => &mut self.tags,
                "--skip-tags" => &mut self.skip_tags,
                _ => continue,
            };
            *place =
                value.or_else(|| words.next().map(String::as_str)).map(|text| readable(text, LONGEST_TEXT));
        }
    }
}

impl Asked {
    /// Reads keyword arguments. The runner's command line passes numbers as texts.
    pub(super) fn read(kwargs: &RawValue) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Kwargs {
            forks: Value,
            playbook: Value,
            module: Value,
            limit: Value,
            tags: Value,
            skip_tags: Value,
            cmdline: Value,
        }
        let kwargs: Kwargs = serde_json::from_str(kwargs.get()).unwrap_or_default();
        let forks = match &kwargs.forks {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64().and_then(|forks| forks.try_into().ok()),
        };
        let mut run = RunSummary {
            playbook: text(&kwargs.playbook),
            module: text(&kwargs.module),
            limit: text(&kwargs.limit),
            tags: text(&kwargs.tags),
            skip_tags: text(&kwargs.skip_tags),
            check: false,
        };
        if let Value::String(line) = &kwargs.cmdline {
            run.take_words(line);
        }
        Self { forks, run }
    }
}

/// A text, or several joined by commas; `None` for anything else, such as a playbook that is a list of plays.
fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => readable(text, LONGEST_TEXT),
        Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            readable(&items?.join(","), LONGEST_TEXT)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn run(kwargs: Value) -> RunSummary {
        Asked::read(&to_raw_value(&kwargs).unwrap()).run
    }

    #[test]
    fn a_run_is_known_by_its_keyword_arguments() {
        let given = |text: &str| Some(text.to_owned());
        let kwargs = json!({"playbook": "site.yml", "limit": ["web1", "web2"], "tags": "a,b", "skip_tags": "",
            "cmdline": "--become -C --skip-tags=slow -e 'password=hidden -t x'", "passwords": {"x": "hidden"}});
        let site = RunSummary {
            playbook: given("site.yml"),
            limit: given("web1,web2"),
            tags: given("a,b"),
            skip_tags: given("slow"),
            check: true,
            ..RunSummary::default()
        };
        assert_eq!((run(kwargs), site.title()), (site.clone(), Some(&"site.yml".to_owned())));
        let module =
            run(json!({"module": "user", "module_args": "password=hidden", "cmdline": "-l db --tags t"}));
        let expected = RunSummary {
            module: given("user"),
            limit: given("db"),
            tags: given("t"),
            ..RunSummary::default()
        };
        assert_eq!(module, expected, "its arguments may be secret");
        assert_eq!(
            run(json!({"playbook": [{"hosts": "all"}], "tags": 3, "cmdline": "-l"})),
            RunSummary::default()
        );
        assert_eq!(run(json!({"playbook": "a\u{7}b".repeat(400)})).playbook.unwrap().len(), LONGEST_TEXT);
    }

    #[test]
    fn only_what_is_given_is_kept() {
        let kept = |run: &RunSummary| serde_json::to_value(run).unwrap();
        assert_eq!(kept(&RunSummary::default()), json!({}));
        let run = run(json!({"playbook": "site.yml", "cmdline": "--check"}));
        assert_eq!(kept(&run), json!({"playbook": "site.yml", "check": true}));
        assert_eq!(serde_json::from_value::<RunSummary>(kept(&run)).unwrap(), run);
    }
}
