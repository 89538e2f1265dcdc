//! `meshctl node`: the nodes of the mesh, as its authority knows them, and what one node remembers of others.

mod add;
mod forget;
mod remove;
mod renew;

use clap::Subcommand;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::service::Service;
use super::{Context, reload};
use crate::join::host;
use crate::join::place::Tree;

#[derive(Debug, Subcommand)]
pub(super) enum Node {
    /// Make a bundle with which another host joins the mesh: certificate, keys and configuration
    Add(add::Add),
    /// Take a node out: its certificates are revoked, and its instance goes once its jobs have ended
    Remove(remove::Remove),
    /// Make new certificates, in new bundles
    Renew(renew::Renew),
    /// Have the node forget an unreachable one at once: its links, services and name
    Forget(forget::Forget),
}

impl Node {
    /// Asks the node of this host, which `context` finds, or does without it.
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<Context, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        match self {
            Self::Add(add) => add.run(context, output).await,
            Self::Remove(remove) => remove.run(context, output).await,
            Self::Renew(renew) => renew.run(output),
            Self::Forget(forget) => forget.run(&context()?).await,
        }
    }
}

/// Has the node of this host take over what changed, and says how: it reads its configuration again, or is started.
async fn take_over(context: Result<Context, Failure>, tree: &Tree) -> Result<&'static str, Failure> {
    let service = Service::of_this_host();
    // Only a start applies it.
    let restarts = tree.has_changed(host::DROP_IN);
    if let (Ok(context), false) = (context, restarts) {
        match reload::ask(&context.client).await {
            Ok(()) => return Ok("this node has read its configuration again"),
            Err(failure) if failure.exit == Exit::Unreachable => {}
            Err(failure) => return Err(failure),
        }
    }
    if !service.has_systemd() || !host::has_unit(tree) {
        return Ok("this node does not run: start it");
    }
    service.start(restarts, restarts, restarts)?;
    Ok("this node was started")
}
