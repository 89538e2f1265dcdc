//! The `remote` type with every field of docs/protocol.md#status-file, seen from the target node: the dialled
//! profile, the contents of the lines, accepted IDs, what is written to disk and reported to clients, and how
//! long missing output is requested.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::stream::Peer;
use meshd::wire::{NodeId, ServiceName};
use meshd::work::signing::Signer;
use meshd::work::{Dialed, Dialer, Outcome, Registry, State, StreamDialing};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};

use crate::harness::*;

/// A node that behaves like a Go node, and records everything.
struct Other {
    name: NodeId,
    /// The ID that it gives to units.
    id: &'static str,
    /// The output size that it claims for units; it has three bytes, and waits for the rest.
    promised: u64,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Dialer for Other {
    fn dial(&self, node: NodeId, service: ServiceName, tls: Option<String>) -> StreamDialing {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (heard, id, promised) = (self.heard.clone(), self.id, self.promised);
        heard.lock().unwrap().push(format!("dial {node}:{service} {tls:?}"));
        tokio::spawn(async move { drop(answer(theirs, id, promised, &heard).await) });
        Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer: Peer::Receptor }) })
    }

    fn knows_profile(&self, name: &str) -> bool {
        name == "profile"
    }

    fn node_id(&self) -> &NodeId {
        &self.name
    }
}

async fn answer(stream: DuplexStream, id: &str, promised: u64, heard: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"Receptor Control, node n2\n").await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        heard.lock().unwrap().push(line.trim().to_owned());
        let command: Value = serde_json::from_str(&line).unwrap_or_default();
        let text = match command["subcommand"].as_str() {
            Some("submit") => {
                let created = format!("Work unit created with ID {id}. Send stdin data and EOF.\n");
                stream.write_all(created.as_bytes()).await?;
                let mut payload = String::new();
                stream.read_to_string(&mut payload).await?;
                heard.lock().unwrap().push(format!("payload {payload}"));
                serde_json::json!({"unitid": id, "result": "Job Started"}).to_string()
            }
            Some("release") => serde_json::json!({"released": id}).to_string(),
            Some("results") => {
                let start = command["startpos"].as_u64().unwrap() as usize;
                stream.write_all(b"Streaming results for work unit x\n").await?;
                stream.write_all(&b"abc"[start..]).await?;
                return std::future::pending().await;
            }
            Some(_) => "ERROR: bad command".to_owned(),
            None => format!(r#"{{"State":2,"Detail":"exit status 0","StdoutSize":{promised}}}"#),
        };
        stream.write_all(format!("{text}\n").as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

/// An engine that can sign, connected to such a node.
async fn open_towards(id: &'static str, promised: u64) -> (Registry, Scratch, Arc<Mutex<Vec<String>>>) {
    let temp = Scratch::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let other = Other { name: node("n1"), id, promised, heard: heard.clone() };
    let mut options = options(temp.path().join("data"), "n1");
    let key = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("certs/work.key");
    options.signer = Some(Arc::new(Signer::open(&key, Duration::from_secs(60)).unwrap()));
    (Registry::open(options, Arc::new(other)).await.unwrap(), temp, heard)
}

#[tokio::test]
async fn every_field_is_stored_used_and_reported() {
    let (registry, temp, heard) = open_towards("abcdEFGH", 0).await;
    let mut submit = request("n2", "type", "a 'b c'");
    submit.params.insert("secret_word".into(), "xyzzy".into());
    submit.params.insert("other".into(), "thing".into());
    (submit.tls_client, submit.ttl, submit.sign_work) = (Some("profile".into()), Some("1h".into()), true);
    let id = run_as(&registry, submit, b"payload").await;
    let report = finished(&registry, &id).await;
    assert_eq!((report.state, report.work_type.as_str()), (State::Succeeded, "remote"));

    let wanted = |params: Value, expiration: &Value| {
        serde_json::json!({
            "RemoteNode": "n2", "RemoteWorkType": "type", "RemoteParams": params, "RemoteUnitID": "abcdEFGH",
            "RemoteStarted": true, "LocalCancelled": false, "LocalReleased": false, "SignWork": true,
            "TLSClient": "profile", "Expiration": expiration,
        })
    };
    let expiration = &report.extra_data["Expiration"];
    assert!(expiration.as_str().unwrap().parse::<jiff::Timestamp>().unwrap() > jiff::Timestamp::now());
    let told = serde_json::json!({"params": "a 'b c'", "other": "thing"});
    assert_eq!(report.extra_data, wanted(told, expiration));
    let file = std::fs::read_to_string(temp.path().join("data/n1").join(&id).join("status")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    let kept = serde_json::json!({"params": "a 'b c'", "other": "thing", "secret_word": "xyzzy"});
    assert_eq!(file["ExtraData"], wanted(kept, expiration));

    let heard: Vec<String> = heard.lock().unwrap().clone();
    assert_eq!(heard[0], "dial n2:control Some(\"profile\")");
    let line: Value = serde_json::from_str(&heard[1]).unwrap();
    for (name, value) in [
        ("command", "work"),
        ("subcommand", "submit"),
        ("node", "n2"),
        ("worktype", "type"),
        ("tlsclient", "profile"),
        ("params", "a 'b c'"),
        ("other", "thing"),
        ("secret_word", "xyzzy"),
    ] {
        assert_eq!(line[name], value, "{name}");
    }
    assert_eq!(line["signature"].as_str().unwrap().split('.').count(), 3);
    assert_eq!(line["workUnitID"], id, "one ID on both nodes");
    assert_eq!(line.as_object().unwrap().len(), 10, "nothing but that: {line}");
    assert_eq!(heard[2], "payload payload");
}

#[tokio::test]
async fn ids_of_old_and_new_nodes_work_in_every_request() {
    for id in ["abcdEFGH", "n2-abcdEFGH", "10.0.0.1-abcdEFGH", "n2.example.com:abcdEFGH"] {
        let (registry, _temp, heard) = open_towards(id, 0).await;
        let unit =
            run_as(&registry, SubmitRequest { sign_work: true, ..request("n2", "type", "") }, b"").await;
        assert_eq!(finished(&registry, &unit).await.extra_data["RemoteUnitID"], id);
        assert_eq!(within(registry.release(&unit, false, &me())).await.unwrap(), Outcome::Done);
        let heard = heard.lock().unwrap();
        assert!(heard.contains(&format!("work status {id}")), "{heard:?}");
        let release = heard.last().unwrap();
        let release: Value = serde_json::from_str(release).unwrap();
        assert_eq!((release["subcommand"].as_str(), release["unitid"].as_str()), (Some("release"), Some(id)));
        assert!(release["signature"].is_string());
    }
}

#[tokio::test]
async fn output_that_a_node_has_lost_is_given_up() {
    let (registry, _temp, heard) = open_towards("abcdEFGH", 7).await;
    let unit = run_as(&registry, request("n2", "type", ""), b"").await;
    until(&registry, &unit, |report| report.extra_data["RemoteStarted"] == true).await;
    // Only polling is left: minutes of it take no time.
    tokio::time::pause();
    let (begun, deadline) = (tokio::time::Instant::now(), std::time::Instant::now() + LIMIT);
    let report = loop {
        let report = registry.status(&unit).await.unwrap();
        if report.state.is_final() {
            break report;
        }
        assert!(std::time::Instant::now() < deadline, "{report:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(
        begun.elapsed() > Duration::from_secs(590),
        "neither a slow link nor a slow disk is given up: {:?}",
        begun.elapsed()
    );
    tokio::time::resume();
    assert_eq!((report.state, report.stdout_size), (State::Succeeded, 3));
    assert_eq!(report.detail, "exit status 0 (its stdout holds 3 of 7 bytes: the rest was lost)");
    assert_eq!(collect(&registry, &unit, 0).await, b"abc");
    let heard = heard.lock().unwrap();
    let asked: Vec<&String> = heard.iter().filter(|line| line.contains("results")).collect();
    assert!(asked.len() > 2 && asked.last().unwrap().contains(r#""startpos":3"#), "{asked:?}");
}
