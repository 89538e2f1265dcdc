//! A pod as the API server reports it, reduced to what a unit's owner needs. Parsing never fails: missing or
//! malformed fields count as unknown.

use std::net::IpAddr;

use serde_json::Value;

use super::name::{NODE_LABEL, Owner, STORE_LABEL, UNIT_LABEL};
use super::pod::WORKER;

/// The state of a pod at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID. A later pod of the same name has another one.
    pub uid: String,
    /// Its creator, if it has all of our labels.
    pub owner: Option<Owner>,
    /// Whether it has a container named `worker`.
    pub has_worker: bool,
    /// Whether somebody has deleted it.
    pub is_deleting: bool,
    /// Summary of its containers' states.
    pub phase: PodPhase,
    /// Why the pod is in that phase, such as `Evicted`.
    pub reason: String,
    /// The same as a sentence.
    pub message: String,
    /// The node it was assigned to.
    pub node: String,
    /// The scheduler's message while no node fits.
    pub unschedulable: Option<String>,
    /// Container `worker`.
    pub worker: Container,
    /// The init containers, in order.
    pub init: Vec<InitContainer>,
    /// The pod's addresses.
    pub pod_ips: Vec<IpAddr>,
    /// Its node's addresses.
    pub host_ips: Vec<IpAddr>,
}

/// An init container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitContainer {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: Container,
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodPhase {
    /// Missing, or the node does not report.
    #[default]
    Unknown,
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended with exit code 0.
    Succeeded,
    /// All containers ended, at least one with an error, or the pod was rejected.
    Failed,
}

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Container {
    /// Not reported by the kubelet yet.
    #[default]
    Unknown,
    /// Not started yet.
    Waiting(ContainerWaiting),
    /// It runs.
    Running,
    /// It has ended.
    Terminated(Terminated),
}

/// Why a container has not started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerWaiting {
    /// A reason such as `ImagePullBackOff`.
    pub reason: String,
    /// The kubelet's message.
    pub message: String,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terminated {
    /// Its exit code; 128 and more for signals.
    pub exit_code: i32,
    /// A reason such as `Completed`, `Error` or `OOMKilled`.
    pub reason: String,
    /// The termination message that it left.
    pub message: String,
}

impl PodSeen {
    /// Parses a pod.
    pub fn read(pod: &Value) -> Self {
        let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
        Self {
            name: text(&metadata["name"]),
            namespace: text(&metadata["namespace"]),
            uid: text(&metadata["uid"]),
            owner: owner(&metadata["labels"]),
            has_worker: list(&spec["containers"]).any(|container| container["name"] == WORKER),
            is_deleting: metadata["deletionTimestamp"].is_string(),
            phase: phase(&status["phase"]),
            reason: text(&status["reason"]),
            message: text(&status["message"]),
            node: text(&spec["nodeName"]),
            unschedulable: unschedulable(&status["conditions"]),
            worker: list(&status["containerStatuses"])
                .find(|container| container["name"] == WORKER)
                .map(container)
                .unwrap_or_default(),
            init: list(&status["initContainerStatuses"])
                .map(|init| InitContainer { name: text(&init["name"]), state: container(init) })
                .collect(),
            pod_ips: addresses(&status["podIPs"], &status["podIP"]),
            host_ips: addresses(&status["hostIPs"], &status["hostIP"]),
        }
    }

    /// Whether container `worker` runs or has run.
    pub fn has_started(&self) -> bool {
        match self.worker {
            Container::Running | Container::Terminated(_) => true,
            Container::Unknown | Container::Waiting(_) => false,
        }
    }

    /// Whether a connection from this address may come from the pod. In some networks it has the address of the pod's
    /// node.
    pub fn may_connect_from(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        self.pod_ips.iter().chain(&self.host_ips).any(|address| address.to_canonical() == source)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn owner(labels: &Value) -> Option<Owner> {
    let label = |name: &str| labels[name].as_str().map(str::to_owned);
    Some(Owner { node: label(NODE_LABEL)?, unit: label(UNIT_LABEL)?, store: label(STORE_LABEL)? })
}

fn phase(phase: &Value) -> PodPhase {
    match phase.as_str() {
        Some("Pending") => PodPhase::Pending,
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Unknown,
    }
}

fn unschedulable(conditions: &Value) -> Option<String> {
    let scheduled = list(conditions).find(|condition| condition["type"] == "PodScheduled")?;
    (scheduled["status"] == "False").then(|| sentence(&scheduled["reason"], &scheduled["message"]))
}

/// The message, or if there is none the reason.
fn sentence(reason: &Value, message: &Value) -> String {
    let message = text(message);
    if message.is_empty() { text(reason) } else { message }
}

fn container(status: &Value) -> Container {
    let state = &status["state"];
    let (waiting, terminated) = (&state["waiting"], &state["terminated"]);
    if terminated.is_object() {
        let exit_code = terminated["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok());
        return Container::Terminated(Terminated {
            // A container that ended without an exit code failed.
            exit_code: exit_code.unwrap_or(-1),
            reason: text(&terminated["reason"]),
            message: text(&terminated["message"]),
        });
    }
    if state["running"].is_object() {
        return Container::Running;
    }
    if waiting.is_object() {
        return Container::Waiting(ContainerWaiting {
            reason: text(&waiting["reason"]),
            message: text(&waiting["message"]),
        });
    }
    Container::Unknown
}

fn addresses(all: &Value, first: &Value) -> Vec<IpAddr> {
    let all = list(all).filter_map(|entry| entry["ip"].as_str()).chain(first.as_str());
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in all.filter_map(|text| text.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_running_pod() {
        let seen = PodSeen::read(&json!({
            "metadata": {
                "name": "w-abcde", "namespace": "ns", "uid": "u-1", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"meshd/node": "n", "meshd/unit": "abcd1234", "meshd/store": "s", "ansible_job": ""},
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "sidecar"}, {"name": "worker"}]},
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}], "hostIP": "192.0.2.1",
                "conditions": [{"type": "PodScheduled", "status": "True"}],
                "initContainerStatuses": [
                    {"name": "setup", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                ],
                "containerStatuses": [
                    {"name": "sidecar", "state": {"terminated": {"exitCode": 9, "reason": "Error"}}},
                    {"name": "worker", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
                ],
            },
        }));
        assert_eq!(
            (seen.name.as_str(), seen.namespace.as_str(), seen.uid.as_str()),
            ("w-abcde", "ns", "u-1")
        );
        assert_eq!(seen.owner, Some(Owner { node: "n".into(), unit: "abcd1234".into(), store: "s".into() }));
        assert!(seen.has_worker && seen.is_deleting && seen.unschedulable.is_none());
        assert_eq!(
            (seen.phase, &seen.worker, seen.node.as_str()),
            (PodPhase::Running, &Container::Running, "node-1")
        );
        assert_eq!(seen.init[0].name, "setup");
        for (address, may) in
            [("10.0.0.7", true), ("::ffff:192.0.2.1", true), ("fd00::7", true), ("10.0.0.8", false)]
        {
            assert_eq!(seen.may_connect_from(address.parse().unwrap()), may, "{address}");
        }
    }

    #[test]
    fn a_waiting_and_an_ended_pod() {
        let seen = PodSeen::read(&json!({"status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/3 nodes are available: 3 Insufficient cpu."},
            ],
            "containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "ErrImagePull", "message": "m"}}}],
        }}));
        assert_eq!(seen.unschedulable.as_deref(), Some("0/3 nodes are available: 3 Insufficient cpu."));
        assert_eq!(
            seen.worker,
            Container::Waiting(ContainerWaiting { reason: "ErrImagePull".into(), message: "m".into() })
        );
        let seen = PodSeen::read(&json!({"status": {
            "phase": "Failed", "reason": "Evicted", "message": "low on memory",
            "containerStatuses": [{"name": "worker", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
        }}));
        assert_eq!(
            (seen.phase, seen.reason.as_str(), seen.message.as_str()),
            (PodPhase::Failed, "Evicted", "low on memory")
        );
        let ended = Terminated { exit_code: 137, reason: "OOMKilled".into(), message: String::new() };
        assert_eq!(seen.worker, Container::Terminated(ended));
    }

    fn json() -> impl Strategy<Value = Value> {
        let keys = prop_oneof![
            Just("metadata"),
            Just("labels"),
            Just("spec"),
            Just("containers"),
            Just("status"),
            Just("state"),
            Just("containerStatuses"),
            Just("initContainerStatuses"),
            Just("terminated"),
            Just("waiting"),
            Just("exitCode"),
            Just("conditions"),
            Just("podIPs"),
            Just("name"),
            Just("type"),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            Just(Value::from("worker")),
            Just(Value::from("PodScheduled")),
            "[a-z0-9.]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((keys.clone(), inner), 0..6).prop_map(|fields| fields
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_json_makes_the_reader_panic(pod in json()) {
            let _ = PodSeen::read(&pod);
        }
    }
}
