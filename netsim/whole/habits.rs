//! How clients of different kinds handle a job: how they ask and read, when they go away, and who releases units. All
//! kinds must get the same answers.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::client::Client;
use super::history::Note;
use super::jobs::{self, Job};
use super::world::World;

/// How long a reader that can continue later keeps one connection.
const READS: Duration = Duration::from_secs(60);
/// Time between two of AWX's sweeps for units to release.
const SWEEPS: Duration = Duration::from_secs(60);

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Habit {
    /// Our client: continues reading where it stopped, and opens a connection for each request.
    Own,
    /// Sends plain-text requests, and reads from the first byte over one connection, whose writing side it has shut.
    Receptorctl,
    /// Reads like receptorctl, asks over one connection, and releases a unit once it has seen its end: at once, or in a
    /// sweep.
    Awx { sweeps: bool },
}

impl Habit {
    pub(super) fn choose(world: &World) -> Self {
        let all = [
            Self::Own,
            Self::Own,
            Self::Receptorctl,
            Self::Awx { sweeps: false },
            Self::Awx { sweeps: true },
        ];
        world.choose(&all).unwrap()
    }

    pub(super) fn speaks_in_words(self) -> bool {
        self == Self::Receptorctl
    }

    pub(super) fn releases_early(self) -> bool {
        matches!(self, Self::Awx { .. })
    }

    /// Reads more of a unit's output. Returns whether it reached the end.
    pub(super) async fn read(self, client: Client, unit: &str, text: &mut Vec<u8>) -> io::Result<bool> {
        if self == Self::Own {
            return client.results(unit, text.len(), text, READS).await;
        }
        text.clear();
        client.all_results(unit, text).await
    }

    /// Asks a node, over the connection that is held if there is one.
    pub(super) async fn ask(
        self,
        world: &World,
        node: usize,
        line: &str,
        held: &mut Option<Client>,
    ) -> io::Result<Value> {
        let mut client = match held.take() {
            Some(client) => client,
            None => world.client(node).await?,
        };
        let answer = client.ask_json(line).await;
        // After a refusal the connection can still be used.
        let is_there = answer.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::Other);
        *held = (self.releases_early() && is_there).then_some(client);
        answer
    }
}

/// Sends a request, and goes away before the whole answer has arrived.
pub(super) async fn go_away(world: &World, job: &Job, unit: &str) {
    let Ok(mut client) = world.client(job.by).await else { return };
    let line = world.choose(&["results", "status", "list", "half"]).unwrap();
    let asked = match line {
        "list" => client.send(b"work list\n").await,
        "half" => client.send(b"work sta").await,
        verb => client.send(format!("work {verb} {unit}\n").as_bytes()).await,
    };
    if asked.is_ok() {
        sleep(world.millis(0..50)).await;
    }
}

/// Releases a unit as AWX's reaper does, which lists all units of a node.
pub(super) async fn sweep(world: &World, job: &Job, unit: &str) {
    loop {
        match world.ask(job.by, "work list").await {
            Ok(all) if all.get(unit).is_none() => return,
            Ok(_) => {
                // Cancel and release must succeed for an ended unit, because AWX aborts its sweep on an error.
                if let Err(error) = world.ask(job.by, &format!("work cancel {unit}")).await
                    && error.kind() == io::ErrorKind::Other
                {
                    world.miss(format!("{}: it has ended, and its cancel is refused: {error}", job.tag));
                }
                if jobs::release_once(world, job, unit).await {
                    return;
                }
            }
            Err(error) => job.stands(format!("is swept: {error}")),
        }
        sleep(SWEEPS).await;
    }
}

/// Checks that a released unit does not come back, unless its node has lost what it had promised to keep.
pub(super) async fn stays_away(world: &World, job: &Job, unit: &str) {
    let robs = |note: &Note| matches!(note, Note::Robbed { node } if *node == job.submitted_by);
    loop {
        match world.ask(job.by, "work list").await {
            Ok(all) if all.get(unit).is_some() && !world.history.has(robs) => {
                return world.miss(format!("{}: unit {unit} was released and is there again", job.tag));
            }
            Ok(_) => return,
            Err(error) => job.stands(format!("is looked for: {error}")),
        }
        sleep(world.millis(300..3000)).await;
    }
}
