//! Commands about units, with payloads and results, over a pipe in memory and over a real socket.

use serde_json::json;
use tokio::io::BufWriter;
use tokio_util::sync::CancellationToken;

use super::rig::{Service, context, session, session_over};
use crate::control::ServerLimits;

const ECHO: &str = "work submit localhost echo";

#[tokio::test]
async fn a_payload_goes_in_and_results_come_out() {
    let context = context().await;
    let (id, result) = session(&context).await.submit(ECHO, b"one\r\ntwo\n").await;
    assert_eq!(result, format!(r#"{{"result":"Job Started","unitid":"{id}"}}"#));
    for (start, output) in [("", "one\r\ntwo\n"), (" 5", "two\n"), (" 900", "")] {
        let mut client = session(&context).await;
        assert_eq!(
            client.ask(&format!("work results {id}{start}")).await,
            format!("Streaming results for work unit {id}")
        );
        assert_eq!(String::from_utf8(client.rest().await).unwrap(), output);
    }
}

#[tokio::test]
async fn a_payload_may_be_empty_or_large() {
    let context = context().await;
    let service = Service::start(&context, ServerLimits::default());
    let large: Vec<u8> = (0..8_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for payload in [&b""[..], &large] {
        let (id, _) = service.connect().await.submit(ECHO, payload).await;
        let mut client = service.connect().await;
        client.send(format!("work results {id}\n")).await;
        // As receptorctl does, at once.
        client.shut().await;
        assert_eq!(client.line().await, format!("Streaming results for work unit {id}"));
        assert!(client.rest().await == payload, "{} bytes", payload.len());
    }
    service.stop().await;
}

#[tokio::test]
async fn units_are_reported_ended_and_forgotten() {
    let context = context().await;
    let (id, _) = session(&context).await.submit("work submit alpha hold", b"x").await;
    let mut client = session(&context).await;
    let status = client.ask_json(&format!("work status {id}")).await;
    let keys: Vec<&String> = status.as_object().unwrap().keys().collect();
    for key in ["State", "Detail", "StdoutSize", "WorkType", "ExtraData", "StateName"] {
        assert!(keys.contains(&&key.to_owned()), "{key} in {keys:?}");
    }
    assert_eq!(client.ask_json("work list").await.as_object().unwrap().keys().collect::<Vec<_>>(), [&id]);
    assert_eq!(client.ask_json(&format!("work list {id}")).await[&id]["WorkType"], "hold");
    assert_eq!(client.ask_json(&format!("work cancel {id}")).await, json!({ "cancelled": id }));
    assert_eq!(client.ask_json(&format!("work release {id}")).await, json!({ "released": id }));
    assert_eq!(client.ask("work list").await, "{}");
    for command in ["release", "force-release"] {
        let answer = client.ask_json(&format!("work {command} {id}")).await;
        assert_eq!(answer, json!({ "released": id }), "to release again is no error");
    }
    assert_eq!(client.ask_json(&format!("work cancel {id}")).await, json!({ "cancelled": id }));
    for command in ["status", "results", "list"] {
        let answer = client.ask(&format!("work {command} {id}")).await;
        let wanted = format!("ERROR: unknown work unit {id}: it was released ");
        assert!(answer.starts_with(&wanted), "{command}: {answer}");
    }
}

#[tokio::test]
async fn results_are_followed_until_the_unit_ends() {
    let context = context().await;
    let (id, _) = session(&context).await.submit("work submit alpha hold", b"so far\n").await;
    let mut follower = session(&context).await;
    follower.send(format!("work results {id}\nignored\n")).await;
    assert_eq!(follower.line().await, format!("Streaming results for work unit {id}"));
    assert_eq!(follower.line().await, "so far");
    session(&context).await.ask(&format!("work cancel {id}")).await;
    assert_eq!(follower.rest().await, b"");
}

#[tokio::test]
async fn what_a_link_keeps_until_it_is_flushed_arrives_while_the_unit_lives() {
    let context = context().await;
    let (id, _) = session(&context).await.submit("work submit alpha hold", b"so far\n").await;
    let mut follower =
        session_over(&context, CancellationToken::new(), |far| Box::new(BufWriter::new(far))).await;
    assert_eq!(
        follower.ask(&format!("work results {id}")).await,
        format!("Streaming results for work unit {id}")
    );
    assert_eq!(follower.line().await, "so far");
    session(&context).await.ask(&format!("work cancel {id}")).await;
    assert_eq!(follower.rest().await, b"");
}

#[tokio::test]
async fn a_refused_submit_leaves_the_connection_usable() {
    let mut client = session(&context().await).await;
    assert_eq!(client.ask("work submit alpha nosuch").await, "ERROR: unknown work type nosuch");
    let signed =
        r#"{"command":"work","subcommand":"submit","node":"alpha","worktype":"echo","signature":"x"}"#;
    assert_eq!(client.ask(signed).await, "ERROR: work type did not expect a signature");
    assert_eq!(client.ask("reload").await, r#"{"Success":true}"#);
}
