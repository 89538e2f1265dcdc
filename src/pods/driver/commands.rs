//! The commands to a unit's driver, and the clients that wait for its answers. Owns that each client gets an answer.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::{PodDriver, now};

/// A command to a driver.
#[derive(Debug)]
pub enum PodCommand {
    /// End the unit. The answer comes when all that this changes is durable.
    Cancel(oneshot::Sender<()>),
    /// Fail the unit with this Detail, for a reason of this node.
    Fail(String),
    /// Do nothing more for the unit and leave its pod. The sender is dropped when the driver has ended.
    Forget(oneshot::Sender<()>),
    /// Delete the unit's pod.
    Release {
        /// Only one attempt is made.
        force: bool,
        /// When the attempts end.
        give_up: Instant,
        /// Whether to answer only with [`PodRemoved::Done`].
        waits: bool,
        /// Gets the outcome. The attempts go on after [`PodRemoved::Pending`].
        answer: oneshot::Sender<PodRemoved>,
    },
}

/// The outcome of deleting a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRemoved {
    /// No further attempt is made.
    Done {
        /// The API server has confirmed that there is no pod.
        is_gone: bool,
    },
    /// The pod is not deleted yet, for this reason.
    Pending(String),
}

/// The way to a driver.
#[derive(Debug, Clone)]
pub struct Commands(mpsc::UnboundedSender<PodCommand>);

pub(super) fn channel() -> (Commands, mpsc::UnboundedReceiver<PodCommand>) {
    let (sender, inbox) = mpsc::unbounded_channel();
    (Commands(sender), inbox)
}

impl Commands {
    /// Sends a command. Returns it if the driver has ended, because the caller then starts another driver.
    ///
    /// # Errors
    /// The command.
    pub fn send(&self, command: PodCommand) -> Result<(), PodCommand> {
        self.0.send(command).map_err(|refused| refused.0)
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.0.is_closed()
    }
}

/// Clients that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingClients {
    cancels: Vec<oneshot::Sender<()>>,
    /// Each with whether it waits for [`PodRemoved::Done`].
    releases: Vec<(bool, oneshot::Sender<PodRemoved>)>,
    /// Dropped with the driver, which ends at once.
    forgotten: Vec<oneshot::Sender<()>>,
    /// The unit's pod is gone, or no further attempt is made.
    pub(super) is_released: bool,
}

impl WaitingClients {
    pub(super) fn is_empty(&self) -> bool {
        self.cancels.is_empty() && self.releases.is_empty()
    }

    pub(super) fn is_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Answers the cancels, because all that they changed is durable.
    pub(super) fn answer_cancels(&mut self) {
        for answer in self.cancels.drain(..) {
            // The client may have gone away.
            let _ = answer.send(());
        }
    }

    pub(super) fn answer_releases(&mut self, removed: &PodRemoved) {
        let is_over = matches!(removed, PodRemoved::Done { .. });
        for (_, answer) in self.releases.extract_if(.., |(waits, _)| is_over || !*waits) {
            let _ = answer.send(removed.clone());
        }
    }
}

impl PodDriver {
    pub(super) fn obey(&mut self, command: PodCommand) {
        match command {
            PodCommand::Forget(answer) => {
                self.requests.abort_all();
                self.waiting.answer_cancels();
                self.waiting.answer_releases(&PodRemoved::Done { is_gone: false });
                self.waiting.forgotten.push(answer);
            }
            PodCommand::Fail(detail) => self.machine.handle_failure(now(), detail),
            PodCommand::Cancel(answer) => {
                self.is_unwanted.send_replace(true);
                self.waiting.cancels.push(answer);
                self.machine.handle_cancel(now());
            }
            PodCommand::Release { answer, .. } if self.waiting.is_released => {
                let _ = answer.send(PodRemoved::Done { is_gone: true });
            }
            PodCommand::Release { force, give_up, waits, answer } => {
                self.is_unwanted.send_replace(true);
                self.is_forced |= force;
                self.waiting.releases.push((waits, answer));
                self.machine.handle_release(now(), give_up, force);
            }
        }
    }
}
