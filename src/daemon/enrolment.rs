//! Wires the desk of an authority to the node: newcomers come to it by the door, and a node that has joined becomes an
//! instance of this node's controller. Decides nothing about certificates.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::nodes::DeskSlot;
use crate::config::Config;
use crate::config::directives::enrolment::{Enrolment, Renewal};
use crate::control;
use crate::enrol::lists::ListKeeper;
use crate::enrol::renewal::{NodeIdentity, Renewer};
use crate::enrol::{self, EnrolDoor};
use crate::join::JoinError;
use crate::join::desk::{Desk, DeskDecision, DeskNews};
use crate::join::record::Record;
use crate::join::request::CertificateAnswer;
use crate::join::shared::SharedStore;
use crate::rpc::operation::{ByName, NewInstance, NodeNote, Operation, OperationCode};
use crate::rpc::report::Lenient;
use crate::rpc::report::enrolment::NodeAct;
use crate::work::jobs::Operations;
use crate::work::{Caller, CallerName, Origin};

/// The desk of the authority that a directive names.
struct NodeDesk {
    desk: Desk,
    controller: Option<Arc<dyn Operations>>,
    runtime: Handle,
}

impl NodeDesk {
    /// # Errors
    /// The authority cannot be used, or others can read its key.
    fn open(desk: Desk, controller: Option<Arc<dyn Operations>>) -> Result<Self, JoinError> {
        desk.check()?;
        Ok(Self { desk, controller, runtime: Handle::current() })
    }
}

/// The desk that a directive asks for; `shared` is the store that this node shares with other control nodes.
pub(super) fn desk(directive: &Enrolment, shared: Option<SharedStore>) -> Desk {
    let Enrolment { authority, ask, offline, lifetime, work_key } = directive.clone();
    Desk { authority, shared, asks: ask, is_offline: offline, lifetime, work_key }
}

/// Puts the certificate in place whose renewal an earlier process has not finished.
pub(super) fn finish_renewal(config: &Config) {
    let profile = config.renewal.as_ref().map(|directive| &directive.tls_client);
    let client = config.tls_clients.iter().find(|client| Some(&client.name) == profile);
    let finished =
        client.and_then(|client| NodeIdentity::of(&client.files)).map(|identity| identity.finish());
    if let Some(Err(error)) = finished {
        warn!(%error, "cannot finish the renewal of the certificate");
    }
}

/// The service of a directive, which runs until the token is cancelled.
type RunUntil = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// Why a directive does not run.
type StartFailure = Box<dyn std::error::Error + Send + Sync>;

/// Opens a desk, and runs it with the door open.
pub(super) async fn open_desk(
    desk: Desk,
    context: &control::Context,
    door: &EnrolDoor,
    slot: &DeskSlot,
) -> Result<RunUntil, StartFailure> {
    let node_desk = NodeDesk::open(desk.clone(), context.controller.clone())?;
    let (open, seen) = (door.open_desk(Arc::new(node_desk)).await?, slot.put(desk));
    Ok(with_open_door(door, |stop| {
        Box::pin(async move {
            let _seen = seen;
            open.run(stop).await;
        })
    }))
}

/// Renews a certificate and keeps the list beside it, with the door open.
pub(super) fn start_renewal(
    directive: &Renewal,
    context: &control::Context,
    door: &EnrolDoor,
) -> Result<RunUntil, StartFailure> {
    let profile = directive.tls_client.clone();
    if NodeIdentity::of(context.tls.client(&profile)?.files()).is_none() {
        let wanted = "needs cert, key and rootcas: that certificate is renewed";
        return Err(format!("tlsclient: the profile {profile} {wanted}").into());
    }
    let (node, profiles) = (context.node.id().clone(), context.tls.clone());
    let lists = ListKeeper { door: door.clone(), profiles: profiles.clone(), profile: profile.clone() };
    let renewer = Renewer { node, profile, door: door.clone(), profiles };
    Ok(with_open_door(door, |stop| {
        Box::pin(async move {
            tokio::join!(renewer.run(stop.clone()), lists.run(stop));
        })
    }))
}

/// Opens the door until the service has ended.
fn with_open_door(
    door: &EnrolDoor,
    run: impl FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send + 'static,
) -> RunUntil {
    let door = door.clone();
    door.open(true);
    Box::new(|stop: CancellationToken| {
        Box::pin(async move {
            let _ended: ((), ()) = tokio::join!(run(stop.clone()), stop.cancelled());
            door.open(false);
        })
    })
}

impl enrol::Decide for NodeDesk {
    fn directory(&self) -> &Path {
        &self.desk.authority
    }

    fn list(&self) -> Option<(String, u64)> {
        let list = self.desk.list();
        list.inspect_err(|error| warn!(%error, "cannot read the authority's list of revoked certificates"))
            .ok()
    }

    fn trusted(&self) -> Option<(String, u64)> {
        let trusted = self.desk.trusted();
        trusted.inspect_err(|error| warn!(%error, "cannot read which authorities are trusted")).ok()?
    }

    fn note_trust(&self, node: &str, number: u64) {
        if let Err(error) = self.desk.note_trust(node, number) {
            info!(%error, node, "cannot note which authorities it trusts");
        }
    }

    fn adopt(&self, list: &str) {
        match self.desk.adopt(list, Timestamp::now()) {
            Ok(()) => warn!(
                "other nodes knew revoked certificates that the authority had forgotten: taken in again"
            ),
            Err(error) => debug!(%error, "a list of revoked certificates was not taken in"),
        }
    }

    fn decide(&self, request: &[u8], from: &str) -> CertificateAnswer {
        let DeskDecision { answer, joined, news } = self.desk.decide(request, from, Timestamp::now());
        if let Some(controller) = self.controller.clone() {
            let who = Caller::new(Origin::Unix, true, CallerName::Host(from.to_owned()));
            self.runtime.spawn(async move {
                if let Some((news, node)) = news {
                    note(&*controller, &who, news, node).await;
                }
                if let Some(Record { node, .. }) = joined.filter(|record| record.role.runs_jobs()) {
                    register(&*controller, &who, node).await;
                }
            });
        }
        answer
    }
}

/// Writes into the controller's audit what a host has caused.
async fn note(controller: &dyn Operations, who: &Caller, news: DeskNews, node: String) {
    let act = match news {
        DeskNews::Asked => NodeAct::Ask,
        DeskNews::Joined => NodeAct::Join,
        DeskNews::Renewed => NodeAct::Renew,
    };
    let noted = controller.operate(Operation::NoteNode(NodeNote { node: node.clone(), act }), who).await;
    if let Err(refusal) = noted {
        warn!(node, %act, who = %who.credentials, why = refusal.message, "the audit does not have this");
    }
}

/// Makes a node an instance to which jobs go.
async fn register(controller: &dyn Operations, who: &Caller, node: String) {
    let add = Operation::AddInstance(NewInstance { name: node.clone(), ..NewInstance::default() });
    let added = match controller.operate(add, who).await {
        Err(refusal) if refusal.code == Lenient::Known(OperationCode::Conflict) => {
            controller.operate(Operation::EnableInstance(ByName { name: node.clone() }), who).await
        }
        added => added,
    };
    match added {
        Ok(_) => info!(node, "the new node is an instance"),
        Err(refusal) => warn!(node, why = refusal.message, "the new node did not become an instance"),
    }
}
