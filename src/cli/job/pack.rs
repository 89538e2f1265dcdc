//! Makes a job of the flags and of this user's files: reads variables, asks for passwords, and says what is not sent.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::flags::RunFlags;
use super::secrets::Typed;
use super::vault::PasswordSource;
use crate::cli::exit::{Exit, Failure};
use crate::cli::table;
use crate::controller::pack::{
    self, InventorySource, JobParts, ModuleCall, PackError, PackedJob, Packer, PasswordFile, RunnerPaths,
    read_map,
};

/// A job with more bytes or files than these may have more than its project, so a warning is printed.
const MANY_BYTES: u64 = 100 << 20;
const MANY_FILES: u64 = 10_000;

impl RunFlags {
    /// Collects the job. `ident` is the runner's name for this run; `caller` reads the caller's environment.
    ///
    /// # Errors
    /// A file cannot be read, flags contradict the files, or a playbook asks what nobody can answer.
    pub(super) fn pack(
        &self,
        typed: &Typed,
        ident: &str,
        caller: &dyn Fn(&str) -> Option<String>,
    ) -> Result<PackedJob, Failure> {
        let parts = self.parts(typed, caller("HOME"))?;
        let mut job = PackedJob::collect(&parts, ident, caller).map_err(|error| self.advise(error))?;
        let (files, bytes) = job.bulk();
        if files > MANY_FILES || bytes > MANY_BYTES {
            let bytes = table::size(bytes);
            job.warnings.push(format!("all {files} files of the directory are sent, {bytes}"));
        }
        Ok(job)
    }

    fn parts(&self, typed: &Typed, home: Option<String>) -> Result<JobParts, Failure> {
        let ansible = &self.ansible;
        let place = RunnerPaths::of(self.module.is_some(), self.placing.image.is_some());
        let mut variables = Map::new();
        for text in &self.extra_vars {
            variables.extend(extra_vars(text)?);
        }
        Ok(JobParts {
            directory: self.dir.clone(),
            is_project: self.is_project,
            is_synced: self.placing.project_url.is_some(),
            has_image: self.placing.image.is_some(),
            playbook: self.playbook.clone(),
            module: self.module.clone().map(|name| ModuleCall {
                name,
                args: self.module_args.clone(),
                pattern: self.pattern.clone(),
            }),
            inventory: self.inventory.iter().map(|source| inventory(source)).collect(),
            variables,
            limit: self.limit.clone(),
            forks: self.forks,
            tags: self.tags.clone(),
            skip_tags: self.skip_tags.clone(),
            verbose: self.verbose,
            words: ansible.words(place)?,
            runs_nothing: ansible.syntax_check
                || ansible.list_hosts
                || ansible.list_tasks
                || ansible.list_tags,
            private_key: self.private_key.clone(),
            passwords: self.passwords(typed)?,
            packer: Packer::User,
            guarded: ["/etc".to_owned()].into_iter().chain(home).map(PathBuf::from).collect(),
            most: None,
        })
    }

    /// The passwords, each for a file of its own: a prompt of ansible would become a line of the job's output.
    fn passwords(&self, typed: &Typed) -> Result<Vec<PasswordFile>, Failure> {
        let typed_ones = [
            ("connection_password", "--connection-password-file=", &typed.connection),
            ("become_password", "--become-password-file=", &typed.become_user),
        ];
        let mut found = Vec::new();
        let mut put =
            |name: String, word: String, password| found.push(PasswordFile { name, word, password });
        for (name, word, password) in typed_ones {
            password
                .iter()
                .for_each(|password| put(name.to_owned(), word.to_owned(), password.clone().into_bytes()));
        }
        let mut vaults = typed.vaults.iter();
        for (number, (label, source)) in self.ansible.vault.sources().into_iter().enumerate() {
            let password = match source {
                PasswordSource::Typed => vaults.next().cloned().unwrap_or_default().into_bytes(),
                PasswordSource::File(path) => pack::password(&path, &label, Packer::User)?,
            };
            put(format!("vault_{number}"), format!("--vault-id={label}@"), password);
        }
        Ok(found)
    }

    /// Says what to do instead, in words of the command line.
    fn advise(&self, error: PackError) -> Failure {
        let PackError::NoProject(dir) = &error else { return error.into() };
        let below = self.playbook.as_ref().and_then(|playbook| playbook.split_once('/'));
        let rest = match below {
            Some((sub, rest)) => {
                format!("go to the playbook's: `cd {} && meshctl job run {rest}`", dir.join(sub).display())
            }
            None => {
                let what = if self.module.is_some() { "what the module needs" } else { "the playbook" };
                format!("put {what} into a directory of its own, and run it from there")
            }
        };
        Failure::usage(format!("{error}: {rest}"))
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Self {
        match &error {
            PackError::Asks { variables, .. } => {
                let first = variables.first().map_or("NAME", String::as_str);
                Self::usage(format!("{error}: give -e {first}=VALUE"))
            }
            PackError::Name(_)
            | PackError::Target(_)
            | PackError::NoMap(_)
            | PackError::Password { .. }
            | PackError::TooMuch { .. } => Self::new(Exit::Failed, error.to_string()),
            PackError::Unreadable(..)
            | PackError::NoProject(_)
            | PackError::NoDirectory(_)
            | PackError::TwoProjects(_)
            | PackError::Nothing(_)
            | PackError::NoPlaybook(_)
            | PackError::NoInventory(_)
            | PackError::Twice { .. }
            | PackError::Argument => Self::usage(error.to_string()),
        }
    }
}

/// An inventory as typed.
fn inventory(source: &str) -> InventorySource {
    if source.contains(',') { InventorySource::hosts(source) } else { InventorySource::Path(source.into()) }
}

/// The variables of one `-e`. Errors show none of its text, because it may be a secret.
pub(in crate::cli) fn extra_vars(text: &str) -> Result<Map<String, Value>, Failure> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(read_map(Path::new(file))?);
    }
    if text.trim_start().starts_with(['{', '[']) {
        return pack::map(text).ok_or_else(|| Failure::usage("-e: it is not a JSON or YAML object"));
    }
    let words = shlex::split(text).ok_or_else(|| Failure::usage("-e: a quote is not closed"))?;
    let pair = |word: &String| {
        let (key, value) = word.split_once('=')?;
        (!key.is_empty()).then(|| (key.to_owned(), json!(value)))
    };
    let pairs: Option<Map<String, Value>> = words.iter().map(pair).collect();
    pairs.filter(|pairs| !pairs.is_empty()).ok_or_else(|| {
        Failure::usage("-e: write KEY=VALUE (several with blanks between), a JSON object, or @FILE")
    })
}
