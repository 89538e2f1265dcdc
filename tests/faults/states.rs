//! A client's view of one job while its node is killed at any moment: states and sizes never go back, and the
//! job ends. In its first moments the least of a job is on disk.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;

use crate::nodes::{LIMIT, Nodes, Which};

/// How often the submitting node is killed.
const KILLS: u32 = 40;

/// The latest known state of a unit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    state: u64,
    size: u64,
}

impl Seen {
    /// Looks once more.
    fn look(&mut self, nodes: &Nodes, id: &str) {
        let status = nodes.ask(Which::Near, &format!("work status {id}"));
        let number = |key: &str| status[key].as_u64().unwrap_or_else(|| panic!("{id}: {status}"));
        let now = Self { state: number("State"), size: number("StdoutSize") };
        assert!(now.state >= self.state && now.size >= self.size, "{id} went back from {self:?} to {status}");
        *self = now;
    }
}

fn submit(nodes: &Nodes, target: &str) -> String {
    let mut stream = nodes.connect(Which::Near);
    let line = json!({"command": "work", "subcommand": "submit", "node": target, "worktype": "sh", "params": "'echo a; sleep 0.15; echo b'"});
    stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).unwrap();
    let id = answer.split_whitespace().nth(5).unwrap().trim_end_matches('.').to_owned();
    stream.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_line(&mut answer).unwrap();
    assert!(answer.contains("Job S"), "{answer}");
    id
}

#[test]
fn no_client_sees_a_state_go_back() {
    let mut rng = SmallRng::seed_from_u64(crate::number("FAULTS_SEED", 1));
    let mut nodes = Nodes::start();
    for kill in 0..KILLS {
        let id = submit(&nodes, if kill % 2 == 0 { "near" } else { "far" });
        let mut seen = Seen::default();
        let until = Instant::now() + Duration::from_micros(rng.random_range(0..40_000));
        loop {
            seen.look(&nodes, &id);
            if Instant::now() >= until {
                break;
            }
        }
        nodes.restart(Which::Near, true);
        let deadline = Instant::now() + LIMIT;
        while seen.state < 2 {
            seen.look(&nodes, &id);
            assert!(Instant::now() < deadline, "{id} never ends");
        }
        assert_eq!(seen, Seen { state: 2, size: 4 }, "{id}");
        nodes.ask(Which::Near, &format!("work release {id}"));
    }
    nodes.assert_nothing_is_left();
}
