//! What control nodes ask of each other besides output: the payload of a job. Here a control node asks itself over a
//! connection in memory; the server still decides whom to refuse.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use super::site::stream;
use super::*;
use crate::controller::core::{InstanceName, JobId};
use crate::controller::peer::{PeerAnswer, PeerError, PeerServer, PeerVerb, WantedOutput};
use crate::wire::NodeId;
use crate::work::{Dialed, Dialer, StreamDialing};

/// Dials this same node, and claims that the connection comes from `from`.
struct Loop {
    server: OnceLock<PeerServer>,
    from: Mutex<NodeId>,
    /// The service and the TLS profile of the last dial.
    asked: Mutex<Option<(String, Option<String>)>>,
}

impl Dialer for Loop {
    fn dial(&self, _node: NodeId, service: ServiceName, tls: Option<String>) -> StreamDialing {
        *self.asked.lock() = Some((service.to_string(), tls));
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        let (server, from) = (self.server.get().unwrap().clone(), self.from.lock().hash());
        tokio::spawn(async move {
            if let Some(admitted) = server.admit(Box::new(theirs), from).await {
                admitted.serve().await;
            }
        });
        Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer: crate::stream::Peer::Meshd }) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        true
    }

    fn node_id(&self) -> &NodeId {
        unreachable!("nobody asks who it is")
    }
}

fn with_peers(site: &Site) -> Arc<Loop> {
    let from = Mutex::new(NodeId::new(OWN).unwrap());
    let dialer = Arc::new(Loop { server: OnceLock::new(), from, asked: Mutex::default() });
    assert!(dialer.server.set(site.service().open_peers(dialer.clone())).is_ok());
    let certs = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
    site.use_keys(&certs.join("work.key"), &certs.join("work.pub"));
    dialer
}

fn ask(site: &Site, verb: PeerVerb, job: JobId) -> Result<(PeerAnswer, Vec<u8>), PeerError> {
    let own = InstanceName::from(OWN);
    site.run(async {
        let (answer, mut stream) = site.driver().base.peers.get().unwrap().ask(&own, verb, job).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await.unwrap() {
            bytes.extend_from_slice(&piece);
        }
        Ok((answer, bytes))
    })
}

#[test]
fn a_control_node_gives_the_payload_of_a_job_from_any_byte_as_long_as_it_has_it() {
    let mut site = Site::ready(&["e1"]);
    site.options.peers.tls_client = Some("peers".into());
    site.set_options();
    let dialer = with_peers(&site);
    let header = json!({"name": "x".repeat(400), "labels": {"a": "b".repeat(400)}, "rerun": false});
    let (_, job) = site.submit(header.clone());
    let payload = stream(header);
    let size = payload.len() as u64;
    for from in [0, 5, size - 1, size, size + 7] {
        let (answer, bytes) = ask(&site, PeerVerb::Payload { from }, job).unwrap();
        assert_eq!(answer, PeerAnswer { size, ..PeerAnswer::default() });
        assert_eq!(bytes, payload[(from as usize).min(payload.len())..], "from {from}");
    }
    let dialed = dialer.asked.lock().take();
    assert_eq!(dialed, Some(("ctrlpeer".to_owned(), Some("peers".to_owned()))), "with the profile for it");
    let missing = ask(&site, PeerVerb::Payload { from: 0 }, JobId(job.0 + 1));
    assert!(matches!(missing, Err(PeerError::Missing { .. })), "{missing:?}");
    let child = site.running(job);
    site.fabric.end(&child, ChildEnd::Failed, "exit status 1");
    site.ended(job);
    let missing = ask(&site, PeerVerb::Payload { from: 0 }, job);
    assert!(matches!(missing, Err(PeerError::Missing { .. })), "it is not kept for reruns: {missing:?}");
}

#[test]
fn jobs_that_are_followed_keep_nobody_from_the_payload() {
    let site = Site::ready(&["e1"]);
    with_peers(&site);
    let (_, job) = site.submit(json!({}));
    site.running(job);
    let follow = PeerVerb::Output(WantedOutput { from: 0, follow: true, attempt: None });
    let (own, peers) = (InstanceName::from(OWN), site.driver().base.peers.get().unwrap());
    let followers: Vec<_> = (0..300).map(|_| site.run(peers.ask(&own, follow, job))).collect();
    assert_eq!(followers.iter().filter(|asked| asked.is_ok()).count(), 256, "those that there is room for");
    assert!(ask(&site, PeerVerb::Payload { from: 0 }, job).is_ok());
}

#[test]
fn silent_streams_keep_nobody_from_anything() {
    let site = Site::ready(&["e1"]);
    let dialer = with_peers(&site);
    let (_, job) = site.submit(json!({}));
    site.running(job);
    let dial = async || {
        let (own, service) = (NodeId::new(OWN).unwrap(), ServiceName::new("ctrlpeer").unwrap());
        dialer.dial(own, service, None).await.unwrap().stream
    };
    let mut silent: Vec<_> = (0..1_000).map(|_| site.run(dial())).collect();
    assert!(ask(&site, PeerVerb::Payload { from: 0 }, job).is_ok());
    let mut text = String::new();
    let ended = site.run(async {
        tokio::time::advance(std::time::Duration::from_secs(6)).await;
        silent[0].read_to_string(&mut text).await
    });
    assert!(ended.is_ok() && text.is_empty(), "they end without an answer: {ended:?} {text}");
}

#[test]
fn only_registered_control_nodes_that_are_who_they_say_get_anything() {
    let site = Site::ready(&["e1"]);
    let dialer = with_peers(&site);
    let (_, job) = site.submit(json!({}));
    let refused = |site: &Site| match ask(site, PeerVerb::Payload { from: 0 }, job) {
        Err(PeerError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    *dialer.from.lock() = NodeId::new("e1").unwrap();
    assert!(refused(&site).contains("does not come from the node that it names"));
    *dialer.from.lock() = NodeId::new(OWN).unwrap();
    assert!(ask(&site, PeerVerb::Payload { from: 0 }, job).is_ok());
    let certs = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
    let other = tempfile::tempdir().unwrap();
    let key = other.path().join("pub");
    std::fs::write(&key, OTHER_KEY).unwrap();
    site.use_keys(&certs.join("work.key"), &key);
    assert!(refused(&site).contains("signature"), "a key that is not theirs");
    assert!(!site.job(job).row.cancel_requested);
}

/// The public half of a key that nobody has.
const OTHER_KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
";
