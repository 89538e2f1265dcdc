//! Leases of control nodes, and the epochs that fence them.
//!
//! Each control node holds one lease, and raises its `beat` with each heartbeat. A node that has seen a lease unchanged
//! for `owner_lost_after`, by its own clock, takes it over, by compare and swap with the lease that it saw. A job
//! stores the owner and the epoch that may write to it. A holder of another epoch can no longer change anything,
//! however late its write arrives.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::names::InstanceName;
use super::time::Time;
use super::watch::{Watch, Watched};

/// Identifies one taking of a lease. The upper half is a count. The lower half is random, so that epochs differ even if
/// a database that lost its last commits issues a count again; it is 0 while nobody holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

impl Epoch {
    /// Selects the lower half.
    pub const RANDOM: i64 = 0xffff_ffff;

    fn next(self, random: u32) -> Self {
        Self(self.vacated().0 | i64::from(random.max(1)))
    }

    fn vacated(self) -> Self {
        Self((self.0 | Self::RANDOM) + 1)
    }

    const fn is_held(self) -> bool {
        self.0 & Self::RANDOM != 0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.0 >> 32, self.0 & Self::RANDOM)
    }
}

/// Who may write to a job: a control node, and the epoch of its lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The owner.
    pub owner: InstanceName,
    /// The epoch of the owner's lease.
    pub epoch: Epoch,
}

/// The writer holds another epoch, or is another node. Its write changes nothing, and it must stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} with epoch {} is fenced", .0.owner, .0.epoch)]
pub struct Fenced(pub Fence);

/// How long a lease lasts, and how often it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Time between renewals.
    pub heartbeat: Duration,
    /// A node that has not renewed its lease for this long is lost.
    pub owner_lost_after: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(10), owner_lost_after: Duration::from_secs(30) }
    }
}

impl LeaseTimes {
    /// How long a node acts or judges without reaching the store: one heartbeat less than others wait before they take
    /// over.
    pub fn blind(&self) -> Duration {
        self.owner_lost_after.saturating_sub(self.heartbeat)
    }
}

/// A control node's lease as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its holder.
    pub node: InstanceName,
    /// Identifies this taking of it.
    pub epoch: Epoch,
    /// Grows with each change of the lease.
    pub beat: i64,
    /// How long it lasts without a renewal: nobody takes it over sooner, and its holder stops acting a heartbeat
    /// earlier.
    pub lasts: Duration,
}

impl Watched for Lease {}

impl Lease {
    /// A control node starts, and takes its lease even if another process holds it: of two processes with the same node ID
    /// the later one wins, and the earlier one is fenced.
    pub fn start(former: Option<&Self>, node: InstanceName, random: u32, times: &LeaseTimes) -> Self {
        let epoch = former.map_or(Epoch(0), |lease| lease.epoch).next(random);
        let beat = former.map_or(0, |lease| lease.beat) + 1;
        Self { node, epoch, beat, lasts: times.owner_lost_after }
    }

    /// The fence that its holder writes with.
    pub fn fence(&self) -> Fence {
        Fence { owner: self.node.clone(), epoch: self.epoch }
    }

    /// Whether there is a holder, as far as the store knows.
    pub const fn is_held(&self) -> bool {
        self.epoch.is_held()
    }

    /// The holder renews it.
    ///
    /// # Errors
    /// Somebody else has taken it, or it was taken over.
    pub fn renew(&mut self, by: &Fence, times: &LeaseTimes) -> Result<(), Fenced> {
        if self.fence() != *by {
            return Err(Fenced(by.clone()));
        }
        self.beat += 1;
        self.lasts = times.owner_lost_after;
        Ok(())
    }

    /// Another control node takes over a lease that has been like `seen` for too long, and the holder is fenced.
    /// Returns false and does nothing if the lease has changed.
    pub fn take_over(&mut self, seen: &Self) -> bool {
        let is_lost = self == seen && self.is_held();
        if is_lost {
            (self.epoch, self.beat) = (self.epoch.vacated(), self.beat + 1);
        }
        is_lost
    }

    fn went_back_from(&self, former: &Self) -> bool {
        self.epoch < former.epoch || self.beat < former.beat
    }
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The writer still holds it.
    Held,
    /// The writer may take it again: it was taken over, the database lost the writer's start, or a later holder is
    /// lost.
    Free,
    /// Another process holds it, and has not been seen alive.
    Unclear,
    /// Another process holds it, and has been seen alive.
    Replaced,
}

/// A holder that was seen alive must be silent this many times longer than a lost one before the process that it
/// replaced may take the lease again.
const STILL: u32 = 3;

/// The leases as one control node has seen them.
#[derive(Debug, Default)]
pub struct LeaseWatch(Watch<InstanceName, Lease>);

impl LeaseWatch {
    /// Notes all leases as they are now. Returns whether one of them went back because the database lost its last
    /// commits: the watch then starts over.
    pub fn note(&mut self, leases: Vec<Lease>, now: Time, times: &LeaseTimes) -> bool {
        let went_back =
            |lease: &Lease| self.0.get(&lease.node).is_some_and(|seen| lease.went_back_from(seen));
        let went_back = leases.iter().any(went_back);
        if went_back {
            self.0 = Watch::default();
        }
        self.0.note(leases.into_iter().map(|lease| (lease.node.clone(), lease)), now, times.blind());
        went_back
    }

    /// The observer could not look: its watch starts over with the next look.
    pub fn interrupt(&mut self) {
        self.0.interrupt();
    }

    /// The observer has renewed its own lease.
    pub fn renewed(&mut self, own: Lease, now: Time) {
        self.0.changed(own.node.clone(), own, now);
    }

    /// The control nodes that were seen alive.
    pub fn alive(&self) -> BTreeSet<InstanceName> {
        let leases = self.0.rows().filter(|lease| self.0.has_changed(&lease.node));
        leases.map(|lease| lease.node.clone()).collect()
    }

    /// Leases whose holders are lost.
    pub fn lost(&self, now: Time, times: &LeaseTimes) -> Vec<Lease> {
        self.0.rows().filter(|lease| lease.is_held() && self.is_lost(lease, now, times)).cloned().collect()
    }

    fn is_lost(&self, lease: &Lease, now: Time, times: &LeaseTimes) -> bool {
        self.0.unchanged_for(&lease.node, lease, now) > times.owner_lost_after.max(lease.lasts)
    }

    /// What became of the lease that a fence is from. A later epoch alone does not prove that another process is alive:
    /// it may be the writer's own, from a start whose answer was lost.
    pub fn standing(&self, by: &Fence, now: Time, times: &LeaseTimes) -> Standing {
        match self.0.get(&by.owner) {
            Some(lease) if lease.fence() == *by => Standing::Held,
            None => Standing::Free,
            Some(lease) if !lease.is_held() || lease.epoch < by.epoch => Standing::Free,
            // A holder that was seen alive may return at any moment.
            Some(lease) if self.0.has_changed(&by.owner) => {
                let silence = self.0.unchanged_for(&by.owner, lease, now);
                if silence > times.owner_lost_after * STILL { Standing::Free } else { Standing::Replaced }
            }
            Some(lease) if self.is_lost(lease, now, times) => Standing::Free,
            Some(_) => Standing::Unclear,
        }
    }
}

/// A control node's view of its own lease, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// When the last successful renewal was sent: others count from that moment or later.
    pub renewed: Time,
}

impl Tenure {
    /// Whether the node may start, cancel and release units. It stops one heartbeat before others may take over.
    pub fn may_act(&self, now: Time, times: &LeaseTimes) -> bool {
        now.since(self.renewed) < times.blind()
    }
}
