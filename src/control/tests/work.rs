//! Commands about units, with payloads and results, over a pipe in memory and over a real socket.

use serde_json::json;
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::rig::{Client, DEADLINE, Service, context, session, session_over, session_until, ungreeted};
use crate::control::{Context, ServerLimits};
use crate::rpc::follow::Frame;

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
        // Half-closes at once, as receptorctl does.
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
    let stop = CancellationToken::new();
    let mut follower = session_until(&context, stop.clone()).await;
    follower.send(format!("work results {id}\nignored\n")).await;
    assert_eq!(follower.line().await, format!("Streaming results for work unit {id}"));
    assert_eq!(follower.line().await, "so far");
    // Retires the service, as a new configuration does.
    stop.cancel();
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

fn start(keys: &str) -> String {
    format!(r#"{{"command":"work","subcommand":"start","node":"alpha",{keys}}}"#)
}

/// Sends a start and its payload before reading anything, and returns what comes after the greeting.
async fn started(
    context: &Context,
    trusted: bool,
    line: &str,
    payload: &[u8],
) -> Client<tokio::io::DuplexStream> {
    let mut stream = ungreeted(context, CancellationToken::new(), trusted, |far| Box::new(far));
    stream.write_all(&[line.as_bytes(), b"\n", payload].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    Client::greeted(stream).await
}

#[tokio::test]
async fn a_start_is_one_exchange_and_can_be_followed_to_its_end() {
    let context = context().await;
    let line = start(r#""worktype":"echo","workUnitID":"start123""#);
    let mut client = started(&context, true, &line, b"one\ntwo\n").await;
    assert_eq!(client.line().await, "Following work unit start123");
    let mut output = Vec::new();
    loop {
        match timeout(DEADLINE, Frame::read(&mut client.0)).await.unwrap().unwrap() {
            Frame::Output(bytes) => output.extend_from_slice(&bytes),
            Frame::Status(report) if report.state.is_final() => break,
            Frame::Status(_) => {}
        }
    }
    assert_eq!(output, b"one\ntwo\n");
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn what_stands_behind_a_refused_start_is_never_a_command() {
    let context = context().await;
    let (held, _) = session(&context).await.submit("work submit alpha hold", b"x").await;
    let commands = format!("work release {held}\nwork list\nreload\n").repeat(100);
    for (trusted, keys, cause) in [
        (true, r#""worktype":"nosuch","workUnitID":"start123""#.to_owned(), "unknown work type nosuch"),
        (true, r#""worktype":"echo""#.to_owned(), "field workUnitID missing"),
        (true, r#""worktype":5,"workUnitID":"start123""#.to_owned(), "submit parameters must all be strings"),
        (true, r#""worktype":"echo","workUnitID":"a/b""#.to_owned(), ""),
        (true, format!(r#""worktype":"echo","workUnitID":"{held}""#), "is already in use"),
        (true, r#""worktype":"echo","workUnitID":"start123","signature":"a b""#.to_owned(), "did not expect"),
        (true, r#""worktype":"echo","workUnitID":"start123","signature":" b""#.to_owned(), "did not expect"),
        (
            true,
            r#""worktype":"echo","workUnitID":"start123","payloadlength":"3""#.to_owned(),
            "payloadlength is 3",
        ),
        (
            false,
            r#""worktype":"echo","workUnitID":"start123","signwork":"true""#.to_owned(),
            "is not allowed",
        ),
    ] {
        let rest = started(&context, trusted, &start(&keys), commands.as_bytes()).await.rest().await;
        let rest = String::from_utf8(rest).unwrap();
        assert!(rest.starts_with("ERROR: ") && rest.contains(cause), "{keys}: {rest}");
        assert_eq!(rest.lines().count(), 1, "{keys}: {rest}");
    }
    let list = session(&context).await.ask_json("work list").await;
    assert_eq!(list.as_object().unwrap().keys().collect::<Vec<_>>(), [&held], "nothing is left of them");
}
