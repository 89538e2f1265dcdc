//! Counts requests to API servers by verb and status code. All codes unknown to HTTP count as one, because a server may
//! answer with any number.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, StatusCode};
use parking_lot::Mutex;

/// The counts since the daemon started, shared by all clones. The lock is held only for arithmetic.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls(Arc<Mutex<BTreeMap<(&'static str, u16), u64>>>);

/// No answer came.
const NONE: u16 = 0;
/// Any code that HTTP does not know.
const UNKNOWN: u16 = 1;

impl Calls {
    pub(super) fn note(&self, verb: &'static str, answer: Option<StatusCode>) {
        let code = answer.map_or(NONE, |code| code.canonical_reason().map_or(UNKNOWN, |_| code.as_u16()));
        *self.0.lock().entry((verb, code)).or_default() += 1;
    }

    /// Verb, code and count of each.
    pub(super) fn all(&self) -> Vec<(&'static str, String, u64)> {
        let name = |code| match code {
            NONE => "none".to_owned(),
            UNKNOWN => "other".to_owned(),
            code => code.to_string(),
        };
        self.0.lock().iter().map(|(&(verb, code), &count)| (verb, name(code), count)).collect()
    }
}

/// The Kubernetes verb of a request.
pub(super) fn verb(method: &Method, query: Option<&str>) -> &'static str {
    match *method {
        Method::GET if query.is_some_and(|query| query.contains("watch=true")) => "watch",
        Method::GET => "get",
        Method::POST => "create",
        Method::DELETE => "delete",
        _ => "other",
    }
}
