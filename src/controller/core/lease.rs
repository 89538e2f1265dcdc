//! Leases of control nodes and the epochs that fence them.
//!
//! Each control node holds one lease. Every time it is taken (a start, or another node's takeover) its epoch
//! rises, and a job carries the owner and the epoch that may write to it. Whoever holds an older one
//! cannot change anything any more, however late its write arrives.

use std::time::Duration;

use super::names::InstanceName;
use super::time::Time;

/// A lease's number. It only rises.
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

/// The writer holds an older epoch, or is another node: its write changes nothing and it stands down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} with epoch {} is fenced", .0.owner, .0.epoch.0)]
pub struct Fenced(pub Fence);

/// How long a lease lasts and how often it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Between renewals.
    pub heartbeat: Duration,
    /// After this long without a renewal the node is lost.
    pub owner_lost_after: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(10), owner_lost_after: Duration::from_secs(30) }
    }
}

/// A control node's lease as the store has it. Its times are of the store's clock alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is.
    pub node: InstanceName,
    /// How often it was taken.
    pub epoch: Epoch,
    /// Until when it holds.
    pub expires: Time,
}

impl Lease {
    /// A control node starts. It gets its lease whether or not the former one expired: of two processes with
    /// one node ID the later one wins, and the other finds itself fenced.
    pub fn start(former: Option<&Self>, node: InstanceName, now: Time, times: &LeaseTimes) -> Self {
        let epoch = Epoch(former.map_or(0, |lease| lease.epoch.0) + 1);
        Self { node, epoch, expires: now + times.owner_lost_after }
    }

    /// What its holder writes with.
    pub fn fence(&self) -> Fence {
        Fence { owner: self.node.clone(), epoch: self.epoch }
    }

    /// Whether its holder is lost.
    pub fn is_expired(&self, now: Time) -> bool {
        now > self.expires
    }

    /// The holder is alive. A lease that expired and was not taken yet is renewed as well.
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

    /// Another control node takes over: the holder is fenced from here on. Does nothing and answers false
    /// while the lease holds.
    pub fn take_over(&mut self, now: Time) -> bool {
        let lost = self.is_expired(now);
        if lost {
            self.epoch = Epoch(self.epoch.0 + 1);
            self.expires = now;
        }
        lost
    }
}

/// What a control node knows of its own lease, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// When the last renewal that succeeded was sent: the store counts from no earlier moment.
    pub renewed: Time,
}

impl Tenure {
    /// Whether it may start, cancel and release. It stops one heartbeat before others may take over.
    pub fn may_act(&self, now: Time, times: &LeaseTimes) -> bool {
        now.since(self.renewed) < times.owner_lost_after.saturating_sub(times.heartbeat)
    }
}
