//! How long this node has had no turn to place jobs because somebody else holds the turn, and what is reported about
//! it.

use std::time::Duration;

use parking_lot::Mutex;

use crate::controller::core::Time;
use crate::controller::store::{Error, Store, TurnHolder};

/// Locked only to read or change the entry.
#[derive(Debug, Default)]
pub(super) struct MissedTurns(Mutex<Option<Missed>>);

#[derive(Debug)]
struct Missed {
    since: Time,
    /// What was reported last.
    why: Option<String>,
}

impl MissedTurns {
    /// Notes whether this node has had its turn. Returns how long it has had none, once this is at least `too_long`.
    fn note(&self, had_none: bool, now: Time, too_long: Duration) -> Option<Duration> {
        let mut missed = self.0.lock();
        if !had_none {
            *missed = None;
            return None;
        }
        let since = missed.get_or_insert(Missed { since: now, why: None }).since;
        Some(now.since(since)).filter(|time| *time >= too_long)
    }

    /// Why this node has placed no jobs for too long; `None` if it has had its turn.
    pub(super) fn why(&self) -> Option<String> {
        self.0.lock().as_ref()?.why.clone()
    }

    /// Notes whether this node has had its turn. Once it has had none for `too_long`, asks the store who holds the
    /// turn, and reports this.
    pub(super) async fn tell(
        &self,
        had_none: bool,
        now: Time,
        too_long: Duration,
        store: &Store,
    ) -> Result<(), Error> {
        let Some(time) = self.note(had_none, now, too_long) else { return Ok(()) };
        let why = text(time, store.turn_holder().await?);
        if self.say(why.clone()) {
            tracing::warn!(why, "this node places no jobs");
        }
        Ok(())
    }

    /// Keeps the report. Returns true for the first one, which the caller logs.
    fn say(&self, why: String) -> bool {
        self.0.lock().as_mut().is_some_and(|missed| missed.why.replace(why).is_none())
    }
}

fn text(time: Duration, holder: Option<TurnHolder>) -> String {
    let what = format!("no turn to place jobs for {} s", time.as_secs());
    match holder {
        Some(TurnHolder { pid, role }) => format!(
            "{what}: the database's process {pid}, which serves the role {role}, holds it; unless that is a control \
             node at work, SELECT pg_terminate_backend({pid}) ends it"
        ),
        None => format!("{what}: another connection to the database holds it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_turn_says_so_once_it_is_too_long_and_no_more_once_it_has_one() {
        let (turns, wait) = (MissedTurns::default(), Duration::from_secs(30));
        let at = |seconds: i64| Time(seconds * 1000);
        assert_eq!(turns.note(true, at(0), wait), None);
        assert_eq!(turns.note(true, at(29), wait), None);
        assert_eq!(turns.note(false, at(29), wait), None, "one turn, and it starts over");
        assert_eq!(turns.note(true, at(31), wait), None);
        assert_eq!(turns.note(true, at(61), wait), Some(wait));
        assert!(turns.say("a".to_owned()) && !turns.say("b".to_owned()), "it is logged once");
        assert_eq!(turns.0.lock().as_ref().unwrap().why.as_deref(), Some("b"));
        assert_eq!(turns.note(false, at(62), wait), None);
        assert!(!turns.say("c".to_owned()) && turns.0.lock().is_none());
        let holder = TurnHolder { pid: 17, role: "evil".to_owned() };
        assert!(
            text(wait, Some(holder))
                .contains("for 30 s: the database's process 17, which serves the role evil")
        );
    }
}
