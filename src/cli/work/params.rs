//! Parameters of a job as typed: `key=value`, `key=@file`, and words after the work type. Owns their syntax and the
//! reading of the files.

use std::{collections::BTreeMap, fs};

use crate::cli::exit::Failure;

/// Fields of the request itself, which no parameter may replace.
const RESERVED: [&str; 4] = ["command", "subcommand", "node", "worktype"];

/// Builds the parameters from `key=value` texts and trailing words, which are appended to the parameter `params`. Of
/// several values for a key, the last one counts.
pub(super) fn collect(
    texts: &[String],
    words: &[String],
    taken: &[&str],
) -> Result<BTreeMap<String, String>, Failure> {
    let mut params = BTreeMap::new();
    for text in texts {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Failure::usage(format!("--param {text:?}: write key=value")))?;
        if RESERVED.contains(&key) || taken.contains(&key) {
            return Err(Failure::usage(format!(
                "--param {key}: reserved for the request itself; use the option for it"
            )));
        }
        params.insert(key.to_owned(), value_of(key, value)?);
    }
    if !words.is_empty() {
        let words = words.join(" ");
        params
            .entry("params".to_owned())
            .and_modify(|params| *params = format!("{params} {words}"))
            .or_insert(words);
    }
    Ok(params)
}

/// `@file` is the file's text, `@@x` is the text `@x`.
fn value_of(key: &str, value: &str) -> Result<String, Failure> {
    match value.strip_prefix('@') {
        None => Ok(value.to_owned()),
        Some(escaped) if escaped.starts_with('@') => Ok(escaped.to_owned()),
        Some(file) => fs::read_to_string(file).map_err(|error| {
            Failure::usage(format!(
                "--param {key}: cannot read file {file:?}: {error}; a value that begins with @ is written @@"
            ))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(texts: &[&str], words: &[&str]) -> Result<Vec<(String, String)>, Failure> {
        let owned = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
        collect(&owned(texts), &owned(words), &["ttl"]).map(|params| params.into_iter().collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, Failure> {
        Ok(pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn values_keep_their_equals_signs() {
        assert_eq!(collected(&["a=b=c", "e="], &[]), pairs(&[("a", "b=c"), ("e", "")]));
        assert_eq!(collected(&["a=1", "a=2"], &[]), pairs(&[("a", "2")]));
    }

    #[test]
    fn trailing_words_end_the_parameter_called_params() {
        assert_eq!(collected(&[], &["-x", "y z"]), pairs(&[("params", "-x y z")]));
        assert_eq!(collected(&["params=a"], &["b"]), pairs(&[("params", "a b")]));
    }

    #[test]
    fn files_are_read_and_at_signs_escaped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pod.yml");
        fs::write(&file, "kind: Pod\n").unwrap();
        let text = format!("secret_kube_pod=@{}", file.display());
        assert_eq!(collected(&[&text], &[]), pairs(&[("secret_kube_pod", "kind: Pod\n")]));
        assert_eq!(collected(&["a=@@b"], &[]), pairs(&[("a", "@b")]));
        assert!(collected(&["a=@/nonexistent/x"], &[]).unwrap_err().message.contains("/nonexistent/x"));
    }

    #[test]
    fn what_is_no_parameter_is_named() {
        for text in ["a", "=b", "command=x", "node=x", "ttl=1s"] {
            assert!(collected(&[text], &[]).is_err(), "{text}");
        }
    }
}
