//! How many lines a log statement of the code may write, whoever causes them.
//!
//! Owns the counts: one small record for each statement that has written a line. Further lines are left out, which
//! spares the disk and the reader; a line of its own soon reports their number. Refuses to know what lines say.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{Event, Level, Metadata, Subscriber, error, info, warn};
use tracing_subscriber::layer::{Context, Layer};

use super::fields::LogFields;

/// The time between two reports of lines that were left out.
const TELL_AFTER: Duration = Duration::from_secs(10);

/// The message of such a report. Its field `like` shows the first line that was left out.
const LEFT_OUT: &str = "lines left out: they came too often";

/// The rooms whose `info` lines are about jobs. Their bound is high, because others may submit only as many jobs as
/// their rights and quotas allow.
const ROOMS_OF_JOBS: [&str; 3] = ["meshd::work", "meshd::controller", "meshd::pods"];

/// The module whose warnings are about messages of neighbours. Its bound is low, because neighbours can send any number
/// and all these lines say the same.
const ROOM_OF_MESSAGES: &str = "meshd::node::driver";

/// How many lines a statement of a module may write at once, and how many more in each second. `None` for `debug` and
/// `trace`, which somebody has asked for.
fn bound(level: Level, module: &str) -> Option<(f64, f64)> {
    match level {
        // A control node logs four lines for a job: this allows 5,000 jobs at once, and 432,000 a day.
        Level::INFO if ROOMS_OF_JOBS.iter().any(|room| module.starts_with(room)) => Some((20_000.0, 20.0)),
        Level::ERROR | Level::WARN if module == ROOM_OF_MESSAGES => Some((10.0, 1.0)),
        // All nodes of a large mesh may come or go at once, and so may the jobs of a lost node.
        Level::ERROR | Level::WARN | Level::INFO => Some((500.0, 1.0)),
        _ => None,
    }
}

/// How many lines may be written at a point in time.
struct LineAllowance(f64, Instant);

impl LineAllowance {
    /// Whether a line may be written now.
    fn take(&mut self, (at_once, per_second): (f64, f64), now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.1).as_secs_f64() * per_second;
        *self = Self(at_once.min(self.0 + gained), now);
        let is_left = self.0 >= 1.0;
        self.0 -= f64::from(u8::from(is_left));
        is_left
    }
}

/// A log statement and its counts.
struct LogSite {
    of: &'static Metadata<'static>,
    room: LineAllowance,
    left_out: u64,
    /// The first line that was left out since the last report.
    like: String,
}

#[derive(Default)]
struct Sites {
    /// One for each statement that has logged. A search is fast enough, because the code has only a few hundred.
    sites: Vec<LogSite>,
    /// Whether a thread will report what was left out.
    is_told: bool,
}

/// Leaves out lines beyond the bounds. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct LogLimits(Arc<Mutex<Sites>>);

impl<S: Subscriber> Layer<S> for LogLimits {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let (of, now) = (event.metadata(), Instant::now());
        let Some(bound) = bound(*of.level(), of.module_path().unwrap_or_default()) else { return true };
        let mut state = self.0.lock();
        let known = state.sites.iter().position(|site| site.of.callsite() == of.callsite());
        let at = known.unwrap_or_else(|| {
            state.sites.push(LogSite {
                of,
                room: LineAllowance(bound.0, now),
                left_out: 0,
                like: String::new(),
            });
            state.sites.len() - 1
        });
        let site = &mut state.sites[at];
        if site.room.take(bound, now) {
            return true;
        }
        site.left_out += 1;
        let is_first = site.left_out == 1;
        let is_told = std::mem::replace(&mut state.is_told, true);
        drop(state);
        if is_first {
            // Not under the lock, because formatting the message may log, too.
            let mut fields = LogFields::default();
            event.record(&mut fields);
            self.0.lock().sites[at].like = fields.into_text();
        }
        if !is_told {
            self.spawn_teller();
        }
        false
    }
}

impl LogLimits {
    /// Starts a thread that reports until nothing more is left out. Without a flood there is no thread.
    fn spawn_teller(&self) {
        let limits = self.clone();
        let thread = thread::Builder::new().name("log-left-out".to_owned()).spawn(move || {
            thread::sleep(TELL_AFTER);
            while limits.tell() {
                thread::sleep(TELL_AFTER);
            }
        });
        // If no thread can be started, the next line that is left out tries again.
        self.0.lock().is_told = thread.is_ok();
    }

    /// Logs how many lines were left out since the last report. False if there were none; then the reporting thread
    /// ends.
    pub(super) fn tell(&self) -> bool {
        let mut state = self.0.lock();
        let sites = state.sites.iter_mut().filter(|site| site.left_out > 0);
        let take = |site: &mut LogSite| {
            (site.of.level(), std::mem::take(&mut site.like), std::mem::take(&mut site.left_out))
        };
        let told: Vec<_> = sites.map(take).collect();
        state.is_told = !told.is_empty();
        drop(state);
        for (level, like, left_out) in &told {
            match **level {
                Level::ERROR => error!(left_out, %like, "{LEFT_OUT}"),
                Level::WARN => warn!(left_out, %like, "{LEFT_OUT}"),
                _ => info!(left_out, %like, "{LEFT_OUT}"),
            }
        }
        !told.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_then_a_line_now_and_then() {
        let start = Instant::now();
        let bound = bound(Level::INFO, "meshd::node::link_log").unwrap();
        let mut room = LineAllowance(bound.0, start);
        let mut written = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            (0..10_000).filter(|_| room.take(bound, now)).count()
        };
        assert_eq!((written(0), written(0), written(1), written(61)), (500, 0, 1, 60));
        assert_eq!(written(100_000), 500);
    }

    #[test]
    fn a_busy_node_keeps_its_lines() {
        // Four lines for each of 100 jobs in a second.
        let start = Instant::now();
        let bound = bound(Level::INFO, "meshd::work::local").unwrap();
        let mut room = LineAllowance(bound.0, start);
        let mut lines = (0..20_000).map(|line| start + Duration::from_secs(1) * line / 400);
        assert!(lines.all(|now| room.take(bound, now)));
    }
}
