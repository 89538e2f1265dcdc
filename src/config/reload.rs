//! What a changed configuration means for a running node.
//!
//! Owns the rule what can change while a node runs, and the comparison: it is made on typed values, so that
//! order, spelling and defaults written out do not count as changes. It refuses to start or stop anything.

use super::typed::node::Node;
use super::typed::parts::Part;
use super::typed::work::WorkCommand;
use super::typed::{Config, LogLevel};
use crate::mesh::firewall::Rule;

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
    /// Other work types.
    pub work_commands: Option<Vec<WorkCommand>>,
}

impl ReloadPlan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let Self { added, removed, unchanged: _, firewall, log, work_commands } = self;
        added.is_empty()
            && removed.is_empty()
            && firewall.is_none()
            && log.is_none()
            && work_commands.is_none()
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
    /// A directive that is gone.
    #[error(
        "a non-reloadable config action '{0}' was removed. Must restart receptor for changes to take effect"
    )]
    Removed(&'static str),
}

/// Compares two configurations.
///
/// # Errors
/// [`NotReloadable`] names the first directive that differs and cannot change; the node must then go on unchanged.
pub fn plan(old: &Config, new: &Config) -> Result<ReloadPlan, NotReloadable> {
    check_fixed(old, new)?;
    let mut before = old.parts();
    let (mut added, mut unchanged) = (Vec::new(), Vec::new());
    for part in new.parts() {
        match before.iter().position(|known| *known == part) {
            Some(index) => unchanged.push(before.remove(index)),
            None => added.push(part),
        }
    }
    let firewall =
        (old.node.firewall_rules != new.node.firewall_rules).then(|| new.node.firewall_rules.clone());
    let logs = (old.log_level, old.trace) != (new.log_level, new.trace);
    let works = same("work-command", &old.work_commands, &new.work_commands).is_err();
    Ok(ReloadPlan {
        added,
        removed: before,
        unchanged,
        firewall,
        log: logs.then_some((new.log_level, new.trace)),
        work_commands: works.then(|| new.work_commands.clone()),
    })
}

/// Compares what cannot change. The pattern names each field, so that a new one cannot be forgotten.
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
        work_kubernetes,
        work_python,
        work_signing,
        work_verification,
        tls_servers,
        tls_clients,
        certificate,
    } = new;
    check_node(&old.node, node)?;
    same("work-kubernetes", &old.work_kubernetes, work_kubernetes)?;
    same("work-python", &old.work_python, work_python)?;
    same("work-signing", old.work_signing.as_slice(), work_signing.as_slice())?;
    same("work-verification", old.work_verification.as_slice(), work_verification.as_slice())?;
    same("tls-server", &old.tls_servers, tls_servers)?;
    same("tls-client", &old.tls_clients, tls_clients)?;
    same("cert-init", old.certificate.as_slice(), certificate.as_slice())
}

fn check_node(old: &Node, new: &Node) -> Result<(), NotReloadable> {
    let Node { id, data_dir, firewall_rules: _, max_idle, kubernetes } = new;
    let fixed = [
        ("id", old.id == *id),
        ("datadir", old.data_dir == *data_dir),
        ("maxidleconnectiontimeout", old.max_idle == *max_idle),
        ("a setting of Kubernetes", old.kubernetes == *kubernetes),
    ];
    match fixed.iter().find(|(_, same)| !same) {
        Some((parameter, _)) => Err(NotReloadable::Node(parameter)),
        None => Ok(()),
    }
}

/// True order does not matter, and of each value there must be as many.
fn same<T: PartialEq>(directive: &'static str, old: &[T], new: &[T]) -> Result<(), NotReloadable> {
    let mut rest: Vec<&T> = old.iter().collect();
    for item in new {
        match rest.iter().position(|known| *known == item) {
            Some(index) => rest.swap_remove(index),
            None => return Err(NotReloadable::ModifiedOrAdded(directive)),
        };
    }
    if rest.is_empty() { Ok(()) } else { Err(NotReloadable::Removed(directive)) }
}
