//! Which rights a request needs. Owns the one rule about that, which every command passes before it is carried out; docs/security.md
//! has it as a table. It does not know who has which rights, which `Caller` decides, nor signatures, which `work` checks.

use super::session::Peer;
use super::{Context, RequestRefusal};
use crate::rpc::request::{DoctorRequest, Request, SubmitRequest, WorkRequest};
use crate::work::{Caller, Origin, Rights};

/// Refuses a request with which the node would act for somebody it does not know: towards other nodes, with its own
/// signature, or on itself.
///
/// # Errors
/// [`RequestRefusal::NotAllowed`].
pub(super) fn check(context: &Context, peer: &Peer, request: &Request) -> Result<(), RequestRefusal> {
    match needs_trust(context, request) {
        Some(what) if !peer.caller.may(Rights::Trusted) => Err(RequestRefusal::NotAllowed(what)),
        Some(_) | None => Ok(()),
    }
}

/// Refuses the operations of a controller to who may not do everything.
///
/// # Errors
/// Why.
pub(super) fn check_operator(caller: &Caller) -> Result<(), &'static str> {
    match caller.origin {
        Origin::Mesh { .. } => Err("operations are not served over the mesh"),
        Origin::Unix | Origin::Tcp if caller.may(Rights::Admin) => Ok(()),
        Origin::Unix | Origin::Tcp => Err("operations need the Unix socket or a client certificate"),
    }
}

/// What it is about the request that needs a trusted caller.
fn needs_trust(context: &Context, request: &Request) -> Option<&'static str> {
    let leads_away = |node: &str| context.node_named(node).as_ref() != Some(context.node.id());
    match request {
        Request::Status { .. } | Request::Ping { .. } | Request::Traceroute { .. } => None,
        Request::Connect { node, .. } => leads_away(node).then_some("connect to another node"),
        Request::Reload => Some("reload"),
        Request::NodeForget { .. } => Some("node forget"),
        Request::LinkTest(_) => Some("link test"),
        Request::LogLevel { .. } => Some("loglevel"),
        Request::Doctor(DoctorRequest { node: Some(node), .. }) => {
            leads_away(node).then_some("doctor of another node")
        }
        // Who is not trusted needs a signature.
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
            | WorkRequest::Follow(_),
        ) => None,
    }
}
