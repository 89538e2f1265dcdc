//! How much of an instance's capacity a job takes: its impact.
//!
//! The unit is the fork. Knows what a job says of itself; not where it runs, nor what else runs there.

/// What every job costs the control node that owns it.
pub const CONTROL_IMPACT: u32 = 1;

/// The forks of a job that asks for none (ansible's own default).
const DEFAULT_FORKS: u32 = 5;
/// The impact of a job that updates an inventory or a project.
const UPDATE_IMPACT: u32 = 1;
/// The impact of a system job.
const SYSTEM_IMPACT: u32 = 5;

/// What a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A playbook.
    Job,
    /// One module on some hosts.
    AdHoc,
    /// Fills an inventory from its source.
    InventoryUpdate,
    /// Brings a project's tree up to date.
    ProjectUpdate,
    /// The same, made by the controller right before a job that needs it.
    ProjectSync,
    /// Housekeeping that a client asks for.
    System,
    /// Asks an instance how it is.
    Health,
    /// Removes what jobs left on an instance.
    Cleanup,
}

/// Which instances may run a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Execution and hybrid nodes.
    Execution,
    /// The control node that owns the job.
    Control,
}

impl Kind {
    /// The name in headers, tables and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::AdHoc => "ad_hoc",
            Self::InventoryUpdate => "inventory_update",
            Self::ProjectUpdate => "project_update",
            Self::ProjectSync => "project_sync",
            Self::System => "system",
            Self::Health => "health",
            Self::Cleanup => "cleanup",
        }
    }

    /// The kind with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Job,
        Self::AdHoc,
        Self::InventoryUpdate,
        Self::ProjectUpdate,
        Self::ProjectSync,
        Self::System,
        Self::Health,
        Self::Cleanup,
    ];

    /// Where it may run.
    pub const fn class(self) -> Class {
        match self {
            Self::Job | Self::AdHoc | Self::InventoryUpdate | Self::Health | Self::Cleanup => {
                Class::Execution
            }
            Self::ProjectUpdate | Self::ProjectSync | Self::System => Class::Control,
        }
    }

    /// Whether a client may submit it; the others are made by the controller.
    pub const fn is_submitted(self) -> bool {
        match self {
            Self::Job | Self::AdHoc | Self::InventoryUpdate | Self::ProjectUpdate | Self::System => true,
            Self::ProjectSync | Self::Health | Self::Cleanup => false,
        }
    }
}

/// One slice of an inventory: `number` of `count`, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Which one.
    pub number: u32,
    /// Of how many.
    pub count: u32,
}

/// What a job's header says of its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Forks asked for; 0 stands for ansible's default.
    pub forks: u32,
    /// Hosts of the inventory; without them as many as there are forks.
    pub hosts: Option<u32>,
    /// The slice of the inventory that this job takes.
    pub slice: Option<Slice>,
    /// Replaces the computed impact.
    pub impact: Option<u32>,
}

impl Size {
    /// The impact of a job of that kind.
    pub fn impact(&self, kind: Kind) -> u32 {
        if let Some(given) = self.impact {
            return given;
        }
        match kind {
            Kind::Job | Kind::AdHoc => {
                let forks = if self.forks == 0 { DEFAULT_FORKS } else { self.forks };
                self.hosts_in_slice().map_or(forks, |hosts| hosts.min(forks)).saturating_add(1)
            }
            Kind::InventoryUpdate | Kind::ProjectUpdate => UPDATE_IMPACT,
            Kind::System => SYSTEM_IMPACT,
            Kind::ProjectSync | Kind::Health | Kind::Cleanup => 0,
        }
    }

    /// The hosts that are this job's, if the inventory's number is known.
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
