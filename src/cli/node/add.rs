//! `meshctl node add`: a bundle for a new node, and this node ready for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::take_over;
use crate::cli::Context;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::config::HostPort;
use crate::join::JoinError;
use crate::join::admit::{Newcomer, admit};
use crate::join::authority::Authority;
use crate::join::configuration::CONF_D;
use crate::join::host;
use crate::join::own::OwnNode;
use crate::join::place::Tree;
use crate::join::record::{NodeRole, address};
use crate::rpc::operation::{self, ByName, NewInstance, OperationCode};

#[derive(Debug, Args)]
pub(in crate::cli) struct Add {
    /// ID of the new node, as a rule the name of its host
    node: String,
    /// What it does
    #[arg(long, value_enum)]
    role: NodeRole,
    /// Whom it dials: this node, or a hop; with --dial where it is dialled itself [default port: 27199]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = address)]
    peer: HostPort,
    /// This node dials the new one, not the other way round
    #[arg(long)]
    dial: bool,
    /// This node is the one at --peer, though its name does not lead here, as behind NAT
    #[arg(long, conflicts_with = "dial")]
    here: bool,
    /// A further name or address by which others dial it; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// File to write the bundle to [default: NAME.tar]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

/// Where the authority and this node's configuration are.
#[derive(Debug, Args)]
pub(in crate::cli) struct Places {
    /// Directory of the authority, which only root reads
    #[arg(long, value_name = "DIR", default_value = "/etc/meshd/ca")]
    pub(super) ca: PathBuf,
    /// Directory of this node's configuration
    #[arg(long, value_name = "DIR", default_value = CONF_D)]
    pub(super) config: PathBuf,
}

impl Places {
    /// The node of this host, and the files of the host.
    pub(super) fn open(&self) -> Result<(OwnNode, Tree), JoinError> {
        let root = Path::new("/");
        Ok((OwnNode::read(&self.config)?, Tree::new(root, host::account(root)?)))
    }

    /// The authority that is there.
    pub(super) fn authority(&self) -> Result<Authority, JoinError> {
        Authority::open(&self.ca)?.ok_or_else(|| JoinError::NoAuthority(self.ca.clone()))
    }
}

impl Add {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<Context, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.places.open()?;
        let authority = self.authority(&own)?;
        let (is_new, out) =
            (authority.is_none(), self.out.unwrap_or_else(|| format!("{}.tar", self.node).into()));
        let newcomer = Newcomer {
            node: self.node,
            role: self.role,
            peer: self.peer,
            is_dialled: self.dial,
            is_here: self.here,
            hosts: self.host.into_iter().collect::<BTreeSet<_>>(),
        };
        let has_controller = own.config().controller.is_some();
        let is_instance = newcomer.role.runs_jobs() && has_controller;
        let node = &newcomer.node;
        let record = match newcomer.record(&own, authority.as_ref(), &out) {
            // It was added before there was a controller, or its instance was removed or disabled since.
            Err(JoinError::Known(_)) if is_instance && !is_enabled(&context()?, node).await? => {
                register(&context()?, node).await?;
                let done = || format!("{node} was added already; registered and enabled the instance {node}");
                return output.answer(&json!({"node": node, "instance": true}), done);
            }
            record => record?,
        };
        // A node that does not run yet is started later.
        if is_instance && let Ok(context) = context() {
            check_instance(&context, node).await?;
        }
        let create = || Authority::create(&self.places.ca, own.config().node.id.as_str(), Timestamp::now());
        let authority = authority.map_or_else(create, Ok)?;
        admit(&newcomer, record, &own, &authority, &mut tree, &out)?;
        if has_controller && own.is_ours() {
            // Its own jobs: syncs of projects at least.
            host::prepare_for_jobs(&mut tree, true)?;
        }
        let mut said = Vec::new();
        if is_new {
            let ca = self.places.ca.display();
            said.push(format!(
                "made an authority in {ca}: whoever reads it can be any node, so keep a copy where nobody else looks"
            ));
        }
        said.extend(tree.changed().iter().map(|path| format!("wrote {}", path.display())));
        if !tree.changed().is_empty() {
            said.push(take_over(context(), &tree).await?.to_owned());
        }
        if is_instance {
            register(&context()?, node).await?;
            said.push(format!("registered and enabled the instance {node}"));
        }
        if is_instance && own.config().controller.as_ref().is_some_and(|one| one.tls_client.is_none()) {
            said.push(
                "no job gets there before work-controller has `tlsclient: mesh`: see meshd check".to_owned(),
            );
        }
        let (file, peer) = (out.display(), &newcomer.peer.host);
        said.push(format!(
            "wrote {file}, which holds the private key of {node}: copy it to its host, and run there"
        ));
        said.push(format!("    meshctl install {}", out.file_name().unwrap_or_default().display()));
        let json = json!({
            "node": node, "bundle": out, "authority": self.places.ca, "authority_made": is_new,
            "files": tree.changed(), "instance": is_instance, "peer": peer,
        });
        output.answer(&json, || said.join("\n"))
    }

    /// The authority; `None` if one may be made.
    fn authority(&self, own: &OwnNode) -> Result<Option<Authority>, Failure> {
        if let Some(authority) = Authority::open(&self.places.ca)? {
            return Ok(Some(authority));
        }
        // What trusts another authority would not trust a new one.
        if !own.is_ours() {
            let (config, ca) = (self.places.config.display(), self.places.ca.display());
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "the configuration in {config} was written by hand, so no authority is made for it: put ca.crt and ca.key of the one that it trusts into {ca}, or name its directory with --ca"
                ),
            ));
        }
        let id = own.config().node.id.as_str();
        if own.is_member() {
            let ca = self.places.ca.display();
            let text = format!(
                "this host is {id} of a mesh whose authority is not in {ca}: run `meshctl node add` on the host that has it, or name its directory with --ca"
            );
            return Err(Failure::new(Exit::Failed, text));
        }
        Ok(None)
    }
}

/// Whether the controller would take the node as an instance.
async fn check_instance(context: &Context, node: &str) -> Result<(), Failure> {
    let group = operation::get_group(ByName { name: node.to_owned() });
    match group.ask(&context.client).await {
        Ok(_) => {
            let text = "is the name of a group of the controller: give the node a name of its own";
            Err(Failure::new(Exit::Failed, format!("{node} {text}")))
        }
        Err(error) if error.code() == Some(OperationCode::NotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the controller starts jobs there.
async fn is_enabled(context: &Context, node: &str) -> Result<bool, Failure> {
    let get = operation::get_instance(ByName { name: node.to_owned() });
    match get.ask(&context.client).await {
        Ok(one) => Ok(one.report.enabled),
        Err(error) if error.code() == Some(OperationCode::NotFound) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Has the controller start jobs there, also before the node is seen.
async fn register(context: &Context, node: &str) -> Result<(), Failure> {
    let new = NewInstance { name: node.to_owned(), ..NewInstance::default() };
    match operation::add_instance(new).ask(&context.client).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(OperationCode::Conflict) => {
            let enable = operation::enable_instance(ByName { name: node.to_owned() });
            enable.ask(&context.client).await?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
