//! The control service: the line protocol that `receptorctl`, AWX, other nodes and our own client speak.
//!
//! `rpc::request` owns the grammar, `session` the conversation with one client, [`listen`] the sockets, and [`server`]
//! accepts the clients of all sockets; each command has a file of its own. Commands reach the node and its work through
//! a [`Context`], and the rest of the daemon through `hooks`. This room knows nothing of backends and configuration
//! files.

mod access;
mod channel;
mod connect;
mod context;
mod controller;
mod doctor;
mod far_links;
mod health;
mod hooks;
mod lines;
mod link;
pub(crate) mod listen;
mod loglevel;
mod node;
mod observe;
mod peer;
mod ping;
mod refusal;
mod reload;
pub(crate) mod server;
mod session;
mod sink;
mod stop;
mod traceroute;
mod work;

pub(crate) use context::Context;
pub(crate) use doctor::examine;
pub(crate) use far_links::far_links;
pub(crate) use health::ProcessLife;
pub(crate) use hooks::{EXAMINED_WITHIN, Examine, LogLevels, Reload, ReloadError};
pub(crate) use lines::LineBudget;
pub(crate) use listen::ListenError;
pub(crate) use observe::{Observer, broken_links};
use refusal::RequestRefusal;
pub(crate) use server::Server;
pub(crate) use session::ServerLimits;
pub(crate) use sink::SinkCounters;

#[cfg(test)]
mod tests;
