//! The one list of exit codes, and the failures that carry them. Codes that receptorctl's users know keep their
//! meaning.

use std::io;

use crate::rpc::CallError;

/// The last row of the table: codes of failed playbooks.
const PLAYBOOK: &str = "job run and job wait: the code of the playbook that failed";

/// Declares exits, each with its number and its meaning for the table of `--help`.
macro_rules! exits {
    ($($exit:ident = $code:literal, $meaning:literal;)*) => {
        /// How a command ended, as the shell sees it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Exit {
            $(#[doc = $meaning] $exit,)*
            /// The playbook of a job ended with this code, 1 to 63.
            Playbook(u8),
        }

        impl Exit {
            /// The number.
            pub(crate) fn code(self) -> u8 {
                match self {
                    $(Self::$exit => $code,)*
                    Self::Playbook(code) => code,
                }
            }
        }

        /// The table at the end of `--help`.
        pub(crate) fn table() -> String {
            let rows = [$(format!("  {:>4}  {}", $code, $meaning)),*];
            format!("Exit codes:\n{}\n  1-63  {PLAYBOOK}", rows.join("\n"))
        }
    };
}

impl Exit {
    /// The end of two commands of which `next` came later: that of the last one that did not succeed.
    pub(super) fn then(self, next: Self) -> Self {
        if next == Self::Success { self } else { next }
    }
}

exits! {
    Success = 0, "done as asked";
    Failed = 1, "the node refused, or the followed unit or job failed or was canceled, or doctor or mesh check found something";
    NoReply = 2, "ping or traceroute: the node did not answer each time";
    ReloadNeedsRestart = 3, "reload: an item changed that needs a restart; nothing was changed";
    ReloadUnreadable = 4, "reload: the configuration does not parse; nothing was changed";
    ReloadFailed = 5, "reload: failed for another reason";
    Usage = 64, "wrong usage, or a named file cannot be read";
    Unreachable = 69, "no node at the socket, or it stopped answering, or a job's output is not available";
    SubmitFailed = 101, "work submit, job run and job submit: the job was not accepted";
    Interrupted = 130, "interrupted by Ctrl-C or a termination signal";
    BrokenPipe = 141, "the reader of the output went away";
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

    /// A wrong command line.
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
        let is_no_node = error.is_absence() || matches!(error, CallError::NotControl { .. });
        Self::new(if is_no_node { Exit::Unreachable } else { Exit::Failed }, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_code_in_their_order() {
        let table = table();
        let codes = table.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
        let codes: Vec<u8> = codes.collect();
        assert!(codes.len() == 11 && codes.is_sorted_by(|one, next| one < next), "{table}");
        assert!(table.contains("  101  work submit") && table.contains("  1-63  job run"), "{table}");
    }
}
