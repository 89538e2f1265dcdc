//! Remembers what a credential was allowed to do. An API server that has just started answers 403 for some seconds,
//! until it has read the cluster's roles. Such a refusal passes by itself; the refusal of a right that never existed
//! does not. Owns which of the two a refusal is; sends nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;

/// For how long after a failure of the server any refusal counts as passing.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// A mark on a refusal that passes by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayPass;

/// What one credential was seen to be allowed.
#[derive(Debug, Default)]
pub(super) struct ApiRights {
    // A plain lock, for single operations.
    seen: Mutex<SeenRights>,
}

#[derive(Debug, Default)]
struct SeenRights {
    allowed: BTreeSet<String>,
    failed_at: Option<Instant>,
}

/// The right that a request needs. None for a create, because its success says nothing about the next: a pod may also
/// be refused for its content.
pub(super) fn needed(request: &Request<Body>) -> Option<String> {
    let uri = request.uri();
    match *uri.path().split('/').collect::<Vec<_>>().as_slice() {
        ["", "api", "v1", "namespaces", namespace, "pods"] if request.method() == Method::GET => {
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            Some(format!("{namespace} {}", if is_watch { "watch" } else { "list" }))
        }
        ["", "api", "v1", "namespaces", namespace, "pods", _] => {
            Some(format!("{namespace} {}", request.method()))
        }
        ["", "api", "v1", "namespaces", namespace, "pods", _, subresource] => {
            Some(format!("{namespace} {subresource}"))
        }
        _ => None,
    }
}

impl ApiRights {
    /// No answer came, or the server answered that it cannot serve the request now.
    pub(super) fn note_failure(&self) {
        self.seen.lock().failed_at = Some(Instant::now());
    }

    /// Learns from an answer, and marks a refusal that passes by itself.
    pub(super) fn note_answer(&self, right: Option<String>, response: &mut Response<Body>) {
        let status = response.status();
        if status.is_server_error() {
            self.note_failure();
        }
        let mut seen = self.seen.lock();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            seen.allowed.extend(right);
        } else if status == StatusCode::FORBIDDEN {
            let is_settling = seen.failed_at.is_some_and(|at| at.elapsed() < SETTLES_WITHIN);
            if is_settling || right.is_some_and(|right| seen.allowed.contains(&right)) {
                response.extensions_mut().insert(MayPass);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "/api/v1/namespaces/a/pods/p";

    fn may_pass(rights: &ApiRights, method: Method, path: &str, code: u16) -> bool {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let mut response = Response::builder().status(code).body(Body::empty()).unwrap();
        rights.note_answer(needed(&request), &mut response);
        response.extensions().get::<MayPass>().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_right_that_was_there_comes_back() {
        let rights = ApiRights::default();
        let log = format!("{POD}/log?follow=true");
        assert!(!may_pass(&rights, Method::GET, &log, 403));
        assert!(!may_pass(&rights, Method::GET, &log, 200));
        assert!(may_pass(&rights, Method::GET, &log, 403));
        for other in
            [POD, &format!("{POD}/attach"), "/api/v1/namespaces/b/pods/p/log", "/api/v1/namespaces/a/pods"]
        {
            assert!(!may_pass(&rights, Method::GET, other, 403), "{other}");
        }
        // A WebSocket is opened by GET, SPDY by POST.
        assert!(!may_pass(&rights, Method::GET, &format!("{POD}/attach"), 101));
        assert!(may_pass(&rights, Method::POST, &format!("{POD}/attach"), 403));
        let (pods, watch) = ("/api/v1/namespaces/a/pods", "/api/v1/namespaces/a/pods?x=y&watch=true");
        assert!(!may_pass(&rights, Method::GET, pods, 200));
        assert!(!may_pass(&rights, Method::GET, watch, 403));
        assert!(!may_pass(&rights, Method::POST, pods, 201));
        assert!(!may_pass(&rights, Method::POST, pods, 403), "a quota, or an admission controller");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_away_is_given_a_minute() {
        let rights = ApiRights::default();
        assert!(!may_pass(&rights, Method::GET, POD, 503));
        assert!(may_pass(&rights, Method::GET, POD, 403));
        assert!(may_pass(&rights, Method::POST, "/api/v1/namespaces/a/pods", 403));
        tokio::time::advance(SETTLES_WITHIN).await;
        assert!(!may_pass(&rights, Method::GET, POD, 403));
        rights.note_failure();
        assert!(may_pass(&rights, Method::GET, POD, 403));
    }
}
