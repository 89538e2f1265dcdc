//! Which instances are checked next. The instance decides when a check is due: at first sight, when it returns, on
//! demand, and after an error with a growing delay.

use std::collections::BTreeSet;

use crate::controller::core::{Instance, InstanceName, NodeType, Time};

/// The most checks at a time, because a control node that starts up sees all its instances at once.
pub const CHECKS_AT_ONCE: usize = 16;

/// The instances that `observer` checks now, those that have waited longest first. Those in `running` are being checked
/// already.
pub fn next_checks(
    instances: &[Instance],
    observer: &InstanceName,
    running: &BTreeSet<InstanceName>,
    now: Time,
) -> Vec<InstanceName> {
    let mut due: Vec<(Time, &InstanceName)> = instances
        .iter()
        .filter(|instance| is_checked_by(instance, observer))
        .filter(|instance| instance.is_reachable_from(observer) && !running.contains(&instance.name))
        .filter(|instance| instance.is_check_due(now))
        .filter_map(|instance| Some((instance.health_due?, &instance.name)))
        .collect();
    due.sort();
    let free = CHECKS_AT_ONCE.saturating_sub(running.len());
    due.into_iter().take(free).map(|(_, name)| name.clone()).collect()
}

/// Why nobody can check an instance, if that is so.
pub fn uncheckable(instance: &Instance) -> Option<String> {
    match instance.node_type {
        NodeType::Control | NodeType::Hybrid | NodeType::Execution => None,
        NodeType::Hop => Some(format!(
            "{} is a hop node: it has no work types that a health check could use",
            instance.name
        )),
    }
}

/// Whether `observer` may check an instance. Only a control node itself checks that node, because no other node may use
/// the work type for it. Nobody checks a hop.
pub fn is_checked_by(instance: &Instance, observer: &InstanceName) -> bool {
    match instance.node_type {
        NodeType::Control | NodeType::Hybrid => instance.name == *observer,
        NodeType::Execution => true,
        NodeType::Hop => false,
    }
}
