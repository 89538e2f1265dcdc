//! Why a pod has not started: how long each reason is worth waiting for, and its text, receptor's words first.
//! Owns these rules. Sees one status at a time; what has been seen before is the machine's.

use std::time::Duration;

use super::pod_status::{Container, Init, Phase, PodSeen, Terminated, Waiting};

/// How long a container may fail to be made before its unit fails: what it needs may be created a moment later.
pub const GRACE: Duration = Duration::from_secs(30);
/// A pull that has backed off this often fails its unit.
pub const BACK_OFFS: u32 = 4;

/// What a reason is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It never heals.
    None,
    /// It heals within [`GRACE`], or not.
    Grace,
    /// The kubelet tries again; each back-off counts.
    BackOffs,
    /// Until the pending timeout.
    Deadline,
}

/// How long a reason is worth waiting for.
pub fn patience(reason: &str) -> Patience {
    match reason {
        "InvalidImageName" | "ErrImageNeverPull" => Patience::None,
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Patience::Grace,
        "ErrImagePull" | IMAGE_PULL_BACK_OFF => Patience::BackOffs,
        _ => Patience::Deadline,
    }
}

/// The reason whose arrivals are counted.
pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";

/// Reasons that every healthy pod passes through.
const USUAL: [&str; 3] = ["ContainerCreating", "PodInitializing", ""];

/// The container that keeps the pod from going on, if it tells: the first init container that has not done its part,
/// else `worker`.
pub fn obstacle(pod: &PodSeen) -> Option<&Waiting> {
    pod.init.iter().map(|init| &init.state).chain([&pod.worker]).find_map(unusual)
}

fn unusual(state: &Container) -> Option<&Waiting> {
    match state {
        Container::Waiting(waiting) if !USUAL.contains(&waiting.reason.as_str()) => Some(waiting),
        Container::Unknown | Container::Waiting(_) | Container::Running | Container::Terminated(_) => None,
    }
}

/// What the pod waits for, for people; nothing while all goes its way.
pub fn waits_for(pod: &PodSeen) -> Option<String> {
    if let Some(waiting) = obstacle(pod) {
        return Some(describe(waiting));
    }
    if let Some(message) = &pod.unschedulable {
        return Some(message.clone());
    }
    let running = pod.init.iter().find(|init| init.state == Container::Running);
    // A sidecar runs beside the worker and is not waited for.
    let running = running.filter(|_| pod.worker != Container::Running && pod.phase == Phase::Pending);
    running.map(|init| format!("init container {} runs", init.name))
}

/// `REASON: MESSAGE`, or what there is of them.
pub fn describe(waiting: &Waiting) -> String {
    joined(&waiting.reason, &waiting.message)
}

/// Why a pod failed whose worker never ran: ends "Error creating pod: ...".
pub fn failed_to_start(pod: &PodSeen) -> String {
    let ended = |init: &Init| match &init.state {
        Container::Terminated(ended) if ended.exit_code != 0 => {
            Some(format!("init container {} {}", init.name, how(ended)))
        }
        Container::Unknown | Container::Waiting(_) | Container::Running | Container::Terminated(_) => None,
    };
    let causes = [joined(&pod.reason, &pod.message), pod.init.iter().find_map(ended).unwrap_or_default()];
    let mut text = "pod failed to start".to_owned();
    for cause in causes.iter().filter(|cause| !cause.is_empty()) {
        text.push_str(", ");
        text.push_str(cause);
    }
    text
}

/// How a container ended, for people: `ended with exit code 137 (OOMKilled): MESSAGE`.
pub fn how(ended: &Terminated) -> String {
    let reason = if ended.reason.is_empty() { String::new() } else { format!(" ({})", ended.reason) };
    let message = ended.message.trim_end();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("ended with exit code {}{reason}{message}", ended.exit_code)
}

/// `REASON: MESSAGE`, or what there is of them.
pub fn joined(reason: &str, message: &str) -> String {
    match (reason, message) {
        (only, "") | ("", only) => only.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(reason: &str, message: &str) -> Container {
        Container::Waiting(Waiting { reason: reason.into(), message: message.into() })
    }

    fn pending(worker: Container) -> PodSeen {
        PodSeen { phase: Phase::Pending, worker, ..PodSeen::default() }
    }

    #[test]
    fn each_reason_has_its_patience() {
        let cases = [
            (Patience::None, &["InvalidImageName", "ErrImageNeverPull"][..]),
            (Patience::Grace, &["CreateContainerConfigError", "RunContainerError", "CreateContainerError"]),
            (Patience::BackOffs, &["ErrImagePull", "ImagePullBackOff"]),
            (Patience::Deadline, &["ContainerCreating", "PodInitializing", "RegistryUnavailable", ""]),
        ];
        for (expected, reasons) in cases {
            for reason in reasons {
                assert_eq!(patience(reason), expected, "{reason}");
            }
        }
    }

    #[test]
    fn the_nearest_obstacle_is_told() {
        let unschedulable =
            PodSeen { unschedulable: Some("0/3 nodes are available".into()), ..pending(Container::Unknown) };
        assert_eq!(waits_for(&unschedulable).unwrap(), "0/3 nodes are available");
        let pulling = pending(waiting("ErrImagePull", "no such image"));
        assert_eq!(waits_for(&pulling).unwrap(), "ErrImagePull: no such image");
        assert_eq!(waits_for(&pending(waiting("ContainerCreating", ""))), None);
        let init = |state| PodSeen {
            init: vec![Init { name: "setup".into(), state }],
            ..pending(waiting("PodInitializing", ""))
        };
        assert_eq!(
            waits_for(&init(waiting("ImagePullBackOff", "back-off"))).unwrap(),
            "ImagePullBackOff: back-off"
        );
        assert_eq!(waits_for(&init(Container::Running)).unwrap(), "init container setup runs");
    }

    #[test]
    fn a_pod_that_was_turned_away_says_why() {
        let admission = PodSeen {
            phase: Phase::Failed,
            reason: "UnexpectedAdmissionError".into(),
            message: "no device".into(),
            ..PodSeen::default()
        };
        assert_eq!(failed_to_start(&admission), "pod failed to start, UnexpectedAdmissionError: no device");
        let ended = Terminated { exit_code: 2, reason: "Error".into(), message: "boom\n".into() };
        let init = PodSeen {
            init: vec![Init { name: "setup".into(), state: Container::Terminated(ended) }],
            ..PodSeen::default()
        };
        assert_eq!(
            failed_to_start(&init),
            "pod failed to start, init container setup ended with exit code 2 (Error): boom"
        );
        assert_eq!(failed_to_start(&PodSeen::default()), "pod failed to start");
    }
}
