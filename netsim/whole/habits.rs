//! How clients of different kinds go about a job: what they say, how they read, when they go away, and who releases. What they
//! are told is the same for all.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::client::Client;
use super::history::Note;
use super::jobs::{self, Job};
use super::world::World;

/// How long a reader that can go on stays with one connection.
const READS: Duration = Duration::from_secs(60);
/// How often AWX looks for what is to be released.
const SWEEPS: Duration = Duration::from_secs(60);

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Habit {
    /// Ours: reads on where it stopped, a connection for each question.
    Own,
    /// Speaks in words, and reads from the first byte over one connection, whose writing side it has shut.
    Receptorctl,
    /// Reads like receptorctl, asks over one connection, and releases as soon as it has seen the end: by itself, or when it
    /// sweeps.
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

    /// Reads more of a unit's output. Says whether that was the end.
    pub(super) async fn read(self, client: Client, unit: &str, text: &mut Vec<u8>) -> io::Result<bool> {
        if self == Self::Own {
            return client.results(unit, text.len(), text, READS).await;
        }
        text.clear();
        client.all_results(unit, text).await
    }

    /// What a node answers to a line; over a connection that may be there already.
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
        // What was refused was answered.
        let is_there = answer.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::Other);
        *held = (self.releases_early() && is_there).then_some(client);
        answer
    }
}

/// Asks for something, and goes away before all of it has come.
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

/// Releases a unit as AWX's reaper does, which looks at all that a node has.
pub(super) async fn sweep(world: &World, job: &Job, unit: &str) {
    loop {
        match world.ask(job.by, "work list").await {
            Ok(all) if all.get(unit).is_none() => return,
            Ok(_) => {
                // Both are to succeed for what has ended, else AWX gives up all of a sweep.
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

/// What was released does not come back, unless its node has lost what it had promised to keep.
pub(super) async fn stays_away(world: &World, job: &Job, unit: &str) {
    let robs = |note: &Note| matches!(note, Note::Robbed { node } if *node == job.submitted_by);
    loop {
        match world.ask(job.by, "work list").await {
            Ok(all)
                if all.get(unit).is_some() && !world.history.notes().iter().any(|(_, note)| robs(note)) =>
            {
                return world.miss(format!("{}: unit {unit} was released and is there again", job.tag));
            }
            Ok(_) => return,
            Err(error) => job.stands(format!("is looked for: {error}")),
        }
        sleep(world.millis(300..3000)).await;
    }
}
