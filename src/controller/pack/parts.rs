//! What a job is made of, whoever says it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::tree::Tree;
use super::{ENV, PackError, map};
use crate::os::regular_file;

/// What a job is made of.
#[derive(Default)]
pub(crate) struct JobParts {
    /// A project, or a runner's directory with `project/`, `inventory/` or `env/` in it.
    pub directory: Option<PathBuf>,
    /// The directory is the project even if it has `project/` in it.
    pub is_project: bool,
    /// The control node fetches the project.
    pub is_synced: bool,
    /// It runs in a container.
    pub has_image: bool,
    /// The playbook, as a path within the project.
    pub playbook: Option<String>,
    /// What runs instead of a playbook.
    pub module: Option<ModuleCall>,
    /// Take the place of the directory's own.
    pub inventory: Vec<InventorySource>,
    /// Extra variables, which override those of the directory.
    pub variables: Map<String, Value>,
    /// The hosts that it is limited to.
    pub limit: Option<String>,
    /// Hosts at a time.
    pub forks: Option<u32>,
    /// Tags that run.
    pub tags: Vec<String>,
    /// Tags that do not.
    pub skip_tags: Vec<String>,
    /// How much the playbook prints.
    pub verbose: u8,
    /// More words of ansible's command line.
    pub words: Vec<String>,
    /// Ansible only lists or checks something, so it asks nothing.
    pub runs_nothing: bool,
    /// The private key for the hosts.
    pub private_key: Option<PathBuf>,
    /// Passwords.
    pub passwords: Vec<PasswordFile>,
    /// Who packs it.
    pub packer: Packer,
    /// Directories that hold more than a project.
    pub guarded: Vec<PathBuf>,
    /// How many files the directory may have, and how many bytes.
    pub most: Option<(usize, u64)>,
}

/// Who packs a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Packer {
    /// A user of this machine, from files that he may read anyway: links are followed, and programs that print passwords
    /// are run.
    User,
    /// A node, from a directory that others may write to, who must not get what only the node may read.
    #[default]
    Node,
}

/// A module with its arguments and hosts.
pub(crate) struct ModuleCall {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub args: Option<String>,
    /// The hosts.
    pub pattern: Option<String>,
}

/// Where hosts come from.
pub(crate) enum InventorySource {
    /// A file or directory on this machine.
    Path(PathBuf),
    /// Names.
    Hosts(Vec<String>),
    /// What stands in an inventory file.
    Text(String),
    /// A path within the project.
    OfProject(String),
}

impl InventorySource {
    /// Names with commas between them.
    pub(crate) fn hosts(text: &str) -> Self {
        let hosts = text.split(',').map(str::trim).filter(|host| !host.is_empty());
        Self::Hosts(hosts.map(str::to_owned).collect())
    }
}

/// A password that ansible reads from a file.
pub(crate) struct PasswordFile {
    /// The file's name in `env/`.
    pub name: String,
    /// The word of ansible's command line, up to the file.
    pub word: String,
    /// The password.
    pub password: Vec<u8>,
}

/// Prefixes of paths on the node, seen from where ansible runs: a module runs beside the project, a playbook in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunnerPaths {
    /// Prefix of `env/…`.
    pub top: &'static str,
    /// Prefix of a path within the project.
    pub project: &'static str,
}

impl RunnerPaths {
    /// With an image, everything is below /runner, and a module runs in the project, too.
    pub(crate) fn of(is_module: bool, has_image: bool) -> Self {
        match (is_module, has_image) {
            (true, true) => Self { top: "/runner/", project: "/runner/project/" },
            (true, false) => Self { top: "", project: "project/" },
            (false, _) => Self { top: "../", project: "" },
        }
    }
}

impl JobParts {
    /// The directory of the job's files. A user who names none means the one that he is in.
    pub(super) fn top(&self) -> Option<&Path> {
        let usual = (self.packer == Packer::User).then_some(Path::new("."));
        self.directory.as_deref().or(usual)
    }

    /// The text of the file `env/NAME` that the directory brings, if it brings one.
    pub(super) fn packed(&self, tree: &Tree, name: &str) -> Result<Option<String>, PackError> {
        let name = format!("{ENV}/{name}");
        let Some(top) = self.top().filter(|_| tree.has(&name)) else { return Ok(None) };
        let path = top.join(&name);
        let text = match self.packer {
            Packer::User => std::fs::read_to_string(&path),
            Packer::Node => top
                .canonicalize()
                .and_then(|top| regular_file::open_without_links(&top.join(&name)))
                .and_then(std::io::read_to_string),
        };
        text.map(Some).map_err(PackError::unreadable(&path))
    }

    /// The same, as a map; an empty one if the directory brings none.
    pub(super) fn packed_map(&self, tree: &Tree, name: &str) -> Result<Map<String, Value>, PackError> {
        let text = self.packed(tree, name)?;
        let no_map = || PackError::NoMap(self.top().unwrap_or(Path::new("")).join(ENV).join(name));
        text.map_or(Ok(Map::new()), |text| map(&text).ok_or_else(no_map))
    }

    /// The words for inventories of the project.
    pub(super) fn inventory_words(&self, place: RunnerPaths) -> impl Iterator<Item = String> {
        self.inventory.iter().filter_map(move |source| match source {
            InventorySource::OfProject(path) => Some(format!("--inventory={}{path}", place.project)),
            InventorySource::Path(_) | InventorySource::Hosts(_) | InventorySource::Text(_) => None,
        })
    }
}
