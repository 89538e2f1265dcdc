//! Finds what is wrong with this node: its configuration, its host and its links. Owns the order of the examination,
//! and that only one runs at a time. `check` examines the configuration, `checks` the host by its `facts`, `links` the
//! links, `sink` the `events-sink`, and `instances` a controller's instances. Does not examine the way to another node: `meshctl doctor` does
//! that.

mod checks;
mod facts;
mod instances;
mod links;
mod sink;

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::check;
use super::reload::Reloader;
use crate::config::{self, Config, Environment, Invocation, Sources};
use crate::control::{self, Examine, SinkCounters};
use crate::node::NodeHandle;
use crate::rpc::report::finding::Finding;
use crate::rpc::report::outage::OutageReport;
use crate::tls::Profiles;
use crate::work::jobs::Operations;

/// The remedy for errors in the configuration.
const CORRECT: &str = "correct the configuration, then: meshctl reload";

/// Examines the running node.
pub(super) struct Doctor {
    reloader: Weak<Reloader>,
    node: NodeHandle,
    profiles: Profiles,
    controller: Option<Arc<dyn Operations>>,
    sink: Arc<SinkCounters>,
    turn: Arc<Mutex<()>>,
}

impl Doctor {
    pub(super) fn new(
        reloader: Weak<Reloader>,
        node: NodeHandle,
        profiles: Profiles,
        controller: Option<Arc<dyn Operations>>,
        sink: Arc<SinkCounters>,
    ) -> Self {
        Self { reloader, node, profiles, controller, sink, turn: Arc::default() }
    }

    async fn all(&self) -> Vec<Finding> {
        // Held until the thread below ends, so that a file system that hangs holds up one thread, not one for each
        // caller.
        let turn = self.turn.clone().lock_owned().await;
        let Some(reloader) = self.reloader.upgrade() else { return Vec::new() };
        let (config, sources) = reloader.in_force().await;
        let (sessions, status) = (self.node.links().await, self.node.status().await);
        let dials = self.node.dials();
        let outages: Vec<_> = status.outages(self.node.id()).into_iter().map(OutageReport::from).collect();
        let away: BTreeSet<String> = outages.iter().flat_map(OutageReport::nodes).cloned().collect();
        let here = {
            let config = config.clone();
            tokio::task::spawn_blocking(move || {
                let _turn = turn;
                of_host(&config, Some(&sources), Path::new("/"))
            })
        };
        let instances = async {
            match &self.controller {
                Some(controller) => instances::of_controller(controller.as_ref(), &away).await,
                None => Default::default(),
            }
        };
        let peers = links::of_peers(&config, &self.profiles, &sessions, &dials);
        let (here, peers, (instances, idle)) = tokio::join!(here, peers, instances);
        // A check that panics must not pass for one that found nothing.
        let here = here.unwrap_or_else(|error| vec![unfinished(&error.to_string())]);
        here.into_iter()
            .chain(self.profiles.renewal_failure().map(not_renewed))
            .chain(links::of_name(self.node.id(), &status))
            .chain(sessions.iter().flat_map(links::of_session))
            .chain(links::of_outages(self.node.id(), &outages, &idle, &dials))
            .chain(peers)
            .chain(sink::of_sink(&self.sink))
            .chain(instances)
            .collect()
    }
}

fn not_renewed(why: String) -> Finding {
    let remedy = "see whether the control node is reached and gives certificates (meshctl node invites there); or bring a \
                  bundle here: meshctl node renew on the control node";
    Finding::advice("enrolment", format!("the certificate cannot be renewed over the mesh: {why}"), remedy)
}

impl Examine for Doctor {
    fn examine(&self) -> Pin<Box<dyn Future<Output = Vec<Finding>> + Send + '_>> {
        Box::pin(async {
            let all = timeout(control::EXAMINED_WITHIN, self.all()).await;
            all.unwrap_or_else(|_| {
                vec![unfinished("it takes too long: perhaps a file system or an API server hangs")]
            })
        })
    }

    fn tls_client(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async { towards_others(&self.reloader.upgrade()?.in_force().await.0) })
    }
}

/// The profile with which this node's controller sends jobs, or else the only `tls-client`.
fn towards_others(config: &Config) -> Option<String> {
    let controller = config.controller.as_ref().and_then(|options| options.tls_client.clone());
    let only = || match config.tls_clients.as_slice() {
        [one] => Some(one.name.clone()),
        _ => None,
    };
    controller.or_else(only)
}

fn unfinished(why: &str) -> Finding {
    let remedy = "meshd check --running --config-dir /etc/meshd/conf.d shows how far it gets";
    Finding::not_asked("checks of the node", why, remedy)
}

/// Examines a host whose node does not run, by the node's configuration; the host's files are below `root`. Runs no
/// program, because root may have asked, but the daemon's user, or whoever made the files, may have written the
/// program. Blocks.
pub(crate) fn examine_files(path: &Path, root: &Path) -> Vec<Finding> {
    let args = check::sources(vec![path.display().to_string()]);
    let found = match config::load(args, &Environment::of_process()) {
        Ok(Invocation::Run(loaded)) => {
            let warnings = loaded.warnings.iter().map(check::warning);
            warnings.chain(of_host(&loaded.config, None, root)).collect()
        }
        Ok(Invocation::Help | Invocation::Version) => Vec::new(),
        Err(errors) => errors.0.iter().map(check::fault).collect(),
    };
    found.into_iter().map(with_remedy).collect()
}

/// Examines the configuration and the host. For a running node, `sources` says where its configuration came from.
fn of_host(config: &Config, sources: Option<&Sources>, root: &Path) -> Vec<Finding> {
    let is_node = sources.is_some();
    let files = sources.filter(|sources| !sources.files().is_empty()).map(Sources::load_again);
    let fails = |one: Finding| Finding { what: format!("{}{}", check::NEXT_START, one.what), ..one };
    let mut found = match &files {
        Some(Err(errors)) => errors.0.iter().map(check::fault).map(fails).collect(),
        // Checks the files and not what is in force, because the next reload replaces that.
        Some(Ok(loaded)) if loaded.config != *config => {
            let (what, remedy) = (
                "its files have changed since it read them, and are not in force",
                "meshctl reload; it says if something needs a restart",
            );
            let changed = Finding::advice("configuration", what, remedy);
            check::findings(&loaded.config, is_node, true, is_node).into_iter().chain([changed]).collect()
        }
        Some(Ok(_)) | None => check::findings(config, is_node, true, is_node),
    };
    found.extend(checks::all(&facts::gather(config, root, is_node)));
    found.into_iter().map(with_remedy).collect()
}

fn with_remedy(finding: Finding) -> Finding {
    Finding { remedy: finding.remedy.or_else(|| Some(CORRECT.to_owned())), ..finding }
}
