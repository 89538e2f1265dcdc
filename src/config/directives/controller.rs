//! The controller of a control node.
//!
//! Owns its declaration, which is read into [`crate::controller::options`]. It refuses to open the store and the
//! directory of credentials, and leaves the grammar of `store` to the store.

use std::path::PathBuf;
use std::time::Duration;

use super::super::declare::{directive, settings};
use super::super::firewall;
use super::super::parameters::{
    self, Bytes, OwnService, TlsClientName, TlsServerName, choice, grammar, number, parsed,
};
use super::notify::NotifyTargets;
use super::runner::OwnRunner;
use crate::controller::options::{
    Bounds, ControllerOptions, Discovery, LEAST_HEARTBEATS, NodeType, OnLoss, Peers, Timers,
};
use crate::mesh::firewall::Pattern;

directive! {
    /// Makes this node a control node, which places jobs
    "work-controller" in Work [singleton];
    WorkController => ControllerOptions {
        /// control, or hybrid to run jobs as well
        node_type "nodetype": ControlType = "control",
        /// sqlite, sqlite:PATH or a URL of PostgreSQL
        /// As in `postgresql://USER@HOST[,HOST]/DB?sslmode=verify-full&sslrootcert=FILE`; it may hold no password.
        store: String = "sqlite",
        /// file with the password for PostgreSQL
        store_password_file "storepasswordfile": Option<PathBuf>,
        /// directory of credentials
        credentials: Option<PathBuf>,
        /// directory of saved jobs
        /// Each file `NAME.yml` is a job that `meshctl saved start NAME` starts. A reload reads them again.
        jobs: Option<PathBuf>,
        /// where notices about jobs that have ended go
        /// A map of names, each of a map with url or command, and with events, jobs, secretfile, tlsclient, allowlocal and
        /// timeout: [notices](saved-jobs.md#notices).
        notify: Option<NotifyTargets>,
        /// what runs on this node itself
        runner: OwnRunner,
        /// files and directories that syncs may read
        /// Beside the system's programs and Ansible itself, which are found: a sync sees nothing else of this machine.
        sync_read "syncread": Vec<SyncPath>,
        /// hosts that syncs may reach; all but this machine if not given
        /// A name or an address, or an expression between slashes. Addresses of the loopback and of the link are
        /// reached only if they themselves are named, or `localhost` for the loopback.
        project_hosts "projecthosts": Vec<HostName>,
        /// directories of children on receptor's nodes
        /// meshd nodes make their own. Whoever else may write there can take over jobs.
        run_dir "rundir": RunDirectory = "/tmp",
        /// tls-client profile towards instances
        tls_client "tlsclient": Option<TlsClientName>,
        /// no jobs without TLS; true if tlsclient is given
        require_tls "requiretls": Option<bool>,
        /// callers over the mesh need a valid token
        verify_signature "verifysignature": bool = "true",
        /// of nodes: off, disabled or enabled
        /// A node that advertises `ansible-runner` and is not registered is ignored; shown by `meshctl instance list
        /// --found` until an operator enables it; or registered and enabled, so that every node that may join the mesh
        /// gets jobs with their secrets.
        discovery: Discovery = "disabled",
        /// node IDs that discovery may register; all if not given
        /// An ID between slashes is a regular expression.
        discover_nodes "discovernodes": Vec<NodePattern>,
        /// when an owner is lost: takeover or fail
        on_loss "onloss": OnLoss = "takeover",
        /// when something is lost
        timers: LossTimes,
        /// what is kept
        bounds: Retained,
        /// forks per processor
        forks_per_cpu "forkspercpu": Count = "4",
        /// MiB of memory per fork
        mib_per_fork "mibperfork": Count = "100",
        /// bytes that jobs cannot use
        /// If not given it is 2147483648, or 0 in a pod.
        memory_reserve "memoryreserve": Option<Bytes>,
        /// the same as that of node, and counts before it
        disk_reserve "diskreserve": Option<Bytes>,
        /// how control nodes reach each other
        peers: PeerService,
    }
    make ControllerOptions {
        node_type,
        store,
        store_password_file,
        credentials,
        jobs,
        notify: notify.unwrap_or_default(),
        runner,
        sync_read,
        project_hosts,
        run_dir,
        require_tls: require_tls.unwrap_or(tls_client.is_some()),
        tls_client,
        verify_signature,
        discovery,
        discover_nodes,
        on_loss,
        timers,
        bounds,
        forks_per_cpu,
        mib_per_fork,
        memory_reserve,
        disk_reserve,
        peers,
    }
}

/// Settings about losses.
#[derive(Debug, Clone, Copy)]
pub enum LossTimes {}

settings! {
    LossTimes => Timers {
        /// how often it says that it is there
        heartbeat: Interval = "10s",
        /// silence after which a control node is lost
        owner_lost_after "ownerlostafter": Interval = "30s",
        /// silence after which an instance is lost
        lost_after "lostafter": Interval = "3m",
        /// how often pending jobs are looked at
        poll: Interval = "20s",
    }
    check few_heartbeats(heartbeat, owner_lost_after);
}

fn few_heartbeats(heartbeat: &Duration, owner_lost_after: &Duration) -> Option<&'static str> {
    (heartbeat.saturating_mul(LEAST_HEARTBEATS) > *owner_lost_after).then_some(
        "`ownerlostafter` must be at least three times `heartbeat`: one lost message must not lose a node",
    )
}

/// Settings about retention.
#[derive(Debug, Clone, Copy)]
pub enum Retained {}

settings! {
    Retained => Bounds {
        /// most jobs that may wait
        max_pending "maxpending": Count = "100000",
        /// most bytes of a payload
        max_payload "maxpayload": Bytes = "4294967296",
        /// most bytes that one job may print
        job_output "joboutput": Bytes = "1073741824",
        /// how long a payload is kept after its job's end
        payload_retention "payloadretention": Duration = "24h",
        /// how long an output is kept
        output_retention "outputretention": Duration = "720h",
        /// most bytes of all outputs
        output_limit "outputlimit": Bytes = "21474836480",
        /// how long a job is listed
        job_retention "jobretention": Duration = "2160h",
        /// most bytes of fetched projects
        project_cache "projectcache": Bytes = "10737418240",
        /// how often instances are cleaned up; 0 is never
        cleanup_every "cleanupevery": Duration = "3h",
    }
}

/// Settings about how control nodes reach each other.
#[derive(Debug, Clone, Copy)]
pub enum PeerService {}

settings! {
    PeerService => Peers {
        /// service for other control nodes
        service "peerservice": OwnService = "ctrlpeer",
        /// its tls-server profile
        tls_server "peertlsserver": Option<TlsServerName>,
        /// tls-client profile towards other control nodes
        tls_client "peertlsclient": Option<TlsClientName>,
    }
}

grammar! {
    impl Discovery => Discovery = Text choice(
        &[("off", Discovery::Off), ("disabled", Discovery::Disabled), ("enabled", Discovery::Enabled)],
        "it must be off, disabled or enabled",
    );
    impl OnLoss => OnLoss = Text choice(
        &[("takeover", OnLoss::TakeOver), ("fail", OnLoss::Fail)], "it must be takeover or fail",
    );
}

grammar! {
    /// What a node with a controller is.
    struct ControlType => NodeType = Text choice(
        &[("control", NodeType::Control), ("hybrid", NodeType::Hybrid)], "it must be control or hybrid",
    );
    /// A node ID, or an expression for several.
    struct NodePattern => Pattern = Text parsed(firewall::pattern);
    /// A directory that is named in the command lines of children.
    struct RunDirectory => PathBuf = Text parsed(run_directory);
    /// A host, or an expression for several.
    struct HostName => String = Text parsed(host_name);
    /// A file or directory of this machine.
    struct SyncPath => PathBuf = Text parsed(absolute);
    /// A number above zero.
    struct Count => u32 = Int number(1..=2_147_483_647, "a whole number above zero is needed");
    /// A duration above zero.
    struct Interval => Duration = Text parsed(interval);
}

/// Checks the directory's characters, because the path is split into words as by a shell and used in a file
/// pattern.
fn run_directory(text: &str) -> Result<PathBuf, &'static str> {
    let breaks = |c: char| c.is_whitespace() || c.is_control() || "'\"\\[]*?".contains(c);
    match text.contains(breaks) {
        true => Err(
            "it becomes part of command lines, so it may not contain blanks, quotes, backslashes, brackets, * or ?",
        ),
        false => Ok(text.into()),
    }
}

/// Only checks the text. The process between a sync and the network reads it again, and uses it.
fn host_name(text: &str) -> Result<String, String> {
    firewall::pattern(text).map(|_| text.to_owned())
}

fn absolute(text: &str) -> Result<PathBuf, &'static str> {
    if text.starts_with('/') { Ok(text.into()) } else { Err("it is not an absolute path") }
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    match parameters::duration(text)? {
        Duration::ZERO => Err("it must be above zero"),
        interval => Ok(interval),
    }
}
