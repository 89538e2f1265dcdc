//! Measures lists, passes and submissions with a history of 200,000 jobs.
//!
//! `cargo test --profile dist --lib store::tests::measure -- --ignored --nocapture`

use std::time::Instant;

use super::*;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn history_on_sqlite() {
    measure(Site::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn history_on_postgres() {
    if let Some(site) = Site::postgres().await {
        measure(site).await;
    }
}

const JOBS: i64 = 200_000;
const START: i64 = 1_700_000_000_000;

async fn measure(site: Site) {
    let (store, _) = site.ready().await;
    fill(&store).await;
    let begun = Instant::now();
    store.analyze().await.unwrap();
    println!("statistics: {:.2?}", begun.elapsed());
    for (what, filter) in filters() {
        let mut times = Vec::new();
        let mut rows = 0;
        for _ in 0..15 {
            let begun = Instant::now();
            rows = store.list(filter.clone(), 50).await.unwrap().jobs.len();
            times.push(begun.elapsed());
        }
        times.sort();
        println!("list {what:<34} {rows:>3} rows  median {:>9.2?}  longest {:>9.2?}", times[7], times[14]);
    }
    let begun = Instant::now();
    let tasks: Vec<_> = (0..2000)
        .map(|at| {
            let store = store.clone();
            tokio::spawn(async move { submit_one(&store, at).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    println!("2000 submissions at once: {:.0}/s", 2000.0 / begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    for at in 2000..2100 {
        submit_one(&store, at).await;
    }
    println!("one submission after the other: {:.2?} each", begun.elapsed() / 100);
    let c1 = start(&store, "c1").await;
    for _ in 0..3 {
        let begun = Instant::now();
        let passed = store.pass(c1.clone(), PassLimits::default()).await.unwrap();
        println!(
            "a pass: {:.2?}, {} placed, {} pending",
            begun.elapsed(),
            passed.placed.len(),
            passed.pending
        );
    }
}

async fn submit_one(store: &Store, at: u32) {
    store.submit(submission(&format!("new{at}")), 100_000).await.unwrap();
}

/// Writes finished jobs, a minute apart, with headers of a kilobyte.
async fn fill(store: &Store) {
    let header = format!(r#"{{"controller": 1, "name": "{}"}}"#, "x".repeat(1000));
    for from in (1..=JOBS).step_by(5000) {
        let header = header.clone();
        let write = move |sql: &mut dyn sql::Sql| {
            let ids = || from..from + 5000;
            let row = |id: i64| {
                let state = if id % 1000 == 0 { JobState::Error } else { JobState::Successful };
                let kind = if id % 5000 == 7 { JobKind::System } else { JobKind::Job };
                let created = Time(START + id * 60_000);
                let labels = format!(r#"{{"env":"{}"}}"#, if id % 2 == 0 { "prod" } else { "test" });
                let name = if id < 40 { format!("rare-{id}") } else { format!("site-{}", id % 100) };
                sql::values![
                    id,
                    kind,
                    "execution",
                    name,
                    state,
                    0_i64,
                    header.as_str(),
                    r#"{"groups":[],"retry":{"max":0,
                    "on_lost":true,"on_error":false,"on_failed":false,"unconfirmed":false},"lost_after":null,
                    "pending_timeout":null}"#,
                    labels,
                    6_i64,
                    5_i64,
                    "unix:0",
                    1_i64,
                    1_i64,
                    0_i64,
                    "Finished",
                    7_i64,
                    90_i64,
                    created,
                    created,
                    created,
                    created,
                    created,
                    "c1",
                    "e1",
                    "default",
                ]
                .to_vec()
            };
            sql::insert(
                sql,
                "job (id, kind, class, name, state, priority, header, terms, labels, impact, forks, \
                 launched_by, attempt, epoch, cancel_requested, explanation, events, output_bytes, created, \
                 pending_since, placed, started, finished, controller_node, execution_node, instance_group)",
                ids().map(row).collect(),
                "",
            )?;
            let label = |id: i64| {
                let word = list::label_word("env", if id % 2 == 0 { "prod" } else { "test" });
                sql::values![word, id].to_vec()
            };
            sql::insert(sql, "label (word, job)", ids().map(label).collect(), "")?;
            let rare = ids().filter(|id| id % 4999 == 0).map(|id| sql::values!["rare=yes", id].to_vec());
            sql::insert(sql, "label (word, job)", rare.collect(), "")
        };
        store.write(write).await.unwrap();
    }
    sql(store, "UPDATE job SET labels = '{\"env\":\"prod\",\"rare\":\"yes\"}' WHERE id % 4999 = 0").await;
    if let Engine::Postgres(_) = &*store.engine {
        sql(store, "SELECT setval(pg_get_serial_sequence('job', 'id'), 200000)").await;
        for table in ["ANALYZE job", "ANALYZE label"] {
            sql(store, table).await;
        }
    }
}

fn filters() -> Vec<(&'static str, JobSelection)> {
    let all = JobSelection::default;
    let middle = Time(START + JOBS / 2 * 60_000);
    let label = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    vec![
        ("everything", all()),
        ("the last page", JobSelection { before: Some(JobId(40)), ..all() }),
        ("since the middle", JobSelection { since: Some(middle), ..all() }),
        ("until the middle", JobSelection { until: Some(middle), ..all() }),
        (
            "one hour in the middle",
            JobSelection { since: Some(middle), until: Some(middle + Duration::from_secs(3600)), ..all() },
        ),
        ("a state, one in 1000", JobSelection { states: vec![JobState::Error], ..all() }),
        ("a state that none has", JobSelection { states: vec![JobState::Canceled], ..all() }),
        (
            "that state, until the middle",
            JobSelection { states: vec![JobState::Canceled], until: Some(middle), ..all() },
        ),
        ("a kind, one in 5000", JobSelection { kinds: vec![JobKind::System], ..all() }),
        ("a common name", JobSelection { name: Some("site-1".into()), ..all() }),
        ("a name that only the oldest have", JobSelection { name: Some("rare-".into()), ..all() }),
        ("a name that none has", JobSelection { name: Some("none".into()), ..all() }),
        ("a label of every second", JobSelection { labels: label("env", "prod"), ..all() }),
        ("a label, one in 4999", JobSelection { labels: label("rare", "yes"), ..all() }),
        ("a label that none has", JobSelection { labels: label("env", "none"), ..all() }),
        (
            "a common and a rare label",
            JobSelection {
                labels: label("env", "prod").into_iter().chain(label("rare", "yes")).collect(),
                ..all()
            },
        ),
        (
            "a common label and no such name",
            JobSelection { labels: label("env", "prod"), name: Some("none".into()), ..all() },
        ),
        (
            "group, node, kind, since, state",
            JobSelection {
                group: Some("default".into()),
                node: Some("e1".into()),
                kinds: vec![JobKind::Job],
                since: Some(middle),
                states: vec![JobState::Error],
                ..all()
            },
        ),
    ]
}
