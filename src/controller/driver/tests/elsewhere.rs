//! Another control node of the same install, of which only what it says is here: it gives the payload and the output of a
//! job as the test lets it.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

use super::*;
use crate::wire::NodeId;
use crate::work::{DialFailure, Dialed, Dialer, Dialing};

pub(super) const OTHER: &str = "c2";

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// There is no way to it.
    Never,
    /// It has nothing of the job.
    Missing,
    /// With its bytes, and an end.
    Whole,
    /// With its bytes, and then with nothing.
    Stalling,
}

#[derive(Debug)]
pub(super) struct Says {
    pub(super) answers: Answers,
    /// What it has.
    pub(super) bytes: Vec<u8>,
    /// How many bytes it says that it has.
    pub(super) size: u64,
}

/// The way to it.
pub(super) struct Elsewhere(Arc<Mutex<Says>>);

impl Elsewhere {
    /// Gives the control node the way to the other one.
    pub(super) fn open(site: &Site) -> Self {
        let says = Arc::new(Mutex::new(Says { answers: Answers::Never, bytes: Vec::new(), size: 0 }));
        site.service().open_peers(Arc::new(Self(says.clone())));
        let certs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
        site.use_keys(&certs.join("work.key"), &certs.join("work.pub"));
        Self(says)
    }

    pub(super) fn says(&self, answers: Answers, bytes: &[u8], size: usize) {
        *self.0.lock() = Says { answers, bytes: bytes.to_vec(), size: size as u64 };
    }
}

impl Dialer for Elsewhere {
    fn dial(&self, node: NodeId, _service: ServiceName, _tls: Option<String>) -> Dialing {
        assert_eq!(node.as_str(), OTHER);
        if self.0.lock().answers == Answers::Never {
            return Box::pin(async { Err(DialFailure::Unreachable("no route".into())) });
        }
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        tokio::spawn(answer(self.0.clone(), theirs));
        Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer: crate::stream::Peer::Current }) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        true
    }

    fn node_id(&self) -> &NodeId {
        unreachable!("nobody asks who it is")
    }
}

async fn answer(says: Arc<Mutex<Says>>, stream: DuplexStream) {
    let mut stream = BufReader::new(stream);
    let mut asked = String::new();
    stream.read_line(&mut asked).await.unwrap();
    let from = serde_json::from_str::<Value>(&asked).unwrap()["from"].as_u64().unwrap();
    let (line, bytes, answers) = {
        let Says { answers, bytes, size } = &*says.lock();
        let from = usize::try_from(from).unwrap().min(bytes.len());
        match answers {
            Answers::Missing => (json!({"refused": "it is not here", "missing": true}), Vec::new(), *answers),
            Answers::Never | Answers::Whole | Answers::Stalling => {
                (json!({"size": size, "attempt": 1, "begins": 0}), bytes[from..].to_vec(), *answers)
            }
        }
    };
    // The one who asks may have left.
    let _sent = stream.write_all(&[format!("{line}\n").into_bytes(), bytes].concat()).await;
    if answers == Answers::Stalling {
        std::future::pending().await
    }
}
