//! Checks jobs against each other: words that one job at a time may hold, and jobs that other jobs need.

use super::story::Story;

pub(super) fn check(stories: &[Story<'_>]) -> Vec<String> {
    let needs = stories
        .iter()
        .filter_map(|story| Some(format!("{}: {}", story.job.tag, check_need(story, stories)?)))
        .collect();
    [check_words(stories), needs].concat()
}

/// The needed job has succeeded before the job runs.
fn check_need(story: &Story<'_>, stories: &[Story<'_>]) -> Option<String> {
    let tag = &story.placed()?.need()?.tag;
    let first = story.runs.iter().map(|run| run.from).min()?;
    let needed = stories.iter().find(|other| other.job.tag == *tag)?;
    let state = &needed.row?["state"];
    if state != "successful" {
        return Some(format!("it ran, and {tag}, which it needs, is {state}"));
    }
    let done = needed.runs.iter().filter_map(|run| run.to).min();
    done.is_none_or(|done| done > first).then(|| format!("it ran before {tag} had ended"))
}

fn check_words(stories: &[Story<'_>]) -> Vec<String> {
    let mut missed = Vec::new();
    for (at, one) in stories.iter().enumerate() {
        for other in &stories[..at] {
            let (Some(placed), Some(others)) = (one.placed(), other.placed()) else { continue };
            let share = placed.words.iter().any(|word| others.words.contains(word));
            if !share || !one.is_certain() || !other.is_certain() {
                continue;
            }
            for run in &one.runs {
                for with in other.runs.iter().filter(|with| with.overlaps(run)) {
                    missed.push(format!(
                        "{} and {} are exclusive and ran at once: {run:?} {with:?}",
                        one.job.tag, other.job.tag
                    ));
                }
            }
        }
    }
    missed
}
