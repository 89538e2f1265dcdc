//! Which rights a request needs. Owns that rule, which is checked before any command is carried out; docs/security.md
//! has it as a table. It does not know who has which rights (`Caller` does) and checks no signatures (`work` does).

use super::peer::ClientPeer;
use super::{Context, RequestRefusal};
use crate::rpc::request::{DoctorRequest, Request, SubmitRequest, WorkRequest};
use crate::work::{Caller, Origin, Rights};

/// Refuses a request of an untrusted client for which the node would act towards other nodes, sign, or change itself.
///
/// # Errors
/// [`RequestRefusal::NotAllowed`].
pub(super) fn check(context: &Context, peer: &ClientPeer, request: &Request) -> Result<(), RequestRefusal> {
    match needs_trust(context, request) {
        Some(what) if !peer.caller.may(Rights::Trusted) => Err(RequestRefusal::NotAllowed(what)),
        Some(_) | None => Ok(()),
    }
}

/// Refuses the operations of a controller to a caller that may not do everything.
///
/// # Errors
/// The reason, for the client.
pub(super) fn check_operator(caller: &Caller) -> Result<(), &'static str> {
    match caller.origin {
        Origin::Mesh { .. } => Err("operations are not served over the mesh"),
        Origin::Unix | Origin::Tcp if caller.may(Rights::Admin) => Ok(()),
        Origin::Unix | Origin::Tcp => Err("operations need the Unix socket or a client certificate"),
    }
}

/// The part of the request that needs a trusted caller, in words for the client.
fn needs_trust(context: &Context, request: &Request) -> Option<&'static str> {
    let leads_away = |node: &str| context.node_named(node).as_ref() != Some(context.node.id());
    match request {
        Request::Status { .. } | Request::Ping { .. } | Request::Traceroute { .. } => None,
        Request::Connect { node, .. } => leads_away(node).then_some("connect to another node"),
        Request::Reload => Some("reload"),
        Request::NodeForget { .. } => Some("node forget"),
        Request::NodeCache { clear } => clear.then_some("node cache clear"),
        Request::LinkTest(_) => Some("link test"),
        Request::LogLevel { .. } => Some("loglevel"),
        Request::Doctor(DoctorRequest { node: Some(node), .. }) => {
            leads_away(node).then_some("doctor of another node")
        }
        // `doctor::answer` asks an untrusted caller for a signature.
        Request::Doctor(DoctorRequest { node: None, .. }) => None,
        Request::Controller { .. } => Some("controller"),
        Request::Work(WorkRequest::Submit(SubmitRequest { sign_work: true, .. })) => Some("signwork"),
        Request::Work(WorkRequest::Adopt(_)) => Some("work adopt"),
        Request::Work(WorkRequest::Submit(submit)) => {
            leads_away(&submit.node).then_some("work submit to another node")
        }
        Request::Work(
            WorkRequest::List { .. }
            | WorkRequest::Status { .. }
            | WorkRequest::Cancel { .. }
            | WorkRequest::Release { .. }
            | WorkRequest::Disclaim { .. }
            | WorkRequest::Results(_)
            | WorkRequest::Stderr(_)
            | WorkRequest::Follow(_),
        ) => None,
    }
}
