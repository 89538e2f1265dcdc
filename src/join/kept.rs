//! What an authority keeps: the name of each document, and what two of one name are together. It reads and writes none.

use serde::de::DeserializeOwned;

use super::asker::Asker;
use super::invite::Invitation;
use super::offline::WaitingRenewal;
use super::record::Record;
use super::rotation::TrustingNode;

/// What is kept by itself.
pub(super) trait KeptDocument: DeserializeOwned {
    /// Its name. Names in files of the daemon's become paths of root's, so whoever reads one compares it.
    fn name(&self) -> &str;

    /// What is known by both: another node's authority had documents of its own.
    fn merged(self, _other: Self) -> Self {
        self
    }
}

impl KeptDocument for Record {
    fn name(&self) -> &str {
        &self.node
    }

    fn merged(mut self, other: Self) -> Self {
        for issued in other.certificates {
            match self.certificates.iter_mut().find(|known| known.serial == issued.serial) {
                Some(known) => known.revoked = known.revoked.or(issued.revoked),
                None => self.certificates.push(issued),
            }
        }
        self.certificates.sort_by_key(|issued| issued.not_after);
        self
    }
}

impl KeptDocument for Invitation {
    fn name(&self) -> &str {
        &self.record.node
    }
}

impl KeptDocument for Asker {
    fn name(&self) -> &str {
        &self.key
    }
}

impl KeptDocument for WaitingRenewal {
    fn name(&self) -> &str {
        &self.node
    }
}

impl KeptDocument for TrustingNode {
    fn name(&self) -> &str {
        &self.node
    }
}
