//! How much of an instance's capacity a job takes: its impact.
//!
//! The unit is the fork. The impact follows from the job's own header, not from where it runs or what else
//! runs there.

use serde::{Deserialize, Serialize};

/// The impact of every job on the control node that owns it.
pub const CONTROL_IMPACT: u32 = 1;

pub use crate::rpc::report::JobKind;

/// The forks of a job that requests none (ansible's own default).
const DEFAULT_FORKS: u32 = 5;
/// The impact of a job that updates an inventory or a project.
const UPDATE_IMPACT: u32 = 1;
/// The impact of a system job.
const SYSTEM_IMPACT: u32 = 5;

/// Which instances may run a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Execution and hybrid nodes.
    Execution,
    /// The control node that owns the job.
    Control,
}

impl JobKind {
    /// The class of instances that may run it.
    pub const fn class(self) -> Class {
        match self {
            Self::Job | Self::AdHoc | Self::InventoryUpdate | Self::Health | Self::Cleanup => {
                Class::Execution
            }
            Self::ProjectUpdate | Self::ProjectSync | Self::System => Class::Control,
        }
    }

    /// Whether clients may submit it; the controller creates the others.
    pub const fn is_submitted(self) -> bool {
        match self {
            Self::Job | Self::AdHoc | Self::InventoryUpdate | Self::ProjectUpdate | Self::System => true,
            Self::ProjectSync | Self::Health | Self::Cleanup => false,
        }
    }
}

/// One slice of an inventory, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[u32; 2]", into = "[u32; 2]")]
pub struct Slice {
    /// The number of this slice.
    pub number: u32,
    /// The number of slices.
    pub count: u32,
}

impl TryFrom<[u32; 2]> for Slice {
    type Error = &'static str;

    fn try_from([number, count]: [u32; 2]) -> Result<Self, Self::Error> {
        let is_one = (1..=count).contains(&number);
        is_one.then_some(Self { number, count }).ok_or("it must be [number, count]: number from 1 to count")
    }
}

impl From<Slice> for [u32; 2] {
    fn from(Slice { number, count }: Slice) -> Self {
        [number, count]
    }
}

/// What a job's header says about its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Requested forks; 0 stands for ansible's default.
    pub forks: u32,
    /// Number of hosts in the inventory; if unknown, the number of forks is used.
    pub hosts: Option<u32>,
    /// The slice of the inventory that this job covers.
    pub slice: Option<Slice>,
    /// Overrides the computed impact.
    pub impact: Option<u32>,
}

impl Size {
    /// The impact of a job of that kind.
    pub fn impact(&self, kind: JobKind) -> u32 {
        if let Some(given) = self.impact {
            return given;
        }
        match kind {
            JobKind::Job | JobKind::AdHoc => {
                let forks = if self.forks == 0 { DEFAULT_FORKS } else { self.forks };
                self.hosts_in_slice().map_or(forks, |hosts| hosts.min(forks)).saturating_add(1)
            }
            JobKind::InventoryUpdate | JobKind::ProjectUpdate => UPDATE_IMPACT,
            JobKind::System => SYSTEM_IMPACT,
            JobKind::ProjectSync | JobKind::Health | JobKind::Cleanup => 0,
        }
    }

    /// The number of hosts in this job's slice, if the size of the inventory is known.
    pub fn hosts_in_slice(&self) -> Option<u32> {
        let hosts = self.hosts?;
        Some(match self.slice {
            Some(Slice { number, count }) if count > 1 => {
                hosts.saturating_add(count).saturating_sub(number) / count
            }
            Some(_) | None => hosts,
        })
    }
}
