//! The rules of a header's values (the table in docs/controller-reference.md), for serde.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Dependency;
use crate::controller::core::{GroupName, JobId, JobKind, LaunchGroups, Level, Word};
use crate::controller::credentials::Url;
use crate::duration;

const LONGEST_NAME: usize = 512;
const LONGEST_KEY: usize = 255;
const MOST_LABELS: usize = 32;
/// The most bytes of all labels of a job, because lists show them.
const LABELS: usize = 4096;
const MOST_GROUPS: usize = 100;
const MOST_DEPENDENCIES: usize = 1_000;
const MOST_WORDS: usize = 16;
const MOST_OPTIONS: usize = 100;
const LONGEST_OPTION: usize = 4_096;
const COUNT: i64 = i32::MAX as i64;

/// Declares functions for `deserialize_with`: what each returns, and how it reads.
macro_rules! rules {
    ($($rule:ident -> $type:ty = |$d:ident| $read:expr;)*) => {
        $(
            pub(in crate::controller) fn $rule<'de, D: Deserializer<'de>>($d: D) -> Result<$type, D::Error> {
                $read
            }
        )*
    };
}

rules! {
    submitted -> JobKind = |d| {
        let kind = JobKind::deserialize(d)?;
        let is_submitted = kind.is_submitted();
        check::<D::Error>(is_submitted, format_args!("jobs of kind {kind} are made by the controller"))?;
        Ok(kind)
    };
    name -> Option<String> = |d| text(d, LONGEST_NAME).map(Some);
    key -> Option<String> = |d| text(d, LONGEST_KEY).map(Some);
    labels -> BTreeMap<String, String> = |d| {
        let labels = BTreeMap::<String, String>::deserialize(d)?;
        check::<D::Error>(labels.len() <= MOST_LABELS, format_args!("there may be at most {MOST_LABELS}"))?;
        are_plain::<D::Error>("a name: ", labels.keys(), LONGEST_KEY)?;
        let values = labels.values().filter(|text| !text.is_empty());
        are_plain::<D::Error>("a value may be empty, else ", values, LONGEST_NAME)?;
        let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        let rule = format_args!("together they may have at most {LABELS} bytes, but these have {bytes}");
        check::<D::Error>(bytes <= LABELS, rule)?;
        Ok(labels)
    };
    count -> Option<u32> = |d| number(d, 0..=COUNT).map(Some);
    groups -> LaunchGroups = |d| {
        let groups = LaunchGroups::deserialize(d)?;
        for names in [&groups.launch, &groups.template, &groups.inventory, &groups.organization] {
            let are_few = names.len() <= MOST_GROUPS;
            check::<D::Error>(are_few, format_args!("each must be a list of at most {MOST_GROUPS}"))?;
            are_plain::<D::Error>("a name: ", names.iter().map(GroupName::as_str), LONGEST_KEY)?;
        }
        let stops = [Level::Template, Level::Inventory, Level::Organization];
        let do_stop = groups.prevent_fallback.iter().all(|level| stops.contains(level));
        check::<D::Error>(do_stop, "prevent_fallback: it must be a list of template, inventory, organization")?;
        Ok(groups)
    };
    priority -> i8 = |d| number(d, -100..=100);
    dependencies -> Vec<Dependency> = |d| list(d, MOST_DEPENDENCIES);
    needed_job -> JobId = |d| number(d, 1..=i64::MAX).map(JobId);
    needed_key -> String = |d| text(d, LONGEST_KEY);
    words -> Vec<Word> = |d| {
        let words = list(d, MOST_WORDS)?;
        are_plain::<D::Error>("a word: ", words.iter().map(Word::as_str), LONGEST_KEY)?;
        Ok(words)
    };
    bytes -> Option<u64> = |d| number(d, 1..=i64::MAX).map(Some);
    retries -> u32 = |d| number(d, 0..=10);
    image -> Option<String> = |d| argument(d, LONGEST_NAME, "it is not the name of an image").map(Some);
    options -> Option<Vec<String>> = |d| {
        let options: Vec<String> = list(d, MOST_OPTIONS)?;
        are_plain::<D::Error>("an option: ", options.iter(), LONGEST_OPTION)?;
        Ok(Some(options))
    };
    seconds -> Option<u32> = |d| number(d, 1..=86_400).map(Some);
    repository -> Url = |d| {
        let url = Url::deserialize(d)?;
        let is_known = ["https", "ssh", "file"].contains(&url.scheme());
        check::<D::Error>(is_known, "the URL of a repository must begin with https, ssh or file")?;
        let is_open = url.scheme() != "https" || url.user().is_none();
        check::<D::Error>(is_open, "it holds a user name: put it into a credential")?;
        Ok(url)
    };
    revision -> Option<String> = |d| argument(d, LONGEST_KEY, "it is not a branch, tag or commit").map(Some);
}

fn check<E: Error>(is_kept: bool, rule: impl Display) -> Result<(), E> {
    if is_kept { Ok(()) } else { Err(E::custom(rule)) }
}

/// Checks texts that are shown to people and in tables.
fn are_plain<E: Error>(
    what: &str,
    texts: impl IntoIterator<Item: AsRef<str>>,
    longest: usize,
) -> Result<(), E> {
    let is_plain =
        |text: &str| !text.is_empty() && text.chars().count() <= longest && !text.contains(char::is_control);
    let all = texts.into_iter().all(|text| is_plain(text.as_ref()));
    check(
        all,
        format_args!("{what}it must be a text of 1 to {longest} characters without control characters"),
    )
}

fn text<'de, D: Deserializer<'de>>(d: D, longest: usize) -> Result<String, D::Error> {
    let text = String::deserialize(d)?;
    are_plain::<D::Error>("", [&text], longest)?;
    Ok(text)
}

/// A text that becomes an argument of a program, which must not take it for an option.
fn argument<'de, D: Deserializer<'de>>(d: D, longest: usize, rule: &str) -> Result<String, D::Error> {
    let text = text(d, longest)?;
    check::<D::Error>(!text.starts_with('-') && !text.contains(char::is_whitespace), rule)?;
    Ok(text)
}

fn number<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    d: D,
    range: RangeInclusive<i64>,
) -> Result<T, D::Error> {
    let number = Value::deserialize(d)?.as_i64().filter(|number| range.contains(number));
    let rule = || format!("it must be a whole number from {} to {}", range.start(), range.end());
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| D::Error::custom(rule()))
}

fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D, most: usize) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(d)?;
    check::<D::Error>(list.len() <= most, format_args!("it must be a list of at most {most}"))?;
    Ok(list)
}

/// A duration above zero, or none.
pub(in crate::controller) mod span {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(duration::print).serialize(s)
    }

    pub(in crate::controller) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        let span = String::deserialize(d).ok().and_then(|text| duration::parse(&text).ok());
        let span = span.filter(|span| !span.is_zero());
        check::<D::Error>(span.is_some(), "it must be a duration above zero, as in 1.5h, 30m or 30m10s")?;
        Ok(span)
    }
}
