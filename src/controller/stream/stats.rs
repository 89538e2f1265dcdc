//! What a playbook did on each host: the counters of its recap. A recap may name any number of hosts, so only a bounded
//! number is kept, failed and unreachable hosts first; the rest is counted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::controller::core::readable;
pub use crate::rpc::report::controller::HostStats;

/// The most hosts of a recap that are kept.
pub const MOST_HOSTS: usize = 10_000;
/// The most bytes of a host's name. The name is part of a key in the store, and PostgreSQL limits the size of keys.
const LONGEST_HOST: usize = 255;

impl HostStats {
    fn set(&mut self, list: List, count: u64) {
        let counter = match list {
            List::Ok => &mut self.ok,
            List::Changed => &mut self.changed,
            List::Failures => &mut self.failures,
            List::Dark => &mut self.dark,
            List::Skipped => &mut self.skipped,
            List::Rescued => &mut self.rescued,
            List::Ignored => &mut self.ignored,
            List::Processed | List::Other => return,
        };
        *counter = count;
    }
}

/// How many hosts a recap has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecapCounts {
    /// All of them.
    pub hosts: u64,
    /// Hosts on which a task failed.
    pub failed: u64,
    /// Hosts that could not be reached.
    pub unreachable: u64,
    /// Failed and unreachable hosts that are not kept.
    pub left_out: u64,
}

/// A recap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recap {
    /// Of all hosts.
    pub counts: RecapCounts,
    /// The hosts that are kept, at most [`MOST_HOSTS`].
    pub hosts: BTreeMap<String, HostStats>,
}

/// The lists of a recap: each has hosts, and a number for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum List {
    Ok,
    Changed,
    Failures,
    Dark,
    Skipped,
    Rescued,
    Ignored,
    Processed,
    #[serde(other)]
    Other,
}

/// Reads the data of the event `playbook_on_stats`; `None` if the text is no recap. The text is read twice: first for
/// the failed hosts, so that these are kept before all others.
pub(super) fn parse(event_data: &str) -> Option<Recap> {
    let mut recap = Recap::default();
    each_entry(event_data, |list, host, count| match list {
        List::Failures | List::Dark if count > 0 => recap.add_failed(list, name(host)),
        _ => {}
    })?;
    let mut lengths: BTreeMap<List, u64> = BTreeMap::new();
    each_entry(event_data, |list, host, count| {
        *lengths.entry(list).or_default() += 1;
        let has_room = recap.hosts.len() < MOST_HOSTS;
        let host = name(host);
        // A host that finds no room at its first entry finds none later.
        match has_room {
            true => recap.hosts.entry(host).or_default().set(list, count),
            false => recap.hosts.get_mut(&host).into_iter().for_each(|stats| stats.set(list, count)),
        }
    })?;
    // The list `processed`, if it is there, has all hosts.
    let longest = lengths.into_values().max().unwrap_or(0);
    recap.counts.hosts = longest.max(recap.hosts.len() as u64);
    Some(recap)
}

impl Recap {
    fn add_failed(&mut self, list: List, host: String) {
        match list {
            List::Dark => self.counts.unreachable += 1,
            _ => self.counts.failed += 1,
        }
        if self.hosts.contains_key(&host) {
            return;
        }
        match self.hosts.len() < MOST_HOSTS {
            true => drop(self.hosts.insert(host, HostStats::default())),
            false => self.counts.left_out += 1,
        }
    }
}

fn name(host: &str) -> String {
    readable(host, LONGEST_HOST)
}

/// Calls `see` with each entry of each list; `None` if the text is no recap.
fn each_entry(event_data: &str, see: impl FnMut(List, &str, u64)) -> Option<()> {
    let mut text = serde_json::Deserializer::from_str(event_data);
    text.deserialize_map(Lists(see)).ok()
}

struct Lists<F>(F);

impl<'de, F: FnMut(List, &str, u64)> Visitor<'de> for Lists<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lists of hosts")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(list) = map.next_key()? {
            match list {
                List::Other => drop(map.next_value::<IgnoredAny>()?),
                list => map.next_value_seed(Entries { list, see: &mut self.0 })?,
            }
        }
        Ok(())
    }
}

struct Entries<'a, F> {
    list: List,
    see: &'a mut F,
}

/// A host's name, borrowed from the text unless something in it is escaped.
#[derive(Deserialize)]
struct Host<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(List, &str, u64)> DeserializeSeed<'de> for Entries<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, entries: D) -> Result<(), D::Error> {
        entries.deserialize_map(self)
    }
}

impl<'de, F: FnMut(List, &str, u64)> Visitor<'de> for Entries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hosts with a number each")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Host(host), count)) = map.next_entry::<Host<'de>, u64>()? {
            (self.see)(self.list, &host, count);
        }
        Ok(())
    }
}
