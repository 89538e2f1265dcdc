//! An authority whose key is on another host: renewals wait here, are signed there, and are fetched here.
//!
//! Owns what waits, one request for each node, and the file that is carried there and the one that is carried back. It
//! believes neither file: where the key is, each request is decided on as if its node had sent it, and here an answer
//! counts if the authority has signed it. It refuses to know who carries them.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::JoinError;
use super::authority::{Authority, facts};
use super::desk::Desk;
use super::request::{CertificateAnswer, CertificateRequest, Granted};
use crate::tls::proof;

/// A renewal that waits, or that was decided on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitingRenewal {
    /// The node whose certificate it is.
    pub(crate) node: String,
    /// What it asks, and by which certificate.
    pub(crate) request: CertificateRequest,
    /// Where the request came from.
    pub(crate) from: String,
    /// When it came.
    pub(crate) since: Timestamp,
    /// What was decided where the key is.
    pub(crate) answer: Option<CertificateAnswer>,
}

/// A file that is carried.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum SigningFile {
    /// To the key: renewals that wait.
    Requests(Vec<WaitingRenewal>),
    /// Back from it.
    Answers {
        /// The same renewals with their answers.
        renewals: Vec<WaitingRenewal>,
        /// The list of revoked certificates, in PEM.
        list: String,
    },
}

/// What became of an answer.
pub(crate) struct TakenRenewal {
    /// The node that it is for.
    pub(crate) node: String,
    /// Why it was not taken.
    pub(crate) result: Result<(), String>,
}

/// What becomes of a node's request: it waits, unless it was decided on. The caller has checked the certificate.
pub(super) fn answer(
    authority: &Authority,
    node: &str,
    request: &CertificateRequest,
    from: &str,
    now: Timestamp,
) -> Result<CertificateAnswer, JoinError> {
    let known = authority.renewal(node)?.filter(|known| known.request.is_same(request));
    let answered = known.as_ref().and_then(|known| known.answer.clone());
    if let Some(answer) = answered.filter(|answer| is_good(answer, now)) {
        return Ok(answer);
    }
    // Also if its proof is another one: the former certificate may have been replaced meanwhile.
    if known.as_ref().is_none_or(|known| known.request != *request || known.answer.is_some()) {
        let (node, request, from) = (node.to_owned(), request.clone(), from.to_owned());
        authority.write_renewal(&WaitingRenewal { node, request, from, since: now, answer: None })?;
    }
    Ok(CertificateAnswer::Waiting(authority.certificate().to_owned()))
}

/// Whether an answer still gives something.
fn is_good(answer: &CertificateAnswer, now: Timestamp) -> bool {
    let CertificateAnswer::Granted { granted, .. } = answer else { return false };
    let granted = serde_json::from_str::<Granted>(granted);
    granted.is_ok_and(|granted| facts(&granted.certificate).is_ok_and(|facts| now < facts.not_after))
}

/// Decides on each renewal of a file, where the key is.
///
/// # Errors
/// There is no authority, or its key is not there either.
pub(crate) fn sign(
    authority: &Path,
    requests: Vec<WaitingRenewal>,
    lifetime: Duration,
    now: Timestamp,
) -> Result<SigningFile, JoinError> {
    let authority = authority.to_owned();
    let desk = Desk { authority, shared: None, asks: false, is_offline: false, lifetime, work_key: None };
    desk.check()?;
    let decide = |renewal: WaitingRenewal| {
        let answer = match renewal.request.certificate() {
            Some(_) => desk.decide(&renewal.request.to_bytes(), &renewal.from, now).answer,
            None => CertificateAnswer::Refused("this is not a request for a renewal".to_owned()),
        };
        WaitingRenewal { answer: Some(answer), ..renewal }
    };
    let renewals = requests.into_iter().map(decide).collect();
    Ok(SigningFile::Answers { renewals, list: desk.list()?.0 })
}

/// Takes answers in, for the nodes that ask again; and the list, if it is a later one.
///
/// # Errors
/// The authority's directory cannot be used, or the list is another authority's.
pub(crate) fn take(
    authority: &Authority,
    renewals: Vec<WaitingRenewal>,
    list: &str,
    now: Timestamp,
) -> Result<Vec<TakenRenewal>, JoinError> {
    let pin = proof::key_of_certificate(authority.certificate())?;
    let mut taken = Vec::new();
    for renewal in renewals {
        let node = renewal.node.clone();
        let waits = match authority.renewal(&node) {
            Err(JoinError::Name(_)) => None,
            waits => waits?.filter(|known| known.request.is_same(&renewal.request)),
        };
        let opened = renewal.answer.as_ref().map(|answer| renewal.request.open(&answer.to_bytes(), &pin));
        let result = match (waits, opened) {
            (None, _) => Err("it does not wait here any more, or asks for another key since".to_owned()),
            (Some(waits), Some(Ok(_))) => {
                authority.write_renewal(&WaitingRenewal { answer: renewal.answer, ..waits })?;
                Ok(())
            }
            (Some(_), Some(Err(why))) => Err(why.to_string()),
            (Some(_), None) => Err("the file has no answer".to_owned()),
        };
        taken.push(TakenRenewal { node, result });
    }
    authority.take_list(list, now)?;
    Ok(taken)
}
