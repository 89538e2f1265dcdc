//! Tests of the driver with simulated nodes and children. The store and the units of jobs are real, in a directory of
//! the test's own. The runtime's clock stands still until the test moves it.

mod discovery;
mod elsewhere;
mod ends;
mod fabric;
mod failures;
mod followers;
mod health;
mod histories;
mod lease;
mod loss;
mod lost_commits;
mod nodes;
mod notices;
mod operations;
mod output;
mod peers;
mod promises;
mod queue;
mod refusals;
mod reruns;
mod retention;
mod site;
mod streams;
mod takeover;

use std::time::Duration;

use self::fabric::{Fabric, FakeNode, Health, OWN};
use self::site::Site;
use crate::controller::core::{ChildEnd, JobState, NodeState, NodeType};
use crate::controller::options::{Bounds, ControllerOptions, Discovery, OnLoss, Peers, Timers};
use crate::wire::ServiceName;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The defaults, for a control node that registers and enables what it finds.
pub(super) fn options(discovery: Discovery) -> ControllerOptions {
    ControllerOptions {
        node_type: NodeType::Control,
        store: "sqlite".into(),
        store_password_file: None,
        credentials: None,
        jobs: None,
        notify: Default::default(),
        runner: Box::new(crate::work::CommandType::runner(
            "local",
            "",
            crate::work::limits::Limits::default(),
        )),
        sync_read: Vec::new(),
        project_hosts: Vec::new(),
        run_dir: "/tmp".into(),
        tls_client: None,
        require_tls: false,
        verify_signature: true,
        discovery,
        discover_nodes: Vec::new(),
        on_loss: OnLoss::TakeOver,
        timers: Timers {
            heartbeat: seconds(10),
            owner_lost_after: seconds(30),
            lost_after: seconds(180),
            poll: seconds(20),
        },
        bounds: Bounds {
            max_pending: 1000,
            max_payload: 1 << 30,
            job_output: 1 << 30,
            payload_retention: seconds(86_400),
            output_retention: seconds(86_400),
            output_limit: 1 << 30,
            job_retention: seconds(86_400),
            project_cache: 1,
            // Off, because cleanup asks the registry, which has no mesh here.
            cleanup_every: Duration::ZERO,
        },
        forks_per_cpu: 4,
        mib_per_fork: 100,
        memory_reserve: None,
        disk_reserve: None,
        peers: Peers { service: ServiceName::new("ctrlpeer").unwrap(), tls_server: None, tls_client: None },
    }
}
