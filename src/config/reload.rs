//! The changes to a running node that a new configuration asks for.
//!
//! Owns the rule which settings can change while a node runs, and the comparison. It compares typed values, so that
//! order, spelling and explicit defaults do not count as changes. If the TLS profile of a component changes, the
//! component counts as changed. It refuses to start or stop anything.

use std::collections::BTreeSet;
use std::time::Duration;

use super::components::UsedProfile;
use super::directives::node::Node;
use super::directives::{Component, Config};
use crate::controller::options::ControllerOptions;
use crate::mesh::firewall::Rule;
use crate::telemetry::LogLevel;
use crate::work::{CommandType, Quota};

/// The changes that a running node makes to follow a new configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReloadPlan {
    /// Links and services to start, in the new configuration's order.
    pub added: Vec<Component>,
    /// Links and services to stop, in the old configuration's order.
    pub removed: Vec<Component>,
    /// Links and services to leave alone.
    pub unchanged: Vec<Component>,
    /// The new firewall rules.
    pub firewall: Option<Vec<Rule>>,
    /// The new log level, and whether packets are logged.
    pub log: Option<(LogLevel, bool)>,
    /// The new limit for silent links.
    pub max_idle: Option<Duration>,
    /// The new time after which unreachable nodes are forgotten.
    pub forget_after: Option<Duration>,
    /// The new bounds on what one calling node may have here.
    pub quota: Option<Quota>,
    /// The new reserve of the disk; `Some(None)` for the default.
    pub disk_reserve: Option<Option<u64>>,
    /// The new size of what is kept of payloads; `Some(None)` for the default.
    pub payload_cache: Option<Option<u64>>,
    /// The new size of all stream buffers; `Some(None)` for the default.
    pub stream_buffers: Option<Option<u64>>,
    /// True if the work types differ.
    pub work_types: bool,
    /// True if the TLS profiles differ.
    pub tls: bool,
    /// True if the node signs with another key, or in another way.
    pub signing: bool,
    /// True if the node verifies with another key.
    pub verification: bool,
}

impl ReloadPlan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self { unchanged: self.unchanged.clone(), ..Self::default() }
    }
}

/// A change that needs a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReloadable {
    /// A directive that is new or has another value.
    #[error("{0} was modified or added, which needs a restart")]
    ModifiedOrAdded(&'static str),
    /// A parameter of the node itself.
    #[error("{0} cannot change while the node runs: restart it")]
    Node(&'static str),
}

impl NotReloadable {
    /// The same error in receptor's words, which controllers know.
    pub fn of_receptor(self) -> String {
        let (what, more) = match self {
            Self::ModifiedOrAdded(what) => (what, String::new()),
            Self::Node(what) => ("node", format!(": {what} cannot change while the node runs")),
        };
        format!(
            "a non-reloadable config action '{what}' was modified or added. Must restart receptor for these changes to take effect{more}"
        )
    }
}

/// Compares two configurations.
///
/// # Errors
/// [`NotReloadable`] names the first directive that differs and cannot change; the node must then go on unchanged.
pub fn plan(old: &Config, new: &Config) -> Result<ReloadPlan, NotReloadable> {
    check_fixed(old, new)?;
    let profiles = changed_profiles(old, new);
    let same_profiles =
        |component: &Component| !component.facts().profiles.iter().any(|profile| profiles.contains(profile));
    let mut before = old.components();
    let (mut added, mut unchanged) = (Vec::new(), Vec::new());
    for component in new.components() {
        match before.iter().position(|known| *known == component && same_profiles(&component)) {
            Some(index) => unchanged.push(before.remove(index)),
            None => added.push(component),
        }
    }
    // The pattern names each setting, so that a new one cannot be forgotten.
    let Node {
        id: _,
        data_dir: _,
        firewall_rules,
        max_idle,
        forget_after,
        quota,
        disk_reserve: _,
        payload_cache,
        stream_buffers,
        kube_support_reconnect: _,
        kube_qps: _,
        kube_burst: _,
        kube_rate_limiter: _,
    } = &new.node;
    Ok(ReloadPlan {
        added,
        removed: before,
        unchanged,
        firewall: changed(&old.node.firewall_rules, firewall_rules),
        log: changed(&(old.log_level, old.trace), &(new.log_level, new.trace)),
        max_idle: changed(&old.node.max_idle, max_idle),
        forget_after: changed(&old.node.forget_after, forget_after),
        quota: changed(&old.node.quota, quota),
        disk_reserve: changed(&old.disk_reserve(), &new.disk_reserve()),
        payload_cache: changed(&old.node.payload_cache, payload_cache),
        stream_buffers: changed(&old.node.stream_buffers, stream_buffers),
        work_types: !same(&old.work_commands, &new.work_commands)
            || !same(&old.work_kubernetes, &new.work_kubernetes)
            || !same(&old.work_python, &new.work_python)
            || own_runner(old) != own_runner(new),
        tls: !same(&old.tls_servers, &new.tls_servers) || !same(&old.tls_clients, &new.tls_clients),
        signing: old.work_signing != new.work_signing,
        verification: old.work_verification != new.work_verification,
    })
}

/// The new value, if it differs.
fn changed<T: PartialEq + Clone>(old: &T, new: &T) -> Option<T> {
    (old != new).then(|| new.clone())
}

/// The profiles that are new, gone, or have other settings. The contents of their files do not matter here, because
/// changed files take effect without a reload.
fn changed_profiles(old: &Config, new: &Config) -> BTreeSet<UsedProfile> {
    let servers = differing(&old.tls_servers, &new.tls_servers);
    let servers = servers.map(|server| UsedProfile::Server(server.name.clone()));
    let clients = differing(&old.tls_clients, &new.tls_clients);
    servers.chain(clients.map(|client| UsedProfile::Client(client.name.clone()))).collect()
}

/// The values that only one side has.
fn differing<'a, T: PartialEq>(old: &'a [T], new: &'a [T]) -> impl Iterator<Item = &'a T> {
    let only = |these: &'a [T], those: &'a [T]| these.iter().filter(|item| !those.contains(item));
    only(old, new).chain(only(new, old))
}

/// Checks that settings which need a restart are the same.
fn check_fixed(old: &Config, new: &Config) -> Result<(), NotReloadable> {
    if new.is_for_certificates() {
        Err(NotReloadable::ModifiedOrAdded("cert-init"))
    } else if old.node.id != new.node.id {
        Err(NotReloadable::Node("id"))
    } else if old.node.data_dir != new.node.data_dir {
        Err(NotReloadable::Node("datadir"))
    } else if old.log_format != new.log_format {
        Err(NotReloadable::ModifiedOrAdded("log-format"))
    } else if fixed_of_controller(old) != fixed_of_controller(new) {
        Err(NotReloadable::ModifiedOrAdded("work-controller"))
    } else if old.node.kubernetes() != new.node.kubernetes() {
        Err(NotReloadable::Node("receptorkube..."))
    } else {
        Ok(())
    }
}

/// The runner of a controller on this node itself.
fn own_runner(config: &Config) -> Option<&CommandType> {
    config.controller.as_ref().map(|controller| &*controller.runner)
}

/// The settings of a controller that only a restart can change.
fn fixed_of_controller(config: &Config) -> Option<impl PartialEq> {
    let controller = config.controller.as_ref()?;
    let ControllerOptions { node_type, store, store_password_file, peers, .. } = controller;
    Some((*node_type, store, store_password_file, peers.service, &peers.tls_server))
}

/// True if each value occurs as often on both sides, in any order.
fn same<T: PartialEq>(old: &[T], new: &[T]) -> bool {
    let count = |all: &[T], wanted: &T| all.iter().filter(|item| *item == wanted).count();
    old.len() == new.len() && old.iter().all(|item| count(old, item) == count(new, item))
}
