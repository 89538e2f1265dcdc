//! What a caller may do with units, and when that takes a signature. Owns only these rules. `Caller` knows which rights
//! a caller has.

use std::sync::Arc;

use super::Registry;
use crate::work::jobs::CONTROLLER;
use crate::work::signing::{PayloadHash, SignatureError, Subject, Verb};
use crate::work::status::{REMOTE, Status, UnitKind};
use crate::work::units::Entry;
use crate::work::{Caller, Rights, Submitter, WorkError};

impl Registry {
    /// Checks whether a caller may do with a unit what `verb` says. Returns the unit's status.
    pub(super) fn check_caller(
        &self,
        entry: &Entry,
        caller: &Caller,
        verb: Verb,
    ) -> Result<Arc<Status>, WorkError> {
        let status = entry.status();
        let verify = match status.remote() {
            _ if self.is_closed(entry, &status, caller) => true,
            Some(remote) => remote.sign_work,
            None => {
                self.is_inner(entry, &status, caller)
                    || (status.verify_signature || self.executor.local.verifies(&status.work_type))
                        && !self.may_skip_token(&status.work_type, caller)
            }
        };
        let about = Subject { verb, unit: Some(entry.id.as_str()), ..Subject::default() };
        self.verify_if(verify, caller, &about)?;
        Ok(status)
    }

    /// Checks whether a caller may look at a unit: those of jobs and of closed types are not for everybody. Nodes make
    /// no token for looking, so the node that submitted a unit needs none.
    ///
    /// # Errors
    /// The caller may not look, or there is no such unit.
    pub fn check_look(&self, id: &str, caller: &Caller) -> Result<(), WorkError> {
        let entry = self.units.find(id)?;
        self.may_look(&entry, caller)
    }

    pub(super) fn may_look(&self, entry: &Entry, caller: &Caller) -> Result<(), WorkError> {
        let status = entry.status();
        // A token for reading the output is accepted for looking, too.
        let about = Subject { verb: Verb::Results, unit: Some(entry.id.as_str()), ..Subject::default() };
        let is_job = status.kind() == UnitKind::Job && status.verify_signature;
        let closed = self.is_closed(entry, &status, caller)
            || self.is_inner(entry, &status, caller)
            || (is_job && !is_own(&status, caller) && !self.may_skip_token(CONTROLLER, caller));
        if closed { self.verify_if(true, caller, &about).map(drop) } else { Ok(()) }
    }

    /// Whether a unit is of a type that is closed to this caller.
    fn is_inner(&self, entry: &Entry, status: &Status, caller: &Caller) -> bool {
        // Children are not closed in this way, because a control node that takes over a job ends its child here, and
        // has no token for that.
        let is_child = self.executor.remotes.gate().is_child(&entry.id);
        let is_closed = !self.executor.local.is_open(&status.work_type) && !is_child;
        is_closed && !caller.may(Rights::Admin) && !is_own(status, caller)
    }

    /// Whether a unit is the child of a job, and closed to this caller just as the job is.
    fn is_closed(&self, entry: &Entry, status: &Status, caller: &Caller) -> bool {
        self.executor.jobs.is_child(&entry.id)
            && self.controller_verifies()
            && !self.may_skip_token(CONTROLLER, caller)
            && !is_own(status, caller)
    }

    /// Checks whether a caller may do what `about` says. Returns the hash that the payload must have, if the signature
    /// promises one.
    pub(super) fn check_signature(
        &self,
        work_type: &str,
        signed: bool,
        caller: &Caller,
        about: &Subject<'_>,
    ) -> Result<Option<PayloadHash>, WorkError> {
        let verify = match work_type {
            REMOTE => signed,
            CONTROLLER if self.executor.jobs.get().is_some() => {
                self.controller_verifies() && !self.may_skip_token(work_type, caller)
            }
            _ => self.executor.local.verifies(work_type),
        };
        self.verify_if(verify, caller, about)
    }

    /// For jobs, a client certificate or an authenticated client of the page's API needs no token.
    fn may_skip_token(&self, work_type: &str, caller: &Caller) -> bool {
        work_type == CONTROLLER && caller.signature.is_none() && caller.may(Rights::Operator)
    }

    fn verify_if(
        &self,
        verify: bool,
        caller: &Caller,
        about: &Subject<'_>,
    ) -> Result<Option<PayloadHash>, WorkError> {
        let given = caller.signature.as_deref().unwrap_or("");
        match (verify, caller.is_local(), given) {
            (false, _, "") | (true, true, _) => Ok(None),
            (false, _, _) => Err(WorkError::UnexpectedSignature),
            (true, false, "") => Err(SignatureError::Empty.into()),
            (true, false, given) => {
                let verifier = self.verifier.load_full().ok_or(SignatureError::NoKey)?;
                Ok(verifier.verify(given, about)?)
            }
        }
    }
}

/// Whether a caller over the mesh has submitted this unit. Clients of sockets cannot be told apart, so none of them
/// owns a unit.
fn is_own(status: &Status, caller: &Caller) -> bool {
    let is_node = matches!(caller.submitter(), Submitter::Node { .. });
    is_node && status.submitter == Some(caller.submitter())
}
