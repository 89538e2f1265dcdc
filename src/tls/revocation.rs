//! The connections that a profile has let in, so that they can be cut when their certificate is revoked.
//!
//! Owns their list. Does not know why a connection is cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::verify::Expected;

/// The certificate that a living connection was let in with.
#[derive(Debug, Clone)]
pub(super) struct Admitted {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) expected: Expected,
    pub(super) since: Timestamp,
    cut: CancellationToken,
}

impl Admitted {
    pub(super) fn new(chain: Vec<CertificateDer<'static>>, expected: Expected, since: Timestamp) -> Self {
        Self { chain, expected, since, cut: CancellationToken::new() }
    }

    pub(super) fn cut(&self) {
        self.cut.cancel();
    }
}

/// All living connections of a profile.
#[derive(Debug, Default)]
pub(super) struct AdmittedList(Arc<Mutex<Numbered>>);

#[derive(Debug, Default)]
struct Numbered {
    next: u64,
    admitted: BTreeMap<u64, Admitted>,
}

/// Keeps a connection in its profile's list until dropped.
#[derive(Debug)]
pub struct Guard {
    list: Arc<Mutex<Numbered>>,
    number: u64,
    cut: CancellationToken,
}

impl AdmittedList {
    /// Notes a connection.
    pub(super) fn admit(&self, admitted: Admitted) -> Guard {
        let cut = admitted.cut.clone();
        let mut list = self.0.lock();
        let number = list.next;
        list.next += 1;
        list.admitted.insert(number, admitted);
        drop(list);
        Guard { list: self.0.clone(), number, cut }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().admitted.is_empty()
    }

    /// All living connections.
    pub(super) fn all(&self) -> Vec<Admitted> {
        self.0.lock().admitted.values().cloned().collect()
    }
}

impl Guard {
    /// Cancelled when the connection must end: its certificate is no longer accepted.
    pub fn cut(&self) -> &CancellationToken {
        &self.cut
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.list.lock().admitted.remove(&self.number);
    }
}
