//! The log: structured lines on standard output, as receptor writes them there.
//!
//! Levels are receptor's names; what other crates log shows from `debug` on. Values are fields, never part
//! of the sentence. The level can change while the process runs.

use std::io::IsTerminal;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// And what a person should look at.
    Warning,
    /// And what happens in ordinary running.
    Info,
    /// And what helps to find a fault.
    Debug,
}

impl LogLevel {
    /// All levels, the quietest first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warning, Self::Info, Self::Debug];

    /// The level as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// The level of that name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name))
    }
}

/// How much the process logs. Clones are the same.
#[derive(Clone)]
pub(crate) struct Log {
    /// Under a lock, so that the level set last is also the one reported.
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

    /// Changes both from now on.
    pub(crate) fn set(&self, level: LogLevel, trace: bool) {
        let mut current = self.current.lock();
        *current = (level, trace);
        (self.apply)(filter(level, trace));
    }
}

/// Starts logging for the whole process. `trace` shows single packets, too.
pub(crate) fn start(level: LogLevel, trace: bool) -> Log {
    let (filter, handle) = reload::Layer::new(filter(level, trace));
    let colours = std::io::stdout().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_target(false);
    // A second start in one process (as in tests) keeps the first one's settings.
    let _started = tracing_subscriber::registry().with(lines).with(filter).try_init();
    let apply = Arc::new(move |filter| {
        // Fails only if the log was never started.
        let _unused = handle.reload(filter);
    });
    Log { current: Arc::new(Mutex::new((level, trace))), apply }
}

fn filter(level: LogLevel, trace: bool) -> Targets {
    let own = match level {
        _ if trace => LevelFilter::TRACE,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let others = if own >= LevelFilter::DEBUG { LevelFilter::INFO } else { LevelFilter::ERROR };
    // QUIC logs errors when the node below it stops, which is how a node ends.
    let quic = if own >= LevelFilter::DEBUG { others } else { LevelFilter::OFF };
    Targets::new().with_target("meshd", own).with_target("quinn", quic).with_default(others)
}
