//! How its owner approaches an open attempt: it follows the unit, asks the attempt's node, sends the attempt, or gives
//! it up. The decision depends only on this node's registry and the attempt's row.

use super::attempt::Progress;

/// What this node knows of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Unknown,
    /// The unit was begun but has no payload, so nothing of it was started.
    Unsent,
    /// The unit is here.
    Here,
}

/// Where the unit of an attempt runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitPlace {
    /// On this node.
    Here,
    /// On another node.
    Elsewhere,
    /// In a pod, which is labelled with the unit's ID.
    Pod,
}

/// What is to be done about an open attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approach {
    /// Its unit is followed.
    Follow,
    /// It may have been sent before, by an earlier process or another control node: its node or cluster is asked.
    Ask,
    /// Its unit was never made, or is gone.
    Absent {
        /// Another control node may still send it. From now on that is refused.
        disclaim: bool,
    },
    /// It is to be sent.
    Send {
        /// The unit that was begun is removed first.
        afresh: bool,
    },
}

/// How an attempt with this progress is approached; `is_ours` if this node placed it.
pub fn approach(known: Known, progress: Progress, is_ours: bool, place: UnitPlace) -> Approach {
    let can_be_asked = place != UnitPlace::Here;
    match (known, progress) {
        (Known::Here, _) => Approach::Follow,
        (Known::Unknown, Progress::Running | Progress::Lost) if can_be_asked => Approach::Ask,
        (Known::Unknown, Progress::Placed) if can_be_asked && !is_ours => Approach::Ask,
        (Known::Unknown | Known::Unsent, Progress::Running | Progress::Lost | Progress::Over(_)) => {
            Approach::Absent { disclaim: !is_ours && place != UnitPlace::Pod }
        }
        (Known::Unknown, Progress::Placed) => Approach::Send { afresh: false },
        (Known::Unsent, Progress::Placed) => Approach::Send { afresh: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::core::Ending;

    #[test]
    fn nothing_is_sent_that_somebody_else_may_have_sent_where_that_can_be_asked() {
        use Progress::{Lost, Over, Placed, Running};
        let (pod, over) = (UnitPlace::Pod, Over(Ending::Lost));
        let (never, disclaimed) = (Approach::Absent { disclaim: false }, Approach::Absent { disclaim: true });
        let (send, again) = (Approach::Send { afresh: false }, Approach::Send { afresh: true });
        for (known, progress, is_ours, place, expected) in [
            (Known::Here, Placed, false, UnitPlace::Elsewhere, Approach::Follow),
            (Known::Here, Lost, true, UnitPlace::Here, Approach::Follow),
            // On another node.
            (Known::Unknown, Placed, true, UnitPlace::Elsewhere, send),
            (Known::Unknown, Placed, false, UnitPlace::Elsewhere, Approach::Ask),
            (Known::Unknown, Running, true, UnitPlace::Elsewhere, Approach::Ask),
            (Known::Unknown, Lost, false, UnitPlace::Elsewhere, Approach::Ask),
            (Known::Unsent, Placed, true, UnitPlace::Elsewhere, again),
            (Known::Unsent, Running, true, UnitPlace::Elsewhere, never),
            (Known::Unsent, Running, false, UnitPlace::Elsewhere, disclaimed),
            // Here, because every sender reaches the same registry.
            (Known::Unknown, Placed, false, UnitPlace::Here, send),
            (Known::Unknown, Running, true, UnitPlace::Here, never),
            (Known::Unknown, Running, false, UnitPlace::Here, disclaimed),
            // In a pod: it is labelled with the unit's ID, so its cluster can be asked.
            (Known::Unknown, Placed, false, pod, Approach::Ask),
            (Known::Unknown, Placed, true, pod, send),
            (Known::Unknown, Running, true, pod, Approach::Ask),
            (Known::Unsent, Running, false, pod, never),
            // An operator declared its node dead meanwhile.
            (Known::Unknown, over, true, UnitPlace::Elsewhere, never),
            (Known::Unknown, over, false, UnitPlace::Here, disclaimed),
        ] {
            let found = approach(known, progress, is_ours, place);
            assert_eq!(found, expected, "{known:?} {progress:?} {is_ours} {place:?}");
        }
    }
}
