//! `meshctl node remove`: revokes a node's certificates, lets its jobs end or gives them up, and stops dialling it.

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::add::NodePlaces;
use super::{note, take_over};
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::table::count;
use crate::cli::wait::{POLL, until};
use crate::join::JoinError;
use crate::join::admit::exclude;
use crate::join::configuration::REVOKED;
use crate::rpc::operation::{self, ByName, InstanceRemoval, OperationCode, OperationError};
use crate::rpc::report::enrolment::NodeAct;

#[derive(Debug, Args)]
pub(in crate::cli) struct Remove {
    /// ID of the node
    node: String,
    /// Cut it off now, not after its last jobs: whatever ran there has ended or never will, and its jobs go on without it
    #[arg(long, visible_alias = "revoke")]
    dead: bool,
    #[command(flatten)]
    places: NodePlaces,
}

impl Remove {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.places.open()?;
        if self.node == own.config().node.id.as_str() {
            return Err(Failure::usage(format!(
                "{} is the node of this host: remove its package",
                self.node
            )));
        }
        let record = || {
            let authority = self.places.authority(&own)?;
            let record =
                authority.record(&self.node)?.ok_or_else(|| JoinError::Unknown(self.node.clone()))?;
            Ok::<_, JoinError>((authority, record))
        };
        // Nobody else can use the authority while this command has it.
        let (_, record_now) = record()?;
        let is_instance = record_now.role.runs_jobs() && own.config().controller.is_some();
        // The node's last jobs need its certificates, so wait for them first. A dead node has nothing to wait for.
        if is_instance && !self.dead {
            leave(&context()?, &self.node, false).await?;
        }
        let (authority, mut record) = record()?;
        let excluded = exclude(&mut record, &own, &authority, &mut tree, Timestamp::now())?;
        // The daemon may need it to start.
        drop(authority);
        note(&own, context(), output, NodeAct::Remove, &[&self.node]).await;
        if excluded.is_dialled {
            take_over(context(), &tree).await?;
        }
        if is_instance && self.dead {
            leave(&context()?, &self.node, true).await?;
        }
        let (node, accepts) = (&self.node, excluded.accepts.join(", "));
        let refused = if accepts.is_empty() { ", and this node no longer accepts them" } else { "" };
        let notes = (!accepts.is_empty()).then(|| {
            format!(
                "this node still accepts them by {accepts}: give it `crl: {REVOKED}`, then: meshctl reload"
            )
        });
        let json = json!({
            "node": node, "files": tree.changed(), "instance": is_instance, "lists": excluded.lists,
            "notes": notes.iter().collect::<Vec<_>>(),
        });
        let mut said = vec![format!("{node}: its certificates are revoked{refused}")];
        said.extend(notes);
        if excluded.travels {
            said.push("The nodes of the mesh get the new list over it".to_owned());
        }
        if !excluded.lists.is_empty() {
            let text =
                "Other nodes that listen accept them until they have the new list, which they read at once:";
            said.push(text.to_owned());
        }
        said.extend(excluded.lists.iter().map(|command| format!("    {command}")));
        output.answer(&json, || said.join("\n"))
    }
}

/// Takes the instance out of the controller, and returns once it is gone.
async fn leave(context: &CliContext, node: &str, is_dead: bool) -> Result<(), Failure> {
    let name = node.to_owned();
    let get = operation::get_instance(ByName { name: name.clone() });
    let removal = InstanceRemoval { name, dead: is_dead };
    let mut said = false;
    match operation::remove_instance(removal).ask(&context.client).await {
        Err(error) if is_absent(&error) => return Ok(()),
        removed => drop(removed?),
    }
    until(POLL, async || {
        let instance = match get.ask(&context.client).await {
            Err(error) if is_absent(&error) => return Ok(Some(())),
            instance => instance?.report,
        };
        if !std::mem::replace(&mut said, true) {
            context
                .output
                .note(&format!("{node} still has {} to finish", count(instance.jobs_running, "job")));
        }
        Ok(None)
    })
    .await
}

fn is_absent(error: &OperationError) -> bool {
    error.code() == Some(OperationCode::NotFound)
}
