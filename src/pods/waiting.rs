//! Why a pod has not started: how long to wait for each reason, and the text, which begins with receptor's
//! words. These rules look at one status at a time; the machine remembers earlier ones.

use std::time::Duration;

use super::pod_status::{Container, ContainerWaiting, InitContainer, PodPhase, PodSeen, Terminated};

/// How long a container may fail to be created before its unit fails. A missing object may be created a
/// moment later.
pub const GRACE: Duration = Duration::from_secs(30);
/// The unit fails after this many back-offs of an image pull.
pub const BACK_OFFS: u32 = 4;

/// How long to wait when a container gives a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitLimit {
    /// Not at all: it never recovers.
    None,
    /// For [`GRACE`].
    Grace,
    /// The kubelet retries; each back-off counts.
    BackOffs,
    /// Until the pending timeout.
    Deadline,
}

/// How long to wait for a reason to go away.
pub fn wait_limit(reason: &str) -> WaitLimit {
    match reason {
        "InvalidImageName" | "ErrImageNeverPull" => WaitLimit::None,
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => WaitLimit::Grace,
        "ErrImagePull" | IMAGE_PULL_BACK_OFF => WaitLimit::BackOffs,
        _ => WaitLimit::Deadline,
    }
}

/// The reason whose occurrences are counted.
pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";

/// Reasons that every healthy pod passes through.
const USUAL: [&str; 3] = ["ContainerCreating", "PodInitializing", ""];

/// Why the pod is held up, if a container waits for an unusual reason: that of the first such init container, otherwise
/// that of `worker`.
pub fn obstacle(pod: &PodSeen) -> Option<&ContainerWaiting> {
    pod.init.iter().map(|init| &init.state).chain([&pod.worker]).find_map(unusual)
}

fn unusual(state: &Container) -> Option<&ContainerWaiting> {
    match state {
        Container::Waiting(waiting) if !USUAL.contains(&waiting.reason.as_str()) => Some(waiting),
        Container::Unknown | Container::Waiting(_) | Container::Running | Container::Terminated(_) => None,
    }
}

/// What the pod waits for, as a text; `None` while it starts normally.
pub fn waits_for(pod: &PodSeen) -> Option<String> {
    if let Some(waiting) = obstacle(pod) {
        return Some(describe(waiting));
    }
    if let Some(message) = &pod.unschedulable {
        return Some(message.clone());
    }
    let running = pod.init.iter().find(|init| init.state == Container::Running);
    // A sidecar runs alongside the worker, so the pod does not wait for its end.
    let running = running.filter(|_| pod.worker != Container::Running && pod.phase == PodPhase::Pending);
    running.map(|init| format!("init container {} runs", init.name))
}

/// `REASON: MESSAGE`, or the part that is there.
pub fn describe(waiting: &ContainerWaiting) -> String {
    joined(&waiting.reason, &waiting.message)
}

/// Why a pod failed whose worker never ran. Completes "Error creating pod: ...".
pub fn failed_to_start(pod: &PodSeen) -> String {
    let ended = |init: &InitContainer| match &init.state {
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

/// How a container ended, as a text: `ended with exit code 137 (OOMKilled): MESSAGE`.
pub fn how(ended: &Terminated) -> String {
    let reason = if ended.reason.is_empty() { String::new() } else { format!(" ({})", ended.reason) };
    let message = ended.message.trim_end();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("ended with exit code {}{reason}{message}", ended.exit_code)
}

/// `REASON: MESSAGE`, or the part that is there.
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
        Container::Waiting(ContainerWaiting { reason: reason.into(), message: message.into() })
    }

    fn pending(worker: Container) -> PodSeen {
        PodSeen { phase: PodPhase::Pending, worker, ..PodSeen::default() }
    }

    #[test]
    fn each_reason_has_its_wait_limit() {
        let cases = [
            (WaitLimit::None, &["InvalidImageName", "ErrImageNeverPull"][..]),
            (WaitLimit::Grace, &["CreateContainerConfigError", "RunContainerError", "CreateContainerError"]),
            (WaitLimit::BackOffs, &["ErrImagePull", "ImagePullBackOff"]),
            (WaitLimit::Deadline, &["ContainerCreating", "PodInitializing", "RegistryUnavailable", ""]),
        ];
        for (expected, reasons) in cases {
            for reason in reasons {
                assert_eq!(wait_limit(reason), expected, "{reason}");
            }
        }
    }

    #[test]
    fn the_nearest_obstacle_is_reported() {
        let unschedulable =
            PodSeen { unschedulable: Some("0/3 nodes are available".into()), ..pending(Container::Unknown) };
        assert_eq!(waits_for(&unschedulable).unwrap(), "0/3 nodes are available");
        let pulling = pending(waiting("ErrImagePull", "no such image"));
        assert_eq!(waits_for(&pulling).unwrap(), "ErrImagePull: no such image");
        assert_eq!(waits_for(&pending(waiting("ContainerCreating", ""))), None);
        let init = |state| PodSeen {
            init: vec![InitContainer { name: "setup".into(), state }],
            ..pending(waiting("PodInitializing", ""))
        };
        assert_eq!(
            waits_for(&init(waiting("ImagePullBackOff", "back-off"))).unwrap(),
            "ImagePullBackOff: back-off"
        );
        assert_eq!(waits_for(&init(Container::Running)).unwrap(), "init container setup runs");
    }

    #[test]
    fn a_rejected_pod_says_why() {
        let admission = PodSeen {
            phase: PodPhase::Failed,
            reason: "UnexpectedAdmissionError".into(),
            message: "no device".into(),
            ..PodSeen::default()
        };
        assert_eq!(failed_to_start(&admission), "pod failed to start, UnexpectedAdmissionError: no device");
        let ended = Terminated { exit_code: 2, reason: "Error".into(), message: "boom\n".into() };
        let init = PodSeen {
            init: vec![InitContainer { name: "setup".into(), state: Container::Terminated(ended) }],
            ..PodSeen::default()
        };
        assert_eq!(
            failed_to_start(&init),
            "pod failed to start, init container setup ended with exit code 2 (Error): boom"
        );
        assert_eq!(failed_to_start(&PodSeen::default()), "pod failed to start");
    }
}
