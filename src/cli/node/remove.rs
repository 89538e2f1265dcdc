//! `meshctl node remove`: a node's certificates are taken back, its jobs end or are given up, and nobody dials it.

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::add::Places;
use super::take_over;
use crate::cli::Context;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::table::count;
use crate::cli::wait::{POLL, until};
use crate::join::JoinError;
use crate::join::admit::exclude;
use crate::join::configuration::REVOKED;
use crate::rpc::operation::{self, ByName, InstanceRemoval, OperationCode, OperationError};

#[derive(Debug, Args)]
pub(in crate::cli) struct Remove {
    /// ID of the node
    node: String,
    /// At once: what runs there has ended, or never will, and its jobs go on without it
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    places: Places,
}

impl Remove {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<Context, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.places.open()?;
        if self.node == own.config().node.id.as_str() {
            return Err(Failure::usage(format!(
                "{} is the node of this host: remove its package",
                self.node
            )));
        }
        let authority = self.places.authority()?;
        let unknown = || JoinError::Unknown(self.node.clone());
        let mut record = authority.record(&self.node)?.ok_or_else(unknown)?;
        let is_instance = record.role.runs_jobs() && own.config().controller.is_some();
        // Its last jobs need it. Who has lost it cannot wait for them.
        if is_instance && !self.dead {
            leave(&context()?, &self.node, false).await?;
        }
        let excluded = exclude(&mut record, &own, &authority, &mut tree, Timestamp::now())?;
        if excluded.is_dialled {
            take_over(context(), &tree).await?;
        }
        if is_instance && self.dead {
            leave(&context()?, &self.node, true).await?;
        }
        let (node, accepts) = (&self.node, excluded.accepts.join(", "));
        let refused = if accepts.is_empty() { ", and this node accepts them no more" } else { "" };
        let notes = (!accepts.is_empty()).then(|| {
            format!(
                "this node accepts them still by {accepts}: give it `crl: {REVOKED}`, then: meshctl reload"
            )
        });
        let json = json!({
            "node": node, "files": tree.changed(), "instance": is_instance, "lists": excluded.lists,
            "notes": notes.iter().collect::<Vec<_>>(),
        });
        let mut said = vec![format!("{node}: its certificates are revoked{refused}")];
        said.extend(notes);
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
async fn leave(context: &Context, node: &str, is_dead: bool) -> Result<(), Failure> {
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
            context.output.note(&format!("{node} has {} to end", count(instance.jobs_running, "job")));
        }
        Ok(None)
    })
    .await
}

fn is_absent(error: &OperationError) -> bool {
    error.code() == Some(OperationCode::NotFound)
}
