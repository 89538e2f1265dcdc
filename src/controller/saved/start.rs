//! Makes of a saved job and the given values what any client submits: the header, and the parts of the stream. Pure but
//! for the files that the job names.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::file::SavedJob;
use super::vars::{self, Patterns};
use crate::controller::core::{JobKind, LaunchGroups};
use crate::controller::header::{Header, NOTIFY, SAVED};
use crate::controller::notify::wanted_word;
use crate::controller::pack::{
    InventorySource, JobParts, ModuleCall, PackError, Packer, PasswordFile, password,
};

/// How the labels begin that the controller alone gives.
pub(crate) const RESERVED: &str = "meshd/";
/// The label with the hash of its file.
const HASH: &str = "meshd/saved-hash";
/// How many files a directory may have.
const MOST_FILES: usize = 50_000;

/// The label that jobs of this saved job have.
pub(crate) fn saved_label(name: &str) -> (String, String) {
    (SAVED.to_owned(), name.to_owned())
}

/// What this node guards when it packs a directory of its disk.
pub(crate) struct NodeGuards {
    /// Directories that no project may hold.
    pub guarded: Vec<PathBuf>,
    /// The most bytes of a project.
    pub most_bytes: u64,
}

impl SavedJob {
    /// The header of a job that is started now, of a file with this name and hash.
    pub(crate) fn header(&self, name: &str, hash: &str) -> Header {
        let job = self;
        let mut labels = job.labels.clone();
        labels.extend([saved_label(name), (HASH.to_owned(), hash.to_owned())]);
        let notify = job.notify.iter().map(|(target, events)| wanted_word(target, events));
        let notify = notify.collect::<Vec<_>>().join(",");
        labels.extend((!notify.is_empty()).then(|| (NOTIFY.to_owned(), notify)));
        Header {
            kind: if job.module.is_some() { JobKind::AdHoc } else { JobKind::Job },
            name: job.name.clone().or_else(|| Some(name.to_owned())),
            labels,
            hosts: job.hosts,
            groups: LaunchGroups { launch: job.group.clone(), ..LaunchGroups::default() },
            priority: job.priority,
            exclusive: job.exclusive.clone(),
            pending_timeout: job.pending_timeout,
            timeout: job.timeout,
            lost_after: job.lost_after,
            retry: job.retry.clone(),
            runner: job.runner.clone(),
            sync: job.project.clone(),
            rerun: job.keep.0,
            ..Header::default()
        }
    }

    /// Why only a caller with all rights may start it, if so.
    pub(crate) fn needs_admin(&self) -> Option<&'static str> {
        if self.directory.is_some() {
            return Some("directory: files on the control node's own disk need admin rights");
        }
        let has_secret = self.private_key.is_some() || self.vault_password_file.is_some();
        has_secret.then_some(
            "private_key, vault_password_file: files on the control node's own disk need admin rights",
        )
    }

    /// The variables with which it starts: those of the file, those that are given, and the defaults of the others.
    ///
    /// # Errors
    /// A given value does not fit, or one is missing. Messages show no value.
    pub(crate) fn variables(&self, given: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let mut variables = self.extra_vars.clone();
        variables.extend(vars::settle(&self.vars, given, &mut Patterns::default())?);
        Ok(variables)
    }

    /// What its stream is made of. Blocks on the disk.
    ///
    /// # Errors
    /// A password cannot be read.
    pub(crate) fn parts(
        &self,
        variables: Map<String, Value>,
        guards: NodeGuards,
    ) -> Result<JobParts, PackError> {
        let vault = self.vault_password_file.iter().map(|path| {
            let password = password(path, "default", Packer::Node)?;
            Ok(PasswordFile { name: "vault_0".to_owned(), word: "--vault-id=default@".to_owned(), password })
        });
        let runs_in = |words: &crate::controller::header::RunnerWords| words.image.is_some();
        Ok(JobParts {
            directory: self.directory.clone(),
            is_project: false,
            is_synced: self.project.is_some(),
            has_image: self.runner.as_ref().is_some_and(runs_in),
            playbook: self.playbook.clone(),
            module: self.module.clone().map(|name| ModuleCall {
                name,
                args: self.args.clone(),
                pattern: self.pattern.clone(),
            }),
            inventory: self.inventory.iter().map(|text| inventory(text)).collect(),
            variables,
            limit: self.limit.clone(),
            forks: self.forks,
            tags: self.tags.clone(),
            skip_tags: self.skip_tags.clone(),
            verbose: self.verbose,
            words: self.words(),
            runs_nothing: false,
            private_key: self.private_key.clone(),
            passwords: vault.collect::<Result<_, _>>()?,
            packer: Packer::Node,
            guarded: guards.guarded,
            most: Some((MOST_FILES, guards.most_bytes)),
        })
    }

    /// The words of ansible's command line that the runner has no arguments for.
    fn words(&self) -> Vec<String> {
        let switches = [(self.check, "--check"), (self.diff, "--diff"), (self.becomes, "--become")];
        let values = [
            (&self.become_user, "--become-user"),
            (&self.user, "--user"),
            (&self.connection, "--connection"),
        ];
        let given = switches.into_iter().filter(|(given, _)| *given).map(|(_, word)| word.to_owned());
        let valued =
            values.into_iter().filter_map(|(value, word)| Some(format!("{word}={}", value.as_ref()?)));
        given.chain(valued).collect()
    }
}

/// An inventory as the file says it.
fn inventory(text: &str) -> InventorySource {
    if text.contains('\n') {
        return InventorySource::Text(text.to_owned());
    }
    if !text.contains(',') {
        return InventorySource::OfProject(text.to_owned());
    }
    InventorySource::hosts(text)
}
