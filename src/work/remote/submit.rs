//! One thing done on another node: submitting a unit there; `follow` follows it. Every step
//! can be repeated after any failure: what is known of the other side is written down as soon as it is known.

use std::sync::Arc;

use super::Remotes;
use super::attempt::Attempt;
use super::driver;
use crate::rpc::report::unit::UnitStep;
use crate::rpc::request::SubmitRequest;
use crate::rpc::{CallError, ErrorCode, ErrorLine};
use crate::stream::Peer;
use crate::work::far::{ControlSession, StepError, ask_status, params_for, submission};
use crate::work::signing::Verb;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::unit::{Event, INPUT_CUT, Life, PENDING_AT_RESTART, State, UnitId};
use crate::work::units::{Entry, detached};

/// Bytes moved at a time.
pub(super) const CHUNK: usize = 128 * 1024;
/// Looks at a unit that may have all of its payload, and says that it waits for it, before it is taken for half a one:
/// some 5 s.
const PATIENT_LOOKS: u32 = 3;

impl Remotes {
    /// Has the other node take the unit with its payload. One that takes all of it at once tells of it from then on.
    pub(super) async fn submit_there(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
    ) -> Result<Option<Box<ControlSession>>, StepError> {
        let link = entry.link();
        // First, so that what an earlier attempt still does is either seen below or undone by itself.
        let attempt = link.begin_attempt();
        let remote = extra(entry);
        // A node waits for the first line for seconds only, and hashing may take minutes.
        let payload = if remote.sign_work { Some(self.payload_hash(entry).await?) } else { None };
        let mut session = self.far.connect(&remote).await?;
        // Its own here, where a node may take that.
        let chosen = Some(&entry.id).filter(|id| id.is_choosable());
        let is_known = |id: &UnitId| *remote.remote_unit_id == *id.as_str();
        // Our kind takes a submission that is repeated for the same unit. Others refuse it, or make a second unit.
        let repeats = session.peer == Peer::Meshd && chosen.is_some_and(is_known);
        if !remote.remote_unit_id.is_empty()
            && !repeats
            && self.is_there(entry, &remote, &mut session).await?
        {
            self.note(entry, Durability::Deferred, |remote| remote.remote_started = true).await?;
            return Ok(None);
        }
        let fresh = chosen.filter(|id| !is_known(id));
        if let Some(id) = fresh {
            // Before the line that makes the unit: what may be there is cancelled and released there.
            self.note(entry, Durability::Durable, |remote| remote.remote_unit_id = id.as_str().into())
                .await?;
        }
        // No earlier attempt was made under this ID.
        let is_first = fresh.is_some();
        let params = params_for(&entry.id, &remote, session.peer);
        let signature = self.far.sign_submission(&remote, &params, chosen, payload)?;
        // A start is refused where its ID was released (docs/protocol.md#start): one that is used again goes in steps.
        if session.peer == Peer::Meshd && chosen.is_some() && !self.units.was_released(&entry.id) {
            let to_follow = self.far.sign(&extra(entry), Verb::Results)?;
            let both = signature.zip(to_follow).map(|(submit, follow)| format!("{submit} {follow}"));
            let request = submission(&remote, params, chosen, both);
            link.set_half_there(false);
            return match self.start_there(entry, session, request).await {
                Err(StepError::Refused(line)) => {
                    if !is_first && self.was_taken(entry, &remote, &line).await? {
                        return Ok(None);
                    }
                    // Nobody released this one, which is new there: an earlier unit of that ID had it released, before this
                    // daemon began, say.
                    let was_another =
                        is_first && line.code() == ErrorCode::ReleasedUnit && !entry.id.is_child();
                    let refused = self.note_refusal(entry, line, is_first).await;
                    if !was_another {
                        return Err(refused);
                    }
                    self.units.note_released(&entry.id);
                    Box::pin(self.submit_there(entry)).await
                }
                started => Ok(Some(Box::new(started?))),
            };
        }
        let request = submission(&remote, params, chosen, signature);
        let (remotes, unit) = (self.clone(), entry.clone());
        link.set_half_there(true);
        let mut session =
            detached(async move { remotes.create_there(&unit, session, request, attempt, is_first).await })
                .await?;
        let answer = self.send_all(entry, &mut session, String::new()).await?;
        if !answer.starts_with('{') {
            return Err(StepError::Connection(format!("unexpected answer to the payload: {answer}")));
        }
        // A restart that finds the ID alone asks there what has become of it.
        self.note_accepted(entry).await?;
        Ok(None)
    }

    /// The other node has all of it, durably.
    pub(super) async fn note_accepted(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        entry.link().note_contact();
        entry.note_step(UnitStep::Accepted);
        self.note(entry, Durability::Deferred, |remote| remote.remote_started = true).await
    }

    /// Whether the node has the unit, of which it refuses a repetition now: what it refuses may have changed meanwhile.
    async fn was_taken(
        &self,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        refusal: &ErrorLine,
    ) -> Result<bool, StepError> {
        if refusal.code() == ErrorCode::UnitIdInUse || refusal.code().is_temporary() {
            return Ok(false);
        }
        // Nothing but the node's word that it has no such unit ends one that may run.
        let unsure = |error| StepError::Connection(format!("{refusal}, and of an earlier attempt: {error}"));
        let mut session = self.far.connect(remote).await.map_err(unsure)?;
        let is_there = self.is_there(entry, remote, &mut session).await.map_err(unsure)?;
        if is_there {
            self.note_accepted(entry).await?;
        }
        Ok(is_there)
    }

    /// Forgets an ID that is not this unit's on the node, which has refused it.
    async fn note_refusal(&self, entry: &Arc<Entry>, line: ErrorLine, is_first: bool) -> StepError {
        if is_first || line.code() == ErrorCode::UnitIdInUse {
            // What has that ID there, if anything, is not this unit.
            let forget = |remote: &mut RemoteExtra| remote.remote_unit_id = Box::default();
            if let Err(error) = self.note(entry, Durability::Deferred, forget).await {
                return error;
            }
        }
        StepError::Refused(line)
    }

    /// Has the other node make the unit. A node that knows of no chosen ID gives it one of its own, which is written
    /// down. To be run to its end, whatever else is to be done by then: such a unit that nobody here knows of would stay
    /// there.
    async fn create_there(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        mut session: ControlSession,
        request: SubmitRequest,
        attempt: u64,
        is_first: bool,
    ) -> Result<ControlSession, StepError> {
        let bad = |answer: &str| StepError::refused(format!("could not parse response: {answer}"));
        let id = match session.connection.submit(request).await {
            Err(CallError::Refused(line)) => return Err(self.note_refusal(entry, line, is_first).await),
            Err(CallError::Protocol { answer, .. }) => return Err(bad(&answer)),
            Ok(id) if id.parse::<UnitId>().is_err() => return Err(bad(&id)),
            id => id?,
        };
        let link = entry.link();
        let mut writer = entry.writer(self.units.store()).await;
        let is_known = writer.status().remote().is_some_and(|remote| *remote.remote_unit_id == *id);
        if !is_known && !link.is_latest(attempt) {
            drop((writer, session));
            let remote = RemoteExtra { remote_unit_id: id.into(), ..extra(entry) };
            let mut session = self.far.connect(&remote).await?;
            self.far.release_over(&mut session, &remote).await?;
            return Err(StepError::Connection("another attempt was made meanwhile".into()));
        }
        link.note_progress();
        let mut status = writer.status().as_ref().clone();
        if let Some(remote) = status.remote_mut() {
            remote.remote_unit_id = id.into();
        }
        if status.life.awaits_payload {
            // It is not the node that is waited for any more.
            status.life.apply(&Event::PayloadAwaited);
        }
        // Durable before it can start there, so that it is never given a second time.
        let how = if is_known { Durability::Deferred } else { Durability::Durable };
        if status != *writer.status() {
            writer.put(status, how).await?;
        }
        drop(writer);
        if !driver::is_starting(&entry.status()) {
            self.call_driver(entry);
        }
        Ok(session)
    }

    /// Whether an earlier attempt, whose answer was lost, brought the unit over. What it brought there by half is gone
    /// if not.
    async fn is_there(
        &self,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        session: &mut ControlSession,
    ) -> Result<bool, StepError> {
        if !entry.link().is_half_there() {
            let told = match ask_status(session, &remote.remote_unit_id).await {
                Err(error) if error.code().is_some_and(ErrorCode::is_no_unit) => {
                    // A node that refuses no ID of its own accord would run it a second time.
                    let forgets = session.peer == Peer::Receptor;
                    if forgets && entry.attempt().is_some_and(Attempt::may_be_released) {
                        entry.link().note_missing();
                        return Err(StepError::Connection(format!(
                            "node {} does not know the unit, which was sent before: it may have run there",
                            remote.remote_node
                        )));
                    }
                    return Ok(false);
                }
                told => told?,
            };
            let life = Life::read(told.state, told.detail.clone(), 0);
            // The end of its payload may be on its way there.
            if life.awaits_payload && entry.link().look() < PATIENT_LOOKS {
                return Err(StepError::Connection(
                    "the node still waits for the earlier connection's payload".into(),
                ));
            }
            // A Go node says of a unit that it was pending at a restart though its command may have been started.
            let was_pending = life.detail.starts_with(PENDING_AT_RESTART)
                && (session.peer != Peer::Receptor || told.runner().is_none());
            let was_cut = life.state == State::Failed && life.detail.starts_with(INPUT_CUT);
            if !(life.awaits_payload || was_cut || life.state == State::Failed && was_pending) {
                return Ok(true);
            }
        }
        self.far.release_over(session, remote).await?;
        entry.link().set_half_there(false);
        Ok(false)
    }

    /// Notes what is known of the other side.
    pub(super) async fn note(
        &self,
        entry: &Arc<Entry>,
        how: Durability,
        change: impl FnOnce(&mut RemoteExtra),
    ) -> Result<(), StepError> {
        let mut writer = entry.writer(self.units.store()).await;
        let mut status = writer.status().as_ref().clone();
        if let Some(remote) = status.remote_mut() {
            change(remote);
        }
        Ok(writer.put(status, how).await?)
    }
}

pub(super) fn extra(entry: &Entry) -> RemoteExtra {
    entry.status().remote().cloned().unwrap_or_default()
}
