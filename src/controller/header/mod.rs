//! The header of a submission: which job it is, where it may run, and what becomes of it. It is parsed once, and every
//! value of a parsed header is valid. It holds names of credentials and never their content, so the store may keep it.
//!
//! This module does not know whether groups, jobs and credentials exist, nor what the caller may do: the door asks
//! [`Header::needs_admin`] and [`Header::credentials`].

pub(super) mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::core::{Class, JobId, JobKind, LaunchGroups, Retry, Size, Slice, Word};
use super::credentials::{CredentialName, Url};
use super::refusal::HeaderFault;
use crate::rpc::report::names::names;
use crate::rpc::strict::{self, Misfit};
use crate::work::jobs::VERSION_KEY;

/// The label with the name of the saved job that a job was started of.
pub(crate) const SAVED: &str = "meshd/saved";
/// The label with the targets that its saved job names for notices.
pub(crate) const NOTIFY: &str = "meshd/notify";

/// What a client asks for, in the keys that it may send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Header {
    /// What the job does.
    #[serde(deserialize_with = "rules::submitted")]
    pub kind: JobKind,
    /// A name for people.
    #[serde(deserialize_with = "rules::name")]
    pub name: Option<String>,
    /// Submitting the same key again follows the job that has it.
    #[serde(deserialize_with = "rules::key")]
    pub key: Option<String>,
    /// Labels, for filters.
    #[serde(deserialize_with = "rules::labels")]
    pub labels: BTreeMap<String, String>,
    /// Forks; the stream's if not given.
    #[serde(deserialize_with = "rules::count")]
    pub forks: Option<u32>,
    /// The number of hosts in the inventory.
    #[serde(deserialize_with = "rules::count")]
    pub hosts: Option<u32>,
    /// The part of the inventory that it covers.
    pub slice: Option<Slice>,
    /// Replaces the computed impact.
    #[serde(deserialize_with = "rules::count")]
    pub impact: Option<u32>,
    /// The groups that it names.
    #[serde(deserialize_with = "rules::groups")]
    pub groups: LaunchGroups,
    /// −100 to 100; higher goes first.
    #[serde(deserialize_with = "rules::priority")]
    pub priority: i8,
    /// Jobs that must succeed first.
    #[serde(deserialize_with = "rules::dependencies")]
    pub depends_on: Vec<Dependency>,
    /// Words of which only one running job may hold each.
    #[serde(deserialize_with = "rules::words")]
    pub exclusive: Vec<Word>,
    /// How long it may be pending.
    #[serde(with = "rules::span")]
    pub pending_timeout: Option<Duration>,
    /// The runner's `timeout`.
    #[serde(with = "rules::span")]
    pub timeout: Option<Duration>,
    /// Bytes that it may print, if less than the node's `joboutput`.
    #[serde(deserialize_with = "rules::bytes")]
    pub output_limit: Option<u64>,
    /// Replaces the node's `lostafter`.
    #[serde(with = "rules::span")]
    pub lost_after: Option<Duration>,
    /// When it is retried.
    pub retry: RetryWords,
    /// How the runner starts it; `None` leaves the stream as it is.
    pub runner: Option<RunnerWords>,
    /// A project whose tree is put into its stream.
    pub sync: Option<ProjectSync>,
    /// Keep the payload for reruns.
    pub rerun: bool,
    /// Delete its directory on the instance.
    pub cleanup: bool,
}

/// A job that must succeed first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields, expecting = "an entry must be a job's number or {\"key\": KEY}")]
pub enum Dependency {
    /// By its number.
    Job(#[serde(deserialize_with = "rules::needed_job")] JobId),
    /// By its key.
    Key {
        /// The key.
        #[serde(deserialize_with = "rules::needed_key")]
        key: String,
    },
}

/// When a job is retried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct RetryWords {
    /// Attempts after the first one.
    #[serde(deserialize_with = "rules::retries")]
    pub max: u32,
    /// The ends after which it is retried.
    pub on: BTreeSet<RetryOn>,
    /// Retry even while the former attempt may still run.
    pub unconfirmed: bool,
}

names! {
    /// An end after which a job is retried.
    enum RetryOn {
        /// Its instance was lost.
        Lost = "lost",
        /// It could not be run.
        Error = "error",
        /// Its playbook failed.
        Failed = "failed",
    }
}

/// How the runner starts a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct RunnerWords {
    /// Image of the execution environment.
    #[serde(deserialize_with = "rules::image")]
    pub image: Option<String>,
    /// When the image is pulled.
    pub pull: Option<Pull>,
    /// Run in a container; with an image it is the default.
    pub isolation: Option<bool>,
    /// Options for the program that starts containers.
    #[serde(deserialize_with = "rules::options")]
    pub options: Option<Vec<String>>,
    /// Credential for the image's registry.
    pub registry: Option<CredentialName>,
    /// Seconds without output after which the runner sends a sign of life; an argument of the child.
    #[serde(deserialize_with = "rules::seconds")]
    pub keepalive: Option<u32>,
}

names! {
    /// When an image is pulled, in headers and of podman.
    enum Pull {
        /// Each time.
        Always = "always",
        /// If it is not there.
        Missing = "missing",
        /// Never.
        Never = "never",
    }
}

impl Pull {
    /// The word of Kubernetes.
    pub const fn policy(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Missing => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// A project of a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct ProjectSync {
    /// The repository.
    #[serde(deserialize_with = "rules::repository")]
    pub url: Url,
    /// Branch, tag or commit; the repository's own choice if not given.
    #[serde(default, deserialize_with = "rules::revision")]
    pub revision: Option<String>,
    /// Credential for the repository.
    pub credential: Option<CredentialName>,
    /// Fetch its submodules.
    #[serde(default = "yes")]
    pub submodules: bool,
    /// Fetch the roles and collections that it requires.
    #[serde(default = "yes")]
    pub requirements: bool,
}

/// What a header wants a credential for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// To pull an image: the header's, or else the stream's.
    Registry {
        /// The header's image.
        image: Option<&'a str>,
    },
    /// To fetch a repository.
    Repository(&'a Url),
}

impl Default for Header {
    fn default() -> Self {
        Self {
            kind: JobKind::Job,
            name: None,
            key: None,
            labels: BTreeMap::new(),
            forks: None,
            hosts: None,
            slice: None,
            impact: None,
            groups: LaunchGroups::default(),
            priority: 0,
            depends_on: Vec::new(),
            exclusive: Vec::new(),
            pending_timeout: None,
            timeout: None,
            output_limit: None,
            lost_after: None,
            retry: RetryWords::default(),
            runner: None,
            sync: None,
            rerun: true,
            cleanup: true,
        }
    }
}

impl Header {
    /// Parses a header line, or the text of the parameter `header`.
    ///
    /// # Errors
    /// [`HeaderFault`] names the key and its rule.
    pub fn parse(text: &[u8]) -> Result<Self, HeaderFault> {
        let mut keys: Map<String, Value> =
            serde_json::from_slice(text).map_err(|_| HeaderFault::NotAnObject)?;
        if keys.remove(VERSION_KEY).is_none_or(|version| version != 1) {
            return Err(HeaderFault::Version);
        }
        let header: Self = strict::read(keys)?;
        let needs_itself =
            |need: &Dependency| matches!(need, Dependency::Key { key } if Some(key) == header.key.as_ref());
        if header.depends_on.iter().any(needs_itself) {
            let (path, rule) = ("depends_on".to_owned(), "a job cannot depend on its own key".to_owned());
            return Err(Misfit::Value { path, rule }.into());
        }
        Ok(header)
    }

    /// Every credential that it names, and what for.
    pub fn credentials(&self) -> Vec<(&CredentialName, Purpose<'_>)> {
        let registry = self.runner.iter().filter_map(|runner| {
            let image = runner.image.as_deref();
            runner.registry.as_ref().map(|name| (name, Purpose::Registry { image }))
        });
        let scm = self
            .sync
            .iter()
            .filter_map(|sync| sync.credential.as_ref().map(|name| (name, Purpose::Repository(&sync.url))));
        registry.chain(scm).collect()
    }

    /// Why only a door with admin rights may accept it, if so.
    pub fn needs_admin(&self) -> Option<&'static str> {
        if self.kind.class() == Class::Control {
            return Some("this kind of job runs on the control node itself: it needs admin rights");
        }
        let from_file = self.sync.as_ref().is_some_and(|sync| sync.url.scheme() == "file");
        from_file.then_some("sync.url: a repository on the control node's own disk needs admin rights")
    }

    /// Its size, given the forks in the stream's kwargs.
    pub fn size(&self, stream_forks: Option<u32>) -> Size {
        let forks = self.forks.or(stream_forks).unwrap_or(0);
        Size { forks, hosts: self.hosts, slice: self.slice, impact: self.impact }
    }
}

/// The line of a header. It leaves out defaults, so that a stored header stays short.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = |header: &Self| serde_json::to_value(header).map_err(|_| fmt::Error);
        let usual = json(&Self::default())?;
        let mut line = Map::from_iter([(VERSION_KEY.to_owned(), json!(1))]);
        if let Value::Object(keys) = json(self)? {
            line.extend(keys.into_iter().filter(|(key, value)| usual[key] != *value));
        }
        write!(f, "{}", Value::Object(line))
    }
}

const fn yes() -> bool {
    true
}

impl Default for RetryWords {
    fn default() -> Self {
        Self { max: 0, on: [RetryOn::Lost].into(), unconfirmed: false }
    }
}

impl From<&RetryWords> for Retry {
    fn from(words: &RetryWords) -> Self {
        let on = |end| words.on.contains(&end);
        let (on_lost, on_error, on_failed) = (on(RetryOn::Lost), on(RetryOn::Error), on(RetryOn::Failed));
        Self { max: words.max, on_lost, on_error, on_failed, unconfirmed: words.unconfirmed }
    }
}

#[cfg(test)]
mod tests;
