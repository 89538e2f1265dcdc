//! What operators see of the pieces of payloads that this node keeps, and may do with them. Knows the names of callers,
//! which the pieces themselves have not.

use std::cmp::Reverse;

use super::Registry;
use crate::rpc::report::cache::{CacheReport, CallerCache};
use crate::work::Submitter;
use crate::work::pieces::CallerPieces;

/// The most callers that are told one by one.
const TOLD: usize = 64;

impl Registry {
    /// What is kept of payloads, and of whom.
    pub async fn payload_cache(&self) -> CacheReport {
        let (told, more_callers) = largest(self.pieces.figures());
        let mut callers = Vec::with_capacity(told.len());
        for CallerPieces { caller, pieces, bytes } in told {
            let Submitter::Node { node, certified } = caller else { continue };
            let name = self.executor.remotes.far().name_of(node).await;
            let node = name.map_or_else(|| node.to_string(), |name| name.to_string());
            callers.push(CallerCache { node, certified, pieces, bytes });
        }
        let (pieces, bytes) = self.pieces.total();
        CacheReport { callers, more_callers, pieces, bytes, most: self.pieces.most() }
    }

    /// Removes all pieces. Returns how many there were, and their bytes.
    pub async fn clear_payload_cache(&self) -> (usize, u64) {
        let pieces = self.pieces.clone();
        self.units.store().blocking(move || pieces.clear()).await
    }

    /// Changes how many bytes may be kept of payloads; `None` for a part of the disk.
    pub async fn set_payload_cache(&self, most: Option<u64>) {
        let pieces = self.pieces.clone();
        self.units.store().blocking(move || pieces.set_most(most)).await;
    }
}

/// The callers that are told one by one, those with most bytes first, and how many others there are.
fn largest(mut all: Vec<CallerPieces>) -> (Vec<CallerPieces>, usize) {
    all.sort_by_key(|of_one| Reverse(of_one.bytes));
    let more = all.split_off(all.len().min(TOLD));
    (all, more.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::NameHash;

    #[test]
    fn those_with_most_are_told_and_the_others_counted() {
        let caller = |number| Submitter::Node { node: NameHash(number), certified: true };
        let all = (0..100).map(|number| CallerPieces { caller: caller(number), pieces: 1, bytes: number });
        let (told, more) = largest(all.collect());
        assert_eq!((told.len(), more), (TOLD, 100 - TOLD));
        assert!(told.is_sorted_by_key(|of_one| Reverse(of_one.bytes)) && told[0].bytes == 99);
        assert_eq!(largest(Vec::new()), (Vec::new(), 0));
    }
}
