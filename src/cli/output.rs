//! Prints results to standard output, everything else to standard error. Owns two rules: a reader who leaves (`| head`)
//! ends the command quietly, without a panic; and every text passes through [`terminal`].

use std::future::poll_fn;
use std::io::{self, IsTerminal, Write};
use std::task::Poll;

use jiff::Zoned;
use jiff::tz::TimeZone;
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{Exit, Failure};
use super::table::{self, Column, Layout};
use super::terminal::{self, Colours, ShownStream};

/// The terminal, pipe or file that meshctl writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    /// True if the user asked for JSON.
    pub json: bool,
    /// True if the user wants results and failures alone.
    pub quiet: bool,
    /// True if the user wants times in UTC, not in the zone of this terminal (`TZ`).
    pub utc: bool,
}

impl Output {
    /// Prints one line, or several, to standard output.
    ///
    /// # Errors
    /// Standard output cannot be written; without a message if the reader went away.
    pub(super) fn line(self, text: &str) -> Result<(), Failure> {
        self.safe_line(&terminal::shown(text, Colours::Dropped))
    }

    fn safe_line(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
    }

    /// Prints that something was done.
    pub(super) fn done(self, text: &str) -> Result<(), Failure> {
        if self.quiet { Ok(()) } else { self.line(text) }
    }

    /// Prints a list of things that are called `what`: with `--quiet` only the first column, their names.
    pub(super) fn list<T>(
        self,
        what: &str,
        rows: &[T],
        columns: &[Column<T>],
        layout: Layout,
    ) -> Result<(), Failure> {
        let now = self.now();
        if self.quiet {
            return rows.iter().try_for_each(|one| self.line(&columns[0].text(one, &now)));
        }
        if rows.is_empty() {
            self.note(&format!("No {what}."));
            return Ok(());
        }
        self.line(&table::list(rows, columns, layout, self.width(), &now))
    }

    /// Asks whether something shall be done, as in `Cancel 12 jobs?`.
    ///
    /// # Errors
    /// The user says no, or nobody can be asked.
    pub(super) async fn confirm(self, question: &str) -> Result<(), Failure> {
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Failure::usage(format!("{question} Cannot ask here: give --yes")));
        }
        let _ = write!(io::stderr(), "{question} [y/N] ");
        let mut line = String::new();
        let read = BufReader::new(tokio::io::stdin()).read_line(&mut line).await;
        match (read, line.trim().to_lowercase().as_str()) {
            (Ok(_), "y" | "yes") => Ok(()),
            (Ok(_) | Err(_), _) => Err(Failure::new(Exit::Failed, "nothing was done")),
        }
    }

    /// What time it is, in the zone in which times are shown and typed.
    pub(super) fn now(self) -> Zoned {
        Zoned::now().with_time_zone(if self.utc { TimeZone::UTC } else { TimeZone::system() })
    }

    /// Width of a line, in characters.
    pub(super) fn width(self) -> usize {
        let terminal = tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
        if terminal == 0 { table::WIDTH } else { terminal }
    }

    /// Prints an answer: as JSON if the user wants that, else as this text.
    pub(super) fn answer(self, json: &Value, text: impl FnOnce() -> String) -> Result<Exit, Failure> {
        if self.json { self.value(json) } else { self.line(&text()) }.map(|()| Exit::Success)
    }

    /// Prints a value as indented JSON with sorted keys.
    pub(super) fn value(self, value: &Value) -> Result<(), Failure> {
        let mut sorted = value.clone();
        sorted.sort_all_objects();
        self.safe_line(&terminal::shown_json(&format!("{sorted:#}")))
    }

    /// Prints a value as JSON on one line, for commands that print many.
    pub(super) fn value_line(self, value: &Value) -> Result<(), Failure> {
        self.safe_line(&terminal::shown_json(&value.to_string()))
    }

    /// Prints a value as JSON on one line to standard error.
    pub(super) fn value_note(self, value: &Value) {
        self.error(&terminal::shown_json(&value.to_string()));
    }

    /// Writes bytes from elsewhere to standard output: as they are, unless it is a terminal.
    pub(super) fn foreign_bytes(self) -> ForeignBytes {
        let shown = self.is_terminal().then(|| ShownStream::new(self.colours()));
        ForeignBytes { output: self, shown }
    }

    /// Writes bytes to standard output as they are. Waits without blocking, so that Ctrl-C works while a pager does not
    /// read.
    pub(super) async fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = tokio::io::stdout();
        let written = async {
            out.write_all(bytes).await?;
            out.flush().await
        };
        written.await.map_err(|error| Failure::output(&error))
    }

    /// Prints a remark to standard error, unless `--quiet` was given. Goes on if standard error cannot be written.
    pub(super) fn note(self, text: &str) {
        if !self.quiet {
            self.error(text);
        }
    }

    /// Prints what went wrong to standard error.
    pub(super) fn error(self, text: &str) {
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
            self.error(&format!("meshctl: {}", failure.message));
        }
    }

    /// True if standard output is a terminal.
    pub(super) fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }

    /// Whether colours in foreign texts reach standard output: only if it is a terminal, and NO_COLOR is not set.
    pub(super) fn colours(self) -> Colours {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if self.is_terminal() && !no_colour { Colours::Kept } else { Colours::Dropped }
    }
}

/// Bytes that are copied at a time.
const CHUNK: usize = 64 << 10;

/// Writes bytes from elsewhere to standard output.
pub(super) struct ForeignBytes {
    output: Output,
    /// Makes the bytes safe, if standard output is a terminal.
    shown: Option<ShownStream>,
}

impl ForeignBytes {
    /// Writes the next bytes.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.shown {
            None => self.output.bytes(bytes).await,
            Some(shown) => self.output.bytes(shown.push(bytes).as_bytes()).await,
        }
    }

    /// Writes all that comes. `what` begins the error if it is cut off: `the events are`.
    pub(super) async fn copy(
        &mut self,
        what: &str,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = from.read(&mut buffer).await;
            let count =
                read.map_err(|error| Failure::new(Exit::Unreachable, format!("{what} cut off: {error}")))?;
            if count == 0 {
                return Ok(());
            }
            self.write(&buffer[..count]).await?;
        }
    }

    /// Writes what was held back of the last bytes.
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

/// Ctrl-C and termination signals since this was made; none is missed between two waits.
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
