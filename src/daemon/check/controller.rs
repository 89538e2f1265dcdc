//! What `meshd check` says about a controller: its store, its work types, and what its settings allow others.

use super::Findings;
use crate::config::Config;
use crate::controller::service::store_options;

const WHAT: &str = "work-controller";

impl Findings {
    /// Nothing is opened: a store that is in use would refuse, and a new one would be left behind.
    pub(super) fn controller(&mut self, config: &Config) {
        let Some(controller) = &config.controller else { return };
        let directory = config.node.data_dir.join(config.node.id.as_str());
        if let Err(error) = store_options(controller, &directory) {
            self.add(WHAT, error);
        }
        let local = &controller.child_types.local;
        let names = config.work_commands.iter().chain(&config.work_python).map(|kind| &kind.name);
        if !names.into_iter().any(|name| name == local) {
            let missing = format!(
                "there is no work type {local} (localtype), so this node's health cannot be checked: it takes no jobs"
            );
            self.warnings.push(format!("{WHAT}: {missing}"));
        }
        if !controller.verify_signature {
            let open = "verifysignature is false: every node of the mesh may submit jobs here";
            self.warnings.push(format!("{WHAT}: {open}"));
        }
        if controller.payload_copies > 1 {
            let one = "payloadcopies: this version keeps one copy of a payload";
            self.warnings.push(format!("{WHAT}: {one}"));
        }
    }
}
