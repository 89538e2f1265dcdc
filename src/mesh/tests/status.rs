//! Clients see the same however often they ask, although snapshots share memory with the core.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::services::ad;
use super::solo::{Solo, millis, node, secs, service, update};
use crate::mesh::{LinkPolicy, LocalService, SessionId};
use crate::wire::ConnType;

/// A random input of the node.
fn happen(solo: &mut Solo, sessions: &mut [SessionId; 2], sequence: u64, rng: &mut SmallRng) {
    let name = |n: u8| format!("x{n}");
    let at = rng.random_range(0..2);
    let (of, to) = (name(rng.random_range(0..9)), name(rng.random_range(0..9)));
    match rng.random_range(0..12) {
        0..6 => {
            let peer = ["b", "c"][at];
            let links = match sequence / 2 % 4 {
                0 => vec![(peer, 1.0)],
                1 => vec![(peer, 2.0), (&*to, 1.0)],
                2 => vec![(&*to, 1.0)],
                _ => vec![],
            };
            let mut update = update(&of, &format!("{sequence:08}"), 1, sequence, &links);
            update.forwarding_node = node(peer);
            solo.say(sessions[at], &update);
        }
        6..9 => {
            solo.packet(sessions[at], ad(&of, &to, 1_800_000_000 + sequence as i64, rng.random_ratio(1, 3)))
        }
        9 => {
            let (peer, now) = (["b", "c"][at], solo.now());
            solo.mesh.handle_session_closed(sessions[at], now);
            solo.advance(millis(rng.random_range(0..300)));
            sessions[at] = solo.open_with(LinkPolicy::default());
            let [first, second] = [sequence, sequence + 1].map(|s| (format!("{s:08}"), s));
            solo.say(sessions[at], &update(peer, &first.0, 1, first.1, &[]));
            solo.say(sessions[at], &update(peer, &second.0, 1, second.1, &[("a", 1.0), (&*of, 1.0)]));
        }
        10 => {
            let now = solo.now();
            let _unknown_or_there = solo.mesh.forget(&node(&of), now);
        }
        _ => solo.advance(millis(rng.random_range(0..20_000))),
    }
}

#[test]
fn who_asks_often_is_shown_the_same_as_who_asks_late() {
    let offer = || LocalService {
        conn_type: ConnType::STREAM,
        tags: [("type".into(), "Control Service".into())].into(),
    };
    let mut shown = (0, 0, 0);
    for seed in 0..60 {
        let ends = [true, false].map(|asks| {
            let (mut solo, mut rng) = (Solo::new("a"), SmallRng::seed_from_u64(seed));
            let now = solo.now();
            solo.mesh.advertise(service("control"), offer(), now);
            let mut sessions = [solo.neighbour("b"), solo.neighbour("c")];
            for step in 0..200 {
                happen(&mut solo, &mut sessions, 10 + 2 * step, &mut rng);
                if asks {
                    solo.mesh.status(solo.now());
                }
            }
            // By then, the routes follow the links.
            solo.advance(secs(20));
            solo.mesh.status(solo.now())
        });
        assert!(ends[0] == ends[1], "seed {seed}: {ends:?}");
        let [status, _] = ends;
        shown.0 += status.known_connection_costs.len();
        shown.1 += status.routing_table.len();
        shown.2 += status.advertisements.len();
    }
    assert!(shown.0 > 300 && shown.1 > 100 && shown.2 > 300, "too little happened: {shown:?}");
}
