//! What a changed configuration means for a running node.
//!
//! Owns the rule what can change while a node runs, and the comparison: it is made on typed values, so that
//! order, spelling and defaults written out do not count as changes. A part whose TLS profile changes is a part
//! that changes. It refuses to start or stop anything.

use std::collections::BTreeSet;
use std::time::Duration;

use super::typed::node::Node;
use super::typed::parts::{Part, Profile};
use super::typed::{Config, LogLevel};
use crate::mesh::firewall::Rule;
use crate::work::Quota;

/// What a running node must do to follow a new configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadPlan {
    /// Links and services to start, in the new configuration's order.
    pub added: Vec<Part>,
    /// Links and services to stop, in the old configuration's order.
    pub removed: Vec<Part>,
    /// Links and services to leave alone.
    pub unchanged: Vec<Part>,
    /// Other firewall rules.
    pub firewall: Option<Vec<Rule>>,
    /// Another log level, and whether packets are logged.
    pub log: Option<(LogLevel, bool)>,
    /// Another limit for silent links.
    pub max_idle: Option<Duration>,
    /// Another time after which unreachable nodes are forgotten.
    pub forget_after: Option<Duration>,
    /// Other bounds of what one calling node may have here.
    pub quota: Option<Quota>,
    /// Another size of all stream buffers; `Some(None)` for the default.
    pub stream_buffers: Option<Option<u64>>,
    /// True if the work types of the new configuration are others.
    pub work_types: bool,
    /// True if its TLS profiles are others.
    pub tls: bool,
    /// True if it signs with another key, or in another way.
    pub signing: bool,
    /// True if it verifies with another key.
    pub verification: bool,
}

impl ReloadPlan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let Self {
            added,
            removed,
            unchanged: _,
            firewall,
            log,
            max_idle,
            forget_after,
            quota,
            stream_buffers,
            work_types,
            tls,
            signing,
            verification,
        } = self;
        added.is_empty()
            && removed.is_empty()
            && firewall.is_none()
            && log.is_none()
            && max_idle.is_none()
            && forget_after.is_none()
            && quota.is_none()
            && stream_buffers.is_none()
            && !(*work_types || *tls || *signing || *verification)
    }
}

/// A change that needs a restart. The words are those that controllers know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReloadable {
    /// A directive that is new or has another value.
    #[error(
        "a non-reloadable config action '{0}' was modified or added. Must restart receptor for these changes to take effect"
    )]
    ModifiedOrAdded(&'static str),
    /// A parameter of the node itself.
    #[error(
        "a non-reloadable config action 'node' was modified or added. Must restart receptor for these changes to take effect: {0} cannot change while the node runs"
    )]
    Node(&'static str),
}

/// Compares two configurations.
///
/// # Errors
/// [`NotReloadable`] names the first directive that differs and cannot change; the node must then go on unchanged.
pub fn plan(old: &Config, new: &Config) -> Result<ReloadPlan, NotReloadable> {
    check_fixed(old, new)?;
    let changed = changed_profiles(old, new);
    let same_profiles = |part: &Part| !part.profiles().iter().any(|profile| changed.contains(profile));
    let mut before = old.parts();
    let (mut added, mut unchanged) = (Vec::new(), Vec::new());
    for part in new.parts() {
        match before.iter().position(|known| *known == part && same_profiles(&part)) {
            Some(index) => unchanged.push(before.remove(index)),
            None => added.push(part),
        }
    }
    let firewall =
        (old.node.firewall_rules != new.node.firewall_rules).then(|| new.node.firewall_rules.clone());
    let logs = (old.log_level, old.trace) != (new.log_level, new.trace);
    Ok(ReloadPlan {
        added,
        removed: before,
        unchanged,
        firewall,
        log: logs.then_some((new.log_level, new.trace)),
        max_idle: (old.node.max_idle != new.node.max_idle).then_some(new.node.max_idle),
        forget_after: (old.node.forget_after != new.node.forget_after).then_some(new.node.forget_after),
        quota: (old.node.quota != new.node.quota).then_some(new.node.quota),
        stream_buffers: (old.node.stream_buffers != new.node.stream_buffers)
            .then_some(new.node.stream_buffers),
        work_types: !same(&old.work_commands, &new.work_commands)
            || !same(&old.work_kubernetes, &new.work_kubernetes)
            || !same(&old.work_python, &new.work_python),
        tls: !same(&old.tls_servers, &new.tls_servers) || !same(&old.tls_clients, &new.tls_clients),
        signing: old.work_signing != new.work_signing,
        verification: old.work_verification != new.work_verification,
    })
}

/// The profiles that are new, gone, or have other settings. What is in their files is not looked at: that is
/// followed without a reload.
fn changed_profiles<'a>(old: &'a Config, new: &'a Config) -> BTreeSet<Profile<'a>> {
    let servers = old.tls_servers.iter().filter(|server| !new.tls_servers.contains(server));
    let servers = servers.chain(new.tls_servers.iter().filter(|server| !old.tls_servers.contains(server)));
    let clients = old.tls_clients.iter().filter(|client| !new.tls_clients.contains(client));
    let clients = clients.chain(new.tls_clients.iter().filter(|client| !old.tls_clients.contains(client)));
    let servers = servers.map(|server| Profile::Server(&server.name));
    servers.chain(clients.map(|client| Profile::Client(&client.name))).collect()
}

/// Compares what cannot change. The patterns name each field, so that a new one cannot be forgotten.
fn check_fixed(old: &Config, new: &Config) -> Result<(), NotReloadable> {
    let Config {
        node,
        log_level: _,
        trace: _,
        local_only: _,
        tcp_listeners: _,
        tcp_peers: _,
        udp_listeners: _,
        udp_peers: _,
        ws_listeners: _,
        ws_peers: _,
        quic_listeners: _,
        quic_peers: _,
        control_services: _,
        command_services: _,
        tcp_servers: _,
        tcp_clients: _,
        udp_servers: _,
        udp_clients: _,
        unix_socket_servers: _,
        unix_socket_clients: _,
        ip_routers: _,
        work_commands: _,
        work_kubernetes: _,
        work_python: _,
        work_signing: _,
        work_verification: _,
        tls_servers: _,
        tls_clients: _,
        certificate,
    } = new;
    // The last has no effect yet.
    let Node {
        id,
        data_dir,
        firewall_rules: _,
        max_idle: _,
        forget_after: _,
        quota: _,
        stream_buffers: _,
        kubernetes: _,
    } = node;
    if old.node.id != *id {
        return Err(NotReloadable::Node("id"));
    }
    if old.node.data_dir != *data_dir {
        return Err(NotReloadable::Node("datadir"));
    }
    match (&old.certificate, certificate) {
        (None, Some(_)) => Err(NotReloadable::ModifiedOrAdded("cert-init")),
        (_, None) | (Some(_), Some(_)) => Ok(()),
    }
}

/// True if each value occurs as often on both sides, in whatever order.
fn same<T: PartialEq>(old: &[T], new: &[T]) -> bool {
    let count = |all: &[T], wanted: &T| all.iter().filter(|item| *item == wanted).count();
    old.len() == new.len() && old.iter().all(|item| count(old, item) == count(new, item))
}
