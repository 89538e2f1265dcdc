//! Updates that others send in a neighbour's name, and links that only one end lists.

use super::services::ad;
use super::solo::{Solo, millis, node, secs, service, update};
use crate::mesh::SessionId;
use crate::wire::RoutingUpdate;

fn via(forwarder: &str, update: RoutingUpdate) -> RoutingUpdate {
    RoutingUpdate { forwarding_node: node(forwarder), ..update }
}

fn route(solo: &Solo, to: &str) -> Option<String> {
    solo.mesh.routing_table().get(&node(to)).map(ToString::to_string)
}

/// A node with neighbours `b` and `c`; `b` is linked to `x`, and has sent its own updates.
fn between() -> (Solo, SessionId, SessionId) {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    solo.say(b, &update("b", "b_and_x_", 1, 3, &[("a", 1.0), ("x", 1.0)]));
    solo.say(b, &via("b", update("x", "x_and_b_", 5, 1, &[("b", 1.0)])));
    solo.advance(millis(500));
    solo.sent();
    assert_eq!(route(&solo, "x").as_deref(), Some("b"));
    (solo, b, c)
}

#[test]
fn what_comes_in_a_neighbours_name_by_another_way_is_told_to_the_neighbour_alone() {
    let notice = RoutingUpdate { suspected_duplicate: 1, ..update("b", "notice__", 0, 9, &[]) };
    let altered = update("b", "altered_", 1, u64::MAX, &[("c", 1.0)]);
    for lie in [update("b", "lie_____", 1, 99, &[]), update("b", "lie_____", 9, 1, &[]), altered, notice] {
        let (mut solo, b, c) = between();
        solo.say(c, &via("c", lie.clone()));
        solo.say(c, &via("c", lie.clone()));
        let sent = solo.sent();
        assert!(matches!(&sent[..], [(to, _)] if *to == b), "once, to its owner: {sent:?}");
        solo.advance(secs(1));
        assert_eq!(route(&solo, "x").as_deref(), Some("b"), "{lie:?}");
        // The neighbour's own update counts, and is passed on to the others.
        solo.say(b, &update("b", "b_alone_", 1, 4, &[("a", 1.0)]));
        assert!(solo.sent().iter().any(|(to, _)| *to == c));
        solo.advance(secs(1));
        assert_eq!(route(&solo, "x"), None);
    }
}

#[test]
fn of_several_lies_with_one_id_the_neighbour_is_told_each() {
    let (mut solo, b, c) = between();
    let lies = [(99, "c"), (500, "c"), (500, "x")]
        .map(|(sequence, to)| update("b", "lie_____", 1, sequence, &[(to, 1.0)]));
    for lie in &lies {
        solo.say(c, &via("c", lie.clone()));
        solo.say(c, &via("c", lie.clone()));
    }
    assert_eq!(solo.updates_to(b), lies.map(|lie| via("a", lie)));
}

/// A node may alter an update that it passes on. The altered copy may come before the genuine ones or after them.
#[test]
fn an_altered_copy_with_the_same_version_and_id_is_put_right_by_the_next_one() {
    let (mut solo, b, c) = between();
    let genuine = update("x", "x_latest", 5, 2, &[("b", 1.0)]);
    let emptied = via("c", RoutingUpdate { connections: Default::default(), ..genuine.clone() });
    solo.say(c, &emptied);
    assert_eq!(solo.said("x"), [] as [&str; 0]);
    solo.say(b, &via("b", genuine.clone()));
    assert_eq!(solo.said("x"), ["b"]);
    solo.sent();
    // The greater update is believed everywhere, even where the genuine one is known, so that its owner hears of it.
    let greater = update("x", "x_latest", 5, 2, &[("c", 1.0)]);
    let again = via("c", greater);
    for (copy, links, copies) in
        [(emptied, "b", 0), (again.clone(), "c", 1), (again, "c", 0), (via("c", genuine), "c", 0)]
    {
        solo.say(c, &copy);
        let passed_on = solo.updates_to(b).len();
        assert_eq!((solo.said("x"), passed_on), (vec![links.to_owned()], copies), "{copy:?}");
    }
}

/// A neighbour's newer update may come by another way first. It counts once the neighbour sends it, or has gone.
#[test]
fn what_a_neighbour_said_elsewhere_counts_once_its_session_has_ended() {
    let (mut solo, b, c) = between();
    solo.say(c, &via("c", update("c", "c_and_b_", 1, 3, &[("a", 1.0), ("b", 1.0)])));
    solo.say(c, &via("c", update("b", "new_life", 2, 1, &[("c", 1.0)])));
    solo.sent();
    let now = solo.now();
    solo.mesh.handle_session_closed(b, now);

    solo.advance(secs(1));
    assert_eq!(route(&solo, "b").as_deref(), Some("c"));
}

#[test]
fn a_neighbours_services_are_its_own_to_tell() {
    let (mut solo, b, c) = between();
    solo.packet(b, ad("b", "svc", 10, false));
    solo.sent();
    for lie in [ad("b", "svc", 20, true), ad("b", "other", 20, false)] {
        solo.packet(c, lie.clone());
        assert_eq!(solo.sent(), [], "a receptor node would believe what it hears of itself");
    }
    let known = solo.mesh.status(solo.now()).advertisements;
    assert!(matches!(&known[..], [only] if only.service == service("svc")), "{known:?}");
}

/// A receptor node takes no ID twice. So it would keep an update from `x` that has an ID which it knows.
#[test]
fn a_receptor_neighbour_that_has_not_taken_our_word_is_told_it_under_another_id() {
    let (mut solo, b, c) = between();
    solo.say(c, &via("c", update("x", "known_id", 5, 9, &[("c", 1.0)])));
    assert!(matches!(&solo.updates_to(b)[..], [told] if told.update_id == "known_id"));
    solo.advance(millis(100));
    solo.sent();
    for (sequence, again) in [(2, true), (3, false), (9, false)] {
        solo.say(b, &via("b", update("x", "of_x____", 5, sequence, &[("b", 1.0)])));
        let told: Vec<_> = solo.updates_to(b);
        assert_eq!(told.len(), usize::from(again), "{sequence}: {told:?}");
        assert!(told.iter().all(|told| told.sequence == 9 && told.update_id != "known_id"), "{told:?}");
    }
}

#[test]
fn a_neighbour_that_has_not_listed_us_yet_does_not_speak_for_itself() {
    let (mut solo, _b, c) = between();
    let d = solo.open_with(Default::default());
    solo.say(d, &update("d", "greeting", 7, 1, &[]));
    solo.sent();
    solo.say(c, &via("c", update("d", "elsewher", 7, 2, &[("c", 1.0)])));
    assert!(solo.sent().iter().any(|(to, _)| *to != d && *to != c), "passed on");
}

/// A node that claims a link alone must not get on the path to the other end.
#[test]
fn a_link_counts_when_both_ends_list_it_at_the_larger_cost() {
    let (mut solo, b, c) = between();
    // A link that one end claims counts neither if it is cheap nor if there is no other path.
    solo.say(c, &update("c", "claims_x", 1, 3, &[("a", 1.0), ("x", 1e-9), ("z", 1.0)]));
    solo.say(c, &via("c", update("z", "z_alone_", 1, 1, &[("y", 1.0)])));
    solo.advance(secs(1));
    assert_eq!((route(&solo, "x").as_deref(), route(&solo, "z")), (Some("b"), None));
    assert!(!solo.mesh.status(solo.now()).known_connection_costs[&node("c")].contains_key("x"));
    // Both ends list the link, and one of them gives it a low cost.
    solo.say(b, &via("b", update("x", "x_to_both", 5, 2, &[("b", 1.0), ("c", 4.0)])));
    solo.advance(secs(1));
    assert_eq!(route(&solo, "x").as_deref(), Some("b"), "by c it costs 5");
    // For links with us, our own list decides.
    solo.say(b, &via("b", update("x", "x_to_us_", 5, 3, &[("a", 1e-9), ("b", 1.0), ("c", 0.5)])));
    solo.advance(secs(1));
    let known = solo.mesh.status(solo.now()).known_connection_costs;
    assert!(!known[&node("x")].contains_key("a") && !known[&node("a")].contains_key("x"), "{known:?}");
    assert_eq!(route(&solo, "x").as_deref(), Some("c"), "the larger of 0.5 and 1e-9");
}

/// A round of updates must not copy a table of many thousand links.
#[test]
fn what_says_nothing_new_changes_no_table() {
    let (mut solo, b, _c) = between();
    for sequence in 10..12 {
        let before = solo.mesh.lsdb.links().clone();
        solo.say(b, &via("b", update("x", "x_again_", 5, sequence, &[("b", 1.0), ("y", 1.0)])));
        assert!(std::sync::Arc::ptr_eq(&before, solo.mesh.lsdb.links()));
    }
}

/// The links that count are the same from both ends, for any updates in any order, even if a node lists itself.
#[test]
fn what_counts_is_the_same_from_both_ends() {
    use rand::{RngExt, SeedableRng};
    let mut counted = 0;
    for seed in 0..50 {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
        let mut solo = Solo::new("a");
        let (b, _c) = (solo.neighbour("b"), solo.neighbour("c"));
        for sequence in 0..100 {
            let name = |n: u8| ["a", "c", "u", "v", "w", "x", "y", "z"][usize::from(n)];
            let of = name(rng.random_range(2..8));
            let cost = f64::from(rng.random_range(1..3));
            let links: Vec<(&str, f64)> = (0..8).filter(|_| rng.random()).map(|n| (name(n), cost)).collect();
            solo.say(b, &via("b", update(of, &format!("{sequence:08}"), 1, sequence, &links)));
            if rng.random_ratio(1, 20) {
                let now = solo.now();
                let _reachable_or_unknown = solo.mesh.forget(&node(of), now);
            }
            solo.advance(millis(rng.random_range(0..50)));
        }
        let known = solo.mesh.status(solo.now()).known_connection_costs;
        for (from, links) in &*known {
            for (to, cost) in &**links {
                assert_eq!(
                    known.get(to).and_then(|back| back.get(from)),
                    Some(cost),
                    "seed {seed}: {from} {to}"
                );
            }
        }
        counted += known.values().map(|links| links.len()).sum::<usize>();
    }
    assert!(counted > 500, "too little happened: {counted}");
}
