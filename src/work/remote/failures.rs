//! What a failed attempt on another node means for the unit, and what its Detail says about it. `driver` decides when it
//! is tried again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Remotes;
use super::driver::Step;
use super::session::StepError;
use crate::rpc::ErrorCode;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::unit::Event;
use crate::work::units::Entry;

/// How long the other node's part of a unit released by force is asked after.
const FORGET: Duration = Duration::from_secs(7 * 24 * 3600);
/// Failures in a row that no Detail mentions: links break, and are back at once.
const UNTOLD: u32 = 2;
/// What stands between the last known Detail and the trouble.
const NO_NEWS: &str = " (no news from node ";

/// Attempts that fail one after the other.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    failures: u32,
    since: Option<Timestamp>,
}

impl Trouble {
    /// Counts a failure; returns since when they go on, once that is worth a mention.
    fn goes_on(&mut self) -> Option<Timestamp> {
        self.failures = self.failures.saturating_add(1);
        let since = *self.since.get_or_insert_with(Timestamp::now);
        (self.failures > UNTOLD).then_some(since)
    }
}

/// The last known Detail, at whose beginning clients look, and behind it what keeps a newer one from coming.
fn troubled(detail: &str, node: &str, since: Timestamp, error: &StepError) -> String {
    let known = detail.split_once(NO_NEWS).map_or(detail, |(known, _)| known);
    format!("{known}{NO_NEWS}{node} since {}, trying again: {error})", time_of_day(since))
}

/// A time as it stands in a Detail.
pub(super) fn time_of_day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%a %b %-d %H:%M:%S").to_string()
}

impl Remotes {
    /// Writes a failed attempt where clients see it; a refusal ends a unit that has not started.
    pub(super) async fn note_failure(
        &self,
        entry: &Arc<Entry>,
        step: Step,
        error: &StepError,
        trouble: &mut Trouble,
    ) {
        tracing::info!(unit = %entry.id, ?step, %error, "remote work unit: attempt failed");
        let final_here = match error {
            StepError::Refused(_) | StepError::Tls(_) => step == Step::Start && !is_temporary(error),
            StepError::Connection(_) | StepError::Local(_) => false,
        };
        if entry.dir.is_hidden() && entry.dir.age() > FORGET {
            tracing::warn!(unit = %entry.id, "the other node is asked no more to release its part of the unit");
            if let Err(error) = self.units.remove(entry, |_| ()).await {
                tracing::error!(unit = %entry.id, %error, "the remains of a released unit cannot be removed");
            }
            entry.link().news.send_modify(|news| news.released = true);
            return;
        }
        let node = entry.status().remote().map(|remote| remote.remote_node.to_string()).unwrap_or_default();
        if final_here {
            entry.link().news.send_modify(|news| news.refused = Some(error.to_string()));
            let cause = format!("{error} ({})", advice(error, &node));
            let event = match error {
                // At its beginning clients look.
                StepError::Tls(_) => Event::TlsFailed(cause),
                StepError::Refused(_) | StepError::Connection(_) | StepError::Local(_) => {
                    Event::StartFailed(cause)
                }
            };
            // It is not there, and will not be. The event below makes it durable.
            let was_released = error.code() == Some(ErrorCode::ReleasedUnit);
            if was_released || error.code() == Some(ErrorCode::UnitDisclaimed) {
                let note = |remote: &mut RemoteExtra| {
                    (remote.gone, remote.was_released) = (true, was_released);
                };
                let _ = self.note(entry, Durability::Deferred, note).await;
            }
            entry.apply(self.units.store(), event).await;
        } else if let StepError::Local(error) = error {
            entry
                .writer(self.units.store())
                .await
                .apply(Event::Blocked(error.to_string()), Durability::Volatile)
                .await;
        } else if let StepError::Tls(_) = error {
            let detail = format!("{error} (node {node}, trying again)");
            entry.writer(self.units.store()).await.apply(Event::Blocked(detail), Durability::Volatile).await;
        } else if step == Step::Start {
            let cause = format!("Waiting for node {node}, trying again: {error}");
            entry.writer(self.units.store()).await.apply(Event::Waiting(cause), Durability::Volatile).await;
        } else if let Some(since) = trouble.goes_on() {
            let mut writer = entry.writer(self.units.store()).await;
            let detail = troubled(&writer.status().life.detail, &node, since, error);
            writer.apply(Event::Blocked(detail), Durability::Volatile).await;
        }
        entry.link().news.send_modify(|news| news.failures += 1);
    }
}

/// Whether the node refused for a reason that will be gone in a while.
fn is_temporary(error: &StepError) -> bool {
    error.code().is_some_and(ErrorCode::is_temporary)
}

/// What to do about a start that a node refused.
fn advice(error: &StepError, node: &str) -> String {
    match error {
        StepError::Tls(_) => format!(
            "see that the TLS profile named at submission fits the one of the control service on node {node}"
        ),
        StepError::Refused(_) | StepError::Connection(_) | StepError::Local(_) => match error.code() {
            Some(ErrorCode::UnknownWorkType) => {
                format!("add it on node {node}, or name one that node advertises")
            }
            Some(ErrorCode::Signature) => format!(
                "see that work-signing here and work-verification on node {node} name keys of one pair, and that the \
                 work type verifies signatures if and only if the unit is signed"
            ),
            _ => format!("node {node} refused the job: put that right there, then submit it again"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_when_it_goes_on_and_keeps_what_was_known() {
        let mut trouble = Trouble::default();
        assert_eq!([trouble.goes_on(), trouble.goes_on()], [None, None]);
        let since = trouble.goes_on().unwrap();
        assert_eq!(trouble.goes_on(), Some(since));
        let first = troubled("Running: PID 7", "n2", since, &StepError::Connection("no route".into()));
        let wanted =
            format!("Running: PID 7 (no news from node n2 since {}, trying again: ", time_of_day(since));
        assert_eq!(first, format!("{wanted}no route)"));
        let next = troubled(&first, "n2", since, &StepError::Connection("reset".into()));
        assert_eq!(next, format!("{wanted}reset)"));
    }

    #[test]
    fn a_refusal_that_passes_is_no_end() {
        use crate::work::WorkError;
        use crate::work::signing::SignatureError;
        let refused = |refusal: SignatureError| StepError::refused(WorkError::from(refusal).to_string());
        assert!(is_temporary(&refused(SignatureError::Busy)));
        assert!(is_temporary(&refused(SignatureError::Earlier)), "the next try is signed later");
        let again = WorkError::SubmittedAgain("x".into());
        assert!(is_temporary(&StepError::refused(again.to_string())));
        assert!(!is_temporary(&refused(SignatureError::Replayed)));
    }
}
