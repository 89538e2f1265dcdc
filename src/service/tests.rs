//! Proxies over a small mesh in memory: the contract of any stream proxy, datagrams, and the command service.

mod commands;
mod datagrams;
mod streams;

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::node::NodeHandle;
use crate::node::tests::Lab;
use crate::stream::Streams;
use crate::wire::ServiceName;

/// Nothing here takes this long unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

/// Nodes `a`, `b` and `c` in a line, and the tasks of their proxies.
struct Rig {
    _lab: Lab,
    nodes: Vec<NodeHandle>,
    stop: CancellationToken,
    tasks: TaskTracker,
    directory: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let mut lab = Lab::new();
        let nodes = lab.line(&["a", "b", "c"]).await;
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        Self { _lab: lab, nodes, stop, tasks, directory: tempfile::tempdir().unwrap() }
    }

    /// The streams of `a` and of `c`.
    fn ends(&self) -> (Streams, Streams) {
        (Streams::new(self.nodes[0].clone()), Streams::new(self.nodes[2].clone()))
    }

    /// Stops the proxies, and checks that they end.
    async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        tokio::time::timeout(LIMIT, self.tasks.wait()).await.expect("the proxies end");
    }
}

/// Bytes without a short period.
fn pattern(size: usize, seed: u32) -> Vec<u8> {
    (0..size as u32).map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
