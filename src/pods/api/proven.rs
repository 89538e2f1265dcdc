//! Remembers which API servers have answered since the daemon started, by address and certificate authority. If a
//! server has answered, both are right, and a later failure is an outage. Otherwise either may be wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use parking_lot::Mutex;

use super::calls::Calls;

/// Most servers remembered. The number is bounded because submissions bring addresses and authorities.
const MOST_SERVERS: usize = 4_096;

/// A server's host and port, and a digest of its authority's certificates, which may be long.
pub(super) type ServerKey = (String, u16, [u8; 32]);

/// The servers that have answered, and the counts of all requests. Shared by all clones.
#[derive(Debug, Clone, Default)]
pub struct ProvenServers {
    answered: Arc<Mutex<BTreeSet<ServerKey>>>,
    calls: Calls,
}

/// One server, as one client sees it.
#[derive(Debug)]
pub(super) struct ApiServer {
    key: ServerKey,
    all: ProvenServers,
    /// This client has had an answer, so it need not look into `all`.
    has_answered: AtomicBool,
}

impl ProvenServers {
    /// Requests to all servers: verb, status code, count.
    pub fn calls(&self) -> Vec<(&'static str, String, u64)> {
        self.calls.all()
    }

    pub(super) fn server(&self, key: ServerKey) -> Arc<ApiServer> {
        Arc::new(ApiServer { key, all: self.clone(), has_answered: AtomicBool::new(false) })
    }
}

impl ApiServer {
    /// Counts a request and the head of its answer, if one came.
    pub(super) fn note_call(&self, verb: &'static str, answer: Option<StatusCode>) {
        self.all.calls.note(verb, answer);
    }

    pub(super) fn note_answer(&self) {
        if self.has_answered.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut all = self.all.answered.lock();
        if all.len() >= MOST_SERVERS {
            // Clients that have had an answer keep their own flag; the first answer to a new client adds its server
            // again.
            all.clear();
        }
        all.insert(self.key.clone());
    }

    /// Whether it has answered any client that trusts the same authority.
    pub(super) fn is_proven(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed) || self.all.answered.lock().contains(&self.key)
    }

    /// Its host and port.
    pub(super) fn address(&self) -> (&str, u16) {
        (&self.key.0, self.key.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_proves_address_and_authority_together() {
        let all = ProvenServers::default();
        let key = |host: &str, authority: u8| (host.to_owned(), 6443, [authority; 32]);
        let server = all.server(key("a", 1));
        assert!(!server.is_proven());
        server.note_answer();
        assert!(server.is_proven() && all.server(key("a", 1)).is_proven());
        assert!(!all.server(key("a", 2)).is_proven() && !all.server(key("b", 1)).is_proven());
    }
}
