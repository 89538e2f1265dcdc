//! What a failed attempt on another node means for the unit, and what the unit's Detail says about it. Only this module
//! decides which failures end a unit; `driver` decides when to try again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::time::Instant;

use super::Remotes;
use super::step::DriverStep;
use crate::rpc::ErrorCode;
use crate::work::far::StepError;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::unit::UnitEvent;
use crate::work::units::Entry;

/// How long to keep asking the other node to release its part of a unit that was released by force.
const FORGET: Duration = Duration::from_secs(7 * 24 * 3600);
/// The number of failures in a row that the Detail does not mention yet, because links often break and are back at
/// once.
const UNTOLD: u32 = 2;
/// How long every handshake has to fail before that ends a unit of which nothing was sent. On a receptor node the
/// second failure ends it. meshd waits, because a node on the way can make handshakes fail; such a node can cause
/// nothing worse than delays otherwise.
const HANDSHAKES_FAIL: Duration = Duration::from_secs(60);
/// The number of attempts that have to fail at least: a machine that was suspended has made none meanwhile.
const HANDSHAKES: u32 = 3;
/// The text between the last known Detail and the trouble.
const NO_NEWS: &str = " (no news from node ";

/// Attempts that fail one after the other.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    failures: u32,
    since: Option<Timestamp>,
    /// Since when no attempt has got beyond the TLS handshake, and how many have failed there.
    handshakes: Option<(Instant, u32)>,
}

impl Trouble {
    /// Whether a failed start ends the unit; `is_unsent` says that its node cannot have any part of it. A node that has
    /// not proven its identity ends nothing at once, and never ends a unit that may be running.
    fn is_final(&mut self, error: &StepError, is_unsent: bool, now: Instant) -> bool {
        match error {
            StepError::Handshake(_) => {
                let (since, count) = self.handshakes.get_or_insert((now, 0));
                *count = count.saturating_add(1);
                return is_unsent && *count >= HANDSHAKES && now.duration_since(*since) >= HANDSHAKES_FAIL;
            }
            StepError::Connection(_)
            | StepError::OwnProfile(_)
            | StepError::Refused(_)
            | StepError::Local(_) => self.handshakes = None,
        }
        match error {
            StepError::OwnProfile(_) => true,
            StepError::Refused(_) => !is_temporary(error),
            StepError::Connection(_) | StepError::Handshake(_) | StepError::Local(_) => false,
        }
    }

    /// Counts a failure. Once the failures are worth a mention, returns since when they have gone on.
    fn goes_on(&mut self) -> Option<Timestamp> {
        self.failures = self.failures.saturating_add(1);
        let since = *self.since.get_or_insert_with(Timestamp::now);
        (self.failures > UNTOLD).then_some(since)
    }
}

/// The last known Detail, whose beginning clients look at, and after it the reason why there is no newer one.
fn troubled(detail: &str, node: &str, since: Timestamp, error: &StepError) -> String {
    let known = detail.split_once(NO_NEWS).map_or(detail, |(known, _)| known);
    format!("{known}{NO_NEWS}{node} since {}, trying again: {error})", time_of_day(since))
}

/// A time, as a Detail shows it.
pub(super) fn time_of_day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%a %b %-d %H:%M:%S").to_string()
}

impl Remotes {
    /// Shows a failed attempt to clients. A refusal ends a unit that has not started.
    pub(super) async fn note_failure(
        &self,
        entry: &Arc<Entry>,
        step: DriverStep,
        error: &StepError,
        trouble: &mut Trouble,
    ) {
        tracing::info!(unit = %entry.id, ?step, %error, "remote work unit: attempt failed");
        match error {
            StepError::Connection(_) | StepError::Handshake(_) => entry.link().note_answered(false),
            StepError::Refused(_) => entry.link().note_answered(true),
            StepError::OwnProfile(_) | StepError::Local(_) => {}
        }
        let is_unsent = entry.status().remote().is_some_and(|remote| remote.remote_unit_id.is_empty());
        let is_final = step == DriverStep::Start && trouble.is_final(error, is_unsent, Instant::now());
        if entry.dir.is_hidden() && entry.dir.age() > FORGET {
            tracing::warn!(unit = %entry.id, "giving up on the other node's part of a released unit: it may stay there");
            if let Err(error) = self.units.remove(entry, |_| ()).await {
                tracing::error!(unit = %entry.id, %error, "cannot remove a released unit");
            }
            entry.link().news.send_modify(|news| news.released = true);
            return;
        }
        let node = entry.status().remote().map(|remote| remote.remote_node.to_string()).unwrap_or_default();
        if is_final {
            entry.link().news.send_modify(|news| news.refused = Some(error.to_string()));
            let cause = format!("{error} ({})", advice(error, &node));
            let event = match error {
                // Clients look at the beginning of the Detail.
                StepError::Handshake(_) | StepError::OwnProfile(_) => UnitEvent::TlsFailed(cause),
                StepError::Refused(_) | StepError::Connection(_) | StepError::Local(_) => {
                    UnitEvent::StartFailed(cause)
                }
            };
            // The unit is not there and never will be. The event below makes that durable.
            let was_released = error.code() == Some(ErrorCode::ReleasedUnit);
            let is_unproven = matches!(error, StepError::Handshake(_));
            if was_released || is_unproven || error.code() == Some(ErrorCode::UnitDisclaimed) {
                let note = |remote: &mut RemoteExtra| {
                    (remote.gone, remote.was_released) = (!is_unproven, was_released);
                    remote.unsent = is_unproven;
                };
                let _ = self.note(entry, Durability::Deferred, note).await;
            }
            entry.apply(self.units.store(), event).await;
        } else if let StepError::Local(error) = error {
            self.say(entry, UnitEvent::Blocked(error.to_string())).await;
        } else if let StepError::Handshake(_) | StepError::OwnProfile(_) = error {
            let detail = format!("{error} (node {node}, trying again)");
            self.say(entry, UnitEvent::Blocked(detail)).await;
        } else if step == DriverStep::Start {
            let cause = format!("Waiting for node {node}, trying again: {error}");
            self.say(entry, UnitEvent::Waiting(cause)).await;
        } else if let Some(since) = trouble.goes_on() {
            let mut writer = entry.writer(self.units.store()).await;
            let detail = troubled(&writer.status().life.detail, &node, since, error);
            writer.apply(UnitEvent::Blocked(detail), Durability::Volatile).await;
        }
        entry.link().news.send_modify(|news| news.failures += 1);
    }

    /// Shows an event that a restart may forget.
    pub(super) async fn say(&self, entry: &Arc<Entry>, event: UnitEvent) {
        entry.writer(self.units.store()).await.apply(event, Durability::Volatile).await;
    }
}

/// Whether the node refused for a reason that will be gone in a while.
fn is_temporary(error: &StepError) -> bool {
    error.code().is_some_and(ErrorCode::is_temporary)
}

/// Advice on a start that a node refused.
fn advice(error: &StepError, node: &str) -> String {
    match error {
        StepError::Handshake(_) | StepError::OwnProfile(_) => format!(
            "check that the TLS profile named at submission fits that of the control service on node {node}"
        ),
        StepError::Refused(_) | StepError::Connection(_) | StepError::Local(_) => match error.code() {
            Some(ErrorCode::UnknownWorkType) => {
                format!("add it on node {node}, or name one that node advertises")
            }
            Some(ErrorCode::Signature) => format!(
                "check that work-signing here and work-verification on node {node} name keys of one pair, and that \
                 the work type verifies signatures if and only if the unit is signed"
            ),
            _ => format!("node {node} refused the job: fix the cause there, then submit it again"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::request::SubmitRequest;
    use crate::wire::{NodeId, ServiceName};
    use crate::work::{Caller, Dialer, Options, Registry, Started, State, StreamDialing, StreamFailure};

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

    #[tokio::test(start_paused = true)]
    async fn what_ends_a_start_is_proven_or_stands_for_a_minute() {
        use crate::work::WorkError;
        let handshake = || StepError::Handshake("error 42".into());
        let others = || {
            let refused = StepError::refused(WorkError::SubmittedAgain("x".into()).to_string());
            [StepError::Connection("no route".into()), StepError::Local(WorkError::NoSigningKey), refused]
        };
        let begun = Instant::now();
        let ends = |trouble: &mut Trouble, error, seconds, is_unsent| {
            trouble.is_final(&error, is_unsent, begun + Duration::from_secs(seconds))
        };
        for is_unsent in [false, true] {
            let mut trouble = Trouble::default();
            assert!(!ends(&mut trouble, handshake(), 0, is_unsent));
            assert!(!ends(&mut trouble, handshake(), 59, is_unsent));
            assert_eq!(ends(&mut trouble, handshake(), 60, is_unsent), is_unsent, "it may run there");
            for other in others() {
                assert!(!ends(&mut trouble, other, 61, is_unsent));
                assert!(!ends(&mut trouble, handshake(), 62, is_unsent), "another attempt came further");
            }
            // The machine was suspended between the first two.
            let mut trouble = Trouble::default();
            assert!(!ends(&mut trouble, handshake(), 0, is_unsent));
            assert!(!ends(&mut trouble, handshake(), 3600, is_unsent), "two attempts are not every one");
            assert_eq!(ends(&mut trouble, handshake(), 3601, is_unsent), is_unsent);
            // The first is this node's own decision, the second the other node's.
            assert!(ends(&mut trouble, StepError::OwnProfile("x".into()), 0, is_unsent));
            assert!(ends(&mut trouble, StepError::refused("unknown work type x"), 0, is_unsent));
        }
    }

    /// A node to which every handshake fails until that time, and which cannot be reached afterwards.
    struct Forged(NodeId, Instant);

    impl Dialer for Forged {
        fn dial(&self, _node: NodeId, _service: ServiceName, _tls: Option<String>) -> StreamDialing {
            let is_forged = Instant::now() < self.1;
            Box::pin(async move {
                Err(match is_forged {
                    true => StreamFailure::Handshake("error 42".into()),
                    false => StreamFailure::Unreachable("no route".into()),
                })
            })
        }

        fn knows_profile(&self, _name: &str) -> bool {
            true
        }

        fn node_id(&self) -> &NodeId {
            &self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_waits_while_handshakes_fail_and_ends_by_nothing_else_after_a_minute() {
        for (seconds, ends) in [(50, false), (3600, true)] {
            let temp = tempfile::tempdir().unwrap();
            let own = NodeId::new("n1").unwrap();
            let forged = Forged(own.clone(), Instant::now() + Duration::from_secs(seconds));
            let options = Options::new(temp.path().to_owned(), own, Vec::new()).unwrap();
            let registry = Registry::open(options, Arc::new(forged)).await.unwrap();
            let request = SubmitRequest {
                node: "n2".into(),
                work_type: "sh".into(),
                tls_client: Some("client".into()),
                ..SubmitRequest::default()
            };
            let begun = Instant::now();
            let submission = registry.submit(request, Caller::local()).await.unwrap();
            let unit = submission.id().to_string();
            assert_eq!(submission.finish().await.unwrap(), Started::Submitted, "it is not lost");
            let state = async || registry.status(&unit).await.unwrap();
            let first = state().await;
            let words = "TLS error connecting to remote service: error 42 (node n2, trying again)";
            assert_eq!((first.state, first.detail.as_str()), (State::Pending, words));
            while begun.elapsed() < Duration::from_secs(150) && !state().await.state.is_final() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let last = state().await;
            assert_eq!(last.state.is_final(), ends, "{}", last.detail);
            if ends {
                assert!(begun.elapsed() >= HANDSHAKES_FAIL, "{:?}", begun.elapsed());
                assert!(
                    last.detail.starts_with("TLS error connecting to remote service: "),
                    "{}",
                    last.detail
                );
            }
        }
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
