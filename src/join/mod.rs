//! How a node joins the mesh: the authority that vouches for it, the bundle that carries what it needs to its host,
//! and the files that are written there.
//!
//! - `admit`: adds a node, and makes the changes to the node of this host that follow.
//! - `authority`: a directory with the authority's key, its list of revoked certificates, and a `record` of each node.
//! - `configuration`: makes the configuration of a node from its record.
//! - `bundle`: a tar file with everything for a node, read as if from a stranger. `awx` reads AWX's bundles.
//! - `own`: the configuration of the node of this host, and what it lacks to admit others.
//! - `documents`: where an authority keeps what it knows, in files or in the store of `shared` control nodes; `kept`: what
//!   that is.
//! - `place`: puts files in their places, with owner and mode; `host`: accounts, and what jobs need of the system.
//! - `invite`: what a node may become, and the token for its host; `request`: what that host asks, and the answer;
//!   `desk`: decides about requests, for the authority; `asker`: a host without a token, until a person has decided;
//!   `decision`: that decision; `offline`: renewals that wait for a key on another host; `joining`: the files of a host
//!   that asks. `address`: where others dial a node.
//! - `rotation`: a new authority takes the place of the former one; `trusted`: what nodes are told of it.
//! - `install`: checks all files of a bundle before it changes the first one on the host.
//!
//! It reads configurations and writes files. It refuses to know running nodes, systemd and output.

pub(crate) mod address;
pub(crate) mod admit;
pub(crate) mod asker;
pub(crate) mod authority;
mod awx;
pub(crate) mod bundle;
pub(crate) mod configuration;
pub(crate) mod decision;
pub(crate) mod desk;
mod documents;
mod error;
pub(crate) mod host;
pub(crate) mod install;
pub(crate) mod invite;
pub(crate) mod joining;
mod kept;
pub(crate) mod offline;
pub(crate) mod own;
pub(crate) mod place;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod rotation;
pub(crate) mod shared;
pub(crate) mod trusted;

pub(crate) use error::JoinError;

#[cfg(test)]
mod tests;
