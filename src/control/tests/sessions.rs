//! Commands about the node and the mesh, over a pipe in memory.

use std::time::Duration;

use std::collections::BTreeMap;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rig::{context, reloading, session, session_until};
use crate::control::ReloadError;
use crate::control::channel::MAX_LINE;
use crate::wire::ServiceName;

#[tokio::test]
async fn many_commands_share_a_connection_and_errors_do_not_end_it() {
    let mut client = session(&context().await).await;
    assert_eq!(client.ask("nonsense").await, "ERROR: Unknown command");
    assert_eq!(client.ask(r#"{"command":1}"#).await, "ERROR: command must be a string");
    assert_eq!(client.ask("\r\n\n\nreL\road\r").await, r#"{"Success":true}"#);
    client.send("ping\nreload\n{\"command\":\"reload\"}\n").await;
    assert_eq!(client.line().await, "ERROR: no ping target");
    assert_eq!(client.line().await, r#"{"Success":true}"#);
    assert_eq!(client.line().await, r#"{"Success":true}"#);
    client.shut().await;
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn a_last_line_needs_no_newline() {
    let mut client = session(&context().await).await;
    client.send("reload").await;
    client.shut().await;
    assert_eq!(client.rest().await, b"{\"Success\":true}\n");
}

#[tokio::test]
async fn an_error_stays_on_one_line() {
    let mut client = session(&context().await).await;
    let answer = client.ask(r#"{"command":"work","subcommand":"submit","a\nb\u001b":1}"#).await;
    assert_eq!(answer, "ERROR: submit parameters must all be strings and a b  is not");
}

#[tokio::test]
async fn status_has_every_key_and_no_null() {
    let context = context().await;
    let tags = BTreeMap::from([("type".to_owned(), "Control Service".to_owned())]);
    let _listener = context.streams.listen(ServiceName::CONTROL, Some(tags)).await.unwrap();
    let mut client = session(&context).await;
    let mut status = client.ask_json("status").await;
    let keys: Vec<String> = status.as_object().unwrap().keys().cloned().collect();
    let expected = [
        "Version",
        "NodeID",
        "SystemCPUCount",
        "SystemMemoryMiB",
        "Connections",
        "RoutingTable",
        "Advertisements",
        "KnownConnectionCosts",
    ];
    assert_eq!(keys, expected);
    assert!(status["SystemCPUCount"].as_u64().unwrap() >= 1);
    assert!(status["SystemMemoryMiB"].as_u64().unwrap() > 16);
    assert_eq!(status["Version"], "1.2.3");
    let time = status["Advertisements"][0]["Time"].take();
    assert!(time.as_str().unwrap().ends_with('Z'), "{time} has a zone");
    assert_eq!(status["Advertisements"][0]["Service"], "control");
    for list in ["Connections", "Advertisements"] {
        assert!(status[list].is_array(), "{list}");
    }
    for map in ["RoutingTable", "KnownConnectionCosts"] {
        assert!(status[map].is_object(), "{map}");
    }
}

#[tokio::test]
async fn status_gives_only_the_fields_asked_for() {
    let mut client = session(&context().await).await;
    let ask = r#"{"command":"status","requested_fields":["NodeID","Nope"]}"#;
    assert_eq!(client.ask(ask).await, r#"{"NodeID":"alpha"}"#);
    assert_eq!(client.ask(r#"{"command":"status","requested_fields":[]}"#).await, "{}");
}

#[tokio::test]
async fn ping_tells_success_and_failure() {
    let mut client = session(&context().await).await;
    for name in ["alpha", "localhost", "LocalHost"] {
        let pong = client.ask_json(&format!("ping {name}")).await;
        assert_eq!((&pong["Success"], &pong["From"]), (&json!(true), &json!("alpha")), "{name}");
        assert!(pong["Time"].is_u64() && pong["TimeStr"].as_str().unwrap().ends_with('s'), "{pong}");
        assert!(pong.get("Error").is_none());
    }
    for name in ["nobody", "a b", &"x".repeat(300)] {
        let lost = client.ask_json(&format!("ping {name}")).await;
        assert_eq!((&lost["Success"], &lost["Error"]), (&json!(false), &json!("no route to node")), "{name}");
    }
}

#[tokio::test]
async fn traceroute_lists_hops_in_order() {
    let mut client = session(&context().await).await;
    let path = client.ask_json("traceroute alpha").await;
    assert_eq!(path.as_object().unwrap().len(), 1);
    assert_eq!(path["0"]["From"], "alpha");
    assert!(
        path["0"]["Time"].is_u64() && path["0"]["TimeStr"].is_string() && path["0"].get("Error").is_none()
    );
    let lost = client.ask_json(r#"{"command":"traceroute","target":"nobody"}"#).await;
    let mut steps = lost.as_object().unwrap().values().rev();
    assert_eq!(steps.next().unwrap()["Error"], "no route to node");
    assert!(steps.all(|step| step.get("Error").is_none()), "nodes on the way only answer: {lost}");
    assert_eq!(client.ask_json("traceroute a\tb").await["0"]["Error"], "no route to node");
}

#[tokio::test]
async fn reload_failures_carry_their_number() {
    let of_receptor = "work-command changed".to_owned();
    for (error, text) in [
        (ReloadError::NotReloadable { why: String::new(), of_receptor }, "work-command changed ERRORCODE 3"),
        (ReloadError::Invalid("line 3: no colon".to_owned()), "line 3: no colon ERRORCODE 4"),
    ] {
        let mut client = session(&reloading(Err(error)).await).await;
        assert_eq!(client.ask_json("reload").await, json!({"Success": false, "Error": text}));
    }
}

#[tokio::test]
async fn connect_joins_both_directions_and_each_ends_on_its_own() {
    let context = context().await;
    let mut listener = context.streams.listen(ServiceName::new("svc").unwrap(), None).await.unwrap();
    let service = tokio::spawn(async move {
        let mut stream = super::rig::Client(tokio::io::BufReader::new(listener.accept().await.unwrap()));
        let heard = stream.rest().await;
        stream.send([b"heard ", &heard[..]].concat()).await;
        stream.0.get_mut().shutdown().await.unwrap();
    });
    let mut client = session(&context).await;
    // The first bytes come with the line itself, the rest once the service is connected.
    client.send("connect alpha svc\nearly ").await;
    assert_eq!(client.line().await, "Connecting");
    client.send("late").await;
    client.shut().await;
    assert_eq!(client.rest().await, b"heard early late");
    service.await.unwrap();
}

#[tokio::test]
async fn a_failed_connect_leaves_the_connection_usable() {
    let mut client = session(&context().await).await;
    for (command, text) in [
        ("connect nobody svc", "no route to node"),
        ("connect alpha nosuch", "service nosuch is unknown on node alpha"),
        ("connect alpha toolongservice", "too long"),
        ("connect alpha control prof", "ERROR: unknown TLS config prof"),
    ] {
        let answer = client.ask(command).await;
        assert!(answer.starts_with("ERROR: ") && answer.contains(text), "{command}: {answer}");
    }
    assert_eq!(client.ask("reload").await, r#"{"Success":true}"#);
}

#[tokio::test]
async fn a_line_may_be_long_but_not_endless() {
    let mut client = session(&context().await).await;
    assert_eq!(client.ask(&"x".repeat(MAX_LINE)).await, "ERROR: Unknown command");
    client.send("x".repeat(MAX_LINE + 1)).await;
    assert_eq!(client.line().await, "ERROR: control line exceeds 1048576 bytes");
    assert_eq!(client.rest().await, b"", "the connection ends");
}

#[tokio::test(start_paused = true)]
async fn silent_clients_are_sent_away() {
    let start = Instant::now();
    let mut client = session(&context().await).await;
    assert_eq!(silence(&mut client).await, "ERROR: no command within 20 s\n");
    assert_eq!(start.elapsed().as_secs(), 20);

    let mut client = session(&context().await).await;
    assert_eq!(client.ask("reload").await, r#"{"Success":true}"#);
    tokio::time::advance(Duration::from_secs(1790)).await;
    assert_eq!(client.ask("reload").await, r#"{"Success":true}"#);
    assert_eq!(silence(&mut client).await, "ERROR: no command within 1800 s\n");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_has_begun_ends_soon() {
    for earlier in ["", "\r\n\n", "loglevel\n"] {
        let mut client = session(&context().await).await;
        client.send(earlier).await;
        if earlier.len() > 3 {
            client.line().await;
            tokio::time::advance(Duration::from_secs(1000)).await;
        }
        let start = Instant::now();
        client.send("rel").await;
        let told = silence(&mut client).await;
        assert_eq!(told, "ERROR: the command's line did not end within 20 s\n");
        assert_eq!(start.elapsed().as_secs(), 20);
    }
}

/// Reads to the end without a deadline: time is paused.
async fn silence(client: &mut super::rig::Client<tokio::io::DuplexStream>) -> String {
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut client.0, &mut rest).await.unwrap();
    rest
}

#[tokio::test]
async fn a_stop_ends_clients_between_commands() {
    let stop = CancellationToken::new();
    let mut client = session_until(&context().await, stop.clone()).await;
    assert_eq!(client.ask("reload").await, r#"{"Success":true}"#);
    stop.cancel();
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn what_is_kept_of_payloads_is_told_and_removed() {
    let context = context().await;
    context.work.set_payload_cache(Some(1 << 20)).await;
    let mut client = session(&context).await;
    let nothing = r#"{"callers":[],"more_callers":0,"pieces":0,"bytes":0,"most":1048576}"#;
    for ask in ["node cache", r#"{"command":"node","subcommand":"cache"}"#] {
        assert_eq!(client.ask(ask).await, nothing);
    }
    let cleared = r#"{"cleared":{"pieces":0,"bytes":0}}"#;
    for ask in ["Node Cache Clear", r#"{"command":"node","subcommand":"cache","clear":true}"#] {
        assert_eq!(client.ask(ask).await, cleared);
    }
    let bad = client.ask("node forget").await;
    for ask in ["node cache more", "node caches", "node cache clear all"] {
        assert_eq!(client.ask(ask).await, bad);
    }
}

#[tokio::test]
async fn the_log_level_is_told_and_set() {
    let mut client = session(&context().await).await;
    assert_eq!(client.ask("loglevel").await, r#"{"Level":"info"}"#);
    assert_eq!(client.ask("loglevel info").await, r#"{"Level":"info","Before":"info"}"#);
    assert_eq!(client.ask("loglevel loud").await, r#"ERROR: "loud" is not a log level"#);
}
