//! What a playbook did on each host: the counters of its recap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::controller::core::readable;

/// The most bytes of a host's name. It is part of a key of the store, and PostgreSQL bounds those.
const LONGEST_HOST: usize = 255;

/// The counters of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStats {
    /// Tasks that succeeded.
    pub ok: u64,
    /// Tasks that changed something.
    pub changed: u64,
    /// Tasks that failed.
    pub failures: u64,
    /// Tasks for which it could not be reached.
    pub dark: u64,
    /// Tasks that were skipped.
    pub skipped: u64,
    /// Tasks after which a rescue block ran.
    pub rescued: u64,
    /// Tasks whose failure was ignored.
    pub ignored: u64,
}

impl HostStats {
    /// Whether a rerun for failed hosts covers it.
    pub const fn has_failed(&self) -> bool {
        self.failures > 0 || self.dark > 0
    }
}

/// The data of the event `playbook_on_stats`: hosts by counter.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Recap {
    ok: BTreeMap<String, u64>,
    changed: BTreeMap<String, u64>,
    failures: BTreeMap<String, u64>,
    dark: BTreeMap<String, u64>,
    skipped: BTreeMap<String, u64>,
    rescued: BTreeMap<String, u64>,
    ignored: BTreeMap<String, u64>,
    processed: BTreeMap<String, u64>,
}

/// The counters of all hosts, from the event's data; `None` if it is none.
pub(super) fn parse(event_data: &str) -> Option<BTreeMap<String, HostStats>> {
    let recap: Recap = serde_json::from_str(event_data).ok()?;
    let mut hosts: BTreeMap<String, HostStats> =
        recap.processed.keys().map(|host| (name(host), HostStats::default())).collect();
    let mut fill = |counts: BTreeMap<String, u64>, field: fn(&mut HostStats) -> &mut u64| {
        for (host, count) in counts {
            *field(hosts.entry(name(&host)).or_default()) = count;
        }
    };
    fill(recap.ok, |stats| &mut stats.ok);
    fill(recap.changed, |stats| &mut stats.changed);
    fill(recap.failures, |stats| &mut stats.failures);
    fill(recap.dark, |stats| &mut stats.dark);
    fill(recap.skipped, |stats| &mut stats.skipped);
    fill(recap.rescued, |stats| &mut stats.rescued);
    fill(recap.ignored, |stats| &mut stats.ignored);
    Some(hosts)
}

fn name(host: &str) -> String {
    readable(host, LONGEST_HOST)
}
