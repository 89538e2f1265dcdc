//! How much of the output of a unit is known to be durable: what was flushed once need not be flushed again with the unit's
//! end. Knows nothing of files.

use parking_lot::Mutex;

use crate::work::status::Status;

/// Locked for a look or an entry.
#[derive(Debug, Default)]
pub(crate) struct KeptOutput(Mutex<KeptBytes>);

#[derive(Debug, Default)]
struct KeptBytes {
    /// From the first byte on.
    bytes: u64,
    /// How often the output was cut.
    cuts: u64,
}

impl KeptOutput {
    /// How often the output was cut, for [`Self::note`].
    pub(crate) fn cuts(&self) -> u64 {
        self.0.lock().cuts
    }

    /// So many bytes are durable, if the output was not cut since they were counted.
    pub(crate) fn note(&self, bytes: u64, cuts: u64) {
        let mut kept = self.0.lock();
        if kept.cuts == cuts {
            kept.bytes = bytes;
        }
    }

    /// The output was cut: others may come in the place of what is gone.
    pub(crate) fn note_cut(&self) {
        let mut kept = self.0.lock();
        *kept = KeptBytes { bytes: 0, cuts: kept.cuts + 1 };
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
