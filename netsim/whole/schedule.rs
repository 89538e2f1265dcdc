//! A schedule in a run: each minute starts one job, whatever happens to the control nodes and to their store.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::history::Note;
use super::world::World;

/// The file of the saved job, and what it says.
pub(super) const FILE: &str = "jobs.d/tick.yml";
pub(super) const TEXT: &str = "module: ping\nschedule: {every: 1m}\n";
/// How the keys of its jobs begin; then comes the tick in milliseconds.
const KEY: &str = "meshd/schedule/tick/";
const STEP: i64 = 60_000;
/// The time between two looks at what was skipped.
const LOOK: Duration = Duration::from_secs(15);
/// Starts after the last fault, and how long they may take.
const AFTERWARDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(900);

/// The ticks of which a control node has said that they had no start.
pub(super) type Skipped = Rc<RefCell<BTreeSet<String>>>;

/// Asks the control nodes what was skipped, until it is stopped.
pub(super) async fn watch(world: Rc<World>, skipped: Skipped) {
    loop {
        for control in 0..world.controls {
            if let Ok(answer) = operate(&world, control, json!({"op": "schedule.list"})).await
                && let Some(tick) = answer["schedules"][0]["skipped"]["tick"].as_str()
            {
                skipped.borrow_mut().insert(tick.to_owned());
            }
        }
        sleep(LOOK).await;
    }
}

/// Waits for further starts now that all is calm, and pauses the schedule. Returns everything that was wrong.
pub(super) async fn check(world: &World, skipped: &Skipped) -> Vec<String> {
    let before = ticks(world).await.len();
    let deadline = Instant::now() + PATIENCE;
    let mut seen = before;
    while seen < before + AFTERWARDS {
        if Instant::now() > deadline {
            return vec![format!("the schedule stands still: {seen} starts, {before} when all was calm")];
        }
        sleep(LOOK).await;
        seen = ticks(world).await.len();
    }
    while let Err(why) = operate(world, 0, json!({"op": "schedule.pause", "name": "tick"})).await {
        if Instant::now() > deadline {
            return vec![format!("the schedule cannot be paused: {why}")];
        }
        sleep(LOOK).await;
    }
    let ticks = ticks(world).await;
    world.history.tell(format!("ticks: {ticks:?}, skipped: {:?}", skipped.borrow()));
    let twice = ticks.iter().filter(|(_, jobs)| jobs.len() != 1);
    let mut missed: Vec<String> =
        twice.map(|(tick, jobs)| format!("tick {tick} has the jobs {jobs:?}")).collect();
    // A store that loses its last commits loses starts, too, and one with another clock has other ticks.
    if world.history.has(|note| matches!(note, Note::Lost { .. } | Note::StoreClock)) {
        return missed;
    }
    let known: Vec<i64> = ticks.into_keys().collect();
    let skipped: Vec<i64> = skipped.borrow().iter().filter_map(|tick| millis(tick)).collect();
    for gap in known.windows(2).filter(|gap| gap[1] - gap[0] != STEP) {
        if !skipped.iter().any(|tick| (gap[0]..gap[1]).contains(tick)) {
            missed.push(format!("no start and no reason between the ticks {} and {}", gap[0], gap[1]));
        }
    }
    missed
}

fn millis(tick: &str) -> Option<i64> {
    tick.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

/// The numbers of the jobs of each tick.
async fn ticks(world: &World) -> BTreeMap<i64, Vec<i64>> {
    let mut ticks: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let mut before = Value::Null;
    loop {
        let mut asked = json!({"op": "job.list", "saved": "tick", "limit": 1000});
        if !before.is_null() {
            asked["before"] = before;
        }
        let Ok(page) = operate(world, 0, asked).await else {
            sleep(LOOK).await;
            (ticks, before) = (BTreeMap::new(), Value::Null);
            continue;
        };
        for job in page["jobs"].as_array().into_iter().flatten() {
            let key = job["key"].as_str().and_then(|key| key.strip_prefix(KEY)?.parse().ok());
            if let (Some(tick), Some(id)) = (key, job["id"].as_i64()) {
                ticks.entry(tick).or_default().push(id);
            }
        }
        before = page["next"].clone();
        if before.is_null() {
            return ticks;
        }
    }
}

/// The result of an operation, which a node may refuse while its store is away.
async fn operate(world: &World, control: usize, mut asked: Value) -> Result<Value, String> {
    asked["command"] = "controller".into();
    let answer = world.ask(control, &asked.to_string()).await.map_err(|error| error.to_string())?;
    if answer["ok"] == true { Ok(answer["result"].clone()) } else { Err(answer.to_string()) }
}
