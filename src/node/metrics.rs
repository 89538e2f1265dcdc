//! All that a node counts, for whoever collects metrics: the facade of the `metrics` crate, any exporter behind it.
//!
//! Nothing here counts: the core, the links and the queues do, and are read when [`Publisher::publish`] is called,
//! as an exporter does for each of its readers. A node whose metrics nobody reads pays nothing for them.

use std::collections::BTreeMap;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::{LinkStatus, NodeHandle, Queues};
use crate::mesh::{Counters, Status, Tables};

/// Tells one node's numbers. Counters of links go on over the sessions that carry them, by the neighbour's name.
#[derive(Debug, Default)]
pub struct Publisher {
    /// What has been told of each session so far.
    told: BTreeMap<u64, BTreeMap<&'static str, u64>>,
}

impl Publisher {
    /// Nothing told yet; says what each number means.
    pub fn new() -> Self {
        for (name, meaning, _) in counts(&Counters::default()) {
            describe_counter!(name, meaning);
        }
        for (name, meaning, _) in sizes(&Tables::default()) {
            let unit = if name.ends_with("_bytes") { Unit::Bytes } else { Unit::Count };
            describe_gauge!(name, unit, meaning);
        }
        describe_gauge!(CORE_QUEUE, "Messages that wait for the protocol's task");
        describe_gauge!(SERVICE_QUEUE, Unit::Bytes, "Datagrams at this node's services that wait to be read");
        describe_counter!(SERVICE_DROPPED, "Datagrams that found no room at this node's services");
        describe_gauge!("meshd_routes", "Nodes that can be reached");
        describe_gauge!("meshd_link_cost", "Cost of the link to a neighbour");
        describe_gauge!("meshd_link_rtt_seconds", Unit::Seconds, "Round trip to a neighbour, if it is known");
        describe_gauge!("meshd_link_probe_loss", "Share of the latest probes without an answer, 0 to 1");
        describe_gauge!("meshd_link_queued_bytes", Unit::Bytes, "Bytes that wait to be sent");
        for (name, meaning, _) in CARRIED {
            describe_counter!(name, meaning);
        }
        Self::default()
    }

    /// Tells the recorder of this process (or of this thread) how the node stands now.
    pub async fn publish(&mut self, node: &NodeHandle) {
        let (status, links) = (node.status().await, node.links().await);
        self.tell(&status, &links, node.queues());
    }

    fn tell(&mut self, status: &Status, links: &[LinkStatus], queues: Queues) {
        let Queues { core, service_bytes, service_dropped } = queues;
        gauge!(CORE_QUEUE).set(core as f64);
        gauge!(SERVICE_QUEUE).set(service_bytes as f64);
        counter!(SERVICE_DROPPED).absolute(service_dropped);
        for (name, _, value) in counts(&status.counters) {
            counter!(name).absolute(value);
        }
        for (name, _, value) in sizes(&status.tables) {
            gauge!(name).set(value as f64);
        }
        gauge!("meshd_routes").set(status.routing_table.len() as f64);
        self.told.retain(|session, _| links.iter().any(|link| link.session == *session));
        for link in links {
            self.tell_link(link);
        }
    }

    fn tell_link(&mut self, link: &LinkStatus) {
        let peer = || link.node_id.to_string();
        gauge!("meshd_link_cost", "peer" => peer()).set(link.cost.get());
        gauge!("meshd_link_rtt_seconds", "peer" => peer())
            .set(link.rtt.map_or(f64::NAN, |time| time.as_secs_f64()));
        gauge!("meshd_link_probe_loss", "peer" => peer()).set(link.probe_loss);
        gauge!("meshd_link_queued_bytes", "peer" => peer()).set(link.queued_bytes as f64);
        let told = self.told.entry(link.session).or_default();
        for (name, _, of) in CARRIED {
            let value = of(link);
            let before = told.insert(name, value).unwrap_or(0);
            counter!(name, "peer" => peer(), "transport" => link.transport)
                .increment(value - before.min(value));
        }
    }
}

const CORE_QUEUE: &str = "meshd_core_queued_messages";
const SERVICE_QUEUE: &str = "meshd_services_queued_bytes";
const SERVICE_DROPPED: &str = "meshd_services_dropped_total";

type Row = (&'static str, &'static str, u64);

/// The core's counters. Taken apart by name, so that none can be left out.
fn counts(counters: &Counters) -> [Row; 24] {
    let Counters {
        malformed,
        no_route,
        expired,
        blocked,
        unknown_name,
        unintroduced,
        no_room,
        no_room_for_services,
        updates_heard,
        updates_accepted,
        advertisements_heard,
        advertisements_accepted,
        floods,
        flood_copies,
        own_updates,
        route_computations,
        route_changes,
        sessions_established,
        sessions_ended,
        silent_neighbours,
        probes,
        repairs,
        late_wakeups,
        forgotten,
    } = *counters;
    [
        ("meshd_malformed_total", "Messages that could not be read", malformed),
        ("meshd_dropped_no_route_total", "Datagrams for which there was no route", no_route),
        ("meshd_dropped_expired_total", "Datagrams whose hops ran out here", expired),
        ("meshd_dropped_blocked_total", "Datagrams that the firewall held back", blocked),
        ("meshd_dropped_unknown_name_total", "Datagrams of nodes whose names are unknown", unknown_name),
        ("meshd_dropped_unintroduced_total", "Datagrams before an introduction", unintroduced),
        ("meshd_refused_nodes_total", "Updates of nodes for which there was no room", no_room),
        ("meshd_refused_services_total", "Advertisements for which there was no room", no_room_for_services),
        ("meshd_updates_heard_total", "Routing updates that came in", updates_heard),
        ("meshd_updates_accepted_total", "Routing updates that were news", updates_accepted),
        ("meshd_advertisements_heard_total", "Advertisements that came in", advertisements_heard),
        ("meshd_advertisements_accepted_total", "Advertisements that were news", advertisements_accepted),
        ("meshd_floods_total", "Messages flooded, each counted once", floods),
        ("meshd_flood_copies_total", "Copies of flooded messages that were sent", flood_copies),
        ("meshd_own_updates_total", "Own routing updates flooded", own_updates),
        ("meshd_route_computations_total", "Computations of the routes", route_computations),
        ("meshd_route_changes_total", "Computations that changed the routes", route_changes),
        ("meshd_sessions_established_total", "Sessions established", sessions_established),
        ("meshd_sessions_ended_total", "Established sessions that ended", sessions_ended),
        ("meshd_silent_neighbours_total", "Sessions whose peers fell silent", silent_neighbours),
        ("meshd_probes_total", "Probes sent to neighbours", probes),
        ("meshd_repairs_total", "Times that a neighbour was told what floods had missed", repairs),
        ("meshd_late_wakeups_total", "Times that this node was woken late", late_wakeups),
        ("meshd_forgotten_total", "Nodes forgotten", forgotten),
    ]
}

fn sizes(tables: &Tables) -> [Row; 9] {
    let Tables { nodes, node_bytes, absent, forgotten, services, service_bytes, withdrawn, names, seen } =
        *tables;
    [
        ("meshd_known_nodes", "Nodes whose links are known", nodes),
        ("meshd_known_nodes_bytes", "Bytes of their updates, and what each link in them takes", node_bytes),
        ("meshd_absent_nodes", "Known nodes that cannot be reached", absent),
        ("meshd_forgotten_nodes", "Forgotten nodes that are not believed by an echo", forgotten),
        ("meshd_known_services", "Services of other nodes", services),
        ("meshd_known_services_bytes", "Bytes of their advertisements", service_bytes),
        ("meshd_withdrawn_services", "Withdrawn services that are not believed by an echo", withdrawn),
        ("meshd_known_names", "Names known by their hashes", names),
        ("meshd_seen_updates", "Updates of doubtful origin that are not passed on again", seen),
    ]
}

/// A number of one session.
type OfLink = fn(&LinkStatus) -> u64;

/// What one session has carried.
const CARRIED: [(&str, &str, OfLink); 10] = [
    ("meshd_link_packets_in_total", "Messages received on a link", |link| link.packets_in),
    ("meshd_link_bytes_in_total", "Bytes received on a link", |link| link.bytes_in),
    ("meshd_link_packets_out_total", "Messages sent on a link", |link| link.packets_out),
    ("meshd_link_bytes_out_total", "Bytes sent on a link", |link| link.bytes_out),
    ("meshd_link_dropped_total", "Datagrams that found no room in a link's queue", |link| link.dropped),
    ("meshd_link_updates_total", "Routing updates that a neighbour has told", |link| link.told.updates),
    ("meshd_link_new_nodes_total", "Unknown nodes that a neighbour has told of", |link| link.told.new_nodes),
    ("meshd_link_advertisements_total", "Advertisements that a neighbour has told", |link| {
        link.told.advertisements
    }),
    ("meshd_link_refused_total", "What a neighbour told and there was no room for", |link| link.told.refused),
    ("meshd_link_malformed_total", "Messages of a neighbour that could not be read", |link| {
        link.told.malformed
    }),
];

#[cfg(test)]
mod tests;
