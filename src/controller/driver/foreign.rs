//! Children on this node of jobs that another control node drives: after a takeover, or because this node is an
//! instance as well. Decides which of them to leave alone and which to forget.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::base::Base;
use crate::controller::core::ChildId;
use crate::controller::store::Error;
use crate::work::ChildUnit;

pub(in crate::controller) struct Foreign {
    base: Arc<Base>,
    /// The children that run here. Locked only to read or change entries.
    here: Mutex<BTreeSet<String>>,
}

impl Foreign {
    pub(super) fn new(base: Arc<Base>) -> Self {
        Self { base, here: Mutex::default() }
    }

    /// Forgets the children of jobs that another control node drives. Children that run elsewhere are forgotten here
    /// without asking their nodes, and their pods stay. Children that run here stay, and the other control node may
    /// cancel them. A child from which nothing is expected any more is an orphan: housekeeping releases it, because it
    /// may have reached its node late, and nobody else knows of it.
    pub(super) async fn forget(&self) -> Result<(), Error> {
        let mut children = self.base.children.list();
        children.retain(|child| child.id.install == self.base.install);
        if children.is_empty() {
            return Ok(());
        }
        let owners = self.base.store.owners_of(children.iter().map(|child| child.id.job).collect()).await?;
        for ChildUnit { id, is_elsewhere } in children {
            let Some(owner) = owners.get(&id.job) else { continue };
            let unit = id.to_string();
            match (*owner == self.base.node, is_elsewhere) {
                (true, _) => drop(self.here.lock().remove(&unit)),
                (false, false) => drop(self.here.lock().insert(unit)),
                (false, true) if self.is_swept(&id).await? => {}
                (false, true) => {
                    tracing::info!(unit, %owner, "another control node drives this child now, forgetting it here");
                    self.base.children.forget(unit).await;
                }
            }
        }
        Ok(())
    }

    /// Whether nothing is expected of a child any more.
    async fn is_swept(&self, child: &ChildId) -> Result<bool, Error> {
        let job = self.base.store.job(child.job).await?;
        let attempt = job.attempt(child.attempt).filter(|attempt| attempt.unit == *child);
        Ok(attempt.is_none_or(|attempt| attempt.swept))
    }

    /// Whether a child that runs here belongs to another control node.
    pub(in crate::controller) fn has(&self, unit: &str) -> bool {
        self.here.lock().contains(unit)
    }
}
