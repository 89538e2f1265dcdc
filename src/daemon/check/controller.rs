//! What `meshd check` says about a controller: its store, its credentials, its runner, and what its settings allow
//! others. The store may be in use, and nothing in it is changed.

use std::path::Path;

use super::super::controller::store_of;
use super::{Findings, Severity};
use crate::config::{ADVICE, Config};
use crate::controller::credentials::Credentials;
use crate::controller::options::{ControllerOptions, Discovery, NodeType};
use crate::controller::store::{Error, Options, StoreFinding, inspect};
use crate::work::run_dir::is_open_to_others;

const WHAT: &str = "work-controller";
/// Where children make their directories unless somebody says otherwise.
const DEFAULT_RUN_DIR: &str = "/tmp";

/// Where nodes have certificates, jobs are sent under the profile that shows one. What is missing, and what to do.
pub(in crate::daemon) fn lacks_tls_client(config: &Config) -> Option<(&'static str, String)> {
    config.controller.as_ref().filter(|controller| controller.tls_client.is_none())?;
    let profile = config.tls_clients.iter().find(|client| client.files.identity.is_some())?;
    let what = "tlsclient is missing: a node whose control service asks for a certificate, as one made by `meshctl node add` \
                does, takes no job from here";
    Some((what, format!("work-controller: {{tlsclient: {}}}, then: meshctl reload", profile.name)))
}

impl Findings {
    pub(super) fn controller(&mut self, config: &Config) {
        let Some(controller) = &config.controller else { return };
        self.store(config);
        self.credentials(controller);
        self.runner(controller);
        self.peer_keys(config, controller);
        if let Some((what, remedy)) = lacks_tls_client(config) {
            self.find(Severity::Warning, WHAT, what, Some(&remedy));
        }
        self.run_dir(&controller.run_dir);
        if !controller.verify_signature {
            let what = "verifysignature is false: every node of the mesh may submit jobs here";
            self.find(Severity::Warning, WHAT, what, Some(ADVICE));
        }
        if controller.discovery == Discovery::Enabled && config.is_open_to_strangers() {
            let what = "discovery is enabled, and a node needs no certificate to join: any that says it can run jobs gets \
                        some, with their secrets";
            self.find(Severity::Warning, WHAT, what, Some(ADVICE));
        }
    }

    fn store(&mut self, config: &Config) {
        let Some(store) = store_of(config) else { return };
        if let Some(host) = store.as_ref().ok().and_then(Options::host_in_the_clear) {
            self.warn(WHAT, format_args!(
                "store: everything goes to {host} in the clear, and the server proves nothing (sslmode=disable): who is on \
                 the way reads the headers of jobs, and may take the place of the database: use sslmode=verify-full"
            ));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let found = store.and_then(|options| match runtime {
            Ok(runtime) => runtime.block_on(inspect(&options)),
            Err(error) => Err(Error::Away(error.to_string())),
        });
        match found {
            Ok(StoreFinding::Absent | StoreFinding::Fine) => {}
            Ok(StoreFinding::NoNotifications) => self.warn(
                WHAT,
                "store: notifications do not arrive, as behind a transaction pooler: control nodes notice each \
                 other's changes by their poll alone",
            ),
            // It may be there when the node starts.
            Err(Error::Away(why)) => self.warn(WHAT, format_args!("store: it cannot be reached now: {why}")),
            Err(error) => self.add(WHAT, error),
        }
    }

    fn credentials(&mut self, controller: &ControllerOptions) {
        let Some(directory) = &controller.credentials else { return };
        let credentials = Credentials::new(Some(directory.clone()));
        match credentials.names() {
            Err(error) => self.lacks(WHAT, format!("credentials: {}: {error}", directory.display())),
            Ok(names) => {
                for error in names.iter().filter_map(|name| credentials.read(name).err()) {
                    self.lacks(WHAT, error);
                }
            }
        }
    }

    fn runner(&mut self, controller: &ControllerOptions) {
        let kind = &controller.runner;
        self.program(format!("{WHAT}: runner"), &kind.command);
        if controller.node_type == NodeType::Hybrid && kind.limits.user.is_none() {
            self.warn(
                WHAT,
                "this node's own jobs run as the daemon's user, beside its keys and credentials: give them another one by \
                 `user` of `runnerlimits`, unless jobs sync projects, which need this one",
            );
        }
    }

    /// The default is no mistake where no node runs receptor.
    fn run_dir(&mut self, run_dir: &Path) {
        if run_dir != Path::new(DEFAULT_RUN_DIR) && is_open_to_others(run_dir) {
            self.warn(
                WHAT,
                format_args!(
                    "rundir {}: others can write there, and on receptor's nodes they could take over jobs: \
                 name a directory that belongs to the user of the jobs alone",
                    run_dir.display()
                ),
            );
        }
    }

    fn peer_keys(&mut self, config: &Config, controller: &ControllerOptions) {
        let has_keys = config.work_signing.is_some() && config.work_verification.is_some();
        if controller.store.starts_with("postgres") && !has_keys {
            self.warn(
                WHAT,
                "work-signing or work-verification is missing: control nodes cannot fetch each other's output",
            );
        }
    }
}
