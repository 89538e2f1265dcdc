//! What a changed configuration means for a running node.
//!
//! Owns the rule that only links to neighbours change while a node runs, and the comparison: it is made on
//! typed values, so that order, spelling and defaults written out do not count as changes. It refuses to
//! start or stop anything.

use super::typed::Config;
use super::typed::backends::Backend;

/// What a running node must do to follow a new configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadPlan {
    /// Links to start, in the new configuration's order.
    pub added: Vec<Backend>,
    /// Links to stop, in the old configuration's order.
    pub removed: Vec<Backend>,
    /// Links to leave alone.
    pub unchanged: Vec<Backend>,
    /// What `local-only` is from now on.
    pub local_only: bool,
}

/// A change that needs a restart. The words are those that controllers know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReloadable {
    /// A directive that is new or has another value.
    #[error(
        "a non-reloadable config action '{0}' was modified or added. Must restart receptor for these changes to take effect"
    )]
    ModifiedOrAdded(&'static str),
    /// A directive that is gone.
    #[error(
        "a non-reloadable config action '{0}' was removed. Must restart receptor for changes to take effect"
    )]
    Removed(&'static str),
}

/// Compares two configurations.
///
/// # Errors
/// [`NotReloadable`] names the first directive that differs and is no link to a neighbour; the node must then
/// go on unchanged.
pub fn plan(old: &Config, new: &Config) -> Result<ReloadPlan, NotReloadable> {
    check_fixed(old, new)?;
    let mut before = old.backends();
    let (mut added, mut unchanged) = (Vec::new(), Vec::new());
    for backend in new.backends() {
        match before.iter().position(|known| *known == backend) {
            Some(index) => unchanged.push(before.remove(index)),
            None => added.push(backend),
        }
    }
    Ok(ReloadPlan { added, removed: before, unchanged, local_only: new.local_only })
}

/// Compares everything else. The pattern names each field, so that a new one cannot be forgotten.
fn check_fixed(old: &Config, new: &Config) -> Result<(), NotReloadable> {
    let Config {
        node,
        log_level,
        trace,
        local_only: _,
        tcp_listeners: _,
        tcp_peers: _,
        udp_listeners: _,
        udp_peers: _,
        ws_listeners: _,
        ws_peers: _,
        quic_listeners: _,
        quic_peers: _,
        control_services,
        command_services,
        tcp_servers,
        tcp_clients,
        udp_servers,
        udp_clients,
        unix_socket_servers,
        unix_socket_clients,
        ip_routers,
        work_commands,
        work_kubernetes,
        work_python,
        work_signing,
        work_verification,
        tls_servers,
        tls_clients,
        certificate,
    } = new;
    let on = |flag: bool| if flag { &[()][..] } else { &[] };
    same("node", std::slice::from_ref(&old.node), std::slice::from_ref(node))?;
    same("log-level", &[old.log_level], &[*log_level])?;
    same("trace", on(old.trace), on(*trace))?;
    same("control-service", &old.control_services, control_services)?;
    same("command-service", &old.command_services, command_services)?;
    same("tcp-server", &old.tcp_servers, tcp_servers)?;
    same("tcp-client", &old.tcp_clients, tcp_clients)?;
    same("udp-server", &old.udp_servers, udp_servers)?;
    same("udp-client", &old.udp_clients, udp_clients)?;
    same("unix-socket-server", &old.unix_socket_servers, unix_socket_servers)?;
    same("unix-socket-client", &old.unix_socket_clients, unix_socket_clients)?;
    same("ip-router", &old.ip_routers, ip_routers)?;
    same("work-command", &old.work_commands, work_commands)?;
    same("work-kubernetes", &old.work_kubernetes, work_kubernetes)?;
    same("work-python", &old.work_python, work_python)?;
    same("work-signing", old.work_signing.as_slice(), work_signing.as_slice())?;
    same("work-verification", old.work_verification.as_slice(), work_verification.as_slice())?;
    same("tls-server", &old.tls_servers, tls_servers)?;
    same("tls-client", &old.tls_clients, tls_clients)?;
    same("cert-init", old.certificate.as_slice(), certificate.as_slice())
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
