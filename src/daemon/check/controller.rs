//! What `meshd check` says about a controller: its store, its credentials, its runner, and what its settings allow
//! others. The store may be in use, and nothing in it is changed.

use super::super::controller::store_of;
use super::Findings;
use crate::config::{ADVICE, Config};
use crate::controller::credentials::Credentials;
use crate::controller::options::{ControllerOptions, Discovery, NodeType, OwnRunner};
use crate::controller::store::{Error, StoreFinding, inspect};

const WHAT: &str = "work-controller";

impl Findings {
    pub(super) fn controller(&mut self, config: &Config) {
        let Some(controller) = &config.controller else { return };
        self.store(config);
        self.credentials(controller);
        self.runner(controller);
        self.peer_keys(config, controller);
        if !controller.verify_signature {
            self.warn(format!(
                "verifysignature is false: every node of the mesh may submit jobs here; {ADVICE}"
            ));
        }
        if controller.discovery == Discovery::Enabled && config.is_open_to_strangers() {
            self.warn(format!(
                "discovery is enabled, and a node needs no certificate to join: any that says it can run jobs gets some, \
                 with their secrets; {ADVICE}"
            ));
        }
    }

    fn warn(&mut self, what: impl std::fmt::Display) {
        self.warnings.push(format!("{WHAT}: {what}"));
    }

    fn store(&mut self, config: &Config) {
        let Some(store) = store_of(config) else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let found = store.and_then(|options| match runtime {
            Ok(runtime) => runtime.block_on(inspect(&options)),
            Err(error) => Err(Error::Away(error.to_string())),
        });
        match found {
            Ok(StoreFinding::Absent | StoreFinding::Fine) => {}
            Ok(StoreFinding::NoNotifications) => self.warn(
                "store: notifications do not arrive, as behind a transaction pooler: control nodes notice each \
                 other's changes by their poll alone",
            ),
            // It may be there when the node starts.
            Err(Error::Away(why)) => self.warn(format!("store: it cannot be reached now: {why}")),
            Err(error) => self.add(WHAT, error),
        }
    }

    fn credentials(&mut self, controller: &ControllerOptions) {
        let Some(directory) = &controller.credentials else { return };
        let credentials = Credentials::new(Some(directory.clone()));
        match credentials.names() {
            Err(error) => self.add(WHAT, format!("credentials: {}: {error}", directory.display())),
            Ok(names) => {
                for error in names.iter().filter_map(|name| credentials.read(name).err()) {
                    self.add(WHAT, error);
                }
            }
        }
    }

    fn runner(&mut self, controller: &ControllerOptions) {
        // A work type in its place is checked as every other one.
        let OwnRunner::Program(kind) = &controller.runner else { return };
        self.program(format!("{WHAT}: runner"), &kind.command);
        if controller.node_type == NodeType::Hybrid && kind.limits.user.is_none() {
            self.warn(
                "this node's own jobs run as the daemon's user, beside its keys and credentials: give them another one by \
                 `user` of `runnerlimits`, unless jobs sync projects, which need this one",
            );
        }
    }

    fn peer_keys(&mut self, config: &Config, controller: &ControllerOptions) {
        let has_keys = config.work_signing.is_some() && config.work_verification.is_some();
        if controller.store.starts_with("postgres") && !has_keys {
            self.warn(
                "work-signing or work-verification is missing: control nodes cannot fetch each other's output",
            );
        }
    }
}
