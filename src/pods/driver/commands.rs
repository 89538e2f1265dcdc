//! What clients ask of a unit's driver, and who waits for an answer. Owns that each gets one.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::{Driver, now};

/// A client's wish.
#[derive(Debug)]
pub enum Command {
    /// The unit is to end; the answer comes when that is durable.
    Cancel(oneshot::Sender<()>),
    /// This node ends the unit, which fails with this Detail.
    Fail(String),
    /// Nothing more is to be done for the unit, and its pod stays. The sender is dropped when that is so.
    Forget(oneshot::Sender<()>),
    /// The unit's pod is to go.
    Release {
        /// Only one attempt is made.
        force: bool,
        /// When the attempts end.
        give_up: Instant,
        /// What became of it; the attempts go on after [`Removed::Pending`].
        answer: oneshot::Sender<Removed>,
    },
}

/// What became of a pod that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// Nothing more is done.
    Done {
        /// The API server has confirmed that there is no pod.
        is_gone: bool,
    },
    /// It is not deleted yet, for this cause.
    Pending(String),
}

/// The way to a driver.
#[derive(Debug, Clone)]
pub struct Commands(mpsc::UnboundedSender<Command>);

pub(super) fn channel() -> (Commands, mpsc::UnboundedReceiver<Command>) {
    let (sender, inbox) = mpsc::unbounded_channel();
    (Commands(sender), inbox)
}

impl Commands {
    /// Sends a command; gives it back if the driver has ended, as another one has to be started then.
    ///
    /// # Errors
    /// The command.
    pub fn send(&self, command: Command) -> Result<(), Command> {
        self.0.send(command).map_err(|refused| refused.0)
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.0.is_closed()
    }
}

/// Clients that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    cancels: Vec<oneshot::Sender<()>>,
    releases: Vec<oneshot::Sender<Removed>>,
    /// Dropped with the driver, which ends at once.
    forgotten: Vec<oneshot::Sender<()>>,
    /// Nothing is left of the unit's pod, or nothing more is tried.
    pub(super) is_released: bool,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.cancels.is_empty() && self.releases.is_empty()
    }

    pub(super) fn is_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// All that a cancel has brought about is durable.
    pub(super) fn answer_cancels(&mut self) {
        for answer in self.cancels.drain(..) {
            // A client that went away wants none.
            let _ = answer.send(());
        }
    }

    pub(super) fn answer_releases(&mut self, removed: &Removed) {
        for answer in self.releases.drain(..) {
            let _ = answer.send(removed.clone());
        }
    }
}

impl Driver {
    pub(super) fn obey(&mut self, command: Command) {
        match command {
            Command::Forget(answer) => {
                self.requests.abort_all();
                self.waiting.answer_cancels();
                self.waiting.answer_releases(&Removed::Done { is_gone: false });
                self.waiting.forgotten.push(answer);
            }
            Command::Fail(detail) => self.machine.handle_failure(now(), detail),
            Command::Cancel(answer) => {
                self.is_unwanted.send_replace(true);
                self.waiting.cancels.push(answer);
                self.machine.handle_cancel(now());
            }
            Command::Release { answer, .. } if self.waiting.is_released => {
                let _ = answer.send(Removed::Done { is_gone: true });
            }
            Command::Release { force, give_up, answer } => {
                self.is_unwanted.send_replace(true);
                self.is_forced |= force;
                self.waiting.releases.push(answer);
                self.machine.handle_release(now(), give_up, force);
            }
        }
    }
}
