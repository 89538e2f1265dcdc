//! Which nodes take jobs: hybrids, nodes that want signatures, nodes without TLS, and nodes with the name of a group.

use super::streams::whole;
use super::*;
use crate::controller::core::{Capacities, Cpus, JobId, Rates};
use serde_json::json;

fn finish(site: &Site, job: JobId) {
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
}

/// Why an instance does not take a job.
fn why(site: &Site, job: JobId, node: &str) -> Option<String> {
    let require_tls = site.options.require_tls;
    let driver = site.driver();
    let explained =
        site.run(driver.store.explain(job, require_tls, driver.placer.patience())).unwrap().waits.unwrap();
    let of_node = explained.groups.iter().flat_map(|group| &group.instances).find(|one| one.name == node);
    of_node.unwrap_or_else(|| panic!("{node} is not in {explained:?}")).why.clone()
}

#[test]
fn a_hybrid_control_node_runs_jobs_itself() {
    let options = ControllerOptions { node_type: NodeType::Hybrid, ..options(Discovery::Enabled) };
    let site = Site::started(Fabric::new(&[], true), options);
    site.until("it to be ready", || site.instances().iter().any(|one| one.instance.capacity() > 0));
    let own = site.instance(OWN).instance;
    assert_eq!((own.node_type, own.node_state), (NodeType::Hybrid, NodeState::Ready));
    let (_, job) = site.submit(json!({"forks": 3}));
    let child = site.running(job);
    let request = site.fabric.look(|units| units.there[&child].request.clone());
    assert_eq!((request.node.as_str(), request.work_type.as_str()), (OWN, "controller-runner"));
    assert!(!request.signed && request.tls.is_none());
    let row = site.job(job).row;
    assert_eq!(row.controller_node, row.execution_node);
    let load = site.run(site.driver().store.overview()).unwrap().loads.instances[0];
    assert_eq!(load.consumed, row.impact + 1, "both impacts are its own");
    finish(&site, job);
}

#[test]
fn a_hybrid_keeps_its_room_when_forks_are_counted_in_another_way() {
    let options = ControllerOptions { node_type: NodeType::Hybrid, ..options(Discovery::Enabled) };
    let mut site = Site::started(Fabric::new(&[], true), options);
    site.until("it to be ready", || site.instances().iter().any(|one| one.instance.capacity() > 0));
    for mib_per_fork in [100, 200] {
        site.options.mib_per_fork = mib_per_fork;
        site.set_options();
        let record = site.instance(OWN);
        let cpus = Cpus::of_tenths(record.cpu);
        let measured = Capacities::measure(cpus, record.memory, &Rates { mib_per_fork, ..Rates::default() });
        let left = measured.beside_controller(cpus);
        assert!(left.mem < measured.mem);
        site.until("its capacity", || site.instance(OWN).instance.capacities == left);
    }
}

#[test]
fn children_are_signed_where_their_type_wants_it_and_only_there() {
    for signs in [true, false] {
        let fabric = Fabric::new(&["e1"], signs);
        fabric
            .change(|units| units.nodes.get_mut("e1").unwrap().types = vec![("ansible-runner".into(), true)]);
        let site = Site::started(fabric, options(Discovery::Enabled));
        let (_, job) = {
            site.until("e1", || site.instances().iter().any(|one| one.instance.offer.secure));
            site.submit(json!({}))
        };
        if signs {
            let child = site.running(job);
            assert!(site.fabric.look(|units| units.there[&child].request.signed));
            finish(&site, job);
        } else {
            site.until("e1 to be ready", || site.instance("e1").instance.node_state == NodeState::Ready);
            assert_eq!(why(&site, job, "e1").as_deref(), Some("needs_signature"));
            let wanted = "waiting for a signing key for default";
            site.soon("its explanation", || site.explanation(job) == wanted);
        }
    }
}

#[test]
fn a_node_without_tls_gets_no_job_where_tls_is_required() {
    let profile = Some("mesh".to_owned());
    let options =
        ControllerOptions { require_tls: true, tls_client: profile.clone(), ..options(Discovery::Enabled) };
    let site = Site::started(Fabric::new(&["e1"], true), options);
    site.until("e1 to be ready", || {
        site.instances().iter().any(|one| one.instance.name.as_str() == "e1" && one.instance.capacity() > 0)
    });
    let (_, job) = site.submit(json!({}));
    assert_eq!(why(&site, job, "e1").as_deref(), Some("needs_tls"));
    let wanted = "waiting for an instance with TLS in default";
    site.soon("its explanation", || site.explanation(job) == wanted);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().tls = true);
    site.fabric.advertise();
    let child = site.running(job);
    assert_eq!(site.fabric.look(|units| units.there[&child].request.tls.clone()), profile);
    finish(&site, job);
}

#[test]
fn a_node_with_the_name_of_a_group_harms_nobody() {
    let site = Site::ready(&["e1"]);
    site.fabric.change(|units| units.nodes.insert("default".into(), FakeNode::runner("default")));
    site.fabric.advertise();
    site.pass(seconds(60));
    let names: Vec<_> = site.instances().iter().map(|one| one.instance.name.to_string()).collect();
    assert_eq!(names, [OWN, "e1"]);
    let (_, job) = site.submit(json!({}));
    finish(&site, job);
}

#[test]
fn what_no_operator_has_taken_is_no_instance_and_gets_no_job() {
    let mut site = Site::started(Fabric::new(&["e1"], true), options(Discovery::Disabled));
    let found = |site: &Site| {
        let found = site.operate(json!({"op": "instance.list", "found": true}));
        found["found"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    site.until("e1 to be found", || found(&site) == ["e1"]);
    let create = json!({"op": "group.create", "name": "few", "policy_instance_minimum": 1});
    site.operate(create);
    site.pass(seconds(60));
    assert_eq!(site.instances().len(), 1, "a name that somebody may have invented is no row");
    assert_eq!(site.operate(json!({"op": "group.get", "name": "few"}))["members"], json!([]));
    let (_, job) = site.submit(json!({"groups": {"template": ["few"]}}));
    // The next process finds the node without an operator.
    site.kill();
    site.boot();
    site.until("e1 to be found again", || found(&site) == ["e1"]);
    let taken = site.operate(json!({"op": "instance.enable", "name": "e1"}));
    assert_eq!((&taken["enabled"], &taken["node_type"]), (&json!(true), &json!("execution")));
    finish(&site, job);
    assert!(found(&site).is_empty());
    assert_eq!(site.operate(json!({"op": "group.get", "name": "few"}))["members"][0]["name"], "e1");
}

#[test]
fn a_drained_node_ends_its_jobs_takes_none_and_goes() {
    let site = Site::ready(&["e1", "e2"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    let node = site.fabric.look(|units| units.there[&child].node.clone());
    site.operate(json!({"op": "instance.remove", "name": node}));
    let (_, other) = site.submit(json!({}));
    let there = site.running(other);
    assert_ne!(site.fabric.look(|units| units.there[&there].node.clone()), node);
    site.fabric.change(|units| units.nodes.get_mut(&node).unwrap().types = vec![("cat".into(), false)]);
    finish(&site, job);
    site.until("it to go", || site.instances().iter().all(|one| one.instance.name.as_str() != node));
    finish(&site, other);
}
