//! The check of a control node's instances: finds those that should get jobs but cannot. Owns the remedies. Does not
//! decide the state of an instance: the controller does. Does not say why a node is out of reach: `links` does, once
//! for all nodes behind a lost one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use crate::controller::core::{JobState, NodeState, NodeType};
use crate::rpc::operation::{Answer, InstanceFilter, JobFilter, Nothing, Operation};
use crate::rpc::report::controller::InstanceReport;
use crate::rpc::report::finding::{Finding, Severity};
use crate::work::Caller;
use crate::work::jobs::Operations;

/// The most instances with a finding of their own; the rest are counted.
const TOLD: usize = 20;
/// How long to wait for the list of instances. The store may hang, and the other findings must not wait for it.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// How old the failed jobs may be, and how many are looked at, to find containers that could not be started.
const LATELY: SignedDuration = SignedDuration::from_hours(24);
const LOOKED_AT: u32 = 100;

/// Asks the node's controller. Returns the instances among the nodes that are out of reach apart, without findings.
pub(super) async fn of_controller(
    controller: &dyn Operations,
    away: &BTreeSet<String>,
) -> (Vec<Finding>, BTreeSet<String>) {
    let list = Operation::ListInstances(InstanceFilter::default());
    let why = match timeout(LISTED_WITHIN, controller.operate(list, &Caller::default())).await {
        Ok(Ok((Answer::ListInstances(list), _))) => {
            let wrong = list
                .instances
                .unwrap_or_default()
                .into_iter()
                .filter_map(|one| Some((of_one(&one)?, one.name)));
            let (idle, wrong): (Vec<_>, Vec<_>) = wrong.partition(|(_, name)| away.contains(name));
            let mut found = of_all(wrong.into_iter().map(|(finding, _)| finding));
            found.extend(of_store(controller).await);
            found.extend(of_engines(controller).await);
            found.extend(of_notices(controller).await);
            return (found, idle.into_iter().map(|(_, name)| name).collect());
        }
        Ok(Ok(_)) => "it answers something else".to_owned(),
        Ok(Err(refused)) => refused.to_string(),
        Err(_) => "it does not answer".to_owned(),
    };
    let what = format!("its instances: {why}");
    (vec![Finding::not_asked("work-controller", what, "meshctl controller ping")], BTreeSet::new())
}

/// What keeps jobs from being placed although the store answers.
async fn of_store(controller: &dyn Operations) -> Option<Finding> {
    let nobody = Caller::default();
    let ping = controller.operate(Operation::Ping(Nothing {}), &nobody);
    let Ok(Ok((Answer::Ping(report), _))) = timeout(LISTED_WITHIN, ping).await else { return None };
    let error = report.store.error?;
    Some(Finding::new(
        Severity::Error,
        "work-controller",
        error,
        "meshctl controller ping shows the state of the store",
    ))
}

/// Targets to which the last notice could not be delivered.
async fn of_notices(controller: &dyn Operations) -> Vec<Finding> {
    let nobody = Caller::default();
    let list = controller.operate(Operation::ListNotify(Nothing {}), &nobody);
    let Ok(Ok((Answer::ListNotify(list), _))) = timeout(LISTED_WITHIN, list).await else { return Vec::new() };
    let told = list.targets.into_iter().filter_map(|target| {
        let (since, error) = (target.failing_since?, target.error.unwrap_or_default());
        let what = format!("no notice could be delivered since {since}: {error}");
        Some(Finding::advice(
            format_args!("notify {}", target.name),
            what,
            "meshctl notify list; meshctl notify test NAME",
        ))
    });
    told.collect()
}

/// Instances on which a recent job could not start its container. Only jobs can show this, because they decide whether
/// an engine is needed. Exit codes 125 to 127 are those of engines, and no playbook ends with them; 127 means that
/// there is no engine.
async fn of_engines(controller: &dyn Operations) -> Vec<Finding> {
    let (state, since) = (vec![JobState::Failed], Timestamp::now().checked_sub(LATELY).ok());
    let filter = JobFilter { state, since, limit: Some(LOOKED_AT), brief: true, ..JobFilter::default() };
    let nobody = Caller::default();
    let list = controller.operate(Operation::ListJobs(filter), &nobody);
    let Ok(Ok((Answer::ListJobs(list), _))) = timeout(LISTED_WITHIN, list).await else { return Vec::new() };
    // From the oldest to the newest, so that the newest job of each instance stays in the map.
    let jobs = list.jobs.iter().rev().filter(|job| matches!(job.rc, Some(125..=127)));
    let newest: BTreeMap<_, _> = jobs.filter_map(|job| Some((job.execution_node.as_ref()?, job))).collect();
    let told = newest.into_iter().map(|(node, job)| {
        let what = format!("job {} could not start its container: {}", job.id, job.explanation);
        let remedy =
            "install podman there, or run it without a container; as its user: podman run --rm IMAGE true";
        Finding::advice(format_args!("instance {node}"), what, remedy)
    });
    told.collect()
}

/// The findings, faults first, because only so many are shown.
fn of_all(found: impl Iterator<Item = Finding>) -> Vec<Finding> {
    let (faults, advice): (Vec<_>, Vec<_>) = found.partition(|one| one.severity == Severity::Error);
    let mut found: Vec<Finding> = faults.into_iter().chain(advice).collect();
    let more = found.split_off(found.len().min(TOLD));
    found.extend(more.first().map(|worst| {
        let what = format!("{} more are unavailable or cannot be reached", more.len());
        Finding::new(worst.severity, "instances", what, "meshctl instance list shows all")
    }));
    found
}

/// What keeps jobs from an instance that should get some.
fn of_one(instance: &InstanceReport) -> Option<Finding> {
    let InstanceReport { name, node_type, node_state, errors, last_seen, .. } = instance;
    if !instance.enabled || instance.draining || node_type == NodeType::Hop.name() {
        return None;
    }
    let place = format!("instance {name}");
    let seen = last_seen.as_ref().map_or("it was never seen".to_owned(), |at| format!("last seen {at}"));
    let look = format!("meshctl doctor {name}");
    let check = format!("{look}; then: meshctl instance health {name}");
    match (node_state == NodeState::Unavailable.name(), instance.reachable) {
        (true, false) => {
            Some(Finding::fault(place, format_args!("it is lost, {seen}: it gets no jobs"), look))
        }
        (true, true) => {
            let why = if errors.is_empty() { seen } else { errors.join("; ") };
            Some(Finding::fault(place, format_args!("it is unavailable and gets no jobs: {why}"), check))
        }
        (false, false) => {
            Some(Finding::advice(place, format_args!("it cannot be reached from here: {seen}"), look))
        }
        (false, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, node_state: &str, reachable: bool) -> InstanceReport {
        InstanceReport {
            name: name.to_owned(),
            node_type: "execution".to_owned(),
            node_state: node_state.to_owned(),
            enabled: true,
            reachable,
            last_seen: Some("2026-11-26T12:00:00Z".to_owned()),
            ..InstanceReport::default()
        }
    }

    fn of<'a>(instances: impl IntoIterator<Item = &'a InstanceReport>) -> Vec<Finding> {
        of_all(instances.into_iter().filter_map(of_one))
    }

    #[test]
    fn an_instance_that_gets_no_jobs_is_told_and_one_that_shall_get_none_is_not() {
        let sick = InstanceReport {
            errors: vec!["no ansible-runner".to_owned()],
            ..instance("e1", "unavailable", true)
        };
        for (one, severity, what) in [
            (sick, Severity::Error, "no jobs: no ansible-runner"),
            (
                instance("e1", "unavailable", false),
                Severity::Error,
                "it is lost, last seen 2026-11-26T12:00:00Z",
            ),
            (instance("e1", "ready", false), Severity::Warning, "it cannot be reached from here"),
        ] {
            let found = of([&one]);
            assert!(found.len() == 1 && found[0].severity == severity, "{found:?}");
            assert!(found[0].what.contains(what) && found[0].place == "instance e1", "{found:?}");
            assert!(
                found[0].remedy.as_ref().is_some_and(|text| text.contains("meshctl doctor e1")),
                "{found:?}"
            );
            let hop = InstanceReport { node_type: "hop".to_owned(), ..one.clone() };
            let drained = InstanceReport { draining: true, ..one.clone() };
            assert_eq!(of([&hop, &drained, &InstanceReport { enabled: false, ..one }]), []);
        }
        assert_eq!(of([&instance("e1", "ready", true), &instance("e2", "installed", true)]), []);
    }

    #[test]
    fn of_many_the_worst_are_told_and_the_others_counted() {
        let mut many: Vec<_> = (0..30).map(|at| instance(&format!("e{at}"), "ready", false)).collect();
        many.push(instance("lost", "unavailable", false));
        let found = of(&many);
        assert!(found.len() == 21 && found[0].place == "instance lost", "{found:?}");
        assert!(
            found[20].what.starts_with("11 more") && found[20].severity == Severity::Warning,
            "{found:?}"
        );
    }
}
