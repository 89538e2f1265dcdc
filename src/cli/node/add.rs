//! `meshctl node add`: makes a bundle for a new node, and prepares this node for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::{note, take_over};
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::join::JoinError;
use crate::join::address::NodeAddress;
use crate::join::admit::{Newcomer, admit};
use crate::join::authority::Authority;
use crate::join::configuration::CONF_D;
use crate::join::host;
use crate::join::own::OwnNode;
use crate::join::place::FileTree;
use crate::join::record::NodeRole;
use crate::join::shared::SharedStore;
use crate::rpc::operation::{self, ByName, NewInstance, OperationCode};
use crate::rpc::report::enrolment::NodeAct;

#[derive(Debug, Args)]
pub(in crate::cli) struct Add {
    /// ID of the new node, usually the name of its host
    node: String,
    /// What the node does
    #[arg(long, value_enum)]
    role: NodeRole,
    /// Address that the new node dials: of this node, or of a hop; with --dial, address at which this node dials it
    /// [default port: 27199]
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: NodeAddress,
    /// Let this node dial the new one, instead of the other way round
    #[arg(long)]
    dial: bool,
    /// The address in --peer leads to this node, even if it does not look like it, for example behind NAT
    #[arg(long, conflicts_with = "dial")]
    here: bool,
    /// Another name or address at which others dial the new node; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// File to write the bundle to [default: NAME.tar]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    places: NodePlaces,
}

/// Where the authority and this node's configuration are.
#[derive(Debug, Args)]
pub(in crate::cli) struct NodePlaces {
    /// Directory of the authority
    #[arg(long, value_name = "DIR", default_value = "/etc/meshd/ca")]
    pub(super) ca: PathBuf,
    /// Directory of this node's configuration
    #[arg(long, value_name = "DIR", default_value = CONF_D)]
    pub(super) config: PathBuf,
}

impl NodePlaces {
    /// The node of this host, and the files of the host.
    pub(in crate::cli) fn open(&self) -> Result<(OwnNode, FileTree), JoinError> {
        let root = Path::new("/");
        Ok((OwnNode::read(&self.config)?, FileTree::new(root, host::account(root)?)))
    }

    /// The directory of the authority: where this node gives certificates from, if it does.
    fn ca(&self, own: &OwnNode) -> PathBuf {
        let online = own.config().enrolment.as_ref().map(|directive| directive.authority.clone());
        online.unwrap_or_else(|| self.ca.clone())
    }

    /// The authority in this directory, with its documents where this node's daemon has them.
    fn authority_in(&self, ca: &Path, own: &OwnNode) -> Result<Option<Authority>, JoinError> {
        let online = own.config().enrolment.as_ref().map(|directive| directive.authority.as_path());
        let shared = match online == Some(ca) {
            true => SharedStore::of(own.config())?,
            false => None,
        };
        Authority::open_in(ca, shared.as_ref(), None)
    }

    /// The authority, which must exist.
    pub(in crate::cli) fn authority(&self, own: &OwnNode) -> Result<Authority, JoinError> {
        let ca = self.ca(own);
        self.authority_in(&ca, own)?.ok_or(JoinError::NoAuthority(ca))
    }

    /// The authority; `None` if there is none and one may be made.
    pub(super) fn authority_or_none(&self, own: &OwnNode) -> Result<Option<Authority>, Failure> {
        let ca = self.ca(own);
        if let Some(authority) = self.authority_in(&ca, own)? {
            return Ok(Some(authority));
        }
        let ca = ca.display();
        // Nodes that trust another authority would not trust a new one.
        if !own.is_ours() {
            let config = self.config.display();
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "the configuration in {config} was written by hand, so no authority is made for it: put ca.crt \
                     and ca.key of the authority that it trusts into {ca}, or name their directory with --ca"
                ),
            ));
        }
        let id = own.config().node.id.as_str();
        if own.is_member() {
            let text = format!(
                "this host is {id} of a mesh whose authority is not in {ca}: run this on the host that has it, or name its directory with --ca"
            );
            return Err(Failure::new(Exit::Failed, text));
        }
        Ok(None)
    }

    /// The authority, which is made if there is none yet, and what to say of that.
    pub(super) fn authority_or_new(
        &self,
        authority: Option<Authority>,
        own: &OwnNode,
    ) -> Result<(Authority, Option<String>), JoinError> {
        if let Some(authority) = authority {
            return Ok((authority, None));
        }
        let ca = self.ca(own);
        let made = Authority::create(&ca, own.config().node.id.as_str(), Timestamp::now())?;
        let ca = ca.display();
        let said = format!(
            "made an authority in {ca}: whoever can read it can pose as any node, so keep a copy in a safe place"
        );
        Ok((made, Some(said)))
    }
}

impl Add {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.places.open()?;
        let authority = self.places.authority_or_none(&own)?;
        let out = self.out.unwrap_or_else(|| format!("{}.tar", self.node).into());
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
        let record = match newcomer.record(&own, authority.as_ref(), Some(&out)) {
            // The node was added before there was a controller, or its instance has been removed or disabled since.
            Err(JoinError::Known(_)) if is_instance && !is_enabled(&context()?, node).await? => {
                register(&context()?, node).await?;
                let done =
                    || format!("{node} has already been added; registered and enabled the instance {node}");
                return output.answer(&json!({"node": node, "instance": true}), done);
            }
            record => record?,
        };
        // If this node does not run yet, it is started below, and cannot be asked now.
        if is_instance && let Ok(context) = context() {
            check_instance(&context, node).await?;
        }
        let (authority, made) = self.places.authority_or_new(authority, &own)?;
        let is_new = made.is_some();
        admit(&newcomer, record, &own, &authority, &mut tree, &out)?;
        // The daemon may need it to start.
        drop(authority);
        if has_controller && own.is_ours() {
            // A control node runs jobs of its own, at least syncs of projects.
            host::prepare_for_jobs(&mut tree, true)?;
        }
        let mut said: Vec<String> = made.into_iter().collect();
        said.extend(tree.changed().iter().map(|path| format!("wrote {}", path.display())));
        if !tree.changed().is_empty() {
            said.push(take_over(context(), &tree).await?.to_owned());
        }
        if is_instance {
            register(&context()?, node).await?;
            said.push(format!("registered and enabled the instance {node}"));
        }
        note(&own, context(), output, NodeAct::Add, &[node]).await;
        said.extend(notes_of_jobs(&own, newcomer.role));
        let (file, peer) = (out.display(), &newcomer.peer.at.host);
        said.push(format!(
            "wrote {file}, which holds the private key of {node}: copy it to its host, and run there"
        ));
        said.push(format!("    meshctl install {}", out.file_name().unwrap_or_default().display()));
        let json = json!({
            "node": node, "bundle": out, "authority": self.places.ca(&own), "authority_made": is_new,
            "files": tree.changed(), "instance": is_instance, "peer": peer,
        });
        output.answer(&json, || said.join("\n"))
    }
}

/// What keeps jobs from a node with this role.
pub(super) fn notes_of_jobs(own: &OwnNode, role: NodeRole) -> Option<String> {
    let controller = own.config().controller.as_ref().filter(|_| role.runs_jobs())?;
    controller
        .tls_client
        .is_none()
        .then(|| "no job gets there until work-controller has `tlsclient: mesh`: see meshd check".to_owned())
}

/// Fails if the node cannot become an instance because a group has its name.
pub(super) async fn check_instance(context: &CliContext, node: &str) -> Result<(), Failure> {
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

/// Whether the controller starts jobs on the node.
async fn is_enabled(context: &CliContext, node: &str) -> Result<bool, Failure> {
    let get = operation::get_instance(ByName { name: node.to_owned() });
    match get.ask(&context.client).await {
        Ok(one) => Ok(one.report.enabled),
        Err(error) if error.code() == Some(OperationCode::NotFound) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Registers and enables the node as an instance, even before it is seen.
async fn register(context: &CliContext, node: &str) -> Result<(), Failure> {
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
