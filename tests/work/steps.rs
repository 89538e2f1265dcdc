//! When the steps of a unit happened: which steps each node notes, that their order is the order of things, and that no
//! more is told than is known.

use meshd::rpc::report::unit::{StepTimes, UnitStep};
use meshd::work::Registry;
use serde_json::Value;

use crate::harness::*;
use crate::remote::Pair;
use crate::three::Three;

/// The nodes that tell times of a unit, and for each the steps that it has taken, in the order of their times.
async fn told(registry: &Registry, id: &str) -> Vec<(String, Vec<UnitStep>)> {
    let in_order = |times: StepTimes| {
        let mut steps: Vec<_> = times.microseconds.into_iter().collect();
        // Steps within one microsecond stay in their usual order.
        steps.sort_by_key(|(_, at)| *at);
        (times.node.to_string(), steps.into_iter().map(|(step, _)| step).collect())
    };
    registry.status(id).await.unwrap().times.into_iter().map(in_order).collect()
}

#[tokio::test]
async fn each_node_tells_its_steps_in_the_order_in_which_they_happened() {
    use UnitStep::{Accepted, Durable, Ended, FirstByte, Received, Sent, Started, Told};
    let pair = Pair::new().await;
    let fifo = pair.temp.path().join("fifo");
    let script = format!("mkfifo {0}; echo one; read x <{0}", fifo.display());
    let id = pair.run(&script).await;
    until(&pair.near, &id, |report| report.stdout_size == 4).await;
    let begun = [("n1", vec![Received, Durable, Sent, Accepted, Started, FirstByte])];
    let running = told(&pair.near, &id).await;
    assert_eq!(running[..1], begun.map(|(node, steps)| (node.to_owned(), steps)));
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap()).await.unwrap();
    collect(&pair.near, &id, 0).await;
    let all = [
        ("n1", vec![Received, Durable, Sent, Accepted, Started, FirstByte, Ended, Told]),
        ("n2", vec![Received, Durable, Started, FirstByte, Ended, Told]),
    ];
    assert_eq!(told(&pair.near, &id).await, all.map(|(node, steps)| (node.to_owned(), steps)));
    // The far one's own, of which nobody else knows more.
    assert_eq!(told(&pair.far, &id).await.len(), 1);
    // What was noted stays.
    let first = pair.near.status(&id).await.unwrap().times;
    collect(&pair.near, &id, 0).await;
    assert_eq!(pair.near.status(&id).await.unwrap().times, first);
}

#[tokio::test]
async fn a_unit_of_this_node_alone_is_neither_sent_nor_accepted() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo x").await;
    collect(&engine.registry, &id, 0).await;
    let told = told(&engine.registry, &id).await;
    assert_eq!(told[0].0, "n1");
    for step in [
        UnitStep::Received,
        UnitStep::Durable,
        UnitStep::Started,
        UnitStep::FirstByte,
        UnitStep::Ended,
        UnitStep::Told,
    ] {
        assert!(told[0].1.contains(&step), "{step:?}: {told:?}");
    }
    assert_eq!((told.len(), told[0].1.len()), (1, 6), "{told:?}");
    // Another daemon does not know when this one received it.
    let engine = engine.restart().await;
    assert!(engine.registry.status(&id).await.unwrap().times.is_empty());
}

#[tokio::test]
async fn a_node_that_tells_nothing_is_left_out() {
    let pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    let id = pair.run("echo x").await;
    collect(&pair.near, &id, 0).await;
    let told = told(&pair.near, &id).await;
    assert_eq!((told.len(), told[0].0.as_str()), (1, "n1"), "{told:?}");
    assert!(told[0].1.contains(&UnitStep::Sent) && told[0].1.contains(&UnitStep::Accepted), "{told:?}");
}

/// What a program printed.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn clients_are_shown_the_times_of_both_nodes_behind_a_hop() {
    let three = Three::start();
    let traced =
        three.meshctl(&["work", "submit", "sh", "--node", "far", "-n", "-f", "--trace", "--", "'echo x'"]);
    assert_eq!(
        (text(&traced.stdout).as_str(), traced.status.code()),
        ("x\n", Some(0)),
        "{}",
        text(&traced.stderr)
    );
    let table = text(&traced.stderr);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let unit = lines[0][1].trim_end_matches(',').to_owned();
    assert_eq!(lines[1], ["STEP", "near", "far"], "{table}");
    assert_eq!(lines[2], ["Received", "0.000", "0.000"], "{table}");
    let steps = ["Received", "Durable", "Sent", "Accepted", "Started", "FirstByte", "Ended", "Told"];
    for (line, name) in lines[2..].iter().zip(steps) {
        let is_near_s = ["Sent", "Accepted"].contains(&name);
        assert_eq!((line[0], line.len()), (name, if is_near_s { 2 } else { 3 }), "{table}");
    }
    // The same again from its status, and as JSON.
    let shown = text(&three.meshctl(&["work", "status", "--times", &unit]).stdout);
    assert_eq!(shown, table);
    let json = text(&three.meshctl(&["--json", "work", "status", "--times", &unit]).stdout);
    let json: Value = serde_json::from_str(&json).unwrap();
    let times = json[&unit]["Times"].as_array().unwrap();
    assert_eq!((times.len(), &times[1]["Node"]), (2, &"far".into()), "{json}");
    assert!(times[0]["Microseconds"]["Told"].is_u64(), "{json}");
    // A list is long without.
    let list = text(&three.meshctl(&["--json", "work", "list"]).stdout);
    assert!(list.contains(&unit) && !list.contains("Times"), "{list}");
    // A daemon that did not receive it does not know.
    let mut three = three;
    three.nodes[0].restart();
    three.meet();
    let shown = text(&three.meshctl(&["work", "status", "--times", &unit]).stdout);
    assert!(shown.contains("knows no times"), "{shown}");
}
