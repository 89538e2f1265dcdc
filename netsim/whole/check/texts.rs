//! Checks what readers of a unit's output get.

use std::time::Duration;

use super::story::{Run, Story};
use crate::command::history::{Note, Text, digest};
use crate::command::jobs::{Job, Kind};

/// Readers that have begun before `from` are not looked at.
pub(super) fn check(story: &Story<'_>, from: Duration) -> Vec<String> {
    let mut missed = Vec::new();
    let (mut last, mut read): (_, Option<&Text>) = (None, None);
    for (_, note) in &story.notes {
        match note {
            Note::Seen { state, size, .. } => last = Some((*state, *size)),
            Note::Read { text, since, .. } if *since >= from => {
                // If a job has failed, a power loss may have taken unflushed output, and its controller has added a
                // line with the reason.
                let has_failed = last.is_some_and(|(state, _)| state > 2);
                let is_less =
                    |before: &Text| has_failed && (story.placed().is_some() || before.0.starts_with(&text.0));
                // The output of a lost attempt may be unflushed when the control node loses its power.
                let is_lost = story.row.is_some() && !story.is_certain();
                if let Some(before) = read.filter(|before| *before != text && !is_lost && !is_less(before)) {
                    missed.push(format!("readers got different texts: {before:?} and {text:?}"));
                }
                read = Some(text);
            }
            _ => {}
        }
    }
    if let (Some(last), Some(text)) = (last, read) {
        missed.extend(check_last(story, last, text));
    }
    missed
}

/// A command reads all that its client sends; it does not start with less.
pub(super) fn check_payload(story: &Story<'_>) -> Option<String> {
    let sent = digest(story.job.payload().as_bytes());
    let is_other = |note: &Note| matches!(note, Note::Started { payload, .. } if *payload != sent);
    let (at, note) = story.notes.iter().find(|(_, note)| is_other(note))?;
    Some(format!("it has read something else than its client sends, at {at:?}: {note:?}"))
}

/// Checks the text that a reader has got of a job that has ended. In a controller's job the attempts follow each other.
fn check_last(story: &Story<'_>, (state, size): (u64, u64), Text(text): &Text) -> Option<String> {
    let (job, runs) = (story.job, &story.runs);
    let is_whole = |run: &Run| run.whole && job.output(run.pid).is(text);
    if size != text.len() as u64 {
        return Some(format!("its reader got {} bytes of {size}", text.len()));
    }
    let is_lost = story.row.is_some() && !story.is_certain();
    match (&job.kind, state) {
        (Kind::Plain { .. }, 2) if !runs.iter().any(is_whole) => {
            Some(format!("it succeeded, and its reader got {} bytes that are no run's", text.len()))
        }
        (Kind::Placed(_), 2) if !runs.iter().any(|run| ends_with(text, job, run, is_lost)) => Some(format!(
            "it succeeded, and its reader got {} bytes that do not end with a run's",
            text.len()
        )),
        (Kind::Plain { .. }, _) if !text.is_empty() => {
            let is_begin = runs.iter().any(|run| job.output(run.pid).starts_with(text));
            (!is_begin).then(|| format!("its reader got {} bytes that no run has begun with", text.len()))
        }
        _ => None,
    }
}

/// What a controller adds to the output of an unfinished attempt.
const ADDED: &[u8] = b"{\"eof\": true}\n";

/// Whether a text ends with all that this run wrote. For a run that was killed or given up, its output up to the
/// playbook's status is enough.
fn ends_with(text: &[u8], job: &Job, run: &Run, is_lost: bool) -> bool {
    let output = job.output(run.pid);
    let ends_with = |text: &[u8], length: usize| {
        text.len().checked_sub(length).is_some_and(|from| output.starts_with(&text[from..]))
    };
    let whole = output.length();
    if ends_with(text, whole) {
        return true;
    }
    let text = text.strip_suffix(ADDED).unwrap_or(text);
    let is_cut = !run.whole || is_lost;
    is_cut && (output.verdict()..whole).any(|length| ends_with(text, length))
}
