//! Operations that are refused, and the answers to operations that are not.

use serde_json::{Value, json};

use super::*;
use crate::controller::store::InstanceRecord;
use crate::rpc::report::enrolment::NodeAct;

/// The code and the words of a refusal.
fn refused(site: &Site, operation: Value) -> (&'static str, String) {
    let refused = site.ask(operation).unwrap_err();
    (refused.code.known().unwrap().name(), refused.message)
}

#[test]
fn a_hop_s_health_is_not_asked_for() {
    let fabric = Fabric::new(&["e1"], true);
    fabric.change(|units| {
        let mut hop = FakeNode::runner("h1");
        hop.types.clear();
        units.nodes.insert("h1".into(), hop);
    });
    let site = Site::started(fabric, options(Discovery::Enabled));
    let is_hop = |one: &InstanceRecord| one.instance.node_type == NodeType::Hop;
    let is_ready = |one: &InstanceRecord| one.instance.node_state == NodeState::Ready;
    site.until("the hop", || site.instances().iter().any(|one| is_hop(one) && is_ready(one)));
    for store in [true, false] {
        let asked = json!({"op": "instance.health", "name": "h1", "store": store});
        let words = "h1 is a hop node: it has no work types that a health check could use";
        assert_eq!(refused(&site, asked), ("conflict", words.to_owned()));
    }
    assert_eq!(site.instance("h1").instance.health_due, None);
}

/// The operations in the audit, latest first, with their targets.
fn audit(site: &Site) -> Vec<(String, String)> {
    let rows = site.run(site.driver().store.audit(None, 100)).unwrap();
    rows.into_iter().map(|(.., row)| (row.op, row.target)).collect()
}

#[test]
fn the_audit_has_a_backup_and_a_health_check_only_if_they_are_done() {
    let site = Site::ready(&["e1"]);
    site.pass(seconds(30));
    let before = audit(&site);
    let (there, new) = (site.directory("../there.db"), site.directory("../new.db"));
    std::fs::write(&there, b"mine").unwrap();
    let backup = |path: &std::path::Path| json!({"op": "backup", "path": path});
    assert_eq!(refused(&site, backup(&there)).0, "refused");
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    let check = |name: &str| json!({"op": "instance.health", "name": name, "store": false});
    assert_eq!(refused(&site, check("nobody")).0, "not_found");
    site.fabric.set_routed("e1", false);
    site.until("e1 to be out of reach", || !site.instance("e1").instance.is_reachable_from(&OWN.into()));
    assert_eq!(refused(&site, check("e1")), ("conflict", format!("e1 cannot be reached from {OWN}")));
    assert_eq!(audit(&site), before);
    let wanted = |op: &str, target: &str| (op.to_owned(), target.to_owned());
    site.ask(check(OWN)).unwrap();
    assert_eq!(audit(&site)[0], wanted("instance.health", OWN));
    site.ask(backup(&new)).unwrap();
    assert_eq!(audit(&site)[0], wanted("backup", new.to_str().unwrap()));
    assert_eq!(audit(&site).len(), before.len() + 2);
}

#[test]
fn a_living_control_node_is_not_declared_dead() {
    let site = Site::ready(&["e1"]);
    let (code, words) = refused(&site, json!({"op": "instance.remove", "name": OWN, "dead": true}));
    assert_eq!(code, "conflict");
    assert!(words.contains("is not dead"), "{words}");
    assert!(site.instances().iter().any(|one| one.instance.name.as_str() == OWN));
    site.declare_dead("e1");
    assert!(!site.instances().iter().any(|one| one.instance.name.as_str() == "e1"));
}

#[test]
fn a_ping_tells_the_program_s_version() {
    let site = Site::ready(&[]);
    assert_eq!(site.ask(json!({"op": "ping"})).unwrap()["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn an_adjustment_is_any_share_from_zero_on() {
    let site = Site::ready(&["e1"]);
    let set = |share: Value| json!({"op": "instance.set", "name": "e1", "capacity_adjustment": share});
    for share in [0.0, 0.25, 1.0, 1.5, 9.99] {
        assert_eq!(site.ask(set(json!(share))).unwrap()["capacity_adjustment"], share);
    }
    for bad in [json!(-0.01), json!("1"), json!(1e300)] {
        let (code, words) = refused(&site, set(bad));
        assert_eq!(code, "bad_request");
        assert!(words.contains("capacity_adjustment: "), "{words}");
    }
}

#[test]
fn what_was_done_about_a_node_is_in_the_audit_under_its_own_name() {
    let site = Site::ready(&[]);
    for act in NodeAct::ALL {
        site.ask(json!({"op": "node.note", "node": "e1", "act": act})).unwrap();
        assert_eq!(audit(&site)[0], (act.name().to_owned(), "e1".to_owned()));
    }
    let before = audit(&site);
    assert_eq!(
        refused(&site, json!({"op": "node.note", "node": "e1", "act": "node.crown"})).0,
        "bad_request"
    );
    // There is no authority here.
    assert_eq!(site.ask(json!({"op": "node.list"})).unwrap()["authority"], false);
    for op in ["node.approve", "node.reject"] {
        assert_eq!(refused(&site, json!({"op": op, "node": "e1", "fingerprint": "A"})).0, "not_found");
        assert_eq!(refused(&site, json!({"op": op, "node": "e1"})).0, "bad_request");
    }
    assert_eq!(audit(&site), before);
}
