//! The header of a submission: which job it is, where it may run, and what becomes of it. Parsed once; behind
//! it every value is valid. It holds names of credentials and never their content, so the store may keep it.
//!
//! It refuses to know whether groups, jobs and credentials exist, and what the caller may do: the door asks
//! [`Header::needs_admin`] and [`Header::credentials`].

mod fields;
mod parse;
mod written;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::core::{Class, JobId, JobKind, LaunchGroups, Retry, Size, Slice, Word};
use super::credentials::{CredentialName, Url};
use super::refusal::HeaderFault;

/// What a client asks for. As JSON it is what a client may send, with every key that is not at its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Header {
    /// What the job does.
    pub kind: JobKind,
    /// A name for people.
    pub name: Option<String>,
    /// Submitting it again follows the job that has it.
    pub key: Option<String>,
    /// For filters.
    pub labels: BTreeMap<String, String>,
    /// Forks; the stream's if not given.
    pub forks: Option<u32>,
    /// Hosts of the inventory.
    pub hosts: Option<u32>,
    /// The part of the inventory that it covers.
    pub slice: Option<Slice>,
    /// Replaces the computed impact.
    pub impact: Option<u32>,
    /// The groups that it names.
    pub groups: LaunchGroups,
    /// −100 to 100; higher goes first.
    pub priority: i8,
    /// Jobs that must succeed first.
    pub depends_on: Vec<Dependency>,
    /// Words of which only one running job may hold each.
    pub exclusive: Vec<Word>,
    /// How long it may be pending.
    pub pending_timeout: Option<Duration>,
    /// The runner's `timeout`.
    pub timeout: Option<Duration>,
    /// Bytes that it may print, if less than the node's `joboutput`.
    pub output_limit: Option<u64>,
    /// Replaces the node's `lostafter`.
    pub lost_after: Option<Duration>,
    /// When it is retried.
    pub retry: Retry,
    /// How the runner starts it; `None` leaves the stream as it is.
    pub runner: Option<RunnerWords>,
    /// A project that is put into its stream.
    pub sync: Option<ProjectSync>,
    /// Keep the payload for reruns.
    pub rerun: bool,
    /// Delete its directory on the instance.
    pub cleanup: bool,
}

/// A job that must succeed first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dependency {
    /// By its number.
    Job(JobId),
    /// By its key.
    Key(String),
}

/// How the runner starts a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunnerWords {
    /// Image of the execution environment.
    pub image: Option<String>,
    /// When the image is pulled.
    pub pull: Option<Pull>,
    /// Run in a container; with an image it is the default.
    pub isolation: Option<bool>,
    /// Options for the program that starts containers.
    pub options: Option<Vec<String>>,
    /// Credential for the image's registry.
    pub registry: Option<CredentialName>,
    /// Seconds without output after which the runner sends a sign of life; an argument of the child.
    pub keepalive: Option<u32>,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// Each time.
    Always,
    /// If it is not there.
    Missing,
    /// Never.
    Never,
}

impl Pull {
    /// Every value.
    pub const ALL: [Self; 3] = [Self::Always, Self::Missing, Self::Never];

    /// The word in headers and of podman.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Missing => "missing",
            Self::Never => "never",
        }
    }

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectSync {
    /// The repository.
    pub url: Url,
    /// Branch, tag or commit; the repository's own choice if not given.
    pub revision: Option<String>,
    /// Credential for the repository.
    pub credential: Option<CredentialName>,
    /// Fetch its submodules.
    pub submodules: bool,
    /// Fetch the roles and collections that it requires.
    pub requirements: bool,
}

/// What a header wants a credential for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// To pull an image: the header's, else one that the stream names.
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
            retry: Retry::default(),
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
        let value: Value = serde_json::from_slice(text).map_err(|_| HeaderFault::NotAnObject)?;
        Self::try_from(value)
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

    /// Why only a door with admin rights may take it, if so.
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

#[cfg(test)]
mod tests;
