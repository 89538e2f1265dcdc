//! Results go to standard output, everything else to standard error. Owns the rule that a reader who leaves (`| head`)
//! ends the command quietly instead of with a panic.

use std::future::poll_fn;
use std::io::{self, IsTerminal, Write};
use std::task::Poll;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{Exit, Failure};

/// The terminal, pipe or file that meshctl writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    /// True if the user asked for JSON.
    pub json: bool,
}

impl Output {
    /// Prints one line, or several, to standard output.
    ///
    /// # Errors
    /// Quiet if the reader went away.
    pub(super) fn line(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
    }

    /// Prints a value as indented JSON with sorted keys.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(super) fn value(self, value: &Value) -> Result<(), Failure> {
        let mut sorted = value.clone();
        sorted.sort_all_objects();
        self.line(&format!("{sorted:#}"))
    }

    /// Prints a value as JSON on one line, for commands that print many.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(super) fn value_line(self, value: &Value) -> Result<(), Failure> {
        self.line(&value.to_string())
    }

    /// Writes bytes to standard output as they are. Waits without blocking, so that Ctrl-C works while a pager
    /// holds us up.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(super) async fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = tokio::io::stdout();
        let written = async {
            out.write_all(bytes).await?;
            out.flush().await
        };
        written.await.map_err(|error| Failure::output(&error))
    }

    /// Prints to standard error. A standard error that nobody reads is no reason to stop.
    pub(super) fn note(self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Prints why the command failed, as JSON if requested.
    pub(super) fn failure(self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        if self.json {
            self.note(&json!({"error": failure.message, "exit_code": failure.exit.code()}).to_string());
        } else {
            self.note(&format!("meshctl: {}", failure.message));
        }
    }

    /// True if a person reads the standard output.
    pub(super) fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }
}

/// Waits for Ctrl-C or a termination signal. The first call takes over their handling for good.
pub(super) async fn interrupted() -> Failure {
    Interrupts::new().next().await
}

/// Ctrl-C and termination signals since this was made: none is missed between two waits.
pub(super) struct Interrupts(Vec<Signal>);

impl Interrupts {
    pub(super) fn new() -> Self {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        // Without a handler a signal keeps its default action, which ends us as well.
        Self(kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect())
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> Failure {
        poll_fn(|cx| match self.0.iter_mut().any(|signals| signals.poll_recv(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        Failure::new(Exit::Interrupted, "")
    }
}
