//! Submits a unit to another node; `follow` follows it. Every step can be repeated after any failure, because what is
//! known of the other side is written down as soon as it is known.

use std::sync::Arc;

use super::Remotes;
use super::pieces::PieceTraffic;
use super::step::{DriverStep, extra, next_step};
use crate::rpc::request::SubmitRequest;
use crate::rpc::{CallError, ErrorCode, ErrorLine};
use crate::stream::Peer;
use crate::work::far::{ControlSession, StepError, ask_status, params_for, submission};
use crate::work::signing::Verb;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::unit::{INPUT_CUT, Life, PENDING_AT_RESTART, State, UnitEvent, UnitId};
use crate::work::units::{Entry, detached};

/// Bytes moved at a time.
pub(super) const CHUNK: usize = 128 * 1024;
/// How often to ask about a unit that says it still waits for its payload, although it may have all of it, before it
/// counts as incomplete: about 5 s.
const PATIENT_LOOKS: u32 = 3;

impl Remotes {
    /// Sends the unit with its payload to the other node. A node that accepts all of it at once then reports on it over
    /// the returned connection.
    pub(super) async fn submit_there(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
    ) -> Result<Option<Box<ControlSession>>, StepError> {
        let link = entry.link();
        // First of all, so that what an earlier attempt still does is either seen below or undone by that attempt
        // itself.
        let attempt = link.begin_attempt();
        let remote = extra(entry);
        // Before connecting, because a node waits only seconds for the first line, but hashing may take minutes.
        let payload = if remote.sign_work { Some(self.payload_hash(entry).await?) } else { None };
        let in_pieces = self.goes_in_pieces(entry, &remote.remote_node).await;
        let mut session = self.far.connect(&remote).await?;
        // The unit has the same ID there as here, if the node accepts that.
        let chosen = Some(&entry.id).filter(|id| id.is_choosable());
        let is_known = |id: &UnitId| *remote.remote_unit_id == *id.as_str();
        // A meshd node accepts a repeated submission of the same unit. Others refuse it, or create a second unit.
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
            // Noted before the line that creates the unit is sent, so that whatever may be there can be cancelled and
            // released.
            self.note(entry, Durability::Durable, |remote| remote.remote_unit_id = id.as_str().into())
                .await?;
        }
        // No earlier attempt was made under this ID.
        let is_first = fresh.is_some();
        let params = params_for(&entry.id, &remote, session.peer);
        let signature = self.far.sign_submission(&remote, &params, chosen, payload)?;
        // A node refuses to start a unit whose ID was released there (docs/protocol.md#start). A unit that uses an ID
        // again is therefore submitted in steps.
        if session.peer == Peer::Meshd && chosen.is_some() && !self.units.was_released(&entry.id) {
            let to_follow = self.far.sign(&extra(entry), Verb::Results)?;
            let both = signature.zip(to_follow).map(|(submit, follow)| format!("{submit} {follow}"));
            let request = SubmitRequest { in_pieces, ..submission(&remote, params, chosen, both) };
            link.set_half_there(false);
            return match self.start_there(entry, session, request).await {
                Err(StepError::Refused(line)) if in_pieces && line.code() == ErrorCode::OtherPieces => {
                    tracing::warn!(unit = %entry.id, node = %remote.remote_node, cause = %line, "the payload is sent again, all of it");
                    link.send_plainly();
                    Box::pin(self.submit_there(entry)).await
                }
                Err(StepError::Refused(line)) => {
                    if !is_first && self.was_taken(entry, &remote, &line).await? {
                        return Ok(None);
                    }
                    // Nobody released this unit, which is new there: an earlier unit with this ID was released, perhaps
                    // before this daemon started.
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
        let (answer, _) = self.send_all(entry, &mut session, String::new(), false).await?;
        if !answer.starts_with('{') {
            return Err(StepError::Connection(format!("unexpected answer to the payload: {answer}")));
        }
        // If a restart finds only the ID, it asks the node what has become of the unit.
        self.note_accepted(entry, None).await?;
        Ok(None)
    }

    /// Notes that the other node has the whole unit durably, and what was sent of a payload in pieces.
    pub(super) async fn note_accepted(
        &self,
        entry: &Arc<Entry>,
        carried: Option<PieceTraffic>,
    ) -> Result<(), StepError> {
        entry.link().note_contact();
        let accepted = |remote: &mut RemoteExtra| {
            remote.remote_started = true;
            if let Some(PieceTraffic { sent, saved }) = carried {
                (remote.payload_sent, remote.payload_saved) = (sent, saved);
            }
        };
        self.note(entry, Durability::Deferred, accepted).await
    }

    /// Whether the node has the unit although it refuses to accept it again: its reasons to refuse may be newer than
    /// the unit.
    async fn was_taken(
        &self,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        refusal: &ErrorLine,
    ) -> Result<bool, StepError> {
        if refusal.code() == ErrorCode::UnitIdInUse || refusal.code().is_temporary() {
            return Ok(false);
        }
        // A unit that may be running ends only if the node says that it has no such unit.
        let unsure = |error| StepError::Connection(format!("{refusal}, and of an earlier attempt: {error}"));
        let mut session = self.far.connect(remote).await.map_err(unsure)?;
        let is_there = self.is_there(entry, remote, &mut session).await.map_err(unsure)?;
        if is_there {
            self.note_accepted(entry, None).await?;
        }
        Ok(is_there)
    }

    /// Forgets the ID of a unit that the node refused, if the ID does not belong to this unit there.
    async fn note_refusal(&self, entry: &Arc<Entry>, line: ErrorLine, is_first: bool) -> StepError {
        if is_first || line.code() == ErrorCode::UnitIdInUse {
            // If any unit has that ID there, it is not this one.
            let forget = |remote: &mut RemoteExtra| remote.remote_unit_id = Box::default();
            if let Err(error) = self.note(entry, Durability::Deferred, forget).await {
                return error;
            }
        }
        StepError::Refused(line)
    }

    /// Lets the other node create the unit. A node that does not support chosen IDs gives it an ID of its own, which is
    /// written down. This must run to its end in any case; otherwise a unit could stay there that nobody here knows.
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
            // The unit no longer waits for the node, but for its payload.
            status.life.apply(&UnitEvent::PayloadAwaited);
        }
        // Durable before the unit can start there, so that it is never sent a second time.
        let how = if is_known { Durability::Deferred } else { Durability::Durable };
        if status != *writer.status() {
            writer.put(status, how).await?;
        }
        drop(writer);
        if next_step(&entry.status(), false) != DriverStep::Start {
            self.call_driver(entry);
        }
        Ok(session)
    }

    /// Whether an earlier attempt, whose answer was lost, has delivered the unit. If it has not, any incomplete unit is
    /// removed there.
    async fn is_there(
        &self,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        session: &mut ControlSession,
    ) -> Result<bool, StepError> {
        if !entry.link().is_half_there() {
            let told = match ask_status(session, &remote.remote_unit_id).await {
                Err(error) if error.code().is_some_and(ErrorCode::is_no_unit) => {
                    // A node that does not refuse a used ID by itself would run the unit a second time.
                    let forgets = session.peer == Peer::Receptor;
                    if forgets && entry.attempt().is_some_and(|attempt| attempt.may_be_released) {
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
            // The end of its payload may still be on its way.
            if life.awaits_payload && entry.link().look() < PATIENT_LOOKS {
                return Err(StepError::Connection(
                    "the node still waits for the earlier connection's payload".into(),
                ));
            }
            // A Go node may report that a unit was pending at a restart although its command was started.
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
