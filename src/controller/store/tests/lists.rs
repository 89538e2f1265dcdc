//! Lists against a model: the same filter over plain rows in memory.

use super::*;

both![pages_are_what_a_model_says, a_page_ends_by_its_bytes_and_a_brief_one_has_no_texts];

/// A small generator with the same numbers in each run.
pub(super) struct Dice(pub u64);

impl Dice {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

const NAMES: [&str; 5] = ["site", "site-east", "Site", "köln", "%_"];

async fn pages_are_what_a_model_says(site: Site) {
    let (store, _) = site.ready().await;
    let mut dice = Dice(7);
    for at in 0..60 {
        let mut new = submission(&format!("u{at}"));
        new.name = dice.one(&NAMES).to_owned();
        new.kind = JobKind::ALL[dice.below(3) as usize];
        for label in ["env", "team"] {
            if dice.below(2) == 0 {
                new.labels.insert(
                    label.to_owned(),
                    dice.one(&["a", "b", "c=d"]).repeat(1 + 150 * dice.below(2) as usize),
                );
            }
        }
        let id = store.submit(new, 1000).await.unwrap().id();
        if dice.below(2) == 0 {
            store.cancel(None, id).await.unwrap();
        }
    }
    // Minutes apart, two by two at the same time, and with some that went back.
    sql(&store, "UPDATE job SET created = 100000000 + (id / 2) * 60000 - (id % 7) * 5000").await;
    sql(&store, "UPDATE job SET instance_group = 'default', execution_node = 'e1' WHERE id % 3 = 0").await;
    let all = store.list(JobFilter::default(), 1000).await.unwrap().jobs;
    assert_eq!(all.len(), 60);
    assert!(all.is_sorted_by(|a, b| a.id > b.id));
    let mut shown = 0;
    for _ in 0..150 {
        let filter = random_filter(&mut dice, &all);
        let expected: Vec<_> = all.iter().filter(|row| matches(&filter, row)).cloned().collect();
        let mut pages = Vec::new();
        let mut next = filter.clone();
        loop {
            let page = store.list(next.clone(), 7).await.unwrap();
            assert!(page.jobs.len() <= 7);
            pages.extend(page.jobs);
            next.before = page.next;
            if next.before.is_none() {
                break;
            }
        }
        assert_eq!(pages, expected, "{filter:?}");
        shown += expected.len();
    }
    assert!(shown > 500, "the filters show only {shown}");
}

async fn a_page_ends_by_its_bytes_and_a_brief_one_has_no_texts(site: Site) {
    let (store, _) = site.ready().await;
    for at in 0..60 {
        store.submit(submission(&format!("u{at}")), 1000).await.unwrap();
    }
    let long = format!("UPDATE job SET explanation = '{}'", "x".repeat(100_000));
    sql(&store, long.leak()).await;
    let (mut seen, mut next) = (Vec::new(), JobFilter::default());
    loop {
        let page = store.list(next.clone(), 1000).await.unwrap();
        assert!((1..=11).contains(&page.jobs.len()), "{}", page.jobs.len());
        seen.extend(page.jobs.into_iter().map(|row| row.id));
        next.before = page.next;
        if next.before.is_none() {
            break;
        }
    }
    assert!(seen.len() == 60 && seen.is_sorted_by(|a, b| a > b));
    let brief = JobFilter { brief: true, ..JobFilter::default() };
    let page = store.list(brief, 1000).await.unwrap();
    assert!(page.jobs.len() == 60 && page.next.is_none());
    let row = &page.jobs[0];
    assert!(row.explanation.is_empty() && row.labels.is_empty() && row.launched_by.is_empty());
    assert_eq!((row.name.is_empty(), row.terms.clone()), (false, Terms::default()));
}

fn random_filter(dice: &mut Dice, all: &[JobRow]) -> JobFilter {
    let mut filter = JobFilter::default();
    let chance = |dice: &mut Dice| dice.below(4) == 0;
    let row = &all[dice.below(all.len() as u64) as usize];
    let other = &all[dice.below(all.len() as u64) as usize];
    if chance(dice) {
        filter.states = vec![row.state];
    }
    if chance(dice) {
        filter.kinds = vec![row.kind, other.kind];
    }
    if chance(dice) {
        let letters = 1 + dice.below(6) as usize;
        filter.name = Some(row.name.chars().take(letters).collect());
    }
    if chance(dice) {
        filter.group = Some(GroupName::default_group());
    }
    if chance(dice) {
        filter.node = Some("e1".into());
    }
    if chance(dice) {
        filter.labels = row.labels.clone();
    }
    if chance(dice) {
        filter.since = Some(row.created);
    }
    if chance(dice) {
        filter.until = Some(other.created);
    }
    if chance(dice) {
        filter.before = Some(other.id);
    }
    filter
}

fn matches(filter: &JobFilter, row: &JobRow) -> bool {
    (filter.states.is_empty() || filter.states.contains(&row.state))
        && (filter.kinds.is_empty() || filter.kinds.contains(&row.kind))
        && filter.name.as_ref().is_none_or(|name| row.name.starts_with(name.as_str()))
        && (filter.group.is_none() || filter.group == row.instance_group)
        && (filter.node.is_none() || filter.node == row.execution_node)
        && filter.labels.iter().all(|(name, value)| row.labels.get(name) == Some(value))
        && filter.since.is_none_or(|since| row.created >= since)
        && filter.until.is_none_or(|until| row.created <= until)
        && filter.before.is_none_or(|before| row.id < before)
}
