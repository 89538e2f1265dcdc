//! `doctor`: what is wrong with this node, or with another node, which gets a signed request. Owns who is told: a
//! trusted caller, and whoever shows a valid token. The daemon does the examination: it implements [`super::Examine`].

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::timeout;

use super::peer::ClientPeer;
use super::{Context, RequestRefusal};
use crate::rpc::report;
use crate::rpc::report::doctor::{DoctorReport, NoAnswer, NoAnswerCause};
use crate::rpc::request::{DoctorRequest, Request};
use crate::rpc::{CallError, CallLimits, ControlConnection, ErrorCode};
use crate::stream::DialError;
use crate::tls::ClientProfile;
use crate::wire::{NodeId, ServiceName};
use crate::work::Rights;
use crate::work::signing::SignatureError;

/// The name of a node's control service in the mesh.
pub(super) const SERVICE: &str = "control";
/// How long a stream to another node may take to open.
const OPENS_WITHIN: Duration = Duration::from_secs(12);
/// The answer may take longer than the other node's checks, which are done within [`super::EXAMINED_WITHIN`].
const LIMITS: CallLimits =
    CallLimits { greeting: Duration::from_secs(10), answer: Duration::from_secs(40), answer_size: 1 << 20 };

pub(super) async fn answer(
    context: &Context,
    peer: &ClientPeer,
    asked: DoctorRequest,
) -> Result<Value, RequestRefusal> {
    let tls = asked.tls_client.as_deref().map(|name| context.tls.client(name)).transpose()?;
    let report = match asked.node {
        Some(name) => {
            let node = context.node_named(&name).ok_or(RequestRefusal::NoSuchNode)?;
            of_node(context, &node, tls.as_ref()).await
        }
        None if peer.caller.may(Rights::Trusted) => own(context).await,
        None => {
            // A caller without a valid token is told what is wrong with it.
            let token = asked.signature.unwrap_or_default();
            match context.work.verify_doctor(&token) {
                Ok(()) => own(context).await,
                Err(error) => DoctorReport { refused: Some(refused(&error)), ..this_node(context) },
            }
        }
    };
    Ok(serde_json::to_value(report)?)
}

/// Examines a node by its name, for a caller who may have others asked. `None` for a name that no node can have.
pub(crate) async fn examine(context: &Context, name: &str) -> Option<DoctorReport> {
    Some(of_node(context, &context.node_named(name)?, None).await)
}

async fn of_node(context: &Context, node: &NodeId, tls: Option<&ClientProfile>) -> DoctorReport {
    if node == context.node.id() {
        return own(context).await;
    }
    ask_as_needed(context, node, tls).await.unwrap_or_else(|refused| {
        let (node_id, refused) = (node.to_string(), Some(refused));
        DoctorReport { node_id, refused, ..DoctorReport::default() }
    })
}

/// The part of a report that anybody may know.
fn this_node(context: &Context) -> DoctorReport {
    let (node_id, version) = (context.node.id().to_string(), context.observer.version.to_owned());
    let time = Some(Timestamp::now());
    DoctorReport { node_id, version, time, ..DoctorReport::default() }
}

async fn own(context: &Context) -> DoctorReport {
    let findings = context.doctor.examine().await;
    DoctorReport {
        findings,
        certificates_ending: context.observer.ending(),
        signs: context.work.signs(),
        ..this_node(context)
    }
}

/// Asks another node. If the caller names no profile and the other node needs TLS, asks again with this node's own.
async fn ask_as_needed(
    context: &Context,
    node: &NodeId,
    tls: Option<&ClientProfile>,
) -> Result<DoctorReport, NoAnswer> {
    let answer = ask(context, node, tls).await;
    let meets_tls = |refused: &NoAnswer| refused.cause.known() == Some(NoAnswerCause::Tls);
    if tls.is_some() || !answer.as_ref().is_err_and(meets_tls) {
        return answer;
    }
    let own = context.doctor.tls_client().await.and_then(|name| context.tls.client(&name).ok());
    match own {
        Some(own) => ask(context, node, Some(&own)).await,
        None => answer,
    }
}

/// Asks another node, with a token if this node can sign one.
async fn ask(
    context: &Context,
    node: &NodeId,
    tls: Option<&ClientProfile>,
) -> Result<DoctorReport, NoAnswer> {
    let service = ServiceName::new(SERVICE).map_err(|error| NoAnswer::new(NoAnswerCause::Other, error))?;
    let dialed = timeout(OPENS_WITHIN, context.streams.dial_with(node, service, tls)).await;
    let stream = dialed.map_err(|_| NoAnswer::new(NoAnswerCause::NoStream, "no stream opens"))?;
    let stream = stream.map_err(|error| NoAnswer::new(cause(&error), error))?;
    let signature = context.work.sign_for_doctor(node).ok();
    let request = Request::Doctor(DoctorRequest { signature, ..DoctorRequest::default() });
    let mut connection = ControlConnection::to_node(Box::new(stream), node.as_str(), LIMITS);
    let answer = connection.command(&request).await.map_err(|error| {
        let cause = match &error {
            CallError::Refused(line) if line.code() == ErrorCode::UnknownCommand => NoAnswerCause::OtherMake,
            _ => NoAnswerCause::Other,
        };
        NoAnswer::new(cause, error)
    })?;
    report::read(&answer).map_err(|error| NoAnswer::new(NoAnswerCause::Other, error))
}

fn cause(error: &DialError) -> NoAnswerCause {
    match error {
        _ if error.is_tls() => NoAnswerCause::Tls,
        DialError::NoRoute(_) => NoAnswerCause::NoRoute,
        DialError::ServiceUnknown { .. } => NoAnswerCause::NoService,
        DialError::Blocked { .. } => NoAnswerCause::Firewall,
        DialError::Timeout { .. } => NoAnswerCause::NoStream,
        DialError::TooLarge { .. }
        | DialError::ListenerFailed { .. }
        | DialError::Handshake { .. }
        | DialError::Rejected { .. }
        | DialError::Setup(_) => NoAnswerCause::Other,
    }
}

fn refused(error: &SignatureError) -> NoAnswer {
    let cause = match error {
        SignatureError::Empty => NoAnswerCause::Unsigned,
        SignatureError::NoKey => NoAnswerCause::NoKey,
        SignatureError::Signature | SignatureError::Algorithm(_) => NoAnswerCause::WrongKey,
        SignatureError::Expired { .. } | SignatureError::Earlier => NoAnswerCause::Clock,
        SignatureError::Malformed(_)
        | SignatureError::NoExpiry
        | SignatureError::Audience { .. }
        | SignatureError::Replayed
        | SignatureError::Busy
        | SignatureError::OtherWork(_) => NoAnswerCause::Other,
    };
    NoAnswer::new(cause, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_a_token_has_its_cause() {
        for (error, cause) in [
            (SignatureError::Empty, NoAnswerCause::Unsigned),
            (SignatureError::NoKey, NoAnswerCause::NoKey),
            (SignatureError::Signature, NoAnswerCause::WrongKey),
            (SignatureError::Expired { late: 90 }, NoAnswerCause::Clock),
            (SignatureError::Earlier, NoAnswerCause::Clock),
            (SignatureError::Replayed, NoAnswerCause::Other),
        ] {
            assert_eq!(refused(&error), NoAnswer::new(cause, &error));
        }
    }
}
