//! `meshctl node`: the nodes of the mesh, as its authority knows them, and what one node remembers of others.

mod add;
mod cache;
mod forget;
mod invite;
mod pending;
mod remove;
mod renew;
mod sign;

use std::time::Duration;

pub(super) use add::NodePlaces;
use clap::Subcommand;
use tokio::time::timeout;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::service::HostService;
use super::{CliContext, reload};
use crate::join::host;
use crate::join::own::OwnNode;
use crate::join::place::FileTree;
use crate::rpc::operation::{self, NodeNote};
use crate::rpc::report::enrolment::NodeAct;

/// How long a command waits for the node to note what it has done.
const NOTED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Make a bundle (certificate, keys and configuration) with which another host joins the mesh
    Add(add::Add),
    /// Print a token with which another host joins the mesh: it makes its own key, and is given a certificate
    Invite(invite::Invite),
    /// List the tokens that were made, or take one back
    Invites(invite::Invites),
    /// List the hosts that ask to become nodes without a token, or the renewals that wait for the authority's key
    Pending(pending::Pending),
    /// Let a host become a node that asks without a token
    Approve(pending::Approve),
    /// Do not let it
    Reject(pending::Reject),
    /// Remove a node: revoke its certificates, and remove its instance once its jobs have ended
    Remove(remove::Remove),
    /// Renew certificates: make new bundles
    Renew(renew::Renew),
    /// Sign the renewals of a file, where the authority's key is; then take the answers in, where they wait
    Sign(sign::Sign),
    /// Let the node forget an unreachable node at once: its links, services and name
    Forget(forget::Forget),
    /// Show what the node keeps of payloads so that they need not be sent again, or remove it
    Cache(cache::Cache),
}

impl NodeCommand {
    /// Runs the command. `context` finds the node of this host, which not every command asks.
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        match self {
            Self::Add(add) => add.run(context, output).await,
            Self::Invite(invite) => invite.run(context, output).await,
            Self::Invites(invites) => invites.run(context, output).await,
            Self::Pending(pending) => pending.run(output),
            Self::Approve(approve) => approve.run(context, output).await,
            Self::Reject(reject) => reject.run(context, output).await,
            Self::Remove(remove) => remove.run(context, output).await,
            Self::Renew(renew) => renew.run(context, output).await,
            Self::Sign(sign) => sign.run(output),
            Self::Forget(forget) => forget.run(&context()?).await,
            Self::Cache(cache) => cache.run(&context()?).await,
        }
    }
}

/// Tells the node of this host what was done about nodes of the mesh, for the audit of its controller if it has one. What
/// was done is done, whether it answers or not.
async fn note(
    own: &OwnNode,
    context: Result<CliContext, Failure>,
    output: Output,
    act: NodeAct,
    nodes: &[&str],
) {
    if own.config().controller.is_none() || nodes.is_empty() {
        return;
    }
    let told = async {
        let context = context?;
        for node in nodes {
            let note = NodeNote { node: (*node).to_owned(), act };
            operation::note_node(note).ask(&context.client).await?;
        }
        Ok::<(), Failure>(())
    };
    let failure = match timeout(NOTED_WITHIN, told).await {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure.message,
        Err(_late) => "this node does not answer".to_owned(),
    };
    output.note(&format!("meshctl: the audit may not have {act}: {failure}"));
}

/// Applies what changed to the node of this host, and says how: the node reads its configuration again, or is started.
async fn take_over(context: Result<CliContext, Failure>, tree: &FileTree) -> Result<&'static str, Failure> {
    let service = HostService::of_this_host();
    // systemd applies the drop-in only at a start.
    let restarts = tree.has_changed(host::DROP_IN);
    if let (Ok(context), false) = (context, restarts) {
        match reload::ask(&context.client).await {
            Ok(()) => return Ok("this node has read its configuration again"),
            Err(failure) if failure.exit == Exit::Unreachable => {}
            Err(failure) => return Err(failure),
        }
    }
    if !service.has_systemd() || !host::has_unit(tree) {
        return Ok("this node is not running: start it");
    }
    service.start(restarts, restarts, restarts)?;
    Ok("this node was started")
}
