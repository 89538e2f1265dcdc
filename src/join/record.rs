//! The authority's record of a node: its role in the mesh, its addresses, and every certificate that it was given.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::JoinError;
use crate::config::HostPort;

/// The certificates of a node that are known.
const MOST_CERTIFICATES: usize = 100;
/// The port on which nodes listen by default.
pub(crate) const PORT: u16 = 27199;

/// The part of a node in the mesh, in records and as an administrator types it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeRole {
    /// Jobs are submitted there, and others are added: the package's own, which nobody chooses.
    #[value(skip)]
    Control,
    /// Passes packets on to nodes behind it
    Hop,
    /// Runs jobs
    Execution,
    /// Does both
    Hybrid,
}

impl NodeRole {
    /// Whether jobs run on it.
    pub(crate) fn runs_jobs(self) -> bool {
        match self {
            Self::Execution | Self::Hybrid => true,
            Self::Control | Self::Hop => false,
        }
    }

    /// Whether others dial it in any case.
    pub(crate) fn relays(self) -> bool {
        match self {
            Self::Hop | Self::Hybrid => true,
            Self::Control | Self::Execution => false,
        }
    }
}

/// A certificate that a node was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Issued {
    /// Its serial number, in hexadecimal.
    pub(crate) serial: String,
    /// When it expires.
    pub(crate) not_after: Timestamp,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<Timestamp>,
    /// The hash of the key that asked for it, in hexadecimal, and the certificate, in PEM; of a key that was made here
    /// neither is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<String>,
    /// The hash of the key of the authority that has signed it, in hexadecimal; of the first one nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
}

/// What the authority knows of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its ID.
    pub(crate) node: String,
    /// Its role.
    pub(crate) role: NodeRole,
    /// Names and addresses by which others dial it.
    pub(crate) hosts: BTreeSet<String>,
    /// The port on which it listens.
    pub(crate) listens: Option<u16>,
    /// The address that it dials, as host and port.
    pub(crate) dials: Option<String>,
    /// Its certificates, oldest first.
    pub(crate) certificates: Vec<Issued>,
}

impl Record {
    /// The record of a node without certificates.
    ///
    /// # Errors
    /// A name that cannot be used for files, or in a certificate.
    pub(crate) fn new(node: &str, role: NodeRole) -> Result<Self, JoinError> {
        check_name(node)?;
        let (hosts, certificates) = (BTreeSet::from([node.to_owned()]), Vec::new());
        Ok(Self { node: node.to_owned(), role, hosts, listens: None, dials: None, certificates })
    }

    /// Whether it was removed: all its certificates are revoked.
    pub(crate) fn is_removed(&self) -> bool {
        self.certificates.iter().all(|issued| issued.revoked.is_some())
    }

    /// Forgets certificates that expired so long ago, all but a hundred, and the texts of those that have expired.
    pub(super) fn forget(&mut self, now: Timestamp, ago: Duration) {
        let long_ago = now.saturating_sub(ago).unwrap_or(now);
        self.certificates.retain(|issued| issued.not_after > long_ago);
        let surplus = self.certificates.len().saturating_sub(MOST_CERTIFICATES);
        self.certificates.drain(..surplus);
        let expired = self.certificates.iter_mut().filter(|issued| issued.not_after <= now);
        expired.for_each(|issued| issued.certificate = None);
    }

    /// Whether another host may have its name: it was removed, or all its certificates have expired.
    pub(crate) fn is_free(&self, now: Timestamp) -> bool {
        self.certificates.iter().all(|issued| issued.revoked.is_some() || issued.not_after <= now)
    }

    /// When its newest certificate expires; `None` if that is revoked, or there is none.
    pub(crate) fn ends(&self) -> Option<Timestamp> {
        self.certificates.last().filter(|issued| issued.revoked.is_none()).map(|issued| issued.not_after)
    }

    /// The name by which its host is reached, or else the node's own name.
    pub(crate) fn host(&self) -> &str {
        self.hosts.iter().find(|host| **host != self.node).unwrap_or(&self.node)
    }

    /// The addresses at which it listens.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = String> {
        let port = self.listens.filter(|_| !self.is_removed());
        self.hosts
            .iter()
            .filter_map(move |host| Some(HostPort { host: host.clone(), port: port? }.to_string()))
    }

    /// Whether others reach this node at this address.
    pub(crate) fn is_at(&self, address: &HostPort) -> bool {
        self.listens == Some(address.port) && self.hosts.contains(&address.host) && !self.is_removed()
    }
}

/// Checks a name, because it becomes part of file names, configurations and commands.
pub(super) fn check_name(name: &str) -> Result<(), JoinError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= 200 && name.bytes().all(plain) && !name.eq_ignore_ascii_case("localhost") {
        return Ok(());
    }
    Err(JoinError::Name(name.to_owned()))
}

/// Reads `HOST`, `HOST:PORT`, an IPv6 address, or one in brackets with a port.
///
/// # Errors
/// How an address is written.
pub(crate) fn address(text: &str) -> Result<HostPort, String> {
    let wanted = || format!("{text:?} is not an address: write HOST, HOST:PORT or [IPV6]:PORT");
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(HostPort { host: text.to_owned(), port: PORT });
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, PORT),
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(wanted)?),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_name = |host: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        !host.is_empty() && !host.starts_with('-') && host.len() <= 253 && host.bytes().all(plain)
    };
    match host.parse::<std::net::IpAddr>().is_ok() || is_name(host) {
        true => Ok(HostPort { host: host.to_owned(), port }),
        false => Err(wanted()),
    }
}
