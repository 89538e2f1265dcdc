//! `meshctl node invite` and `meshctl node invites`: tokens with which hosts join, and those that are open.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::add::{NodePlaces, check_instance, notes_of_jobs};
use super::{note, take_over};
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::table::{Column, Layout, always};
use crate::cli::times::{ago, length};
use crate::join::address::NodeAddress;
use crate::join::admit::{self, Newcomer};
use crate::join::authority::Authority;
use crate::join::host;
use crate::join::invite::Invitation;
use crate::join::own::OwnNode;
use crate::join::record::NodeRole;
use crate::rpc::report::enrolment::NodeAct;

#[derive(Debug, Args)]
pub(in crate::cli) struct Invite {
    /// ID of the new node, usually the name of its host
    node: String,
    /// What the node does
    #[arg(long, value_enum)]
    role: NodeRole,
    /// Where the new node connects to: a node that was added, or an address of it or of this node, as HOST[:PORT],
    /// wss://HOST[:PORT]/PATH or quic://HOST[:PORT] [default: this node, if it has an address]
    #[arg(long, value_name = "NODE|ADDRESS")]
    peer: Option<String>,
    /// The address in --peer leads to this node, even if it does not look like it, for example behind NAT
    #[arg(long)]
    here: bool,
    /// Another name or address at which others dial the new node; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// How long the token can be used
    #[arg(long, value_name = "TIME", value_parser = length, default_value = "1h")]
    expires: Duration,
    /// How many hosts may use it, one after the other: each takes the name over from the one before
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    uses: u32,
    #[command(flatten)]
    places: NodePlaces,
}

impl Invite {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.places.open()?;
        let authority = self.places.authority_or_none(&own)?;
        let newcomer = Newcomer {
            node: self.node,
            role: self.role,
            peer: peer(self.peer.as_deref(), &own, authority.as_ref())?,
            is_dialled: false,
            is_here: self.here,
            hosts: self.host.into_iter().collect::<BTreeSet<_>>(),
        };
        let record = newcomer.record(&own, authority.as_ref(), None)?;
        let has_controller = own.config().controller.is_some();
        if newcomer.role.runs_jobs()
            && has_controller
            && let Ok(context) = context()
        {
            check_instance(&context, &newcomer.node).await?;
        }
        let (authority, made) = self.places.authority_or_new(authority, &own)?;
        let terms = (self.expires, self.uses);
        let (invitation, token) = admit::invite(&newcomer, record, &own, &authority, &mut tree, terms)?;
        if has_controller && own.is_ours() {
            host::prepare_for_jobs(&mut tree, true)?;
        }
        // The daemon opens the authority when it reads its configuration.
        drop(authority);
        let mut said: Vec<String> = made.into_iter().collect();
        said.extend(tree.changed().iter().map(|path| format!("wrote {}", path.display())));
        if !tree.changed().is_empty() {
            said.push(take_over(context(), &tree).await?.to_owned());
        }
        note(&own, context(), output, NodeAct::Invite, &[&newcomer.node]).await;
        said.extend(notes_of_jobs(&own, newcomer.role));
        let (node, expires) = (&newcomer.node, invitation.expires);
        said.push(format!(
            "On the host of {node}, with meshd's package installed, run as root within {:#}:",
            SignedDuration::try_from(self.expires).unwrap_or_default()
        ));
        said.push(format!("    meshctl install {token}"));
        let json = json!({
            "node": node, "token": token.to_string(), "expires": expires, "uses": self.uses, "files": tree.changed(),
        });
        output.answer(&json, || said.join("\n"))
    }
}

/// The address that the new node dials.
pub(super) fn peer(
    given: Option<&str>,
    own: &OwnNode,
    authority: Option<&Authority>,
) -> Result<NodeAddress, Failure> {
    let wrong = |text: String| Failure::usage(format!("--peer: {text}"));
    let id = own.config().node.id.as_str();
    let name = given.unwrap_or(id);
    let known = authority.map_or_else(|| Ok(None), |authority| authority.record(name)).unwrap_or_default();
    // A name of a node stands for its address, unless hosts find it by that name.
    match (known.filter(|record| !record.is_removed()), given) {
        (Some(record), _) if record.host() != record.node || given.is_none() => {
            let port = record.listens.ok_or_else(|| {
                wrong(format!("{name} listens on no port that is known here: give an address"))
            })?;
            format!("{}:{port}", bracketed(record.host())).parse().map_err(wrong)
        }
        (_, Some(given)) => given.parse().map_err(wrong),
        (_, None) => Err(wrong(
            "it is not known how others reach this node: give a name or address of this host".to_owned(),
        )),
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Invites {
    /// Take the token of this node back
    #[arg(long, value_name = "NODE")]
    revoke: Option<String>,
    #[command(flatten)]
    layout: Layout,
    #[command(flatten)]
    places: NodePlaces,
}

const COLUMNS: &[Column<Invitation>] = &[
    always("NODE", |one, _| one.record.node.clone()),
    always("ROLE", |one, _| format!("{:?}", one.record.role).to_lowercase()),
    always("PEER", |one, _| one.record.dials.clone().unwrap_or_default()),
    always("STATE", |one, now| match (now.timestamp() < one.expires, one.is_open(now.timestamp())) {
        (_, true) => "open".to_owned(),
        (true, false) => "used".to_owned(),
        (false, false) => "expired".to_owned(),
    }),
    always("USED", |one, _| format!("{} of {}", one.used.len(), one.uses)),
    always("BY", |one, _| one.used.last().map(|last| last.from.clone()).unwrap_or_default()),
    always("EXPIRES", |one, now| ago(&one.expires.to_string(), now)),
];

impl Invites {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, _tree) = self.places.open()?;
        let authority = self.places.authority(&own)?;
        if let Some(node) = self.revoke {
            if !authority.remove_invite(&node)? {
                return Err(Failure::new(Exit::Failed, format!("there is no token for {node}")));
            }
            drop(authority);
            note(&own, context(), output, NodeAct::Uninvite, &[&node]).await;
            return output.answer(&json!({"revoked": node}), || {
                format!("The token for {node} is not valid any more.")
            });
        }
        let all = authority.invites()?;
        let one = |one: &Invitation| {
            json!({
                "node": one.record.node, "role": one.record.role, "peer": one.record.dials, "made": one.made,
                "expires": one.expires, "uses": one.uses, "open": one.is_open(Timestamp::now()),
                "used": one.used.iter().map(|used| json!({"at": used.at, "from": used.from})).collect::<Vec<_>>(),
            })
        };
        let json: Vec<_> = all.iter().map(one).collect();
        if output.json {
            return output.value(&json!({"invites": json})).map(|()| Exit::Success);
        }
        output.list("tokens", &all, COLUMNS, self.layout).map(|()| Exit::Success)
    }
}
