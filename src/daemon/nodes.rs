//! The operations about nodes of the mesh, in front of the controller: they ask the authority of this node's desk, and
//! everything else goes on to the controller, which keeps the audit. Decides nothing about certificates.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::{JoinError as Panicked, spawn_blocking};
use tokio::time::Instant;

use crate::counters::ControllerCounters;
use crate::join::JoinError;
use crate::join::asker::Decided;
use crate::join::decision::{AuthorityStamp, AuthorityView, FoundHost};
use crate::join::desk::Desk;
use crate::join::invite::Invitation;
use crate::join::record::{NodeRole, Record};
use crate::os::answers::{PAGE, fitting};
use crate::rpc::operation::{
    Answer, HostApproval, HostRejection, HostRole, NodeNote, Operated, Operation, OperationCode,
    OperationRefusal,
};
use crate::rpc::report::Lenient;
use crate::rpc::report::enrolment::{
    AskingHost, EnrolmentReport, HostState, MeshMember, NodeAct, NodeActed, OpenInvite,
};
use crate::wire::NodeId;
use crate::work::Caller;
use crate::work::jobs::{Act, HookDelivery, Hooked, Operations};

/// How long what was seen is good without a change: hosts leave and invitations end by themselves.
const SEEN: Duration = Duration::from_secs(30);
/// The same where a store says nothing of changes.
const SEEN_IN_STORE: Duration = Duration::from_secs(2);

/// The desk of this node while its configuration has one. Clones share it.
#[derive(Clone, Default)]
pub(super) struct DeskSlot(Arc<Mutex<Option<Arc<SeenDesk>>>>);

/// A desk, and what was seen of its authority last.
struct SeenDesk {
    desk: Desk,
    // Held while the authority is read, so that many viewers read it once.
    seen: tokio::sync::Mutex<Option<(AuthorityStamp, Instant, EnrolmentReport)>>,
}

impl DeskSlot {
    /// Puts a desk here until the guard is dropped.
    pub(super) fn put(&self, desk: Desk) -> DeskGuard {
        let desk = Arc::new(SeenDesk { desk, seen: tokio::sync::Mutex::default() });
        *self.0.lock() = Some(desk.clone());
        DeskGuard(self.clone(), desk)
    }
}

/// Takes the desk away unless a reload has put another one there.
pub(super) struct DeskGuard(DeskSlot, Arc<SeenDesk>);

impl Drop for DeskGuard {
    fn drop(&mut self) {
        self.0.0.lock().take_if(|desk| Arc::ptr_eq(desk, &self.1));
    }
}

/// A node's controller, and the desk beside it.
pub(super) struct NodeOperations {
    pub(super) controller: Arc<dyn Operations>,
    pub(super) own: NodeId,
    pub(super) desk: DeskSlot,
}

impl Operations for NodeOperations {
    fn operate<'a>(&'a self, operation: Operation, who: &'a Caller) -> Act<'a, Operated> {
        let desk = self.desk.0.lock().clone();
        let Some(seen) = desk else { return self.controller.operate(operation, who) };
        Box::pin(async move {
            let answer = match operation {
                Operation::ListEnrolment(_) => Answer::ListEnrolment(seen.report().await?),
                Operation::ApproveHost(HostApproval { node, fingerprint, role }) => {
                    let role = role.unwrap_or(HostRole::Execution);
                    let role = NodeRole::from_str(role.name(), false).map_err(refused)?;
                    Answer::ApproveHost(self.decide(&seen, node, fingerprint, Some(role), who).await?)
                }
                Operation::RejectHost(HostRejection { node, fingerprint }) => {
                    Answer::RejectHost(self.decide(&seen, node, fingerprint, None, who).await?)
                }
                other => return self.controller.operate(other, who).await,
            };
            Ok((answer, None))
        })
    }

    fn deliver(&self, delivery: HookDelivery) -> Act<'_, Result<Hooked, OperationRefusal>> {
        self.controller.deliver(delivery)
    }

    fn figures(&self) -> Act<'_, Option<ControllerCounters>> {
        self.controller.figures()
    }

    fn tls_client(&self) -> Option<String> {
        self.controller.tls_client()
    }
}

impl NodeOperations {
    /// Approves a host as a node of that role, or rejects it without one. The row of the audit comes first, once nothing
    /// speaks against it: no host is let in without one, and nobody else waits for the store.
    async fn decide(
        &self,
        seen: &Arc<SeenDesk>,
        node: String,
        fingerprint: String,
        role: Option<NodeRole>,
        who: &Caller,
    ) -> Result<NodeActed, OperationRefusal> {
        let own = self.own.to_string();
        let prepare = {
            let node = node.clone();
            move |desk: &Desk| desk.prepare(&own, &node, &fingerprint, role)
        };
        let check = prepare.clone();
        seen.on_a_thread(move |desk| check(desk).map(drop)).await?;
        let act = if role.is_some() { NodeAct::Approve } else { NodeAct::Reject };
        let note = Operation::NoteNode(NodeNote { node: node.clone(), act });
        self.controller.operate(note, who).await?;
        seen.on_a_thread(move |desk| prepare(desk)?.carry_out()).await?;
        *seen.seen.lock().await = None;
        tracing::info!(node, %act, who = %who.credentials, "decided about a host that asks");
        Ok(NodeActed { node, act: Lenient::Known(act) })
    }
}

impl SeenDesk {
    /// What the authority knows. Its files are read again if they have changed.
    async fn report(self: &Arc<Self>) -> Result<EnrolmentReport, OperationRefusal> {
        let mut seen = self.seen.lock().await;
        let stamp = self.on_a_thread(|desk| Ok(desk.stamp())).await?;
        if let Some((former, at, report)) = &*seen
            && stamp.as_ref() == Some(former)
            && at.elapsed() < if self.desk.shared.is_some() { SEEN_IN_STORE } else { SEEN }
        {
            return Ok(report.clone());
        }
        let view = self.on_a_thread(|desk| desk.view(Timestamp::now())).await?;
        let report = report(view);
        *seen = stamp.map(|stamp| (stamp, Instant::now(), report.clone()));
        Ok(report)
    }

    /// Asks the desk, which may wait for files and for others who change them.
    async fn on_a_thread<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl FnOnce(&Desk) -> Result<T, JoinError> + Send + 'static,
    ) -> Result<T, OperationRefusal> {
        let this = self.clone();
        let ended = |error: Panicked| refused(error.to_string());
        spawn_blocking(move || ask(&this.desk)).await.map_err(ended)?.map_err(|error| {
            let code = match &error {
                JoinError::NobodyAsks(_) => OperationCode::NotFound,
                JoinError::AnotherAsks { .. } | JoinError::SeveralAsk { .. } | JoinError::Known(_) => {
                    OperationCode::Conflict
                }
                _ => OperationCode::Refused,
            };
            OperationRefusal::new(code, error.to_string())
        })
    }
}

fn refused(why: String) -> OperationRefusal {
    OperationRefusal::new(OperationCode::Refused, why)
}

fn report(AuthorityView { hosts, invites, records }: AuthorityView) -> EnrolmentReport {
    let role = |record: &Record| format!("{:?}", record.role).to_lowercase();
    let host = |FoundHost { asker, fingerprint }| AskingHost {
        node: asker.asked.node,
        address: asker.from,
        fingerprint,
        since: asker.since,
        state: Lenient::Known(match asker.decided {
            None => HostState::Waits,
            Some(Decided::Approved(_)) => HostState::Approved,
            Some(Decided::Rejected) => HostState::Rejected,
        }),
    };
    let invite = |Invitation { record, expires, uses, used, .. }: Invitation| OpenInvite {
        role: role(&record),
        node: record.node,
        used: used.len() as u32,
        uses,
        expires,
    };
    let member = |record: Record| MeshMember { role: role(&record), ends: record.ends(), node: record.node };
    let now = Timestamp::now();
    EnrolmentReport {
        authority: true,
        hosts: hosts.into_iter().map(host).collect(),
        invites: invites.into_iter().filter(|invite| invite.is_open(now)).map(invite).collect(),
        nodes: fitting(records.into_iter().filter(|record| !record.is_removed()).map(member), PAGE / 2).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::asker::Asker;
    use crate::join::authority::Authority;
    use crate::join::request::WantedCertificate;
    use crate::tls::make::{self, KeyKind};

    /// Keeps an audit, unless its store is away.
    #[derive(Default)]
    struct FakeController {
        audit: Mutex<Vec<(String, String)>>,
        is_away: Mutex<bool>,
    }

    impl Operations for FakeController {
        fn operate<'a>(&'a self, operation: Operation, who: &'a Caller) -> Act<'a, Operated> {
            Box::pin(async move {
                let Operation::NoteNode(NodeNote { node, act }) = operation else {
                    return Err(refused(format!("{} came here", operation.name())));
                };
                if *self.is_away.lock() {
                    return Err(OperationRefusal::new(OperationCode::StoreAway, "away"));
                }
                self.audit.lock().push((who.credentials.to_string(), format!("{act} {node}")));
                Ok((Answer::NoteNode(NodeActed { node, act: Lenient::Known(act) }), None))
            })
        }

        fn deliver(&self, _: HookDelivery) -> Act<'_, Result<Hooked, OperationRefusal>> {
            Box::pin(std::future::ready(Ok(Hooked::Stranger)))
        }

        fn figures(&self) -> Act<'_, Option<ControllerCounters>> {
            Box::pin(std::future::ready(None))
        }

        fn tls_client(&self) -> Option<String> {
            None
        }
    }

    #[tokio::test]
    async fn nobody_is_let_in_without_a_row_in_the_audit_and_the_list_follows() {
        let dir = tempfile::tempdir().unwrap();
        let authority = dir.path().join("ca");
        let made = Authority::create(&authority, "control", Timestamp::now()).unwrap();
        let mut control = Record::new("control", NodeRole::Hop).unwrap();
        control.listens = Some(27199);
        made.certify(&mut control, Timestamp::now(), |_| Ok(())).unwrap();
        for (number, node) in ["e1", "e2"].into_iter().enumerate() {
            let key = make::private_key(KeyKind::EcdsaP256).unwrap();
            let asked = WantedCertificate::new(node, &key, Some("control:27199".to_owned())).unwrap();
            let (now, from, key) = (Timestamp::now(), "192.0.2.1".to_owned(), format!("{number:064x}"));
            let asker = Asker { asked, key, from, since: now, seen: now, decided: None };
            made.write_asker(&asker).unwrap();
        }
        drop(made);
        let (controller, slot) = (Arc::new(FakeController::default()), DeskSlot::default());
        let desk = Desk {
            authority,
            asks: true,
            is_offline: false,
            shared: None,
            lifetime: Duration::from_secs(3600),
            work_key: None,
        };
        let guard = slot.put(desk);
        let own = NodeId::new("control").unwrap();
        let node = NodeOperations { controller: controller.clone(), own, desk: slot };
        let who = Caller::of_page("alice".to_owned(), true);
        let list = async || match node.operate(Operation::ListEnrolment(Default::default()), &who).await {
            Ok((Answer::ListEnrolment(report), None)) => report,
            other => panic!("{:?}", other.map(|(answer, _)| answer)),
        };
        let states = async || -> Vec<String> {
            list().await.hosts.iter().map(|host| format!("{} {}", host.node, host.state)).collect()
        };
        assert_eq!(states().await, ["e1 waits", "e2 waits"]);
        let report = list().await;
        assert_eq!((report.authority, report.nodes.len(), report.invites.len()), (true, 1, 0));
        let [first, second] = [0, 1].map(|at| report.hosts[at].fingerprint.clone());
        let approve = async |node_name: &str, fingerprint: &str, role| {
            let (fingerprint, name) = (fingerprint.to_owned(), node_name.to_owned());
            let approval = HostApproval { node: name, fingerprint, role };
            let done = node.operate(Operation::ApproveHost(approval), &who).await;
            done.map(|_| ()).map_err(|refusal| refusal.code.known().unwrap())
        };
        let hop = Some(HostRole::Hop);
        assert_eq!(approve("e1", &second, hop).await, Err(OperationCode::Conflict));
        assert_eq!(approve("e9", &first, hop).await, Err(OperationCode::NotFound));
        assert_eq!(
            approve("e1", &first, None).await,
            Err(OperationCode::Refused),
            "no key verifies its jobs"
        );
        *controller.is_away.lock() = true;
        assert_eq!(approve("e1", &first, hop).await, Err(OperationCode::StoreAway));
        assert_eq!(states().await, ["e1 waits", "e2 waits"]);
        assert_eq!(*controller.audit.lock(), []);
        *controller.is_away.lock() = false;
        assert_eq!(approve("e1", &first, hop).await, Ok(()));
        let rejection = HostRejection { node: "e2".to_owned(), fingerprint: second };
        node.operate(Operation::RejectHost(rejection), &who).await.map(drop).unwrap();
        let row = |text: &str| ("web:alice".to_owned(), text.to_owned());
        assert_eq!(*controller.audit.lock(), [row("node.approve e1"), row("node.reject e2")]);
        assert_eq!(states().await, ["e1 approved", "e2 rejected"]);
        // Without a desk everything is the controller's.
        drop(guard);
        let gone = node.operate(Operation::ListEnrolment(Default::default()), &who).await.map(drop);
        assert_eq!(gone.unwrap_err().message, "node.list came here");
    }
}
