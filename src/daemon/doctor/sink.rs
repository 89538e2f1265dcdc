//! The check of the `events-sink`: whether its receiver takes what is sent, and whether there is room for what waits. Owns
//! the remedies.

use std::sync::atomic::Ordering::Relaxed;

use crate::control::SinkCounters;
use crate::rpc::report::finding::{Finding, Severity};

const PLACE: &str = "events-sink";
const REMEDY: &str =
    "see whether the receiver at its address takes lines; once the buffer is full, the oldest are lost";

/// What is wrong, if anything.
pub(super) fn of_sink(sink: &SinkCounters) -> Option<Finding> {
    let (waiting, most) = (sink.waiting.load(Relaxed), sink.most.load(Relaxed));
    // The last quarter is near the bound.
    let is_nearly_full = most > 0 && waiting >= most / 4 * 3;
    let severity = if is_nearly_full { Severity::Error } else { Severity::Warning };
    let room = format!("{waiting} of {most} bytes of its buffer wait");
    let what = match &*sink.failing.lock() {
        Some((since, why)) => format!("no event could be sent since {since}: {why}; {room}"),
        None if is_nearly_full => format!("its receiver is too slow: {room}"),
        None => return None,
    };
    Some(Finding::new(severity, PLACE, what, REMEDY))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_sink_that_cannot_send_is_told_and_is_an_error_once_its_buffer_is_nearly_full() {
        let sink = SinkCounters::default();
        assert_eq!(of_sink(&sink), None, "there is none");
        sink.most.store(1000, Relaxed);
        sink.waiting.store(749, Relaxed);
        assert_eq!(of_sink(&sink), None);
        sink.note_failure(Timestamp::UNIX_EPOCH, "first".to_owned());
        sink.note_failure(Timestamp::MAX, "gone".to_owned());
        let found = of_sink(&sink).unwrap();
        assert_eq!((found.severity, found.place.as_str()), (Severity::Warning, PLACE));
        let what =
            "no event could be sent since 1970-01-01T00:00:00Z: gone; 749 of 1000 bytes of its buffer wait";
        assert_eq!(found.what, what);
        sink.waiting.store(750, Relaxed);
        assert_eq!(of_sink(&sink).unwrap().severity, Severity::Error);
        sink.note_success(1);
        let slow = of_sink(&sink).unwrap();
        assert!(slow.severity == Severity::Error && slow.what.contains("too slow"), "{slow:?}");
        sink.note_end();
        assert_eq!(of_sink(&sink), None);
    }
}
