//! `meshctl node pending`, `approve` and `reject`: hosts that ask without a token, and what a person decides.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::add::{NodePlaces, notes_of_jobs};
use super::invite::peer;
use super::{note, sign, take_over};
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::table::{Column, Layout, always, wide};
use crate::cli::times::ago;
use crate::join::JoinError;
use crate::join::admit::{self, Newcomer};
use crate::join::asker::{Asker, Decided};
use crate::join::authority::Authority;
use crate::join::decision::{FoundHost, find, hosts};
use crate::join::host;
use crate::join::record::NodeRole;
use crate::rpc::report::enrolment::NodeAct;

#[derive(Debug, Args)]
pub(in crate::cli) struct Pending {
    /// List the renewals that wait for the authority's key, which is on another host
    #[arg(long)]
    renewals: bool,
    /// Write those that are not signed to a file, for `meshctl node sign` there
    #[arg(long, value_name = "FILE", requires = "renewals")]
    out: Option<PathBuf>,
    #[command(flatten)]
    layout: Layout,
    #[command(flatten)]
    places: NodePlaces,
}

fn state(host: &FoundHost) -> &'static str {
    match host.asker.decided {
        None => "waits",
        Some(Decided::Approved(_)) => "approved",
        Some(Decided::Rejected) => "rejected",
    }
}

const COLUMNS: &[Column<FoundHost>] = &[
    always("NODE", |one, _| one.asker.asked.node.clone()),
    always("FINGERPRINT", |one, _| one.fingerprint.clone()),
    always("ADDRESS", |one, _| one.asker.from.clone()),
    wide("ASKED AT", |one, _| one.asker.asked.dials.clone().unwrap_or_default()),
    always("SINCE", |one, now| ago(&one.asker.since.to_string(), now)),
    always("STATE", |one, _| state(one).to_owned()),
];

impl Pending {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        let (own, _tree) = self.places.open()?;
        let authority = self.places.authority(&own)?;
        if self.renewals {
            return sign::pending(&authority, self.out.as_deref(), self.layout, output);
        }
        let all = hosts(&authority, Timestamp::now())?;
        let one = |one: &FoundHost| {
            let FoundHost { asker, fingerprint } = one;
            json!({
                "node": asker.asked.node, "fingerprint": fingerprint, "address": asker.from,
                "asked_at": asker.asked.dials, "since": asker.since, "seen": asker.seen,
                "state": state(one),
            })
        };
        if output.json {
            let pending: Vec<_> = all.iter().map(one).collect();
            return output.value(&json!({ "pending": pending })).map(|()| Exit::Success);
        }
        output.list("hosts that wait", &all, COLUMNS, self.layout).map(|()| Exit::Success)
    }
}

/// Which host is meant.
#[derive(Debug, Args)]
struct Which {
    /// Name that the host has given itself
    node: String,
    /// Fingerprint that the host shows; needed if several give themselves the same name
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<String>,
    #[command(flatten)]
    places: NodePlaces,
}

impl Which {
    fn find(&self, authority: &Authority) -> Result<Asker, JoinError> {
        find(authority, &self.node, self.fingerprint.as_deref())
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Approve {
    #[command(flatten)]
    which: Which,
    /// What the node does
    #[arg(long, value_enum, default_value = "execution")]
    role: NodeRole,
    /// Where the new node connects to [default: where it has asked]
    #[arg(long, value_name = "NODE|ADDRESS")]
    peer: Option<String>,
    /// The address leads to this node, even if it does not look like it, for example behind NAT
    #[arg(long)]
    here: bool,
    /// Another name or address at which others dial the new node; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
}

impl Approve {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.which.places.open()?;
        let authority = self.which.places.authority(&own)?;
        let asker = self.which.find(&authority)?;
        let newcomer = Newcomer {
            node: asker.asked.node.clone(),
            role: self.role,
            peer: peer(self.peer.as_deref().or(asker.asked.dials.as_deref()), &own, Some(&authority))?,
            is_dialled: false,
            is_here: self.here,
            hosts: self.host.into_iter().collect::<BTreeSet<_>>(),
        };
        let record = newcomer.record(&own, Some(&authority), None)?;
        admit::approve(&newcomer, record, &own, &authority, &mut tree, asker)?;
        if own.config().controller.is_some() && own.is_ours() {
            host::prepare_for_jobs(&mut tree, true)?;
        }
        drop(authority);
        let node = &newcomer.node;
        let mut said = Vec::new();
        if !tree.changed().is_empty() {
            said.push(take_over(context(), &tree).await?.to_owned());
        }
        note(&own, context(), output, NodeAct::Approve, &[node]).await;
        said.extend(notes_of_jobs(&own, newcomer.role));
        said.push(format!("{node} is approved: it joins within some seconds"));
        output.answer(&json!({"approved": node, "files": tree.changed()}), || said.join("\n"))
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Reject {
    #[command(flatten)]
    which: Which,
}

impl Reject {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, _tree) = self.which.places.open()?;
        let authority = self.which.places.authority(&own)?;
        let asker = self.which.find(&authority)?;
        let node = asker.asked.node.clone();
        authority.write_asker(&Asker { decided: Some(Decided::Rejected), ..asker })?;
        drop(authority);
        note(&own, context(), output, NodeAct::Reject, &[&node]).await;
        output.answer(&json!({"rejected": node}), || format!("{node} is rejected"))
    }
}
