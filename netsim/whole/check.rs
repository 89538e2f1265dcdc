//! What must be true of any history. It knows nothing of the nodes but what was seen of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::forgotten;
use super::history::{Note, Text};
use super::jobs::{Job, Kind};

/// Everything in a history that must not be.
pub(super) fn check(notes: &[(Duration, Note)], jobs: &[Job]) -> Vec<String> {
    let mut missed = Vec::new();
    let mut of_job: BTreeMap<&str, Vec<(Duration, &Note)>> =
        jobs.iter().map(|job| (job.tag.as_str(), Vec::new())).collect();
    for (at, note) in notes {
        if let Some(notes) = tag_of(note).and_then(|tag| of_job.get_mut(tag)) {
            notes.push((*at, note));
        }
    }
    let struck = struck(notes);
    let losses = forgotten::losses(notes);
    let lost = |job: &Job| forgotten::count(job, &of_job[job.tag.as_str()], &losses);
    for job in jobs {
        let notes = &of_job[job.tag.as_str()];
        if lost(job) > 0 {
            let found = forgotten::check(job, notes, lost(job)).into_iter();
            missed.extend(found.map(|what| format!("{}: {what}", job.tag)));
            continue;
        }
        missed
            .extend(check_cause(job, notes, &struck).into_iter().map(|what| format!("{}: {what}", job.tag)));
        missed.extend(check_job(job, notes).into_iter().map(|what| format!("{}: {what}", job.tag)));
    }
    let known: Vec<&Job> = jobs.iter().filter(|job| lost(job) == 0).collect();
    missed.extend(check_words(&known, &of_job));
    let is_known = |job: &&&Job| match &job.kind {
        Kind::Placed(placed) => placed.need().is_none_or(|need| lost(need) == 0),
        Kind::Plain { .. } => false,
    };
    missed.extend(
        known
            .iter()
            .filter(is_known)
            .filter_map(|job| Some(format!("{}: {}", job.tag, check_need(job, &of_job)?))),
    );
    missed
}

fn tag_of(note: &Note) -> Option<&str> {
    match note {
        Note::Started { tag, .. }
        | Note::Ended { tag, .. }
        | Note::Killed { tag, .. }
        | Note::Accepted { tag, .. }
        | Note::Cancelled { tag }
        | Note::Seen { tag, .. }
        | Note::Read { tag, .. }
        | Note::Row { tag, .. }
        | Note::Released { tag, .. } => Some(tag),
        Note::Struck { .. } | Note::Lost { .. } | Note::Told { .. } => None,
    }
}

/// The nodes whose processes were ended by a fault.
fn struck(notes: &[(Duration, Note)]) -> BTreeSet<&str> {
    let mut struck = BTreeSet::new();
    for (_, note) in notes {
        if let Note::Struck { node } = note {
            struck.insert(node.as_str());
        }
    }
    struck
}

/// A job does not fail by itself: something has ended its process, or the node that had it.
fn check_cause(job: &Job, notes: &[(Duration, &Note)], struck: &BTreeSet<&str>) -> Option<String> {
    let last = notes.iter().rev().find_map(|(_, note)| match note {
        Note::Seen { state, detail, .. } => Some((*state, detail)),
        _ => None,
    });
    let Some((3, detail)) = last else { return None };
    let is_struck = match &job.kind {
        Kind::Plain { on } => struck.contains(on.as_str()) || struck.contains(job.submitted_by.as_str()),
        Kind::Placed(_) => job.fails || !struck.is_empty() || row_of(notes).is_none_or(has_lost),
    };
    (!is_struck).then(|| format!("it failed without a cause: {detail}"))
}

/// Needs are met before a job runs.
fn check_need(job: &Job, of_job: &BTreeMap<&str, Vec<(Duration, &Note)>>) -> Option<String> {
    let Kind::Placed(placed) = &job.kind else { return None };
    let need = placed.need()?;
    let first = runs_of(&of_job[job.tag.as_str()]).into_iter().map(|run| run.from).min()?;
    let done = runs_of(&of_job[need.tag.as_str()]).into_iter().filter_map(|run| run.to).min();
    let needed = row_of(&of_job[need.tag.as_str()])?;
    if needed["state"] != "successful" {
        return Some(format!("it ran, and {}, which it needs, is {}", need.tag, needed["state"]));
    }
    done.is_none_or(|done| done > first).then(|| format!("it ran before {} had ended", need.tag))
}

/// A process of a job.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pid: u32,
    pub(super) unit: String,
    from: Duration,
    to: Option<Duration>,
    /// It came to its end.
    whole: bool,
}

pub(super) fn runs_of(notes: &[(Duration, &Note)]) -> Vec<Run> {
    let mut runs: BTreeMap<u32, Run> = BTreeMap::new();
    for (at, note) in notes {
        match note {
            Note::Started { pid, unit, .. } => {
                runs.insert(*pid, Run { pid: *pid, unit: unit.clone(), from: *at, to: None, whole: false });
            }
            Note::Ended { pid, .. } => {
                let run = runs.get_mut(pid).expect("it has started");
                (run.to, run.whole) = (Some(*at), true);
            }
            Note::Killed { pid, .. } => runs.get_mut(pid).expect("it has started").to = Some(*at),
            _ => {}
        }
    }
    runs.into_values().collect()
}

pub(super) fn overlap(one: &Run, other: &Run) -> bool {
    one.to.is_none_or(|to| other.from < to) && other.to.is_none_or(|to| one.from < to)
}

/// The row of a job, if its controller was asked for it.
fn row_of<'a>(notes: &[(Duration, &'a Note)]) -> Option<&'a Value> {
    notes.iter().find_map(|(_, note)| if let Note::Row { row, .. } = note { Some(row) } else { None })
}

/// Whether an attempt of it was given up while it may have run: what it kept from others is free then.
fn has_lost(row: &Value) -> bool {
    let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let finished = time(&row["finished"]);
    row["attempts"].as_array().into_iter().flatten().any(|attempt| {
        attempt["outcome"] == "lost" || time(&attempt["ended"]).is_none_or(|ended| Some(ended) > finished)
    })
}

/// What concerns jobs with each other.
fn check_words(jobs: &[&Job], of_job: &BTreeMap<&str, Vec<(Duration, &Note)>>) -> Vec<String> {
    let mut missed = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        for other in &jobs[..at] {
            let (Kind::Placed(one), Kind::Placed(two)) = (&job.kind, &other.kind) else { continue };
            if !one.words.iter().any(|word| two.words.contains(word)) {
                continue;
            }
            let (notes, others) = (&of_job[job.tag.as_str()], &of_job[other.tag.as_str()]);
            let certain = |notes: &[(Duration, &Note)]| row_of(notes).is_some_and(|row| !has_lost(row));
            if !certain(notes) || !certain(others) {
                continue;
            }
            for (one, two) in runs_of(notes)
                .iter()
                .flat_map(|one| runs_of(others).into_iter().map(move |two| (one.clone(), two)))
            {
                if overlap(&one, &two) {
                    missed.push(format!(
                        "{} and {} are exclusive and ran at once: {one:?} {two:?}",
                        job.tag, other.tag
                    ));
                }
            }
        }
    }
    missed
}

fn check_job(job: &Job, notes: &[(Duration, &Note)]) -> Vec<String> {
    let mut missed = Vec::new();
    let mut last: Option<(u64, String, u64)> = None;
    let runs = runs_of(notes);
    let (most, unconfirmed) = match &job.kind {
        Kind::Plain { .. } => (1, false),
        Kind::Placed(placed) => (placed.retries + 1, placed.unconfirmed),
    };
    if runs.len() > most {
        missed.push(format!("it has started {} times: {runs:?}", runs.len()));
    }
    for (at, run) in runs.iter().enumerate() {
        for earlier in &runs[..at] {
            if run.unit == earlier.unit {
                missed.push(format!("one attempt ran twice: {earlier:?} {run:?}"));
            } else if !unconfirmed && overlap(run, earlier) {
                missed.push(format!("two attempts ran at once: {earlier:?} {run:?}"));
            }
        }
    }
    let (mut cancelled, mut read): (_, Option<&Text>) = (None, None);
    // What was sent before a cancel was heard of may be under way, and is ended when it arrives.
    let is_elsewhere = !matches!(&job.kind, Kind::Plain { on } if *on == job.submitted_by);
    let is_late = is_elsewhere && runs.len() == 1;
    for (at, note) in notes {
        match note {
            Note::Started { .. } => {
                if let Some(since) = cancelled.filter(|_| !is_late) {
                    missed
                        .push(format!("it has started at {at:?} after its cancel was answered at {since:?}"));
                }
                if let Some((state @ 2.., ..)) =
                    last.as_ref().filter(|last| !(is_late && (last.0 == 4 || last.1 == "Locally Cancelled")))
                {
                    missed.push(format!("it has started at {at:?} after its end was seen, {state}"));
                }
            }
            Note::Seen { state, detail, size, .. } => {
                let now = (*state, detail.clone(), *size);
                match &last {
                    Some(before) if before.0 >= 2 && *before != now => {
                        missed.push(format!("its end changed from {before:?} to {now:?} at {at:?}"));
                    }
                    Some(before) if before.0 > now.0 => {
                        missed.push(format!("its state went back from {before:?} to {now:?} at {at:?}"));
                    }
                    _ => {}
                }
                if *state == 2 && last.as_ref().is_none_or(|last| last.0 != 2) {
                    let is_over = |run: &Run| run.to.is_some_and(|to| to <= *at);
                    let counts = |run: &Run| run.whole || matches!(job.kind, Kind::Placed(_));
                    if !runs.iter().any(|run| is_over(run) && counts(run)) {
                        missed.push(format!("it succeeded, and no run of it had come to its end: {runs:?}"));
                    }
                }
                let is_open = |run: &&Run| run.from < *at && run.to.is_none_or(|to| to > *at);
                if let (2.., Kind::Plain { .. }, Some(open)) = (*state, &job.kind, runs.iter().find(is_open))
                {
                    missed.push(format!("its end {now:?} was seen at {at:?} while it ran: {open:?}"));
                }
                last = Some(now);
            }
            Note::Cancelled { .. } => cancelled = cancelled.or(Some(*at)),
            Note::Read { text, .. } => {
                // Of a job that has failed a power loss may have taken what was not flushed, and its controller has added a
                // line that says why it failed.
                let has_failed = last.as_ref().is_some_and(|last| last.0 > 2);
                let is_less = |before: &Text| {
                    has_failed && (matches!(job.kind, Kind::Placed(_)) || before.0.starts_with(&text.0))
                };
                if let Some(before) = read.filter(|before| *before != text && !is_less(before)) {
                    missed.push(format!("readers got different texts: {before:?} and {text:?}"));
                }
                read = Some(text);
            }
            _ => {}
        }
    }
    if let (Some((state, _, size)), Some(text)) = (&last, read) {
        missed.extend(check_text(job, (*state, *size), text, &runs, row_of(notes).is_some_and(has_lost)));
    }
    missed
}

/// What a reader has got of a job that has ended. The attempts of a controller's job follow each other in it.
///
/// One that was given up after it had said how the playbook ended counts by that.
pub(super) fn check_text(
    job: &Job,
    (state, size): (u64, u64),
    Text(text): &Text,
    runs: &[Run],
    is_lost: bool,
) -> Option<String> {
    let wholes = || runs.iter().filter(|run| run.whole).map(|run| job.output(run.pid));
    if size != text.len() as u64 {
        return Some(format!("its reader got {} bytes of {size}", text.len()));
    }
    match (&job.kind, state) {
        (Kind::Plain { .. }, 2) if !wholes().any(|whole| whole == **text) => {
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

/// What a controller adds to the output of an attempt that came to no end.
const ADDED: &[u8] = b"{\"eof\": true}\n";

/// Whether a text ends with all that this run wrote, or of one that was killed or given up with what tells how it ended.
fn ends_with(text: &[u8], job: &Job, run: &Run, is_lost: bool) -> bool {
    let whole = job.output(run.pid);
    if text.ends_with(&whole) {
        return true;
    }
    let text = text.strip_suffix(ADDED).unwrap_or(text);
    let is_cut = !run.whole || is_lost;
    is_cut && (job.verdict(run.pid)..whole.len()).any(|length| text.ends_with(&whole[..length]))
}
