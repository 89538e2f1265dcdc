//! The one list of exit codes, and the failures that carry them. Codes that receptorctl's users know keep their
//! meaning.

use std::io;

use crate::rpc::CallError;

/// How a command ended, as the shell sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Success,
    /// The node refused, or a unit or job that was followed failed or was canceled.
    Failed,
    /// The playbook of a job ended with this code, 1 to 63.
    Playbook(u8),
    /// At least one ping, or the end of a traceroute, went unanswered.
    NoReply,
    /// Reload: an item changed that only a restart can take over.
    ReloadNeedsRestart,
    /// Reload: the configuration does not parse.
    ReloadUnreadable,
    /// Reload: anything else.
    ReloadFailed,
    /// The command line is invalid.
    Usage,
    /// The node cannot be reached, or stopped answering.
    Unreachable,
    /// A job was not accepted.
    SubmitFailed,
    /// Ctrl-C or a termination signal.
    Interrupted,
    /// The reader of our output went away.
    BrokenPipe,
}

impl Exit {
    /// All of them in the order of their numbers, but for those of playbooks.
    pub(crate) const ALL: [Self; 11] = [
        Self::Success,
        Self::Failed,
        Self::NoReply,
        Self::ReloadNeedsRestart,
        Self::ReloadUnreadable,
        Self::ReloadFailed,
        Self::Usage,
        Self::Unreachable,
        Self::SubmitFailed,
        Self::Interrupted,
        Self::BrokenPipe,
    ];

    /// The number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Playbook(code) => code,
            Self::NoReply => 2,
            Self::ReloadNeedsRestart => 3,
            Self::ReloadUnreadable => 4,
            Self::ReloadFailed => 5,
            Self::Usage => 64,
            Self::Unreachable => 69,
            Self::SubmitFailed => 101,
            Self::Interrupted => 130,
            Self::BrokenPipe => 141,
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done as asked",
            Self::Failed => "refused by the node, or the followed unit or job failed or was canceled",
            Self::Playbook(_) => "job run and job wait: the code of the playbook that failed",
            Self::NoReply => "ping or traceroute: the node did not answer every time",
            Self::ReloadNeedsRestart => "reload: an item changed that needs a restart; nothing was changed",
            Self::ReloadUnreadable => "reload: the configuration does not parse; nothing was changed",
            Self::ReloadFailed => "reload: failed for another reason",
            Self::Usage => "wrong usage",
            Self::Unreachable => "no node at the socket, or it stopped answering",
            Self::SubmitFailed => "work submit, job run and job submit: the job was not accepted",
            Self::Interrupted => "interrupted by Ctrl-C or a termination signal",
            Self::BrokenPipe => "the reader of the output went away",
        }
    }
}

/// The table at the end of `--help`.
pub(crate) fn table() -> String {
    let rows = Exit::ALL.map(|exit| format!("  {:>4}  {}", exit.code(), exit.meaning()));
    format!("Exit codes:\n{}\n  1-63  {}", rows.join("\n"), Exit::Playbook(1).meaning())
}

/// Why a command ended early: a message for the user, an exit code for the shell.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// For the shell.
    pub exit: Exit,
    /// For the user; empty if there is nothing to say.
    pub message: String,
}

impl Failure {
    /// A failure with a message.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// A command line that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The standard output cannot be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::BrokenPipe, ""),
            _ => Self::new(Exit::Failed, format!("cannot write the output: {error}")),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let exit = match &error {
            CallError::Unreachable(_)
            | CallError::NotControl { .. }
            | CallError::TimedOut { .. }
            | CallError::Closed(_)
            | CallError::Io { .. }
            | CallError::Absent { .. } => Exit::Unreachable,
            CallError::Refused(_)
            | CallError::Protocol { .. }
            | CallError::Payload(_)
            | CallError::Truncated { .. } => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_ascending() {
        assert!(Exit::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code()));
    }

    #[test]
    fn the_help_names_every_code() {
        let table = table();
        assert_eq!(table.lines().count(), 2 + Exit::ALL.len());
        assert!(table.contains("  101  work submit") && table.contains("  1-63  job run"), "{table}");
    }
}
