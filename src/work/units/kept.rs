//! How much of a unit's output is known to be durable, and so need not be flushed again at the unit's end, and what was
//! cut off it. Knows nothing of files.

use parking_lot::Mutex;

use crate::work::status::Status;

/// Locked only to read or change the counts.
#[derive(Debug, Default)]
pub(crate) struct KeptOutput(Mutex<KeptBytes>);

#[derive(Debug, Default)]
struct KeptBytes {
    /// From the first byte on.
    bytes: u64,
    /// How often the output was cut.
    cuts: u64,
    shortened: Shortened,
}

/// What was cut off an output, for readers who may have read it: other bytes follow in its place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shortened {
    /// How often that was.
    count: u64,
    /// The length that the last cut has left.
    left: u64,
}

impl Shortened {
    /// Whether any of the first `position` bytes may have been cut off since `before`.
    pub(crate) fn reaches(self, position: u64, before: Self) -> bool {
        match self.count - before.count {
            0 => false,
            1 => self.left < position,
            _ => true,
        }
    }
}

impl KeptOutput {
    /// How often the output was cut, for [`Self::note`].
    pub(crate) fn cuts(&self) -> u64 {
        self.0.lock().cuts
    }

    /// Notes that so many bytes are durable, unless the output was cut since they were counted.
    pub(crate) fn note(&self, bytes: u64, cuts: u64) {
        let mut kept = self.0.lock();
        if kept.cuts == cuts {
            kept.bytes = bytes;
        }
    }

    /// Notes that the output was cut: what was counted as durable may be gone.
    pub(crate) fn note_cut(&self) {
        let mut kept = self.0.lock();
        (kept.bytes, kept.cuts) = (0, kept.cuts + 1);
    }

    /// Notes that the output was cut to this length, and that other bytes will follow.
    pub(crate) fn note_shortened(&self, left: u64) {
        let mut kept = self.0.lock();
        let shortened = Shortened { count: kept.shortened.count + 1, left };
        *kept = KeptBytes { bytes: 0, cuts: kept.cuts + 1, shortened };
    }

    pub(crate) fn shortened(&self) -> Shortened {
        self.0.lock().shortened
    }

    /// Whether all of the output that a status counts is known to be durable.
    pub(crate) fn has_all_of(&self, status: &Status) -> bool {
        status.life.stdout_size <= self.0.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::{CommandExtra, Extra};

    #[test]
    fn what_was_cut_since_it_was_counted_is_not_durable() {
        let has = |kept: &KeptOutput, bytes: u64| {
            let mut status = Status::new("t", Extra::Command(CommandExtra::default()));
            status.life.stdout_size = bytes;
            kept.has_all_of(&status)
        };
        let kept = KeptOutput::default();
        assert!(has(&kept, 0) && !has(&kept, 1));
        kept.note(5, kept.cuts());
        assert!(has(&kept, 5) && !has(&kept, 6));
        let before = kept.cuts();
        kept.note_cut();
        assert!(!has(&kept, 5));
        kept.note(5, before);
        assert!(!has(&kept, 5), "it was counted before the cut");
        kept.note(3, kept.cuts());
        assert!(has(&kept, 3) && !has(&kept, 5));
    }
}
