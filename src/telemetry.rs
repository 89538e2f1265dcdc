//! The log: lines of text on standard output, as receptor writes them, or lines with separate fields (`fields`).
//!
//! Levels have receptor's names. Values are fields, never part of the message. The level can change while the process
//! runs. A thread of its own writes the lines, so that a slow or absent reader delays only the log. Most lines are
//! caused by others, so this room bounds how long a value may be (`values`) and how often a line may come (`limits`).
//! It refuses to know what lines are about.

mod fields;
mod limits;
mod values;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use self::fields::{FieldLines, Journal, LogFields};
use self::limits::LogLimits;
use self::values::{field, short};

/// Most lines that may wait to be written. Further lines are lost, and their number is logged.
const WAITING: usize = 4096;

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// Also what a person should look at.
    Warning,
    /// Also what happens in ordinary running.
    Info,
    /// Also what helps to find a fault.
    Debug,
}

impl LogLevel {
    /// All levels, the quietest first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warning, Self::Info, Self::Debug];

    /// The level's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// The level of that name. Case does not matter.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name))
    }
}

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people, on standard output.
    Text,
    /// One JSON object for each line, on standard output.
    Json,
    /// Entries of the journal, with fields.
    Journald,
}

/// The journal's socket.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// How much the process logs. Clones share it.
#[derive(Clone)]
pub struct Log {
    /// Locked while the level is applied, so that the level reported is the level in force.
    current: Arc<Mutex<(LogLevel, bool)>>,
    apply: Arc<dyn Fn(Targets) + Send + Sync>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Log").field(&self.get()).finish()
    }
}

impl Log {
    /// The level, and whether single packets are logged, too.
    pub(crate) fn get(&self) -> (LogLevel, bool) {
        *self.current.lock()
    }

    /// Sets the level, and whether single packets are logged, too.
    pub(crate) fn set(&self, level: LogLevel, trace: bool) {
        let mut current = self.current.lock();
        *current = (level, trace);
        (self.apply)(filter(level, trace));
    }
}

/// Starts logging for the whole process. `trace` logs single packets, too. If no journal listens, lines are text.
/// `job_of` finds the job of a unit by the unit's ID. A drop of [`LastLines`] writes the last lines.
pub fn start(
    level: LogLevel,
    trace: bool,
    format: LogFormat,
    job_of: fn(&str) -> Option<u64>,
) -> (Log, LastLines) {
    let (filter, handle) = reload::Layer::new(filter(level, trace));
    let colours = std::io::stdout().is_terminal();
    let journal = (format == LogFormat::Journald).then(|| Journal::connect(Path::new(JOURNAL)));
    let (lines, guard): (Box<dyn Layer<Registry> + Send + Sync>, _) = match (format, journal) {
        (LogFormat::Text, _) | (_, Some(Err(_))) => {
            let (lines, guard) = Lines::written_to(std::io::stdout(), WAITING, LogFormat::Text);
            (for_people(lines, colours), guard)
        }
        (format, journal) => {
            let (lines, guard) = match journal {
                Some(Ok(journal)) => Lines::written_to(journal, WAITING, format),
                Some(Err(_)) | None => Lines::written_to(std::io::stdout(), WAITING, format),
            };
            (FieldLines::new(lines, format, job_of).boxed(), guard)
        }
    };
    let limits = LogLimits::default();
    // A second start in one process (as in tests) keeps the first one's settings.
    let _started = tracing_subscriber::registry().with(lines).with(limits.clone()).with(filter).try_init();
    let apply = Arc::new(move |filter| {
        // Fails only if the log was never started.
        let _unused = handle.reload(filter);
    });
    (Log { current: Arc::new(Mutex::new((level, trace))), apply }, LastLines(limits, guard))
}

fn for_people(lines: Lines, colours: bool) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer().with_ansi(colours).with_target(false);
    let fields = debug_fn(|to, of, value| match of.name() {
        fields::MESSAGE => to.write_str(&short(value)),
        name => write!(to, "{name}={}", field(value)),
    });
    layer.fmt_fields(fields.delimited(" ")).with_writer(lines).boxed()
}

/// When dropped, logs how many lines were left out, and then waits for the last lines to be written.
pub struct LastLines(LogLimits, #[expect(dead_code, reason = "dropped after the count")] WorkerGuard);

impl Drop for LastLines {
    fn drop(&mut self) {
        self.0.tell();
    }
}

/// Sends lines to the thread that writes them.
struct Lines {
    to: NonBlocking,
    format: LogFormat,
    /// How many lost lines were reported.
    told: AtomicUsize,
}

impl Lines {
    fn written_to(to: impl Write + Send + 'static, waiting: usize, format: LogFormat) -> (Self, WorkerGuard) {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(waiting);
        let (to, guard) = builder.thread_name("log").finish(to);
        (Self { to, format, told: AtomicUsize::new(0) }, guard)
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = NonBlocking;

    fn make_writer(&'a self) -> NonBlocking {
        let (mut to, lost) = (self.to.clone(), self.to.error_counter());
        let (known, told) = (lost.dropped_lines(), self.told.load(Ordering::Relaxed));
        if known > told {
            let missing = known - told;
            // If this line is lost, too, the next line reports the number again.
            let text =
                LogFields::message(format!("{missing} lines of the log are lost, because nobody read it"));
            let _never = to.write_all(&fields::line(self.format, Level::WARN, text));
            if lost.dropped_lines() == known {
                self.told.store(known, Ordering::Relaxed);
            }
        }
        to
    }
}

/// The lines that show at a level. Other crates only log errors, and `info` lines if the level is `debug`.
fn filter(level: LogLevel, trace: bool) -> Targets {
    let own = match level {
        _ if trace => LevelFilter::TRACE,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let others = if own >= LevelFilter::DEBUG { LevelFilter::INFO } else { LevelFilter::ERROR };
    // QUIC logs errors whenever a node stops, which is no fault.
    let quic = if own >= LevelFilter::DEBUG { others } else { LevelFilter::OFF };
    Targets::new().with_target("meshd", own).with_target("quinn", quic).with_default(others)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use tracing::{info, info_span, warn};

    use super::*;

    /// A reader that takes every line at once.
    struct SentLines(Sender<String>);

    impl Write for SentLines {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            let _never = self.0.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_causes_lines_without_end_gets_some_of_them_and_no_value_is_long_in_any_format() {
        const FLOOD: usize = 10_000;
        let long = "x".repeat(16 << 10);
        for format in [LogFormat::Text, LogFormat::Json, LogFormat::Journald] {
            let (sent, lines) = channel();
            let (to, guard) = Lines::written_to(SentLines(sent), WAITING, format);
            let layer = match format {
                LogFormat::Text => for_people(to, false),
                LogFormat::Json | LogFormat::Journald => FieldLines::new(to, format, |_| None).boxed(),
            };
            let limits = LogLimits::default();
            tracing::subscriber::with_default(
                tracing_subscriber::registry().with(layer).with(limits.clone()),
                || {
                    let span = info_span!("command", name = long);
                    for _ in 0..FLOOD {
                        span.in_scope(
                            || warn!(node = long, why = %long, known = ?Some(&long), "refused {long}"),
                        );
                    }
                    info!("something else");
                    assert!(limits.tell() && !limits.tell(), "it is told once");
                },
            );
            drop(guard);
            let lines: Vec<String> = lines.iter().collect();
            let runs = lines.iter().flat_map(|line| line.split(|char| char != 'x'));
            let longest = runs.map(str::len).max().unwrap();
            assert!((240..=values::LONGEST).contains(&longest), "{format:?}: a value of {longest} bytes");
            let of_flood = lines.iter().filter(|line| line.contains("refused x") && !line.contains("like"));
            let written = of_flood.clone().count();
            assert!((500..600).contains(&written), "{format:?}: {written} lines");
            assert!(of_flood.clone().all(|line| line.matches('…').count() >= 5), "{lines:?}");
            assert_eq!(lines.iter().filter(|line| line.contains("something else")).count(), 1);
            let left_out = (FLOOD - written).to_string();
            let told = |line: &&String| line.contains("they came too often") && line.contains(&left_out);
            assert_eq!(lines.iter().filter(told).count(), 1, "{format:?}: {:?}", lines.last());
            assert_eq!(lines.len(), written + 2);
        }
    }

    /// A reader that takes a line only when told to.
    struct SlowLog(Receiver<()>, Sender<String>);

    impl Write for SlowLog {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.recv().map_err(std::io::Error::other)?;
            let _never = self.1.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_is_not_read_holds_up_nobody_and_tells_what_is_lost() {
        let ((take, taking), (sent, lines)) = (channel(), channel());
        let (log, guard) = Lines::written_to(SlowLog(taking, sent), 4, LogFormat::Text);
        (0..100).for_each(|n| log.make_writer().write_all(format!("line {n}\n").as_bytes()).unwrap());
        (0..1000).for_each(|_| take.send(()).unwrap());
        let mut read = Vec::new();
        while read.iter().all(|line: &String| !line.contains("are lost")) {
            log.make_writer().write_all(b"later\n").unwrap();
            read.extend(lines.try_iter());
        }
        drop(guard);
        read.extend(lines.try_iter());
        assert_eq!(read[0], "line 0\n");
        let kept = read.iter().filter(|line| line.starts_with("line")).count();
        let lost = |line: &String| -> Option<usize> {
            line.strip_suffix(" lines of the log are lost, because nobody read it\n")?.parse().ok()
        };
        let lost: usize = read.iter().filter_map(lost).sum();
        assert!(kept < 10 && kept + lost >= 100, "{kept} of 100 were written, {lost} are missing");
    }
}
