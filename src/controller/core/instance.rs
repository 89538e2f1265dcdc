//! An instance: the controller's record of a node, and its state changes.
//!
//! It knows health reports, the node's advertisement, and which control nodes see it. Its groups and its
//! running jobs are stored elsewhere; it sends nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::capacity::{Adjustment, Capacities, Cpus, Rates};
use super::names::InstanceName;
use super::time::Time;
use super::watch::{Watch, Watched};
use crate::os::back_off::BackOff;
use crate::rpc::report::names::names;

/// How long an instance counts as reachable after its last advertisement, by the clock of the node that heard it.
pub const SIGHTING_LIFE: Duration = Duration::from_secs(150);
/// How far a node's clock may be off before its tokens may be rejected.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);
/// The delay before the next health check after a failed one.
pub(crate) const HEALTH_BACK_OFF: BackOff =
    BackOff::new(Duration::from_secs(30), Duration::from_secs(30 * 60));
/// The longest such delay for a control node, which only checks itself: it is short because all jobs wait for its
/// runner.
const OWN_HEALTH_DELAY: Duration = Duration::from_secs(60);

/// The identity of a machine whose runner reports none.
const NAMELESS: &str = "one without identity";

names! {
    /// What a node does in the mesh.
    enum NodeType {
        /// Owns jobs; runs those of class control.
        Control = "control",
        /// Owns jobs and runs jobs of all classes.
        Hybrid = "hybrid",
        /// Runs jobs of class execution.
        Execution = "execution",
        /// Relays only.
        Hop = "hop",
    }
}

impl NodeType {
    /// Whether it may own jobs.
    pub const fn controls(self) -> bool {
        match self {
            Self::Control | Self::Hybrid => true,
            Self::Execution | Self::Hop => false,
        }
    }

    /// Whether it may run jobs of class execution.
    pub const fn executes(self) -> bool {
        match self {
            Self::Hybrid | Self::Execution => true,
            Self::Control | Self::Hop => false,
        }
    }
}

names! {
    /// The state of an instance.
    enum NodeState {
        /// Registered, never checked.
        Installed = "installed",
        /// Its last health check succeeded, or it is a hop that is seen.
        Ready = "ready",
        /// Lost, or its last health check failed.
        Unavailable = "unavailable",
        /// An operator is removing it; it goes once its last job has ended.
        Deprovisioning = "deprovisioning",
    }
}

/// How a node advertises the work type that runs jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// It advertises the type.
    pub runner: bool,
    /// It requires signed work.
    pub secure: bool,
    /// Its control service uses TLS.
    pub tls: bool,
}

/// How one control node sees an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Whether that control node can reach it, by its own judgement.
    pub routed: bool,
    /// Grows each time it is seen again.
    pub beat: i64,
    /// When it was last seen, by the store's clock, for people.
    pub arrived: Time,
}

impl Watched for Sighting {
    fn is_news(&self, before: &Self) -> bool {
        self.beat != before.beat
    }
}

/// The sightings of all instances, by instance and control node, as one control node has watched them.
pub type SightingWatch = Watch<SightingKey, Sighting>;

/// An instance, and the control node that sees it.
pub type SightingKey = (InstanceName, InstanceName);

/// The result of a good health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthResult {
    /// Processors.
    pub cpus: Cpus,
    /// Bytes of memory.
    pub memory: u64,
    /// The machine's identity, from the runner.
    pub uuid: Option<String>,
    /// `ansible-runner-` and its version.
    pub version: String,
}

/// Something that is wrong with an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum InstanceFault {
    /// Reported by its runner, or by a health check that failed.
    #[error("{0}")]
    Health(String),
    /// Its advertisement's time and the time of its arrival differ by that many seconds.
    #[error("its clock is off by {0} s: its tokens will be refused")]
    Clock(u64),
    /// Its machine is not the one that had this name.
    #[error(
        "its machine has changed from {former} to {now}: it was renamed or reinstalled; if it is disabled, confirm \
         it with `meshctl instance enable`"
    )]
    Machine {
        /// The machine's identity before.
        former: String,
        /// The machine's identity now.
        now: String,
    },
    /// Its machine had another name, which is not seen any more.
    #[error("its machine used to be {0}, which is not seen any more: remove {0} if it was renamed")]
    Renamed(InstanceName),
}

impl InstanceFault {
    const fn is_of_machine(&self) -> bool {
        match self {
            Self::Machine { .. } => true,
            Self::Health(_) | Self::Clock(_) | Self::Renamed(_) => false,
        }
    }

    /// Whether it is about the clock, of which health checks know nothing.
    const fn is_of_clock(&self) -> bool {
        match self {
            Self::Clock(_) => true,
            Self::Health(_) | Self::Machine { .. } | Self::Renamed(_) => false,
        }
    }
}

/// The record of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The node's ID.
    pub name: InstanceName,
    /// What the node does in the mesh.
    pub node_type: NodeType,
    /// Its state.
    pub node_state: NodeState,
    /// An operator allows new jobs on it.
    pub enabled: bool,
    /// Policies may make it a member of groups; operators' lists always may.
    pub managed_by_policy: bool,
    /// It takes no new jobs, because an operator wants to remove it.
    pub draining: bool,
    /// Where its capacity lies between the two computed ones.
    pub adjustment: Adjustment,
    /// Its capacities, from its last good health check.
    pub capacities: Capacities,
    /// What it advertises.
    pub offer: Offer,
    /// It is a control node with a signing key.
    pub signs: bool,
    /// The control nodes that see it, and how.
    pub seen: BTreeMap<InstanceName, Sighting>,
    /// The machine's identity at its last good health check.
    pub uuid: Option<String>,
    /// The runner's version at its last good health check.
    pub version: Option<String>,
    /// Problems that an operator should look at.
    pub errors: Vec<InstanceFault>,
    /// When the next health check is due, if any.
    pub health_due: Option<Time>,
    /// Failed health checks in a row.
    pub health_failures: u32,
}

impl Instance {
    /// A new record. Unless it is enabled it runs nothing, not even a health check.
    pub fn register(name: InstanceName, node_type: NodeType, enabled: bool, now: Time) -> Self {
        let is_hop = node_type == NodeType::Hop;
        Self {
            name,
            node_type,
            node_state: NodeState::Installed,
            enabled,
            managed_by_policy: true,
            draining: false,
            adjustment: Adjustment::default(),
            capacities: Capacities::default(),
            offer: Offer::default(),
            signs: false,
            seen: BTreeMap::new(),
            uuid: None,
            version: None,
            errors: Vec::new(),
            health_due: (enabled && !is_hop).then_some(now),
            health_failures: 0,
        }
    }

    /// A hop now offers to run jobs. It is checked first.
    pub fn become_execution(&mut self, now: Time) {
        self.node_type = NodeType::Execution;
        self.node_state = NodeState::Installed;
        self.health_due = self.enabled.then_some(now);
    }

    /// An operator allows or forbids new jobs on it. An instance that is not ready is checked first.
    pub fn set_enabled(&mut self, enabled: bool, now: Time) {
        self.enabled = enabled;
        if enabled {
            self.confirm_machine();
        }
        let is_unchecked = match (self.node_state, self.node_type) {
            (_, NodeType::Hop) | (NodeState::Ready | NodeState::Deprovisioning, _) => false,
            (NodeState::Installed | NodeState::Unavailable, _) => true,
        };
        match (enabled, is_unchecked) {
            (true, true) => self.request_health_check(now),
            (true, false) => {}
            (false, _) => self.health_due = None,
        }
    }

    /// If another machine than before had answered, an operator accepts whichever machine answers next.
    fn confirm_machine(&mut self) {
        if self.errors.iter().any(InstanceFault::is_of_machine) {
            self.errors.retain(|fault| !fault.is_of_machine());
            self.uuid = None;
        }
    }

    /// How many forks it may run now: 0 unless it is ready and enabled, and always 0 for a hop.
    pub fn capacity(&self) -> u32 {
        let usable = self.enabled
            && match self.node_state {
                NodeState::Ready | NodeState::Deprovisioning => true,
                NodeState::Installed | NodeState::Unavailable => false,
            };
        match self.node_type {
            NodeType::Hop => 0,
            NodeType::Control | NodeType::Hybrid | NodeType::Execution if !usable => 0,
            NodeType::Control | NodeType::Hybrid | NodeType::Execution => {
                self.capacities.adjusted(self.adjustment)
            }
        }
    }

    /// When a control node last saw it.
    pub fn last_seen(&self) -> Option<Time> {
        self.seen.values().map(|sighting| sighting.arrived).max()
    }

    /// Whether a job that this control node owns can be sent to it.
    pub fn is_reachable_from(&self, owner: &InstanceName) -> bool {
        *owner == self.name || self.seen.get(owner).is_some_and(|sighting| sighting.routed)
    }

    /// Records how a control node sees it. If it can be reached, an enabled instance that was not ready is checked; a
    /// hop becomes ready.
    pub fn on_seen(&mut self, observer: InstanceName, sighting: Sighting, now: Time) {
        self.seen.insert(observer.clone(), sighting);
        // An old advertisement of a node that is gone does not bring its instance back.
        if !self.is_reachable_from(&observer) {
            return;
        }
        match (self.node_state, self.node_type) {
            (NodeState::Installed | NodeState::Unavailable, NodeType::Hop) => {
                self.node_state = NodeState::Ready;
            }
            (
                NodeState::Installed | NodeState::Unavailable,
                NodeType::Control | NodeType::Hybrid | NodeType::Execution,
            ) => self.health_due = self.health_due.or(self.enabled.then_some(now)),
            (NodeState::Ready | NodeState::Deprovisioning, _) => {}
        }
    }

    /// Its advertisement's time differs by `offset` from the time of arrival. Returns whether its errors change: a
    /// small change of a known difference changes nothing.
    pub fn on_clock_offset(&mut self, offset: Duration) -> bool {
        let known = self.errors.iter().find_map(|error| match error {
            InstanceFault::Clock(seconds) => Some(*seconds),
            InstanceFault::Health(_) | InstanceFault::Machine { .. } | InstanceFault::Renamed(_) => None,
        });
        let off = Some(offset.as_secs()).filter(|_| offset > CLOCK_TOLERANCE);
        let is_same = match (known, off) {
            (None, None) => true,
            (Some(known), Some(off)) => known.abs_diff(off) <= CLOCK_TOLERANCE.as_secs(),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if is_same {
            return false;
        }
        self.errors.retain(|error| !error.is_of_clock());
        self.errors.extend(off.map(InstanceFault::Clock));
        true
    }

    /// Computes its capacities from the size of its machine.
    pub fn measure(&mut self, cpus: Cpus, memory: u64, rates: &Rates) {
        let measured = Capacities::measure(cpus, memory, rates);
        self.capacities = match self.node_type {
            NodeType::Hybrid => measured.beside_controller(cpus),
            NodeType::Control | NodeType::Execution | NodeType::Hop => measured,
        };
    }

    /// A health check succeeded. If another machine answers than before, and nothing vouches for its right to the name,
    /// it is disabled until an operator confirms it, because the machine may be somebody else's and jobs carry secrets.
    pub fn on_healthy(&mut self, report: HealthResult, rates: &Rates, is_vouched: bool) {
        self.measure(report.cpus, report.memory, rates);
        let waits = !self.enabled;
        self.errors.retain(|fault| fault.is_of_clock() || (waits && fault.is_of_machine()));
        if let Some(former) = self.uuid.as_ref().filter(|former| report.uuid.as_ref() != Some(*former)) {
            let now = report.uuid.clone().unwrap_or_else(|| NAMELESS.to_owned());
            self.errors.push(InstanceFault::Machine { former: former.clone(), now });
            self.enabled &= is_vouched;
        }
        self.uuid = report.uuid.or(self.uuid.take());
        self.version = Some(report.version);
        self.health_due = None;
        self.health_failures = 0;
        match self.node_state {
            NodeState::Installed | NodeState::Unavailable => self.node_state = NodeState::Ready,
            NodeState::Ready | NodeState::Deprovisioning => {}
        }
    }

    /// Whether it has ever passed a health check: its version is from the last one. A hop is not checked.
    pub fn has_been_ready(&self) -> bool {
        self.version.is_some() || self.node_state == NodeState::Ready
    }

    /// Its machine has the identity of an instance that is not seen any more.
    pub fn on_renamed(&mut self, former: InstanceName) {
        self.errors.push(InstanceFault::Renamed(former));
    }

    /// A health check failed or reported errors: running jobs continue, but no new ones start.
    pub fn on_unhealthy(&mut self, errors: Vec<String>, now: Time) {
        self.errors.retain(InstanceFault::is_of_clock);
        self.errors.extend(errors.into_iter().map(InstanceFault::Health));
        self.health_failures = self.health_failures.saturating_add(1);
        self.health_due = self.enabled.then_some(now + self.check_delay());
        self.set_unavailable();
    }

    /// No control node has seen it for too long. It stays registered, and is checked when it returns.
    pub fn on_lost(&mut self) {
        self.health_due = None;
        self.health_failures = 0;
        self.set_unavailable();
    }

    /// An operator requests a health check, unless one is due already.
    pub fn request_health_check(&mut self, now: Time) {
        self.health_due = Some(self.health_due.map_or(now, |due| due.min(now)));
    }

    /// Whether a health check is due. A due time further away than the delay counts as due, because the clock must have
    /// been set back.
    pub fn is_check_due(&self, now: Time) -> bool {
        self.health_due.is_some_and(|due| due <= now || due.since(now) > self.check_delay())
    }

    fn check_delay(&self) -> Duration {
        let delay = match self.health_failures {
            0 => Duration::ZERO,
            failures => HEALTH_BACK_OFF.after(failures),
        };
        if self.node_type.controls() { delay.min(OWN_HEALTH_DELAY) } else { delay }
    }

    /// The error that its last health check found, if that is why it runs nothing.
    pub fn illness(&self) -> Option<&str> {
        self.errors.iter().filter(|_| self.health_failures > 0).find_map(|fault| match fault {
            InstanceFault::Health(error) => Some(error.as_str()),
            InstanceFault::Clock(_) | InstanceFault::Machine { .. } | InstanceFault::Renamed(_) => None,
        })
    }

    /// An operator wants to remove it once its jobs have ended.
    pub fn drain(&mut self) {
        self.draining = true;
        self.node_state = NodeState::Deprovisioning;
    }

    /// Whether a drained instance can be deleted, given the number of attempts still open on it.
    pub fn is_removable(&self, open_attempts: usize) -> bool {
        self.node_state == NodeState::Deprovisioning && open_attempts == 0
    }

    fn set_unavailable(&mut self) {
        match self.node_state {
            NodeState::Installed | NodeState::Ready => self.node_state = NodeState::Unavailable,
            NodeState::Unavailable | NodeState::Deprovisioning => {}
        }
    }
}
