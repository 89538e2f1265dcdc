//! What `meshd check` says about a controller: its store, its credentials, its runner, and what its settings allow
//! others. Changes nothing in the store, which may be in use.

use std::path::Path;
use std::sync::Arc;

use super::super::controller::store_of;
use super::{CheckFindings, Severity};
use crate::config::{ADVICE, Config};
use crate::controller::credentials::Credentials;
use crate::controller::options::{ControllerOptions, Discovery, NodeType, NoticeWay};
use crate::controller::saved::SavedJobs;
use crate::controller::store::{Error, Options, StoreFinding, inspect};
use crate::work::run_dir::is_open_to_others;

const WHAT: &str = "work-controller";
/// Faults of saved jobs that are found one by one.
const FAULTS: usize = 20;
/// Where children make their directories by default.
const DEFAULT_RUN_DIR: &str = "/tmp";

/// What is missing, and what to do, if this node has a certificate but its controller would send jobs without one.
pub(in crate::daemon) fn lacks_tls_client(config: &Config) -> Option<(&'static str, String)> {
    config.controller.as_ref().filter(|controller| controller.tls_client.is_none())?;
    let profile = config.tls_clients.iter().find(|client| client.files.identity.is_some())?;
    let what = "tlsclient is missing: nodes whose control service requires a certificate, like those made by \
                `meshctl node add`, accept no job from here";
    Some((what, format!("work-controller: {{tlsclient: {}}}, then: meshctl reload", profile.name)))
}

impl CheckFindings {
    pub(super) fn controller(&mut self, config: &Config) {
        let Some(controller) = &config.controller else { return };
        self.store(config);
        self.credentials(controller);
        self.saved(controller);
        self.notify(config, controller);
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
            let what = "discovery is enabled, and nodes need no certificate to join: any node that claims to run \
                        jobs gets some, with their secrets";
            self.find(Severity::Warning, WHAT, what, Some(ADVICE));
        }
    }

    fn store(&mut self, config: &Config) {
        let Some(store) = store_of(config) else { return };
        if let Some(host) = store.as_ref().ok().and_then(Options::host_in_the_clear) {
            self.warn(WHAT, format_args!(
                "store: the connection to {host} is neither encrypted nor authenticated (sslmode=disable): anybody \
                 on the way can read the headers of jobs, and can pose as the database: use sslmode=verify-full"
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
                "store: notifications do not arrive, for example because of a transaction pooler: control nodes \
                 notice each other's changes only when they poll",
            ),
            // No error, because the store may be there when the node starts.
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

    /// For a running node a broken file is a warning: it keeps the last good version, and its reload must not fail.
    fn saved(&mut self, controller: &ControllerOptions) {
        let Some(directory) = &controller.jobs else { return };
        let saved = SavedJobs::load(directory, Arc::default(), |_| ());
        let severity = if self.running { Severity::Warning } else { Severity::Error };
        let remedy = "correct it, look with meshctl saved check, then: meshctl reload";
        let mut find = |what: &dyn std::fmt::Display| {
            self.find(severity, format_args!("{WHAT}: jobs"), what, Some(remedy));
        };
        saved.all_faults().take(FAULTS).for_each(|fault| find(fault));
        let (_, broken) = saved.counts();
        if let Some(more) = broken.checked_sub(FAULTS as u64).filter(|more| *more > 0) {
            find(&format_args!("{more} more: meshctl saved check shows all"));
        }
    }

    fn notify(&mut self, config: &Config, controller: &ControllerOptions) {
        for (name, target) in &controller.notify {
            let (place, NoticeWay::Webhook(hook)) = (format!("{WHAT}: notify {name}"), &target.way) else {
                continue;
            };
            let is_known = |profile: &String| config.tls_clients.iter().any(|client| client.name == *profile);
            if let Some(profile) = hook.tls_client.as_ref().filter(|profile| !is_known(profile)) {
                self.lacks(&place, format_args!("tlsclient: there is no tls-client {profile}"));
            }
            if let Some(error) = hook.secret_file.as_ref().and_then(|file| std::fs::File::open(file).err()) {
                self.lacks(&place, format_args!("secretfile: {error}"));
            }
        }
    }

    fn runner(&mut self, controller: &ControllerOptions) {
        let kind = &controller.runner;
        self.program(format!("{WHAT}: runner"), &kind.command);
        if controller.node_type == NodeType::Hybrid && kind.limits.user.is_none() {
            self.warn(
                WHAT,
                "this node's own jobs run as the daemon's user, who can read its keys and credentials: give them \
                 another user with `user` in `runnerlimits`, unless jobs sync projects, which need this one",
            );
        }
    }

    /// Warns of a directory that others can write, but not of the default, which is no mistake if no node runs
    /// receptor.
    fn run_dir(&mut self, run_dir: &Path) {
        if run_dir != Path::new(DEFAULT_RUN_DIR) && is_open_to_others(run_dir) {
            self.warn(
                WHAT,
                format_args!(
                    "rundir {}: others can write there, and could take over jobs on receptor nodes: name a \
                     directory that belongs only to the user of the jobs",
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
