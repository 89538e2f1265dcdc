//! Leases of control nodes, and the epochs that fence them.
//!
//! Each control node holds one lease. Its epoch grows each time the lease is taken, by a start of the node or
//! by another node's takeover. A job stores the owner and the epoch that may write to it. A holder of an
//! older epoch can no longer change anything, however late its write arrives.

use std::time::Duration;

use super::names::InstanceName;
use super::time::Time;

/// The number of times a lease was taken. It only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// Who may write to a job: a control node, and the epoch of its lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The owner.
    pub owner: InstanceName,
    /// The epoch of the owner's lease.
    pub epoch: Epoch,
}

/// The writer holds an older epoch, or is another node. Its write changes nothing, and it must stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} with epoch {} is fenced", .0.owner, .0.epoch.0)]
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

/// A control node's lease as stored. All times come from the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its holder.
    pub node: InstanceName,
    /// How often it was taken.
    pub epoch: Epoch,
    /// When it expires.
    pub expires: Time,
}

impl Lease {
    /// A control node starts. It gets its lease whether or not the previous one has expired: of two processes
    /// with the same node ID the later one wins, and the earlier one is fenced.
    pub fn start(former: Option<&Self>, node: InstanceName, now: Time, times: &LeaseTimes) -> Self {
        let epoch = Epoch(former.map_or(0, |lease| lease.epoch.0) + 1);
        Self { node, epoch, expires: now + times.owner_lost_after }
    }

    /// The fence that its holder writes with.
    pub fn fence(&self) -> Fence {
        Fence { owner: self.node.clone(), epoch: self.epoch }
    }

    /// Whether its holder is lost.
    pub fn is_expired(&self, now: Time) -> bool {
        now > self.expires
    }

    /// The holder is alive. An expired lease is renewed too, unless it was taken.
    ///
    /// # Errors
    /// It was taken since.
    pub fn renew(&mut self, by: &Fence, now: Time, times: &LeaseTimes) -> Result<(), Fenced> {
        if self.fence() != *by {
            return Err(Fenced(by.clone()));
        }
        self.expires = now + times.owner_lost_after;
        Ok(())
    }

    /// Another control node takes over, and the holder is fenced. Returns false and does nothing while the
    /// lease is valid.
    pub fn take_over(&mut self, now: Time) -> bool {
        let lost = self.is_expired(now);
        if lost {
            self.epoch = Epoch(self.epoch.0 + 1);
            self.expires = now;
        }
        lost
    }
}

/// A control node's view of its own lease, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// When the last successful renewal was sent: the store counts from no earlier moment.
    pub renewed: Time,
}

impl Tenure {
    /// Whether it may start, cancel and release units. It stops one heartbeat before others may take over.
    pub fn may_act(&self, now: Time, times: &LeaseTimes) -> bool {
        now.since(self.renewed) < times.owner_lost_after.saturating_sub(times.heartbeat)
    }
}
