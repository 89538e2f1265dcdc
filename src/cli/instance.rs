//! `meshctl instance`: the nodes that a controller knows.

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::Context;
use super::completion::instances;
use super::exit::{Exit, Failure};
use super::operation::{act, each, list, show};
use super::table::{
    self, Column, Layout, above_zero, alone, always, count, given, of_lists, said, telling, wide, yes,
};
use super::times::{ago, at};
use super::wait::{POLL, until};
use crate::rpc::operation::{
    self, ByName, HealthCheck, InstanceFilter, InstanceRemoval, InstanceSettings, NewInstance, Question,
};
use crate::rpc::report::controller::{CandidateReport, Candidates, InstanceReport, Instances};

const COLUMNS: &[Column<InstanceReport>] = &[
    always("NAME", |one, _| one.name.clone()),
    telling("TYPE", |one, _| one.node_type.clone()),
    always("STATE", |one, _| state(one)),
    of_lists(said("WHY", |one, _| why(one))),
    always("USED", |one, _| format!("{}/{}", one.consumed_capacity, one.capacity)),
    telling("JOBS", |one, _| one.jobs_running.to_string()),
    of_lists(telling("SEEN", |one, now| ago(&given(&one.last_seen), now))),
    telling("VERSION", |one, _| given(&one.version)),
    wide("USUAL JOBS", |one, _| above_zero(one.usual_jobs)),
    wide("GROUPS", |one, _| one.groups.join(", ")),
    wide("CPUS", |one, _| one.cpu.to_string()),
    wide("MEMORY", |one, _| table::size(one.memory)),
    wide("ADJUSTMENT", |one, _| one.capacity_adjustment.to_string()),
    wide("BY POLICY", |one, _| yes(one.managed_by_policy)),
    alone("CAPACITIES", |one, _| {
        format!("{} by processors, {} by memory", one.cpu_capacity, one.mem_capacity)
    }),
    alone("ENABLED", |one, _| yes(one.enabled)),
    alone("REACHABLE", |one, _| yes(one.reachable)),
    alone("WHY NOT", |one, _| given(&one.why)),
    alone("LAST SEEN", |one, now| at(&given(&one.last_seen), now)),
    alone("LAST HEALTH CHECK", |one, now| at(&given(&one.last_health_check), now)),
    alone("UUID", |one, _| given(&one.uuid)),
    alone("ERRORS", |one, _| one.errors.join("\n")),
];

const FOUND: &[Column<CandidateReport>] = &[
    always("NAME", |one, _| one.name.clone()),
    telling("TYPE", |one, _| one.node_type.clone()),
    always("RUNNER", |one, _| yes(one.runner)),
    always("SIGNED", |one, _| yes(one.secure)),
    always("TLS", |one, _| yes(one.tls)),
    always("SEEN", |one, now| ago(&one.last_seen, now)),
];

/// Of those in `docs/controller-reference.md`: a node that works, and one that runs no jobs.
const READY: &str = "ready";
const HOP: &str = "hop";

#[derive(Debug, Subcommand)]
pub(super) enum InstanceVerb {
    /// List them
    List {
        /// The nodes that discovery found, and that nobody has enabled or added
        #[arg(long)]
        found: bool,
        #[command(flatten)]
        layout: Layout,
    },
    /// Show one
    Show(Named),
    /// Register a node, also before it is seen
    Add {
        /// Its name
        name: String,
        /// What it does; control nodes register themselves
        #[arg(long = "type", value_name = "TYPE", value_parser = ["execution", "hop"])]
        node_type: String,
        /// Let no jobs start on it yet
        #[arg(long)]
        disabled: bool,
    },
    /// Ask a node for its size and the version of its runner
    Health {
        #[command(flatten)]
        named: Named,
        /// Only show the answer
        #[arg(long)]
        no_store: bool,
    },
    /// Let jobs start on nodes, also on those that discovery found
    Enable(NamedAll),
    /// Start no more jobs on nodes
    Disable {
        #[command(flatten)]
        named: NamedAll,
        /// Return once their last jobs have ended
        #[arg(long)]
        wait: bool,
    },
    /// Change how nodes are used
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Set {
        #[command(flatten)]
        named: NamedAll,
        /// Between the smaller (0) and the larger (1) of its capacities by processors and by memory, or above
        #[arg(long = "adjustment", value_name = "SHARE", group = "change")]
        capacity_adjustment: Option<f64>,
        /// Groups take it by their percentage and minimum
        #[arg(long, value_name = "BOOL", group = "change")]
        managed_by_policy: Option<bool>,
    },
    /// Remove a node
    Remove {
        #[command(flatten)]
        named: Named,
        /// Start nothing more there, and remove it once its jobs have ended (the default)
        #[arg(long, conflicts_with = "dead")]
        drain: bool,
        /// What ran there has ended, or never will: its jobs go on without it
        #[arg(long)]
        dead: bool,
    },
}

/// The name of an instance.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Its name
    #[arg(add = instances())]
    name: String,
}

/// The names of instances.
#[derive(Debug, Args)]
pub(super) struct NamedAll {
    /// Their names
    #[arg(required = true, value_name = "NAME", add = instances())]
    names: Vec<String>,
}

impl InstanceVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        match self {
            Self::List { found, layout } => {
                let question = operation::list_instances(InstanceFilter { found });
                match found {
                    true => list(context, question, "nodes found", found_ones, FOUND, layout).await,
                    false => list(context, question, "instances", instances_of, COLUMNS, layout).await,
                }
            }
            Self::Show(Named { name }) => {
                show(context, operation::get_instance(ByName { name }), described).await
            }
            Self::Add { name, node_type, disabled } => {
                let (node_type, enabled) = (Some(node_type), Some(!disabled));
                let add = operation::add_instance(NewInstance { name, node_type, enabled });
                let disabled = if disabled { ", disabled" } else { "" };
                act(context, add, |one| format!("{} added{disabled}", one.name)).await
            }
            Self::Health { named: Named { name }, no_store: true } => {
                let check = HealthCheck { name, store: Some(false) };
                show(context, operation::check_health(check), described).await
            }
            Self::Health { named: Named { name }, no_store: false } => {
                let check = operation::check_health(HealthCheck { name, store: None });
                act(context, check, |one| format!("{} is being checked", one.name)).await
            }
            Self::Enable(named) => {
                let said = |name, _: &_| context.output.done(&format!("{name} enabled"));
                each(context, named.each(operation::enable_instance), said).await
            }
            Self::Disable { named, wait } => {
                let said = |name, _: &_| context.output.done(&format!("{name} disabled"));
                let exit = each(context, named.each(operation::disable_instance), said).await?;
                for name in named.names.iter().filter(|_| wait) {
                    idle(context, name).await?;
                }
                Ok(exit)
            }
            Self::Set { named, capacity_adjustment, managed_by_policy } => {
                let set = |named: ByName| {
                    let name = named.name;
                    operation::set_instance(InstanceSettings { name, capacity_adjustment, managed_by_policy })
                };
                let said = |name, _: &_| context.output.done(&format!("{name} changed"));
                each(context, named.each(set), said).await
            }
            Self::Remove { named: Named { name }, dead, drain: _ } => {
                let removal = InstanceRemoval { name, dead };
                act(context, operation::remove_instance(removal), |one| match one.removed {
                    true => format!("{} removed", one.name),
                    false => format!("{} goes once its jobs have ended, and gets no more", one.name),
                })
                .await
            }
        }
    }
}

impl NamedAll {
    /// The same for each of them.
    fn each<A>(&self, question: impl Fn(ByName) -> Question<A>) -> impl Iterator<Item = (&str, Question<A>)> {
        self.names.iter().map(move |name| (name.as_str(), question(ByName { name: name.clone() })))
    }
}

fn instances_of(answer: &Instances) -> Vec<InstanceReport> {
    let mut all = answer.instances.clone().unwrap_or_default();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

fn found_ones(answer: &Instances) -> Vec<CandidateReport> {
    match &answer.found {
        Candidates::These(found) => found.clone(),
        Candidates::Count(_) => Vec::new(),
    }
}

/// Whether it works, and what keeps jobs away. Nobody enables a hop, as it runs none.
fn state(one: &InstanceReport) -> String {
    let words = [
        (one.node_state != READY, one.node_state.as_str()),
        (one.draining, "draining"),
        (!one.enabled && one.node_type != HOP, "disabled"),
        (!one.reachable, "unreachable"),
    ];
    let words: Vec<&str> = words.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word).collect();
    if words.is_empty() { READY.to_owned() } else { words.join(", ") }
}

/// What is wrong with it, if its state does not say so.
fn why(one: &InstanceReport) -> String {
    let code = one.why.clone().filter(|_| one.node_type != HOP && state(one) == READY);
    one.errors.first().cloned().or(code).unwrap_or_default()
}

fn described(one: &InstanceReport) -> String {
    table::described(table::fields(one, COLUMNS, Timestamp::now()))
}

/// Waits until nothing runs there.
async fn idle(context: &Context, name: &str) -> Result<(), Failure> {
    let get = operation::get_instance(ByName { name: name.to_owned() });
    let mut last = None;
    until(POLL, async || {
        let jobs = get.ask(&context.client).await?.report.jobs_running;
        if jobs > 0 && last.replace(jobs) != Some(jobs) {
            context.output.note(&format!("{name} has {} to end", count(jobs, "job")));
        }
        Ok((jobs == 0).then_some(()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report;
    use serde_json::json;

    #[test]
    fn a_state_says_what_keeps_jobs_away() {
        let one = |node_type: &str, more: serde_json::Value| {
            let mut one = json!({"name": "e1", "node_type": node_type, "node_state": "ready", "enabled": true,
                "reachable": true});
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let one: InstanceReport = report::read(&one).unwrap();
            (state(&one), why(&one))
        };
        let expected = |state: &str, why: &str| (state.to_owned(), why.to_owned());
        assert_eq!(one("execution", json!({})), expected("ready", ""));
        assert_eq!(one("hop", json!({"enabled": false, "why": "disabled"})), expected("ready", ""));
        assert_eq!(one("execution", json!({"enabled": false, "why": "disabled"})), expected("disabled", ""));
        assert_eq!(one("execution", json!({"why": "needs_tls"})), expected("ready", "needs_tls"));
        let ill = json!({"node_state": "unavailable", "reachable": false, "why": "not_ready", "errors": ["no runner", "x"]});
        assert_eq!(one("execution", ill), expected("unavailable, unreachable", "no runner"));
    }
}
