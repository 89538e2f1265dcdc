//! `meshctl instance`: the nodes that a controller knows.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use clap::{Args, Subcommand, ValueEnum};
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use super::CliContext;
use super::completion::{groups, instances};
use super::exit::{Exit, Failure};
use super::operation::{act, each, list, show};
use super::table::{
    self, Column, Layout, above_zero, alone, always, count, given, of_lists, said, telling, wide, yes,
};
use super::times::{ago, at};
use super::wait::{POLL, until};
use crate::rpc::operation::{
    self, Answered, ByName, HealthCheck, InstanceFilter, InstanceRemoval, InstanceSettings, NewInstance,
    Question,
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

/// Words of `docs/controller-reference.md`: the state of a node that works, and the type of one that runs no jobs.
const READY: &str = "ready";
const HOP: &str = "hop";

#[derive(Debug, Subcommand)]
pub(super) enum InstanceVerb {
    /// List instances
    List {
        /// Only nodes that discovery found and nobody has enabled or added yet
        #[arg(long)]
        found: bool,
        #[command(flatten)]
        wanted: WantedInstances,
        #[command(flatten)]
        layout: Layout,
    },
    /// Show an instance
    Show(Named),
    /// Register a node, even before it has been seen
    Add {
        /// Name of the instance
        name: String,
        /// What the node does; control nodes register themselves
        #[arg(long = "type", value_name = "TYPE", value_parser = ["execution", "hop"])]
        node_type: String,
        /// Do not let jobs start on it yet
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
    /// Let jobs start on nodes, including those that discovery found
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
        /// Capacity to use: 0 for the smaller of the capacities by processors and by memory, 1 for the larger; values
        /// between and above are possible
        #[arg(long = "adjustment", value_name = "SHARE", group = "change")]
        capacity_adjustment: Option<f64>,
        /// Let groups take it by their percentage and minimum
        #[arg(long, value_name = "BOOL", group = "change")]
        managed_by_policy: Option<bool>,
    },
    /// Remove a node
    Remove {
        #[command(flatten)]
        named: Named,
        /// Start no more jobs on it, and remove it once its jobs have ended (the default)
        #[arg(long, conflicts_with = "dead")]
        drain: bool,
        /// Remove it now: whatever ran on it has ended or never will, and its jobs go on without it
        #[arg(long)]
        dead: bool,
    },
}

/// The name of an instance.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Name of the instance
    #[arg(add = instances())]
    name: String,
}

/// The names of instances.
#[derive(Debug, Args)]
pub(super) struct NamedAll {
    /// Names of the instances
    #[arg(required = true, value_name = "NAME", add = instances())]
    names: Vec<String>,
}

impl InstanceVerb {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::List { found: true, wanted: _, layout } => {
                let question = operation::list_instances(InstanceFilter { found: true });
                list(context, question, "nodes found", found_ones, FOUND, layout).await
            }
            Self::List { found: false, wanted, layout } => wanted.list(context, layout).await,
            Self::Show(Named { name }) => {
                show(context, operation::get_instance(ByName { name }), |one| {
                    described(one, &context.output.now())
                })
                .await
            }
            Self::Add { name, node_type, disabled } => {
                let (node_type, enabled) = (Some(node_type), Some(!disabled));
                let add = operation::add_instance(NewInstance { name, node_type, enabled });
                let disabled = if disabled { ", disabled" } else { "" };
                act(context, add, |one| format!("{} added{disabled}", one.name)).await
            }
            Self::Health { named: Named { name }, no_store: true } => {
                let check = HealthCheck { name, store: Some(false) };
                show(context, operation::check_health(check), |one| described(one, &context.output.now()))
                    .await
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
                    false => {
                        format!("{} gets no more jobs, and is removed once its jobs have ended", one.name)
                    }
                })
                .await
            }
        }
    }
}

impl NamedAll {
    /// The same question for each instance.
    fn each<A>(&self, question: impl Fn(ByName) -> Question<A>) -> impl Iterator<Item = (&str, Question<A>)> {
        self.names.iter().map(move |name| (name.as_str(), question(ByName { name: name.clone() })))
    }
}

/// Which instances a list has, and in which order.
#[derive(Debug, Default, Args)]
pub(super) struct WantedInstances {
    /// Only instances in this state
    #[arg(long, value_name = "STATE", conflicts_with = "found", value_parser = [
        "ready", "installed", "unavailable", "deprovisioning", "draining", "disabled", "unreachable", "lost",
    ])]
    state: Option<String>,
    /// Only instances of this group
    #[arg(long, value_name = "GROUP", conflicts_with = "found", add = groups())]
    group: Option<String>,
    /// Order of the list
    #[arg(long, value_name = "KEY", conflicts_with = "found", value_enum, default_value = "name")]
    sort: InstanceOrder,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum InstanceOrder {
    #[default]
    Name,
    /// Those that do not work first
    State,
    /// The fullest first
    Used,
    /// Those with most jobs first
    Jobs,
    /// Those that were not seen for longest first
    Seen,
}

impl WantedInstances {
    async fn list(self, context: &CliContext, layout: Layout) -> Result<Exit, Failure> {
        let question = operation::list_instances(InstanceFilter::default());
        let Answered { report, mut json } = question.ask(&context.client).await?;
        let instances = self.of(report.instances.unwrap_or_default());
        if !context.output.json {
            context.output.list("instances", &instances, COLUMNS, layout)?;
            return Ok(Exit::Success);
        }
        // As the node wrote them: another release may send more keys.
        if let Some(all) = json["instances"].as_array_mut() {
            let places: BTreeMap<&str, usize> =
                instances.iter().map(|one| one.name.as_str()).zip(0..).collect();
            let place = |one: &Value| one["name"].as_str().and_then(|name| places.get(name));
            all.retain(|one| place(one).is_some());
            all.sort_by_key(|one| place(one).copied());
        }
        context.output.value(&json)?;
        Ok(Exit::Success)
    }

    fn of(&self, mut all: Vec<InstanceReport>) -> Vec<InstanceReport> {
        all.retain(|one| {
            let is_in = |group: &String| one.groups.contains(group);
            self.state.as_ref().is_none_or(|word| is_in_state(one, word))
                && self.group.as_ref().is_none_or(is_in)
        });
        all.sort_by(|one, other| one.name.cmp(&other.name));
        match self.sort {
            InstanceOrder::Name => {}
            InstanceOrder::State => all.sort_by_key(|one| (state(one) == READY, state(one))),
            InstanceOrder::Used => {
                let share =
                    |one: &InstanceReport| f64::from(one.consumed_capacity) / f64::from(one.capacity.max(1));
                all.sort_by(|one, other| share(other).total_cmp(&share(one)));
            }
            InstanceOrder::Jobs => all.sort_by_key(|one| Reverse(one.jobs_running)),
            InstanceOrder::Seen => {
                all.sort_by_key(|one| one.last_seen.as_ref().and_then(|at| at.parse::<Timestamp>().ok()))
            }
        }
        all
    }
}

/// Whether this word stands in the state of an instance. A lost one is unavailable because it cannot be reached.
fn is_in_state(one: &InstanceReport, word: &str) -> bool {
    let is = |word: &str| state(one).split(", ").any(|said| said == word);
    if word == "lost" { is("unavailable") && is("unreachable") } else { is(word) }
}

fn found_ones(answer: &Instances) -> Vec<CandidateReport> {
    match &answer.found {
        Candidates::These(found) => found.clone(),
        Candidates::Count(_) => Vec::new(),
    }
}

/// Whether the instance works, and what keeps jobs away. A hop is not called disabled, because it runs no jobs anyway.
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

/// The first error, else what keeps jobs away if the state does not say so.
fn why(one: &InstanceReport) -> String {
    let code = one.why.clone().filter(|_| one.node_type != HOP && state(one) == READY);
    one.errors.first().cloned().or(code).unwrap_or_default()
}

fn described(one: &InstanceReport, now: &Zoned) -> String {
    table::described(table::fields(one, COLUMNS, now))
}

/// Waits until no job runs on the instance.
async fn idle(context: &CliContext, name: &str) -> Result<(), Failure> {
    let get = operation::get_instance(ByName { name: name.to_owned() });
    let mut last = None;
    until(POLL, async || {
        let jobs = get.ask(&context.client).await?.report.jobs_running;
        if jobs > 0 && last.replace(jobs) != Some(jobs) {
            context.output.note(&format!("{name} still has {} to finish", count(jobs, "job")));
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
    fn a_list_has_those_that_are_asked_for_in_the_order_that_is_asked_for() {
        let one = |name: &str, node_state: &str, reachable: bool, group: &str, jobs: u32, seen: &str| {
            report::read(
                &json!({"name": name, "node_type": "execution", "node_state": node_state, "enabled": true,
                "reachable": reachable, "groups": [group], "jobs_running": jobs, "consumed_capacity": jobs,
                "capacity": 10, "last_seen": seen}),
            )
            .unwrap()
        };
        let all: Vec<InstanceReport> = vec![
            one("e3", "ready", true, "lab", 2, "2026-11-27T13:00:00.5Z"),
            one("e1", "unavailable", false, "lab", 0, "2026-11-27T12:00:00Z"),
            one("e2", "unavailable", true, "eu", 7, "2026-11-27T13:00:00Z"),
        ];
        let names = |wanted: &WantedInstances| {
            wanted.of(all.clone()).into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        let state =
            |state: &str| names(&WantedInstances { state: Some(state.to_owned()), ..Default::default() });
        assert_eq!(state("unavailable"), ["e1", "e2"]);
        assert_eq!(
            (state("lost"), state("unreachable"), state("ready")),
            (vec!["e1".to_owned()], vec!["e1".to_owned()], vec!["e3".to_owned()])
        );
        assert_eq!(
            names(&WantedInstances { group: Some("lab".to_owned()), ..Default::default() }),
            ["e1", "e3"]
        );
        for (sort, order) in [
            (InstanceOrder::Name, ["e1", "e2", "e3"]),
            (InstanceOrder::State, ["e2", "e1", "e3"]),
            (InstanceOrder::Used, ["e2", "e3", "e1"]),
            (InstanceOrder::Jobs, ["e2", "e3", "e1"]),
            (InstanceOrder::Seen, ["e1", "e2", "e3"]),
        ] {
            assert_eq!(names(&WantedInstances { sort, ..Default::default() }), order, "{sort:?}");
        }
    }

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
