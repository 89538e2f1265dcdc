//! What anybody on this machine may see of the controller's lists: no output, no events, nothing of headers, labels and pods.
//! A field of jobs that is not named here is not shown; of instances and groups, only the fields named here are hidden.

use crate::rpc::operation::Answer;
use crate::rpc::report::controller::{GroupReport, InstanceReport, JobReport};

/// Removes from an answer what needs a level.
pub(super) fn reduce(answer: &mut Answer) {
    match answer {
        Answer::ListInstances(list) => {
            list.instances.iter_mut().flatten().for_each(|one| *one = instance(one))
        }
        Answer::ListGroups(list) => list.groups.iter_mut().for_each(|one| *one = group(one)),
        Answer::ListJobs(list) => list.jobs.iter_mut().for_each(|one| *one = job(one)),
        // Without a level, nothing else can be asked.
        _ => {}
    }
}

fn job(job: &JobReport) -> JobReport {
    JobReport {
        id: job.id,
        kind: job.kind.clone(),
        name: job.name.clone(),
        state: job.state.clone(),
        priority: job.priority,
        controller_node: job.controller_node.clone(),
        execution_node: job.execution_node.clone(),
        instance_group: job.instance_group.clone(),
        attempt: job.attempt,
        impact: job.impact,
        created: job.created.clone(),
        started: job.started.clone(),
        finished: job.finished.clone(),
        elapsed: job.elapsed,
        cancel_requested: job.cancel_requested,
        ..JobReport::default()
    }
}

fn instance(one: &InstanceReport) -> InstanceReport {
    InstanceReport { errors: Vec::new(), ..one.clone() }
}

fn group(one: &GroupReport) -> GroupReport {
    GroupReport { pod_spec_override: None, cluster: None, namespace: None, registry: None, ..one.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rpc::report::read;

    #[test]
    fn what_came_from_a_header_or_an_output_is_not_shown() {
        let secret = |keys: &[&str]| {
            keys.iter().map(|key| ((*key).to_owned(), json!("secret"))).collect::<serde_json::Map<_, _>>()
        };
        let of_jobs =
            ["key", "explanation", "launched_by", "playbook", "module", "limit", "tags", "skip_tags"];
        let mut given = json!(secret(&of_jobs));
        given["labels"] = json!({"secret": "secret"});
        (given["id"], given["name"]) = (json!(7), json!("site"));
        let shown = job(&read(&given).unwrap());
        assert!(
            !json!(shown).to_string().contains("secret") && (shown.id, shown.name.as_str()) == (7, "site")
        );
        let given = json!({"name": "e1", "errors": ["secret"], "capacity": 9});
        let shown = instance(&read(&given).unwrap());
        assert!(!json!(shown).to_string().contains("secret") && shown.capacity == 9);
        let given = json!(secret(&["pod_spec_override", "cluster", "namespace", "registry"]));
        assert!(!json!(group(&read(&given).unwrap())).to_string().contains("secret"));
    }
}
