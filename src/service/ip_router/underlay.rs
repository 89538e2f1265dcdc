//! The addresses that the links of the mesh lead to: those of current neighbours and of dialled peers.
//!
//! Owns the cache of looked-up names. It does not know what the addresses are used for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::node::NodeHandle;

/// How long the lookup of all names together may take. A name without an answer keeps its last addresses.
const LOOKUP_WITHIN: Duration = Duration::from_secs(1);

type Addresses = BTreeSet<IpAddr>;

/// The addresses of the links' other ends, also of dialled peers whose link is down.
#[derive(Debug, Default)]
pub(super) struct Underlay(BTreeMap<String, Name>);

#[derive(Debug, Default)]
struct Name {
    found: Addresses,
    /// The lookup under way. There is at most one for a name, because it may block a thread.
    asked: Option<JoinHandle<io::Result<Addresses>>>,
}

impl Underlay {
    /// The current addresses.
    pub(super) async fn addresses(&mut self, node: &NodeHandle) -> BTreeSet<IpAddr> {
        let dialled = node.dials().into_iter().map(|dial| dial.host_and_port);
        let names: BTreeSet<String> =
            node.links().await.into_iter().map(|link| link.address).chain(dialled).collect();
        self.of(names, look_up).await
    }

    async fn of<F>(&mut self, names: BTreeSet<String>, ask: impl Fn(String) -> F) -> BTreeSet<IpAddr>
    where
        F: Future<Output = io::Result<Addresses>> + Send + 'static,
    {
        self.0.retain(|name, _| names.contains(name));
        for name in names {
            let known = self.0.entry(name.clone()).or_default();
            known.asked.get_or_insert_with(|| tokio::spawn(ask(name)));
        }
        let end = Instant::now() + LOOKUP_WITHIN;
        for Name { found, asked } in self.0.values_mut() {
            let Some(answer) = asked else { continue };
            let Ok(answer) = timeout_at(end, answer).await else { continue };
            *asked = None;
            if let Ok(Ok(new)) = answer {
                *found = new;
            }
        }
        self.0.values().flat_map(|name| &name.found).copied().collect()
    }
}

async fn look_up(name: String) -> io::Result<Addresses> {
    Ok(lookup_host(name).await?.map(|address| address.ip().to_canonical()).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn names_without_an_answer_delay_no_other_and_are_asked_for_once() {
        let (mut underlay, asked) = (Underlay::default(), AtomicUsize::new(0));
        let names = BTreeSet::from(["a", "b", "c", "known"].map(str::to_owned));
        let found = Addresses::from([IpAddr::from([192, 0, 2, 1])]);
        let begun = Instant::now();
        for _ in 0..2 {
            let ask = |name: String| {
                let found = found.clone();
                asked.fetch_add(usize::from(name != "known"), Ordering::Relaxed);
                async move { if name == "known" { Ok(found) } else { std::future::pending().await } }
            };
            assert_eq!(underlay.of(names.clone(), ask).await, found);
        }
        assert_eq!((begun.elapsed(), asked.into_inner()), (2 * LOOKUP_WITHIN, 3));
    }
}
