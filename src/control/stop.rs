//! How a command ends: another may follow, or its connection or the daemon ends. Owns the two signals that stop the
//! service. It refuses to know who gives them.

use std::io;

use tokio_util::sync::CancellationToken;

/// What follows a command on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterCommand {
    /// Another command may follow.
    Command,
    /// Nothing: the connection is closed.
    Close,
}

/// Signals that the service is stopping.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop {
    /// Cancelled when no new clients or commands are accepted.
    pub(super) commands: CancellationToken,
    /// Cancelled when the daemon stops: a stream's reader then continues at the next daemon.
    pub(super) daemon: CancellationToken,
}

impl Stop {
    /// Runs `streamed` until it ends or the daemon stops. The client then asks the next daemon for the rest.
    pub(super) async fn or_streamed(
        &self,
        streamed: impl Future<Output = io::Result<AfterCommand>>,
    ) -> io::Result<AfterCommand> {
        tokio::select! {
            biased;
            next = streamed => next,
            () = self.daemon.cancelled() => {
                tracing::info!("the daemon is stopping and ends a stream: its reader has to ask the next daemon for the rest");
                Ok(AfterCommand::Close)
            }
        }
    }
}
