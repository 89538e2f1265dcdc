//! What of the grammar this version implements.
//!
//! Owns one list, to be lengthened as features arrive: everything else parses and is checked in full, and is
//! then refused by name. Ignoring a setting is never an answer: an operator who sets `tls` must not get a
//! link without it.

use super::check::Item;
use super::error::{ConfigError, Fault};

/// The directives that are implemented, each with the parameters that are not.
const IMPLEMENTED: &[(&str, &[&str])] = &[
    ("node", &KUBERNETES_TUNING),
    ("local-only", &[]),
    ("trace", &[]),
    ("log-level", &[]),
    ("control-service", &[]),
    ("tcp-listener", &[]),
    ("tcp-peer", &[]),
    ("udp-listener", &[]),
    ("udp-peer", &[]),
    ("ws-listener", &[]),
    ("ws-peer", &[]),
    ("quic-listener", &[]),
    ("quic-peer", &[]),
    ("tcp-server", &[]),
    ("tcp-client", &[]),
    ("command-service", &[]),
    ("udp-server", &[]),
    ("udp-client", &[]),
    ("unix-socket-server", &[]),
    ("unix-socket-client", &[]),
    ("ip-router", &[]),
    ("work-command", &[]),
    ("work-signing", &[]),
    ("work-verification", &[]),
    ("work-python", &[]),
    ("tls-server", &[]),
    ("tls-client", &[]),
    ("cert-init", &[]),
    ("cert-makereq", &[]),
    ("cert-signreq", &[]),
];

const KUBERNETES_TUNING: [&str; 4] = [
    "receptorkubesupportreconnect",
    "receptorkubeclientsetqps",
    "receptorkubeclientsetburst",
    "receptorkubeclientsetratelimiter",
];

/// One error for each directive and parameter that is used and not implemented.
pub(super) fn refusals(items: &[Item]) -> Vec<ConfigError> {
    items.iter().flat_map(refusals_of).collect()
}

fn refusals_of(item: &Item) -> Vec<ConfigError> {
    match missing_parameters(item.directive.name) {
        None => vec![item.error(None, Fault::Unsupported)],
        Some(missing) => {
            let used =
                |name: &&&str| item.settings.get(**name).is_some_and(|given| !given.setting.is_blank());
            missing.iter().filter(used).map(|name| item.error(Some(name), Fault::Unsupported)).collect()
        }
    }
}

/// True if any use of the directive is implemented.
pub(super) fn is_implemented(directive: &str) -> bool {
    missing_parameters(directive).is_some()
}

/// True if setting this parameter is refused.
pub(super) fn is_missing(directive: &str, parameter: &str) -> bool {
    missing_parameters(directive).is_none_or(|missing| missing.contains(&parameter))
}

/// The refused parameters of a directive; nothing if all of it is refused.
fn missing_parameters(directive: &str) -> Option<&'static [&'static str]> {
    IMPLEMENTED.iter().find(|(name, _)| *name == directive).map(|(_, missing)| *missing)
}
