//! Why a job cannot be packed. Texts name paths and keys and never show the content of a file, which may be a secret.

use std::io;
use std::path::{Path, PathBuf};

/// Why a job cannot be packed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    /// A file cannot be read.
    #[error("cannot read {}: {}", .0.display(), .1)]
    Unreadable(PathBuf, io::Error),
    /// The directory has more in it than a project.
    #[error("{} is not a project", .0.display())]
    NoProject(PathBuf),
    /// A file where the directory should be.
    #[error("{} is not a directory", .0.display())]
    NoDirectory(PathBuf),
    /// The directory has a project, and git brings another.
    #[error("{}/project: the project comes from git: leave one of them out", .0.display())]
    TwoProjects(PathBuf),
    /// The directory has nothing that a project from git lacks.
    #[error(
        "{}: it has neither inventory/ nor env/, and the project comes from git: leave out the directory", .0.display()
    )]
    Nothing(PathBuf),
    /// The playbook is elsewhere.
    #[error("there is no playbook {0} in the project: give its path within it")]
    NoPlaybook(String),
    /// The inventory is elsewhere.
    #[error("there is no inventory {0} in the project: give its path within it")]
    NoInventory(String),
    /// Two files with one name.
    #[error("{}: the job has another {name} already", path.display())]
    Twice {
        /// The second one.
        path: PathBuf,
        /// The name of both in the stream.
        name: String,
    },
    /// A name that no stream can have.
    #[error("{0:?}: its name is not UTF-8: rename it")]
    Name(PathBuf),
    /// A link that no stream can have.
    #[error("{}: its target is not UTF-8: rename it", .0.display())]
    Target(PathBuf),
    /// A file with something else in it.
    #[error("{}: it is not a JSON or YAML object", .0.display())]
    NoMap(PathBuf),
    /// An argument that no process can get.
    #[error("an argument has a byte that no argument can have")]
    Argument,
    /// A playbook that asks for variables.
    #[error(
        "{playbook} asks for {} (vars_prompt), but nobody can answer a job", variables.join(", ")
    )]
    Asks {
        /// The playbook.
        playbook: String,
        /// What it asks for; never empty.
        variables: Vec<String>,
    },
    /// There is no password.
    #[error("{}: {why}", path.display())]
    Password {
        /// Where it was to come from.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// More than a job may have.
    #[error("{}: it has more than {most} {what}: a project has a directory of its own", path.display())]
    TooMuch {
        /// The directory.
        path: PathBuf,
        /// How many there may be.
        most: u64,
        /// Of what.
        what: &'static str,
    },
}

impl PackError {
    /// A path that was named, or is below one that was, cannot be read.
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |error| Self::Unreadable(path, error)
    }
}
