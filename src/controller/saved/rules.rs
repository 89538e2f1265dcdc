//! The rules of a saved job's values, for serde. Those of a header's values are the header's own.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Value, json};

use super::start::RESERVED;
use crate::controller::core::{GroupName, Word};
use crate::controller::header::{RetryWords, rules};
use crate::controller::notify::{NoticeEvent, is_target_name, wanted_word};
use crate::rpc::strict;

const LONGEST_TEXT: usize = 512;
const MOST_VERBOSE: u8 = 5;
/// Less than a header may have, because each job gets up to four more.
const MOST_LABELS: usize = 28;
const MOST_LABEL_BYTES: usize = 3_400;
const MOST_NOTIFY: usize = 500;

fn is_line(text: &str, longest: usize) -> bool {
    !text.is_empty() && text.chars().count() <= longest && !text.contains(char::is_control)
}

pub(super) fn line<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(d)?;
    let rule = format!("it must be a text of 1 to {LONGEST_TEXT} characters without control characters");
    if is_line(&text, LONGEST_TEXT) { Ok(Some(text)) } else { Err(D::Error::custom(rule)) }
}

pub(super) fn absolute<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
    let path = line(d)?.map(PathBuf::from);
    let is_absolute = path.as_ref().is_some_and(|path| path.is_absolute());
    if is_absolute { Ok(path) } else { Err(D::Error::custom("it is not an absolute path")) }
}

fn is_inside(path: &str) -> bool {
    !path.starts_with('-')
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

pub(super) fn inside<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    let path = line(d)?;
    let fits = path.as_deref().is_some_and(is_inside);
    if fits { Ok(path) } else { Err(D::Error::custom("it is not a path within the project")) }
}

/// One text, or a list of them.
fn many<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let wrong = || D::Error::custom("it is not a text or a list of texts");
    match Value::deserialize(d)? {
        Value::String(text) => Ok(vec![text]),
        Value::Array(items) => {
            let text = |item: Value| if let Value::String(text) = item { Ok(text) } else { Err(wrong()) };
            items.into_iter().map(text).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(wrong()),
    }
}

pub(super) fn words<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let words = many(d)?;
    let rule = format!("each must be a text of 1 to {LONGEST_TEXT} characters without control characters");
    if words.iter().all(|word| is_line(word, LONGEST_TEXT)) { Ok(words) } else { Err(D::Error::custom(rule)) }
}

pub(super) fn texts<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let texts = many(d)?;
    let fits = |text: &String| text.contains(['\n', ',']) || (is_line(text, LONGEST_TEXT) && is_inside(text));
    let rule =
        "it must be a path within the project, hosts with a comma after each, or the lines of an inventory";
    if texts.iter().all(fits) { Ok(texts) } else { Err(D::Error::custom(rule)) }
}

pub(super) fn verbosity<'de, D: Deserializer<'de>>(d: D) -> Result<u8, D::Error> {
    let level = Value::deserialize(d)?.as_u64().and_then(|level| u8::try_from(level).ok());
    let rule = || D::Error::custom(format!("it must be a whole number from 0 to {MOST_VERBOSE}"));
    level.filter(|level| *level <= MOST_VERBOSE).ok_or_else(rule)
}

pub(super) fn labels<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    let labels = rules::labels(d)?;
    let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if labels.len() > MOST_LABELS || bytes > MOST_LABEL_BYTES {
        let rule = format!("there may be at most {MOST_LABELS}, of {MOST_LABEL_BYTES} bytes together");
        return Err(D::Error::custom(rule));
    }
    let is_reserved = labels.keys().any(|name| name.starts_with(RESERVED));
    let rule = || D::Error::custom(format!("names that begin with {RESERVED} are the controller's own"));
    if is_reserved { Err(rule()) } else { Ok(labels) }
}

pub(super) fn groups<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<GroupName>, D::Error> {
    let launch = json!({"launch": words(d)?});
    rules::groups(launch).map(|groups| groups.launch).map_err(D::Error::custom)
}

pub(super) fn exclusive<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Word>, D::Error> {
    rules::words(Value::from(words(d)?)).map_err(D::Error::custom)
}

pub(super) fn notify<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<BTreeMap<String, Vec<NoticeEvent>>, D::Error> {
    let value = Value::deserialize(d)?;
    let targets: BTreeMap<String, Vec<NoticeEvent>> = match value {
        Value::Object(targets) => {
            let event =
                |(name, events)| Ok((name, serde_json::from_value(events).map_err(D::Error::custom)?));
            targets.into_iter().map(event).collect::<Result<_, D::Error>>()?
        }
        names => many(names).map_err(D::Error::custom)?.into_iter().map(|name| (name, Vec::new())).collect(),
    };
    let bytes: usize = targets.iter().map(|(target, events)| wanted_word(target, events).len() + 1).sum();
    let fits = bytes <= MOST_NOTIFY && targets.keys().all(|name| is_target_name(name));
    let rule =
        format!("it must be names of targets, or a map of them to events, {MOST_NOTIFY} bytes together");
    if fits { Ok(targets) } else { Err(D::Error::custom(rule)) }
}

pub(super) fn retry<'de, D: Deserializer<'de>>(d: D) -> Result<RetryWords, D::Error> {
    match Value::deserialize(d)? {
        Value::Object(keys) => strict::read(keys).map_err(D::Error::custom),
        max => {
            Ok(RetryWords { max: rules::retries(max).map_err(D::Error::custom)?, ..RetryWords::default() })
        }
    }
}
