//! How an attempt ended, judged from the runner's stream first, then from its unit.
//!
//! Pure: evidence in, verdict out. `job` decides whether a retry follows.

use super::impact::JobKind;
use super::names::InstanceName;
use super::text::readable;
use crate::rpc::report::names::names;

/// The last status of a runner's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FinalStatus {
    /// It succeeded.
    Successful,
    /// The playbook failed.
    Failed,
    /// It was interrupted.
    Canceled,
    /// It exceeded its `timeout`.
    Timeout,
    /// It could not be run.
    Error,
}

impl FinalStatus {
    /// The status with that name in the stream; `None` for `starting`, `running` and unknown ones, which are
    /// not final.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "successful" => Some(Self::Successful),
            "failed" => Some(Self::Failed),
            "canceled" => Some(Self::Canceled),
            "timeout" => Some(Self::Timeout),
            "error" => Some(Self::Error),
            _ => None,
        }
    }

    /// Whether the playbook ended by itself. If so, its background processes are left running.
    pub const fn is_orderly(self) -> bool {
        match self {
            Self::Successful | Self::Failed => true,
            Self::Canceled | Self::Timeout | Self::Error => false,
        }
    }
}

/// How a child ended as a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildEnd {
    /// Its unit succeeded.
    Succeeded,
    /// Its unit failed.
    Failed,
    /// Its unit was canceled.
    Canceled,
    /// Its unit was released.
    Released,
    /// Its node does not know the unit, and has no memory of it.
    Unknown,
    /// Its node refused it, because it had promised not to run it.
    Refused,
    /// Nothing of it was sent, because the node that answered did not prove its identity.
    Unsent,
}

impl ChildEnd {
    /// Whether its node has neither the unit any more, nor the output that was not read.
    pub fn is_gone(self) -> bool {
        match self {
            Self::Released | Self::Unknown | Self::Refused => true,
            Self::Succeeded | Self::Failed | Self::Canceled | Self::Unsent => false,
        }
    }
}

/// What is known about an attempt that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The last final status in the runner's stream.
    pub status: Option<FinalStatus>,
    /// The stream's end line has come.
    pub has_end: bool,
    /// The `job_explanation` of a status `error`.
    pub job_explanation: Option<String>,
    /// How its unit ended.
    pub child: ChildEnd,
    /// The unit's Detail.
    pub detail: String,
    /// The last 1,000 bytes of its output, as text.
    pub tail: String,
    /// What went wrong in the playbook, in a line.
    pub failure: Option<String>,
    /// The last 1,000 bytes of what its runner printed, if the playbook never began.
    pub before_playbook: Option<String>,
}

impl Evidence {
    /// The evidence if nothing but the unit's end is known.
    pub fn of_unit(child: ChildEnd, detail: String) -> Self {
        Self {
            status: None,
            has_end: false,
            job_explanation: None,
            child,
            detail,
            tail: String::new(),
            failure: None,
            before_playbook: None,
        }
    }

    fn with_tail(&self, mut text: String) -> String {
        if !self.tail.is_empty() {
            text.push_str(&format!("; its output ends: {}", self.tail));
        }
        text
    }
}

names! {
    /// How an attempt ended.
    enum Ending {
        /// The playbook succeeded.
        Successful = "successful",
        /// The playbook failed or ran out of time.
        Failed = "failed",
        /// It could not be run, or ended without a result.
        Error = "error",
        /// A cancel ended it.
        Canceled = "canceled",
        /// A quota refused its pod, so nothing ran.
        Quota = "quota",
        /// Its instance never accepted it, so nothing ran.
        NotAccepted = "not_accepted",
        /// Its instance was lost, so its end is unknown.
        Lost = "lost",
    }
}

impl Ending {
    /// Whether something may have run.
    pub const fn may_have_run(self) -> bool {
        match self {
            Self::Successful | Self::Failed | Self::Error | Self::Canceled | Self::Lost => true,
            Self::Quota | Self::NotAccepted => false,
        }
    }
}

/// How an attempt ended, and the explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How the attempt ended.
    pub ending: Ending,
    /// The reason, for the job's explanation.
    pub explanation: String,
}

/// The most bytes of a unit's Detail that a job's explanation repeats.
pub(super) const LONGEST_DETAIL: usize = 4_000;

/// Kubernetes says this when a quota refuses a pod.
const QUOTA: &str = "exceeded quota";

/// Judges an attempt that has ended, on `node` or, if there is none, in a container group. The first rule that applies
/// decides.
pub fn judge(kind: JobKind, cancel_saved: bool, evidence: &Evidence, node: Option<&InstanceName>) -> Verdict {
    let verdict = |ending, explanation: String| Verdict { ending, explanation };
    let detail = readable(&evidence.detail, LONGEST_DETAIL);
    let what = if kind == JobKind::AdHoc { "module" } else { "playbook" };
    let on = node.map(|node| format!(" on {node}")).unwrap_or_default();
    if cancel_saved {
        return verdict(Ending::Canceled, "Canceled".into());
    }
    if let Some(status) = evidence.status {
        return match status {
            FinalStatus::Successful if evidence.has_end => verdict(Ending::Successful, "Finished".into()),
            // The end of the stream, which may hold files of the job, was lost with the unit or never written.
            FinalStatus::Successful => {
                verdict(Ending::Successful, "Finished; the end of its output is missing".to_owned())
            }
            FinalStatus::Failed => verdict(
                Ending::Failed,
                match (&evidence.failure, &evidence.before_playbook) {
                    (Some(line), _) => line.clone(),
                    (None, None) => format!("the {what} failed{on}"),
                    // For example because there is no podman.
                    (None, Some(why)) => format!("the {what} never began{on}: {why}"),
                },
            ),
            FinalStatus::Timeout => verdict(Ending::Failed, format!("timed out{on}")),
            FinalStatus::Canceled => verdict(
                Ending::Failed,
                format!("the runner was interrupted{on}, and nobody cancelled the job"),
            ),
            FinalStatus::Error => {
                let why = evidence.job_explanation.as_ref().unwrap_or(&detail);
                let text = format!("the runner reported an error{on}: {why}");
                verdict(Ending::Error, evidence.with_tail(text))
            }
        };
    }
    if detail.contains(QUOTA) {
        return verdict(Ending::Quota, detail);
    }
    let explanation = match evidence.child {
        ChildEnd::Canceled => format!("its unit was cancelled{on}"),
        ChildEnd::Released => format!("its unit was released{on}"),
        ChildEnd::Unknown | ChildEnd::Refused => {
            format!("its unit{on} is gone: it was released there, or the node was installed again")
        }
        ChildEnd::Unsent => {
            let to = node.map(|node| format!(" to {node}")).unwrap_or_default();
            return verdict(Ending::NotAccepted, format!("its unit could not be sent{to}: {detail}"));
        }
        ChildEnd::Succeeded | ChildEnd::Failed => {
            evidence.with_tail(format!("the runner{on} ended without a final status: {detail}"))
        }
    };
    verdict(Ending::Error, explanation)
}
