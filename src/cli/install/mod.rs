//! `meshctl install`: makes this host a node of the mesh, with what a bundle holds.
//!
//! Owns the order of the steps and what is told of them. What a bundle brings is `join`'s to know, and whether peers
//! answer is `link`'s.

mod link;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::readable;
use super::service::Service;
use crate::config::Config;
use crate::join::bundle::Bundle;
use crate::join::configuration::{CONF_D, NODE_FILE};
use crate::join::install::Kit;
use crate::join::place::Tree;
use crate::join::{JoinError, host};
use crate::rpc::report::finding::Severity;

#[derive(Debug, Args)]
pub(super) struct Install {
    /// File that `meshctl node add` or `meshctl node renew` made on the control node
    #[arg(value_parser = readable())]
    bundle: PathBuf,
    /// Only put the files in place, and check them
    #[arg(long)]
    no_start: bool,
    /// Put the files into the tree of another system, such as an image; nothing is started
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

/// What became of it.
struct Installed {
    node: String,
    changed: Vec<PathBuf>,
    linked: Vec<String>,
    notes: Vec<String>,
    /// What keeps the node from its work.
    fault: Option<String>,
}

impl Install {
    pub(super) async fn run(self, output: Output) -> Result<Exit, Failure> {
        let is_here = self.root.as_os_str() == "/";
        if is_here && !rustix::process::geteuid().is_root() {
            return Err(Failure::usage("meshctl install writes to /etc: run it as root, or give --root"));
        }
        let account = host::account(&self.root)?;
        let mut tree = Tree::new(&self.root, account);
        let starts = is_here && !self.no_start;
        if starts && !host::has_unit(&tree) {
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "there is no {}: install meshd's package, or give --no-start and start `meshd --config-dir {CONF_D}` by other means",
                    host::UNIT
                ),
            ));
        }
        let bundle = Bundle::read(&self.bundle)?;
        let mut notes = Vec::new();
        if is_here && account.is_none() {
            notes.push(
                "this host has no user meshd: install again once it has, to give it the files".to_owned(),
            );
        }
        if bundle.is_exposed {
            notes.push(format!(
                "{} holds a private key: remove it, others can read it",
                self.bundle.display()
            ));
        }
        let kit = Kit::of(bundle, &self.bundle)?;
        notes.extend(kit.unused.iter().map(|name| format!("not used: {name}")));
        let config = kit.check(&mut tree)?;
        kit.place(&mut tree)?;
        host::prepare_for_jobs(&mut tree, runs_jobs(&config))?;
        let mut outcome = Installed {
            node: config.node.id.to_string(),
            changed: tree.changed().to_vec(),
            linked: Vec::new(),
            notes,
            fault: None,
        };
        if is_here {
            bring_up(&config, &mut tree, starts, &mut outcome).await?;
        }
        outcome.print(output)
    }
}

/// Checks what is in place, starts it, and waits for its links.
async fn bring_up(
    config: &Config,
    tree: &mut Tree,
    starts: bool,
    outcome: &mut Installed,
) -> Result<(), Failure> {
    let service = Service::of_this_host();
    host::socket_directory(tree)?;
    let found = service.check(host::account("/".as_ref())?)?.into_iter();
    let (errors, warnings): (Vec<_>, Vec<_>) = found.partition(|one| one.severity == Severity::Error);
    outcome.notes.extend(warnings.iter().map(ToString::to_string));
    if !errors.is_empty() {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        outcome.fault = Some(format!(
            "{}\nThe files are in place. Mend this, and run the same command again.",
            errors.join("\n")
        ));
        return Ok(());
    }
    if !starts {
        return Ok(());
    }
    if !service.has_systemd() {
        outcome.notes.push(format!("systemd does not run here: start `meshd --config-dir {CONF_D}`"));
        return Ok(());
    }
    // A former run may have ended after it had put the files in place.
    let is_another = link::running(config).await.is_some_and(|id| id != outcome.node);
    let restarts = is_another || tree.has_changed(NODE_FILE) || tree.has_changed(host::DROP_IN);
    service.start(restarts, tree.has_changed(host::DROP_IN), runs_jobs(config))?;
    match link::wait(config).await {
        Ok(linked) => outcome.linked = linked,
        Err(why) => outcome.fault = Some([vec![why], link::faults(config).await].concat().join("\n")),
    }
    Ok(())
}

fn runs_jobs(config: &Config) -> bool {
    !config.work_commands.is_empty() || !config.work_python.is_empty() || config.controller.is_some()
}

impl Installed {
    fn print(self, output: Output) -> Result<Exit, Failure> {
        let Self { node, changed, linked, notes, fault } = self;
        if output.json {
            output.value(&json!({
                "node": node, "changed": !changed.is_empty(), "files": changed, "linked": linked, "notes": notes,
                "error": fault,
            }))?;
            return Ok(if fault.is_some() { Exit::Failed } else { Exit::Success });
        }
        for path in &changed {
            output.line(&format!("wrote {}", path.display()))?;
        }
        for note in &notes {
            output.line(note)?;
        }
        if let Some(fault) = fault {
            return Err(Failure::new(Exit::Failed, fault));
        }
        let state = if changed.is_empty() { "nothing was to change" } else { "everything is in place" };
        let links = match linked.as_slice() {
            [] => String::new(),
            linked => format!(", linked to {}", linked.join(", ")),
        };
        output.line(&format!("{node}: {state}{links}"))?;
        Ok(Exit::Success)
    }
}
