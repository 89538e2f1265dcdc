//! Rewrites the kwargs line of a stream for the child that gets the stream. Nothing else of a stream ever changes, and
//! within the line only the requested values change.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::controller::credentials::RegistryLogin;
use crate::controller::header::{Header, Pull, RunnerWords};

/// The longest `limit`. It is one argument of ansible-playbook, and the system allows at most 128 KiB for an argument.
const LONGEST_LIMIT: usize = 120_000;
/// The longest name of a host in a `limit`. A name that a recap has cut has 252 bytes or more.
const LONGEST_NAME: usize = 251;

/// What to change in a child's kwargs. It holds a secret once there is a login.
#[derive(Debug, Default)]
pub struct KwargsChange<'a> {
    /// How the runner starts the job.
    pub runner: Option<&'a RunnerWords>,
    /// The content of the credential that `runner` names.
    pub registry: Option<&'a RegistryLogin>,
    /// How long the run may take.
    pub timeout: Option<Duration>,
    /// The only hosts to run on.
    pub limit: Option<&'a [String]>,
    /// Environment variables, set unless the stream sets them itself.
    pub variables: Option<[(&'static str, String); 2]>,
    /// The child runs in a pod, so no other container is started.
    pub in_pod: bool,
}

/// Why a line cannot be rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KwargsError {
    /// It is no kwargs line.
    #[error("the stored payload does not begin with a kwargs line")]
    NoKwargs,
    /// Too many hosts.
    #[error("too many hosts for one run: their names are longer than {LONGEST_LIMIT} bytes")]
    LongLimit,
    /// A host's name, which a runner chose, may be a pattern.
    #[error("the name {0:?} may be a pattern that stands for other hosts")]
    Pattern(String),
}

impl<'a> KwargsChange<'a> {
    /// What a header asks for, without its credential.
    pub fn of(header: &'a Header) -> Self {
        Self { runner: header.runner.as_ref(), timeout: header.timeout, ..Self::default() }
    }

    /// Whether the stream passes as it is.
    pub fn is_none(&self) -> bool {
        let Self { runner, registry, timeout, limit, variables, in_pod } = self;
        let is_plain = runner.is_none() && registry.is_none() && timeout.is_none() && limit.is_none();
        is_plain && variables.is_none() && !in_pod
    }

    /// The line as the child is to read it, with its newline.
    pub fn apply(&self, line: &[u8]) -> Result<Vec<u8>, KwargsError> {
        if self.is_none() {
            return Ok(line.to_vec());
        }
        let no_kwargs = |_| KwargsError::NoKwargs;
        let mut outer: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(line).map_err(no_kwargs)?;
        let kwargs = outer.remove("kwargs").ok_or(KwargsError::NoKwargs)?;
        let mut kwargs: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(kwargs.get()).map_err(no_kwargs)?;
        let changes = self.changes(&kwargs)?;
        if changes.is_empty() {
            return Ok(line.to_vec());
        }
        for (key, value) in changes {
            match value {
                Value::Null => drop(kwargs.remove(key)),
                value => drop(kwargs.insert(key.to_owned(), to_raw_value(&value).map_err(no_kwargs)?)),
            }
        }
        outer.insert("kwargs".to_owned(), to_raw_value(&kwargs).map_err(no_kwargs)?);
        let mut text = serde_json::to_vec(&outer).map_err(no_kwargs)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The keys that change, with their values; null removes a key.
    fn changes(
        &self,
        kwargs: &BTreeMap<String, Box<RawValue>>,
    ) -> Result<Vec<(&'static str, Value)>, KwargsError> {
        let mut changes = Vec::new();
        if let Some(timeout) = self.timeout {
            // The runner counts whole seconds, and takes 0 for no limit.
            changes.push(("timeout", json!(timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0))));
        }
        if let Some(hosts) = self.limit {
            changes.push(("limit", limit(hosts)?.into()));
        }
        if let Some(variables) = &self.variables {
            let given = kwargs.get("envvars").and_then(|raw| serde_json::from_str(raw.get()).ok());
            let mut all: BTreeMap<String, Value> = given.unwrap_or_default();
            for (name, value) in variables {
                all.entry((*name).to_owned()).or_insert_with(|| value.as_str().into());
            }
            changes.push(("envvars", json!(all)));
        }
        if self.in_pod {
            let asked = |value: &RawValue| !matches!(value.get(), "false" | "null");
            if kwargs.get("process_isolation").is_some_and(|value| asked(value)) {
                let container = ["container_image", "container_options", "container_auth_data"];
                changes.extend(container.map(|key| (key, Value::Null)));
                changes.push(("process_isolation", false.into()));
            }
            return Ok(changes);
        }
        if let Some(login) = self.registry {
            let auth = json!({
                "host": login.host,
                "username": login.username,
                "password": login.password.expose(),
                "verify_ssl": login.verify_ssl,
            });
            changes.push(("container_auth_data", auth));
        }
        if let Some(words) = self.runner {
            changes.extend(container(words, kwargs));
        }
        Ok(changes)
    }
}

/// The `limit` of a run on these hosts.
///
/// # Errors
/// They are too many, or one of their names may stand for other hosts.
pub fn limit(hosts: &[String]) -> Result<String, KwargsError> {
    if let Some(pattern) = hosts.iter().find(|host| !is_one_host(host)) {
        return Err(KwargsError::Pattern(pattern.clone()));
    }
    let limit = hosts.join(",");
    if limit.len() > LONGEST_LIMIT { Err(KwargsError::LongLimit) } else { Ok(limit) }
}

/// Whether Ansible reads a name in a `limit` as one host, and not as a pattern, a file or a flag. Runners name hosts as
/// they like, so only a name that cannot mean anything else passes. A group of the inventory passes, too, because its
/// name looks like a host's.
fn is_one_host(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_reserved = matches!(name, "" | "all" | "ungrouped") || name.starts_with('-');
    // A longer name may have been cut, and then it is not the host's.
    let is_whole = name.len() <= LONGEST_NAME;
    is_whole && !is_reserved && (name.chars().all(is_plain) || name.parse::<Ipv6Addr>().is_ok())
}

fn container(words: &RunnerWords, kwargs: &BTreeMap<String, Box<RawValue>>) -> Vec<(&'static str, Value)> {
    let given = |key| kwargs.get(key).and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    let mut changes = Vec::new();
    let isolation = words.isolation.or(words.image.as_ref().map(|_| true));
    if let Some(isolation) = isolation {
        changes.push(("process_isolation", isolation.into()));
    }
    if isolation == Some(true) && !given("process_isolation_executable").is_some_and(|it| it.is_string()) {
        changes.push(("process_isolation_executable", "podman".into()));
    }
    if let Some(image) = &words.image {
        changes.push(("container_image", image.as_str().into()));
    }
    if words.options.is_some() || words.pull.is_some() {
        let stream = || given("container_options").and_then(|it| serde_json::from_value(it).ok());
        let mut options: Vec<String> = words.options.clone().or_else(stream).unwrap_or_default();
        if let Some(pull) = words.pull.map(Pull::name) {
            options.retain(|option| !option.starts_with("--pull="));
            options.push(format!("--pull={pull}"));
        }
        changes.push(("container_options", options.into()));
    }
    changes
}
