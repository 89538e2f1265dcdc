//! Results go to standard output, everything else to standard error. Owns the rules that a reader who leaves (`| head`)
//! ends the command quietly instead of with a panic, and that every text on its way out passes [`terminal`], whoever
//! wrote it.

use std::future::poll_fn;
use std::io::{self, IsTerminal, Write};
use std::task::Poll;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{Exit, Failure};
use super::terminal::{self, Colours, ShownStream};

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
        self.safe_line(&terminal::shown(text, Colours::Dropped))
    }

    fn safe_line(self, text: &str) -> Result<(), Failure> {
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
        self.safe_line(&terminal::shown_json(&format!("{sorted:#}")))
    }

    /// Prints a value as JSON on one line, for commands that print many.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub(super) fn value_line(self, value: &Value) -> Result<(), Failure> {
        self.safe_line(&terminal::shown_json(&value.to_string()))
    }

    /// Prints a value as JSON on one line to standard error.
    pub(super) fn value_note(self, value: &Value) {
        self.note(&terminal::shown_json(&value.to_string()));
    }

    /// Writes bytes from elsewhere to standard output: as they are, unless it is a terminal.
    pub(super) fn foreign_bytes(self) -> ForeignBytes {
        let shown = self.is_terminal().then(|| ShownStream::new(Colours::Kept));
        ForeignBytes { output: self, shown }
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
        let _ = writeln!(io::stderr(), "{}", terminal::shown(text, Colours::Dropped));
    }

    /// Prints why the command failed, as JSON if requested.
    pub(super) fn failure(self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        if self.json {
            self.value_note(&json!({"error": failure.message, "exit_code": failure.exit.code()}));
        } else {
            self.note(&format!("meshctl: {}", failure.message));
        }
    }

    /// True if a person reads the standard output.
    pub(super) fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }
}

/// The way of bytes from elsewhere to standard output.
pub(super) struct ForeignBytes {
    output: Output,
    /// On a terminal.
    shown: Option<ShownStream>,
}

impl ForeignBytes {
    /// Writes the next ones.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.shown {
            None => self.output.bytes(bytes).await,
            Some(shown) => self.output.bytes(shown.push(bytes).as_bytes()).await,
        }
    }

    /// Writes what was held back of the last ones.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub(super) async fn finish(mut self) -> Result<(), Failure> {
        match &mut self.shown {
            None => Ok(()),
            Some(shown) => self.output.bytes(shown.finish().as_bytes()).await,
        }
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
