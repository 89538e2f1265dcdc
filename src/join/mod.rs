//! How a node joins the mesh: the authority that vouches for it, the bundle that carries what it needs to its host, and
//! the files that come of it there.
//!
//! - `admit`: a node is taken in, with all that follows for the node of this host.
//! - `authority`: a directory with the authority's key, its list of revoked certificates, and a `record` of each node.
//! - `configuration`: the configuration of a node by its record.
//! - `bundle`: a tar file with all of it, which is read as a stranger's. `awx` reads AWX's.
//! - `own`: the configuration of the node of this host, and what it lacks to take others in.
//! - `place`: files put in their places, with owner and mode; `host`: accounts and what jobs need of the system.
//! - `install`: all files of a bundle, checked before the first of them changes.
//!
//! It reads configurations and writes files. It refuses to know running nodes, systemd and what is printed.

pub(crate) mod admit;
pub(crate) mod authority;
mod awx;
pub(crate) mod bundle;
pub(crate) mod configuration;
mod error;
pub(crate) mod host;
pub(crate) mod install;
pub(crate) mod own;
pub(crate) mod place;
pub(crate) mod record;

pub(crate) use error::JoinError;

#[cfg(test)]
mod tests;
