//! Which unit a submission gets: a new one, under an ID that is made or was chosen, or the one that it repeats. Owns what
//! counts as a repetition. It refuses to know payloads, and what the unit will do.

use std::sync::Arc;

use super::{Inner, Outcome};
use crate::rpc::request::SubmitRequest;
use crate::wire::NodeId;
use crate::work::asked::Asked;
use crate::work::status::Status;
use crate::work::store::Durability;
use crate::work::unit::{Event, UnitId};
use crate::work::units::entry::Entry;
use crate::work::{Submitter, WorkError};

impl Inner {
    /// The unit of a submission, and whether that had its payload before.
    pub(super) async fn unit_for(
        self: Arc<Self>,
        request: SubmitRequest,
        submitter: Submitter,
        chosen: Option<UnitId>,
    ) -> Result<(Arc<Entry>, bool), WorkError> {
        let here = NodeId::resolve(&request.node, &self.node_id).is_ok_and(|node| node == self.node_id);
        let asked = Asked::of(if here { "" } else { &request.node }, &request.work_type, &request.params);
        let _turn = match &chosen {
            Some(id) => Some(self.names.turn(id).await),
            None => None,
        };
        if let Some(id) = &chosen
            && let Some(whole) = self.earlier(id, submitter, asked).await?
        {
            return Ok((whole, true));
        }
        let mut status = if here { self.local_status(&request)? } else { self.remote_status(request)? };
        (status.submitter, status.asked) = (Some(submitter), Some(asked));
        status.life.apply(&Event::PayloadAwaited);
        Ok((self.allocate(chosen, status).await?, false))
    }

    /// The unit that a submission repeats, if its payload is there. One without is deleted to be made again; a unit that
    /// is another one's keeps its ID.
    async fn earlier(
        self: &Arc<Self>,
        id: &UnitId,
        submitter: Submitter,
        asked: Asked,
    ) -> Result<Option<Arc<Entry>>, WorkError> {
        let Some(entry) = self.find_unit(id)? else { return Ok(None) };
        let status = entry.status();
        let is_repeated = match submitter {
            Submitter::Node { .. } => {
                status.asked == Some(asked)
                    && status.submitter.is_some_and(|who| who.is_same_caller(submitter))
            }
            // Clients do not repeat a submission, they make a mistake.
            Submitter::Operator | Submitter::Stranger => false,
        };
        if !is_repeated {
            return Err(WorkError::InUse(id.to_string()));
        }
        // Having the turn means that no start is under way.
        let mut writer = entry.writer(&self.store).await;
        if !writer.status().life.lacks_payload() {
            drop(writer);
            return Ok(Some(entry));
        }
        entry.note_repeated();
        writer.apply(Event::PayloadCut("it was submitted again".into()), Durability::Volatile).await;
        drop(writer);
        match status.remote() {
            None => self.remove(&entry).await.map(|()| None),
            // What of it is on its node goes first.
            Some(_) => match self.release_remote(&entry, false).await? {
                Outcome::Done => Ok(None),
                Outcome::Pending => Err(WorkError::SubmittedAgain(id.to_string())),
            },
        }
    }

    /// The unit that has an ID, if one has.
    pub(super) fn find_unit(&self, id: &UnitId) -> Result<Option<Arc<Entry>>, WorkError> {
        let found = self.units().get(id).cloned();
        // One that was released by force, and may still be on its node.
        match found.is_none() && self.store.hidden(id).path().exists() {
            true => Err(WorkError::InUse(id.to_string())),
            false => Ok(found),
        }
    }

    /// Makes a unit, under an ID that was chosen for it or another.
    pub(super) async fn allocate(
        self: &Arc<Self>,
        chosen: Option<UnitId>,
        status: Status,
    ) -> Result<Arc<Entry>, WorkError> {
        let charge = match status.submitter.map(|submitter| self.accounts.admit(submitter)) {
            None => None,
            Some(Ok(charge)) => charge,
            Some(Err(exceeded)) => return Err(self.exceeded(exceeded, status.submitter).await),
        };
        let id = loop {
            let id = chosen.clone().unwrap_or_else(|| UnitId::made_by(&self.node_id));
            match (self.units().contains_key(&id), &chosen) {
                (false, _) => break id,
                (true, None) => {}
                (true, Some(_)) => return Err(WorkError::InUse(id.to_string())),
            }
        };
        if self.released.ago(id.as_str()).is_some() {
            self.store.sync_removals().await?;
        }
        self.store.create(&id, &status).await?;
        let entry = Entry::new(id.clone(), self.store.unit(&id), status);
        *entry.charge() = charge.map(Box::new);
        self.units_mut().insert(id, entry.clone());
        Ok(entry)
    }
}
