//! Submissions that are refused, and leave neither a unit nor a row.

use super::site::stream;
use super::streams::whole;
use super::*;
use crate::rpc::request::SubmitRequest;
use crate::wire::NameHash;
use crate::work::{Caller, Origin};
use serde_json::json;

/// Submits a bad payload. Returns the refusal.
fn refusal(site: &Site, payload: &[u8]) -> String {
    let why =
        site.submit_bytes(payload).expect_err(&String::from_utf8_lossy(&payload[..payload.len().min(200)]));
    assert!(why.starts_with("controller: ") || why.contains(": "), "{why}");
    why
}

fn is_clean(site: &Site) -> bool {
    site.jobs().is_empty() && site.units().is_empty()
}

#[test]
fn what_is_malformed_leaves_nothing() {
    let site = Site::ready(&["e1"]);
    for (header, why) in [
        (json!({"frks": 1}), "unknown key `frks`"),
        (json!({"retry": {"maximum": 1}}), "unknown key `retry.maximum`"),
        (json!({"kind": "health"}), "jobs of kind health are made by the controller"),
        (json!({"groups": {"template": ["nowhere"]}}), "there is no group nowhere"),
        (json!({"key": "a", "depends_on": [{"key": "a"}]}), "a job cannot depend on its own key"),
        (json!({"depends_on": [{"key": "nobody's"}]}), "nobody's"),
        (json!({"depends_on": [77]}), "77"),
    ] {
        assert!(refusal(&site, &stream(header)).contains(why), "{why}");
        assert!(is_clean(&site), "{why}");
    }
    for payload in [&b""[..], b"\n", b"hello\n", b"{}\n", b"{\"eof\": true}\n", b"\xff\xfe\n", b"[]\n"] {
        refusal(&site, payload);
        assert!(is_clean(&site), "{payload:?}");
    }
    let whole = stream(json!({"name": "x"}));
    for end in 0..whole.len() {
        let why = refusal(&site, &whole[..end]);
        assert!(why.contains("the stream ends after"), "{end}: {why}");
    }
    assert!(is_clean(&site));
    let mut behind = whole.clone();
    behind.extend_from_slice(b"{\"more\": 1}\n");
    refusal(&site, &behind);
    let long = [b"{\"controller\": 1, \"name\": \"".to_vec(), vec![b'x'; 100 << 20]].concat();
    refusal(&site, &long);
    assert!(is_clean(&site));
    site.submit_bytes(&whole).unwrap();
}

#[test]
fn what_the_store_refuses_for_good_does_not_wait_for_it() {
    let site = Site::ready(&["e1"]);
    let store = rusqlite::Connection::open(site.directory("../store.db")).unwrap();
    store.busy_timeout(seconds(5)).unwrap();
    let trigger = "CREATE TRIGGER full BEFORE INSERT ON job BEGIN SELECT RAISE(ABORT, 'no right'); END";
    store.execute_batch(trigger).unwrap();
    assert!(refusal(&site, &stream(json!({}))).contains("the store refuses: no right"));
    assert!(is_clean(&site));
    store.execute_batch("DROP TRIGGER full").unwrap();
    site.submit(json!({}));
}

#[test]
fn a_key_belongs_to_one_kind_of_job() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({"key": "a"}));
    let why = refusal(&site, &stream(json!({"key": "a", "kind": "ad_hoc"})));
    assert!(why.contains('a'), "{why}");
    assert_eq!((site.jobs().len(), site.units().len()), (1, 1));
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
}

#[test]
fn a_caller_over_the_mesh_follows_no_job_of_another_one() {
    let mut options = options(Discovery::Enabled);
    options.verify_signature = false;
    let site = Site::started(Fabric::new(&[], true), options);
    site.submit(json!({"key": "theirs"}));
    let submit = |node: &str| {
        let origin = Origin::Mesh { node: NameHash::of(node), certified: false };
        let caller = Caller { origin, ..Caller::default() };
        let registry = site.service().registry.clone();
        site.run(async {
            let request = SubmitRequest {
                node: OWN.into(),
                work_type: "controller".into(),
                ..SubmitRequest::default()
            };
            let mut submission = registry.submit(request, caller).await.map_err(|e| e.to_string())?;
            let payload = stream(json!({"key": if node == "c8" { "own" } else { "theirs" }}));
            submission.write(&payload).await.map_err(|e| e.to_string())?;
            submission.finish().await.map(drop).map_err(|error| error.to_string())
        })
    };
    assert_eq!((submit("c8"), submit("c8")), (Ok(()), Ok(())));
    let why = submit("c9").unwrap_err();
    assert!(why.contains("the key \"theirs\" belongs to the job of another caller"), "{why}");
    assert_eq!((site.jobs().len(), site.units().len()), (2, 3));
}

#[test]
fn more_than_may_wait_is_refused_by_name() {
    let mut options = options(Discovery::Enabled);
    options.bounds.max_pending = 2;
    options.bounds.max_payload = 5000;
    let site = Site::started(Fabric::new(&[], true), options);
    let jobs = [site.submit(json!({})).1, site.submit(json!({})).1];
    let why = refusal(&site, &stream(json!({})));
    assert!(why.contains('2'), "{why}");
    let why = refusal(&site, &vec![b'x'; 6000]);
    assert!(why.contains("5000"), "{why}");
    assert_eq!((site.jobs().len(), site.units().len()), (jobs.len(), jobs.len()));
}
