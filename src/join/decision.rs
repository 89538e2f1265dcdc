//! What a person decides about hosts that ask without a token, and what he sees before that.
//!
//! Owns which host is meant, and what the daemon, which can change no configuration, may approve by itself. It refuses to
//! know who decides.

use std::path::Path;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::JoinError;
use super::address::NodeAddress;
use super::admit::{Newcomer, is_at};
use super::asker::{Asker, Decided, waiting};
use super::authority::{Authority, DOCUMENTS};
use super::desk::Desk;
use super::invite::Invitation;
use super::record::{NodeRole, Record};

/// A change this long ago has a time of its own, whatever the file system's clock ticks by.
const SETTLED: Duration = Duration::from_secs(1);

/// A host that asks, with its fingerprint.
pub(crate) struct FoundHost {
    pub(crate) asker: Asker,
    pub(crate) fingerprint: String,
}

/// What an authority knows at a moment.
pub(crate) struct AuthorityView {
    pub(crate) hosts: Vec<FoundHost>,
    pub(crate) invites: Vec<Invitation>,
    pub(crate) records: Vec<Record>,
}

/// When the documents of an authority were changed last, by kind.
pub(crate) type AuthorityStamp = [Option<SystemTime>; DOCUMENTS.len()];

/// The hosts that ask, decided or not.
///
/// # Errors
/// What is kept cannot be read.
pub(crate) fn hosts(authority: &Authority, now: Timestamp) -> Result<Vec<FoundHost>, JoinError> {
    let found = |asker: Asker| Ok(FoundHost { fingerprint: asker.fingerprint(authority)?, asker });
    waiting(authority, now)?.into_iter().map(found).collect()
}

/// The host that waits under this name. Its fingerprint is needed if several have the name.
///
/// # Errors
/// There is none, or it is not clear which one.
pub(crate) fn find(authority: &Authority, node: &str, fingerprint: Option<&str>) -> Result<Asker, JoinError> {
    let mut named = hosts(authority, Timestamp::now())?;
    named.retain(|FoundHost { asker, .. }| asker.asked.node == node && asker.decided.is_none());
    let shown = named.iter().map(|one| one.fingerprint.clone()).collect::<Vec<_>>().join(", ");
    if let Some(wanted) = fingerprint.map(str::to_uppercase) {
        named.retain(|one| one.fingerprint == wanted);
    }
    let node = node.to_owned();
    match (named.pop(), named.is_empty()) {
        (Some(FoundHost { asker, .. }), true) => Ok(asker),
        (Some(_), false) => Err(JoinError::SeveralAsk { node, shown }),
        (None, _) if shown.is_empty() => Err(JoinError::NobodyAsks(node)),
        (None, _) => Err(JoinError::AnotherAsks { node, shown }),
    }
}

/// A decision that the daemon can carry out: all of its conditions are met.
pub(crate) struct ReadyDecision {
    authority: Authority,
    asker: Asker,
    decided: Decided,
}

impl ReadyDecision {
    /// Carries it out: the host is told when it asks again.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn carry_out(self) -> Result<(), JoinError> {
        self.authority.write_asker(&Asker { decided: Some(self.decided), ..self.asker })
    }
}

impl Desk {
    /// What the authority knows. Waits for others who change it.
    ///
    /// # Errors
    /// Its files cannot be read.
    pub(crate) fn view(&self, now: Timestamp) -> Result<AuthorityView, JoinError> {
        let authority = self.open()?;
        let hosts = hosts(&authority, now)?;
        Ok(AuthorityView { hosts, invites: authority.invites()?, records: authority.records()? })
    }

    /// When that was changed last; `None` while another change may have the same time. Waits for nobody.
    pub(crate) fn stamp(&self) -> Option<AuthorityStamp> {
        let changed =
            |kind: &str| Path::metadata(&self.authority.join(kind)).and_then(|it| it.modified()).ok();
        let stamp = DOCUMENTS.map(changed);
        let is_settled = |at: &SystemTime| at.elapsed().is_ok_and(|since| since > SETTLED);
        stamp.iter().flatten().all(is_settled).then_some(stamp)
    }

    /// The approval of a host as a node of this role, or its rejection without one, on the node `own`. Nothing is changed
    /// yet.
    ///
    /// # Errors
    /// No such host asks, or files outside of the authority would have to be changed.
    pub(crate) fn prepare(
        &self,
        own: &str,
        node: &str,
        fingerprint: &str,
        role: Option<NodeRole>,
    ) -> Result<ReadyDecision, JoinError> {
        let authority = self.open()?;
        let asker = find(&authority, node, Some(fingerprint))?;
        let decided = match role {
            None => Decided::Rejected,
            Some(role) => Decided::Approved(Box::new(self.approved(&authority, own, &asker, role)?)),
        };
        Ok(ReadyDecision { authority, asker, decided })
    }

    fn approved(
        &self,
        authority: &Authority,
        own: &str,
        asker: &Asker,
        role: NodeRole,
    ) -> Result<Record, JoinError> {
        let (node, records) = (asker.asked.node.clone(), authority.records()?);
        let peer = asker.asked.dials.as_deref().and_then(|address| address.parse::<NodeAddress>().ok());
        // Of this node too: a name that it is not known by would have to be in its certificate.
        let peer = peer.filter(|peer| records.iter().any(|record| is_at(record, peer))).ok_or_else(|| {
            let asked = asker.asked.dials.as_deref().unwrap_or("an address that it does not name");
            JoinError::Unready(format!(
                "{node} has asked at {asked}, which no node is known by: run `meshctl node approve {node}` on the control node"
            ))
        })?;
        if role.runs_jobs() {
            self.verification_key()?;
        }
        let (is_dialled, is_here, hosts) = (false, false, Default::default());
        Newcomer { node, role, peer, is_dialled, is_here, hosts }.record_beside(own, &records)
    }
}
