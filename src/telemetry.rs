//! The log: structured lines on standard output, as receptor writes them there.
//!
//! Levels are receptor's names; what other crates log shows from `debug` on. Values are fields, never part
//! of the sentence.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::MakeWriterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::typed::LogLevel;

/// Starts logging for the whole process. `trace` shows single packets, too.
pub fn start(level: LogLevel, trace: bool) {
    let own = match level {
        _ if trace => LevelFilter::TRACE,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let others = if own >= LevelFilter::DEBUG { LevelFilter::INFO } else { LevelFilter::ERROR };
    // QUIC cries out when the node below it stops, which is how a node ends.
    let quic = if own >= LevelFilter::DEBUG { others } else { LevelFilter::OFF };
    let filter = Targets::new().with_target("meshd", own).with_target("quinn", quic).with_default(others);
    let colours = std::io::stdout().is_terminal();
    let output = std::io::stdout.with_max_level(tracing::Level::TRACE);
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_target(false).with_writer(output);
    // A second start in one process (as in tests) keeps the first one's settings.
    let _started = tracing_subscriber::registry().with(lines).with(filter).try_init();
}
