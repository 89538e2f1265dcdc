//! A neighbour that makes things up fills only its share of the tables, so others' reports still find room.

use bytes::Bytes;
use jiff::Timestamp;

use super::solo::{Solo, node, service, update};
use crate::mesh::{Options, SessionId};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Advertisement, ConnType, RoutingUpdate};

const MOST: usize = 200;

/// A node with a greedy and an honest neighbour, which knows a part of the honest one's mesh.
fn beset(options: Options) -> (Solo, SessionId, SessionId) {
    let mut solo = Solo::with("a", options);
    let (greedy, honest) = (solo.neighbour("greedy"), solo.neighbour("honest"));
    for i in 0..10 {
        tell(&mut solo, honest, "honest", &format!("early-{i}"), 1, 1);
    }
    (solo, greedy, honest)
}

/// Sends an update of `of` with that many links, and an advertisement of its service.
fn tell(solo: &mut Solo, session: SessionId, by: &str, of: &str, sequence: u64, links: usize) {
    let links: Vec<String> = (0..links).map(|i| format!("neighbour-{i:05}")).collect();
    let links: Vec<(&str, f64)> = links.iter().map(|to| (to.as_str(), 1.0)).collect();
    let said = update(of, &format!("{of}{sequence}"), 7, sequence, &links);
    solo.say(session, &RoutingUpdate { forwarding_node: node(by), ..said });
    solo.packet(session, advert(of, "svc", sequence, links.len()));
    solo.sent();
    solo.events();
}

fn advert(of: &str, name: &str, second: u64, size: usize) -> Bytes {
    let advertisement = Advertisement {
        node_id: node(of),
        service: service(name),
        time: Timestamp::from_second(200_000_000 + second as i64).unwrap(),
        conn_type: ConnType::DATAGRAM,
        tags: Some([("size".to_owned(), "x".repeat(20 * size))].into()),
        work_commands: None,
    };
    AdvertisementMessage { advertisement, cancel: false }.message().unwrap()
}

/// Whether the node's links are known, and whether its services are.
fn knows(solo: &Solo, name: &str) -> [bool; 2] {
    let status = solo.mesh.status(solo.now());
    let ad = |name: &str| status.advertisements.iter().any(|ad| ad.node_id == node(name));
    [status.known_connection_costs.contains_key(name), ad(name)]
}

fn honest_nodes_find_room(solo: &mut Solo, honest: SessionId) {
    for i in 0..10 {
        assert_eq!(knows(solo, &format!("early-{i}")), [true; 2], "pushed out");
        tell(solo, honest, "honest", &format!("late-{i}"), 1, 1);
        assert_eq!(knows(solo, &format!("late-{i}")), [true; 2], "kept out");
        tell(solo, honest, "honest", &format!("early-{i}"), 2, 3);
        assert_eq!(solo.said(&format!("early-{i}")).len(), 3, "kept as it was");
    }
}

#[test]
fn a_flood_of_names_and_services_leaves_room_for_others() {
    let (mut solo, greedy, honest) = beset(Options { max_nodes: MOST, ..Options::default() });
    for i in 0..2 * MOST {
        tell(&mut solo, greedy, "greedy", &format!("made-up-{i}"), 1, 1);
    }
    let told = solo.mesh.neighbours()[&node("greedy")].stats;
    assert!(told.refused as usize > 2 * MOST, "{told:?}");
    honest_nodes_find_room(&mut solo, honest);
}

#[test]
fn a_flood_of_bytes_leaves_room_for_others() {
    const BYTES: usize = 200_000;
    let (mut solo, greedy, honest) = beset(Options { max_table_bytes: BYTES, ..Options::default() });
    // Short at first, so that each is known, then ever longer.
    for sequence in 1..=20 {
        for i in 0..100 {
            let links = sequence as usize * 10;
            tell(&mut solo, greedy, "greedy", &format!("made-up-{i}"), sequence, links);
        }
    }
    let tables = solo.mesh.tables();
    assert!(tables.node_bytes as usize <= BYTES && tables.service_bytes as usize <= BYTES, "{tables:?}");
    honest_nodes_find_room(&mut solo, honest);
}

#[test]
fn a_link_counts_for_the_memory_that_it_takes() {
    let (mut solo, greedy, _) = beset(Options::default());
    tell(&mut solo, greedy, "greedy", "made-up", 1, 50);
    let counted = solo.mesh.tables().node_bytes;
    assert!(counted > 50 * 100, "{counted} bytes for 50 names that are known by this alone");
}
