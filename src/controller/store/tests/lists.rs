//! Lists against a model: the same filter over plain rows in memory.

use super::*;

both![
    pages_are_what_a_model_says,
    a_search_looks_at_so_many_jobs_at_a_time,
    a_page_ends_by_its_bytes_and_a_brief_one_has_no_texts
];

/// A small random generator that gives the same numbers in each run.
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
    // Jobs are created in pairs, a minute apart, and some earlier than the job before.
    sql(&store, "UPDATE job SET created = 100000000 + (id / 2) * 60000 - (id % 7) * 5000").await;
    sql(&store, "UPDATE job SET instance_group = 'default', execution_node = 'e1' WHERE id % 3 = 0").await;
    let all = store.list(JobSelection::default(), 1000).await.unwrap().jobs;
    assert_eq!(all.len(), 60);
    assert!(all.is_sorted_by(|a, b| a.id > b.id));
    let hosts = |row: &JobRow| if row.id.0 % 4 == 0 { "Web1.example" } else { "" };
    sql(
        &store,
        "INSERT INTO stat (job, host, ok, changed, failures, dark, skipped, rescued, ignored) \
         SELECT id, 'Web1.example', 0, 0, 0, 0, 0, 0, 0 FROM job WHERE id % 4 = 0",
    )
    .await;
    let mut shown = 0;
    for _ in 0..200 {
        let filter = random_filter(&mut dice, &all);
        let expected: Vec<_> = all.iter().filter(|row| matches(&filter, row, hosts(row))).cloned().collect();
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
        // The labels of the model differ after the cut of the index.
        if filter.labels.values().all(|value| value.len() < 100) {
            let mut states = BTreeMap::new();
            expected.iter().for_each(|row| *states.entry(row.state).or_default() += 1);
            let oldest = expected.iter().min_by_key(|row| row.id).map(|row| (row.id, row.created));
            assert_eq!(
                store.count_jobs(filter.clone()).await.unwrap(),
                JobNumbers { states, oldest },
                "{filter:?}"
            );
        }
        shown += expected.len();
    }
    assert!(shown > 500, "the filters show only {shown}");
}

async fn a_search_looks_at_so_many_jobs_at_a_time(site: Site) {
    let (store, _) = site.ready().await;
    for at in 0..3 {
        store.submit(submission(&format!("u{at}")), 1000).await.unwrap();
    }
    sql(&store, "DELETE FROM holder").await;
    sql(&store, "UPDATE job SET id = id * 5000 WHERE id > 1").await;
    let search = |before, brief| JobSelection {
        search: Some("JO".to_owned()),
        before: Some(JobId(before)),
        brief,
        ..JobSelection::default()
    };
    let seen = async |before| {
        let page = store.list(search(before, false), 10).await.unwrap();
        (page.jobs.iter().map(|row| row.id.0).collect::<Vec<_>>(), page.next.map(|next| next.0))
    };
    assert_eq!(seen(i64::MAX).await, (vec![15_000], Some(10_001)));
    assert_eq!(seen(10_001).await, (vec![10_000], Some(5001)));
    assert_eq!(seen(5001).await, (vec![1], None));
    assert_eq!(seen(1).await, (vec![], None));
    // Whoever sees the names alone finds by them alone.
    sql(&store, "UPDATE job SET explanation = 'secret jo', name = 'other'").await;
    assert_eq!(seen(5001).await.0, [1]);
    assert_eq!(store.list(search(5001, true), 10).await.unwrap().jobs, []);
    let counted = store.count_jobs(search(i64::MAX, true)).await.unwrap();
    assert_eq!(counted, JobNumbers::default());
}

async fn a_page_ends_by_its_bytes_and_a_brief_one_has_no_texts(site: Site) {
    let (store, _) = site.ready().await;
    for at in 0..60 {
        store.submit(submission(&format!("u{at}")), 1000).await.unwrap();
    }
    let long = format!("UPDATE job SET explanation = '{}'", "x".repeat(100_000));
    sql(&store, long.leak()).await;
    let (mut seen, mut next) = (Vec::new(), JobSelection::default());
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
    let brief = JobSelection { brief: true, ..JobSelection::default() };
    let page = store.list(brief, 1000).await.unwrap();
    assert!(page.jobs.len() == 60 && page.next.is_none());
    let row = &page.jobs[0];
    assert!(row.explanation.is_empty() && row.labels.is_empty() && row.launched_by.is_empty());
    assert_eq!((row.name.is_empty(), row.terms.clone()), (false, Terms::default()));
}

fn random_filter(dice: &mut Dice, all: &[JobRow]) -> JobSelection {
    let mut filter = JobSelection::default();
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
    if chance(dice) {
        filter.search = Some(
            dice.one(&["ITE", "%", "_", "öln", "env=A", "WEB1", "limited", "no instance", "x"]).to_owned(),
        );
    }
    filter
}

fn matches(filter: &JobSelection, row: &JobRow, hosts: &str) -> bool {
    let labels = row.labels.iter().map(|(name, value)| format!("{name}={value}"));
    let run = &row.terms.run;
    let texts = [&row.name, &row.explanation, &hosts.to_owned()].map(|text| text.to_owned()).into_iter();
    let texts = texts.chain([&run.playbook, &run.module, &run.limit].into_iter().flatten().cloned());
    let texts: Vec<String> = texts.chain(labels).map(|text| text.to_ascii_lowercase()).collect();
    let has = |word: &String| texts.iter().any(|text| text.contains(&word.to_ascii_lowercase()));
    (filter.states.is_empty() || filter.states.contains(&row.state))
        && (filter.kinds.is_empty() || filter.kinds.contains(&row.kind))
        && filter.name.as_ref().is_none_or(|name| row.name.starts_with(name.as_str()))
        && (filter.group.is_none() || filter.group == row.instance_group)
        && (filter.node.is_none() || filter.node == row.execution_node)
        && filter.labels.iter().all(|(name, value)| row.labels.get(name) == Some(value))
        && filter.since.is_none_or(|since| row.created >= since)
        && filter.until.is_none_or(|until| row.created <= until)
        && filter.before.is_none_or(|before| row.id < before)
        && filter.search.as_ref().is_none_or(has)
}
