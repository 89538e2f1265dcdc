//! Where the links of the mesh lead: the addresses of the neighbours that there are, and of the peers that are dialled.
//!
//! Owns the names that have been looked up. What is to be done about these addresses, it does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::node::NodeHandle;

/// How long names may take to be looked up; until they are, what was found last counts.
const PATIENCE: Duration = Duration::from_secs(1);

/// The addresses of the links' other ends, also while they are down.
#[derive(Debug, Default)]
pub(super) struct Underlay(BTreeMap<String, BTreeSet<IpAddr>>);

impl Underlay {
    /// As they are now.
    pub(super) async fn addresses(&mut self, node: &NodeHandle) -> BTreeSet<IpAddr> {
        let dialled = node.dials().into_iter().filter_map(|dial| host_and_port(&dial.address));
        let links = node.links().await.into_iter().map(|link| link.address);
        let names: BTreeSet<String> = links.chain(dialled).collect();
        self.0.retain(|name, _| names.contains(name));
        for name in names {
            if let Ok(Ok(found)) = timeout(PATIENCE, lookup_host(name.as_str())).await {
                let found = found.map(|address| address.ip().to_canonical()).collect();
                self.0.insert(name.clone(), found);
            }
        }
        self.0.values().flatten().copied().collect()
    }
}

/// Of a peer as it is shown: what carries the link, a blank, `host:port`, and the path of a WebSocket.
fn host_and_port(shown: &str) -> Option<String> {
    let (_, place) = shown.split_once(' ')?;
    place.split('/').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_s_host_is_read_as_it_is_shown() {
        for (shown, place) in [
            ("tcp-tls hop.example:27199", "hop.example:27199"),
            ("udp 192.0.2.1:5", "192.0.2.1:5"),
            ("wss [2001:db8::1]:443/mesh/x", "[2001:db8::1]:443"),
        ] {
            assert_eq!(host_and_port(shown).as_deref(), Some(place));
        }
    }
}
