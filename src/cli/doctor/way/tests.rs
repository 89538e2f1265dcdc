//! Tests each check on a fault of its own, and that none finds anything if all is well.

use serde_json::json;

use super::*;
use crate::rpc::report;

/// The way a - hop - e1, on which nothing is wrong.
fn well() -> Way {
    let mesh = report::read(&json!({
        "RoutingTable": {"hop": "hop", "e1": "hop"},
        "KnownConnectionCosts": {"a": {"hop": 1.0}, "hop": {"a": 1.0, "e1": 1.0}, "e1": {"hop": 1.0}, "e2": {}},
        "Advertisements": [{"NodeID": "e1", "Service": "control", "Time": "2026-11-26T12:00:00Z", "ConnType": 1,
            "Tags": null, "WorkCommands": [{"WorkType": "cat", "Secure": false}, {"WorkType": "safe", "Secure": true}]}]}))
    .unwrap();
    let hop =
        |node: &str| Hop { node: node.to_owned(), answered: 20, fastest: Some(1_000_000), ..Hop::default() };
    let hops = vec![hop("hop"), hop("e1")];
    Way { from: "a".to_owned(), to: "e1".to_owned(), signs: true, mesh, hops, ..Way::default() }
}

fn all(way: &Way) -> Vec<Finding> {
    way.findings().into_iter().chain(way.hops.iter().flat_map(|hop| hop.findings(way.signs))).collect()
}

fn refused(way: &mut Way, cause: NoAnswerCause) {
    way.hops[1].report.refused = Some(NoAnswer::new(cause, "in its words"));
}

#[test]
fn nothing_is_told_where_all_is_well() {
    assert_eq!(all(&well()), []);
    assert_eq!(all(&Way { work_type: Some("safe".to_owned()), ..well() }), []);
    assert_eq!(all(&Way { to: "a".to_owned(), hops: Vec::new(), ..well() }), []);
    assert_eq!(well().title(), "the way to e1: a, hop 1.0ms, e1 1.0ms");
}

type Change = fn(&mut Way);

const FAULTS: &[(Change, Severity, &str, &str)] = &[
    (|way| way.to = "e11".to_owned(), Severity::Error, "the mesh knows no node e11", "did you mean e1?"),
    (
        |way| way.to = "elsewhere".to_owned(),
        Severity::Error,
        "the mesh knows no node elsewhere",
        "meshctl status",
    ),
    (
        |way| way.to = "e2".to_owned(),
        Severity::Error,
        "no route leads to e2",
        "on e2: systemctl status meshd",
    ),
    (
        |way| {
            way.to = "e2".to_owned();
            let outage = json!([{"lost": ["hop2"], "behind": ["e2"], "since": "2026-11-26T12:00:00Z"}]);
            way.mesh.outages = Some(report::read(&outage).unwrap());
            way.hops.clear();
        },
        Severity::Error,
        "hop2 is out of reach since 2026-11-26T12:00:00Z; 1 node behind it",
        "on hop2: systemctl status meshd",
    ),
    (
        |way| way.broken = Some("no route to node".to_owned()),
        Severity::Error,
        "no answer comes from behind e1: no route to node",
        "on e1: meshctl doctor",
    ),
    (
        |way| (way.broken, way.hops) = (Some("timeout".to_owned()), vec![way.hops.remove(0)]),
        Severity::Error,
        "e1, which is behind hop, does not answer: timeout",
        "on e1: systemctl status meshd",
    ),
    (
        |way| (way.hops[0].answered, way.hops[1].answered) = (15, 12),
        Severity::Error,
        "5 of 20 pings were lost between a and hop",
        "on a: meshctl link test hop",
    ),
    (
        |way| way.hops[1].answered = 19,
        Severity::Warning,
        "1 of 20 pings were lost between hop and e1",
        "on hop: meshctl link test e1",
    ),
    (|way| way.hops[1].ahead = 3600, Severity::Error, "its clock is 3600 s ahead of this node's", "chronyc"),
    (|way| way.hops[1].ahead = -10, Severity::Warning, "its clock is 10 s behind this node's", "chronyc"),
    (
        |way| refused(way, NoAnswerCause::WrongKey),
        Severity::Error,
        "refuses all signed work",
        "work-verification of e1",
    ),
    (
        |way| refused(way, NoAnswerCause::NoKey),
        Severity::NotAsked,
        "a hop node needs none",
        "configure work-verification there",
    ),
    (
        |way| refused(way, NoAnswerCause::OtherMake),
        Severity::NotAsked,
        "a receptor node",
        "on the host of e1",
    ),
    (|way| refused(way, NoAnswerCause::NoService), Severity::NotAsked, "in its words", "on the host of e1"),
    (|way| refused(way, NoAnswerCause::Firewall), Severity::NotAsked, "in its words", "firewallrule"),
    (|way| refused(way, NoAnswerCause::Tls), Severity::NotAsked, "in its words", "--tls-client"),
    (
        |way| way.work_type = Some("catt".to_owned()),
        Severity::Error,
        "e1 has no work type catt: it has cat, safe",
        "did you mean cat?",
    ),
];

#[test]
fn each_fault_is_told_once_with_its_remedy() {
    for (change, severity, what, remedy) in FAULTS {
        let mut way = well();
        change(&mut way);
        let found = all(&way);
        assert!(found.len() == 1 && found[0].severity == *severity, "{what}: {found:?}");
        assert!(found[0].to_string().contains(what), "{what}: {}", found[0]);
        assert!(found[0].remedy.as_ref().is_some_and(|text| text.contains(remedy)), "{remedy}: {}", found[0]);
    }
}

#[test]
fn a_node_that_cannot_sign_is_told_what_it_misses() {
    let way = Way { signs: false, work_type: Some("safe".to_owned()), ..well() };
    assert_eq!(all(&way).len(), 1);
    assert!(all(&way)[0].what.contains("demands signatures"), "{:?}", all(&way));
    let mut way = Way { signs: false, ..well() };
    refused(&mut way, NoAnswerCause::Unsigned);
    assert!(all(&way)[0].remedy.as_ref().is_some_and(|text| text.contains("configure work-signing here")));
}

#[test]
fn pings_without_streams_mean_that_large_packets_are_lost() {
    let mut way = well();
    refused(&mut way, NoAnswerCause::NoStream);
    let found = all(&way);
    assert_eq!(
        found.iter().map(|one| one.severity).collect::<Vec<_>>(),
        [Severity::Error, Severity::NotAsked]
    );
    assert!(found[0].what.contains("large packets are lost between hop and e1 (MTU)"), "{found:?}");
}

#[test]
fn a_token_refused_for_its_time_is_a_fault_of_a_clock() {
    let mut way = well();
    refused(&mut way, NoAnswerCause::Clock);
    way.hops[1].ahead = 30;
    let found = all(&way);
    assert_eq!(
        found.iter().map(|one| one.severity).collect::<Vec<_>>(),
        [Severity::Error, Severity::NotAsked]
    );
    assert!(found[0].what.contains("30 s ahead") && found[0].what.contains("in its words"), "{found:?}");
}

#[test]
fn clocks_are_apart_by_as_little_as_explains_it() {
    let at = |second| Timestamp::from_second(second).unwrap();
    assert_eq!(ahead(at(100), at(90), at(110)), 0);
    assert_eq!(ahead(at(200), at(90), at(110)), 90);
    assert_eq!(ahead(at(30), at(90), at(110)), -60);
}
