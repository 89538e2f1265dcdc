//! The state of the model: one job in one store, two control nodes, one instance. It is as small as the properties allow:
//! an output has two pieces, one of which tells that the playbook succeeded, and a job at most two attempts.

use meshd::controller::core::JobState;

use super::rows::{Pen, Row, View};
use super::rules::Property;

/// The pieces that a worker writes.
pub(crate) const WHOLE: u8 = 2;
/// Attempts, and slots for their units.
pub(crate) const SLOTS: usize = 2;

/// Bytes of a job's output: pieces of the first attempt, then those of the second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Bytes {
    pub(crate) first: u8,
    /// One more than there are; 0 before the second attempt's part begins.
    pub(crate) second: u8,
}

impl Bytes {
    /// The pieces of an attempt that are here; `None` if a later one has begun.
    pub(crate) fn part(self, attempt: usize) -> Option<u8> {
        match (attempt, self.second) {
            (0, 0) => Some(self.first),
            (0, _) => None,
            (_, second) => Some(second.saturating_sub(1)),
        }
    }

    /// One more piece of an attempt.
    pub(crate) fn push(&mut self, attempt: usize) {
        match attempt {
            0 => self.first += 1,
            _ => self.second = self.second.max(1) + 1,
        }
    }

    pub(crate) fn length(self) -> u8 {
        self.first + self.second
    }

    /// Whether it can become that one by growing.
    pub(crate) fn is_prefix_of(self, whole: Self) -> bool {
        if self.second == 0 {
            self.first <= whole.first
        } else {
            self.first == whole.first && self.second <= whole.second
        }
    }

    /// The next piece of another copy behind what is here, attempt by attempt. Returns whether there is one.
    pub(crate) fn pull(&mut self, from: Self) -> bool {
        let before = *self;
        if self.second == 0 && self.first < from.first {
            self.first += 1;
        } else if self.second < from.second {
            self.second += 1;
        }
        *self != before
    }
}

/// The database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) row: Row,
    /// Stored with the end: the output's length and hash.
    pub(crate) output: Option<Bytes>,
    /// Control nodes that hold a copy which was compared with that.
    pub(crate) complete: [bool; 2],
    /// The epochs of both leases.
    pub(crate) epoch: [u8; 2],
    /// Those that have expired by the database's clock.
    pub(crate) expired: [bool; 2],
    /// Units of which is stored that they are sent; kept only where a rule asks for it.
    pub(crate) sent: [bool; SLOTS],
}

/// What a unit of the job shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    /// There is none here.
    None,
    Open,
    Ended(JobState),
}

/// What a control node knows of an attempt's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Child {
    None,
    /// It was sent, and may have arrived.
    Sent,
    Accepted,
}

/// How far a task of a control node is with an attempt: between two steps it knows what it did last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    Idle,
    /// It is about to send it.
    Sends,
    /// It is about to ask the instance for it.
    Asks,
    /// It is about to store that the instance does not know it.
    Denied,
    /// It is about to store that it was released.
    Released,
}

/// A control node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) is_up: bool,
    pub(crate) is_paused: bool,
    /// It could not renew its lease for a while, and has not done so since.
    pub(crate) is_late: bool,
    /// It knows that: the end of its lease by its own clock has passed.
    pub(crate) is_gated: bool,
    /// The lease that it believes it has.
    pub(crate) epoch: u8,
    pub(crate) unit: Unit,
    pub(crate) copy: Bytes,
    /// What of it outlives a power cut; kept only where there may be one.
    pub(crate) flushed: Bytes,
    pub(crate) children: [Child; SLOTS],
    pub(crate) tasks: [Task; SLOTS],
}

/// A unit on the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Run {
    None,
    /// It has written so many pieces.
    Running(u8),
    Succeeded,
    /// It was cancelled or killed after so many pieces.
    Cancelled(u8),
    Released,
}

impl Run {
    /// The pieces that it has written, if it is there.
    pub(crate) fn pieces(self) -> Option<u8> {
        match self {
            Self::Running(pieces) | Self::Cancelled(pieces) => Some(pieces),
            Self::Succeeded => Some(WHOLE),
            Self::None | Self::Released => None,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled(_))
    }
}

/// The instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Instance {
    pub(crate) is_up: bool,
    pub(crate) runs: [Run; SLOTS],
    /// IDs that it does not accept.
    pub(crate) refused: [bool; SLOTS],
    pub(crate) was_started: [bool; SLOTS],
    /// Submissions on their way.
    pub(crate) coming: [bool; SLOTS],
}

/// Where a way may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    ToInstance(usize),
    ToStore(usize),
    BetweenNodes,
}

pub(crate) const WAYS: [Way; 5] =
    [Way::ToInstance(0), Way::ToInstance(1), Way::ToStore(0), Way::ToStore(1), Way::BetweenNodes];

impl Way {
    fn place(self) -> usize {
        match self {
            Self::ToInstance(node) => node,
            Self::ToStore(node) => 2 + node,
            Self::BetweenNodes => 4,
        }
    }
}

#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    /// What is left of the store if it loses commits; `None` if it does not.
    pub(crate) standby: Option<Store>,
    pub(crate) nodes: [Node; 2],
    pub(crate) instance: Instance,
    /// In the order of `WAYS`.
    pub(crate) cut: [bool; 5],
    pub(crate) faults_left: u8,
    pub(crate) placements: u8,
    /// The highest epoch that each lease ever had.
    pub(crate) issued: [u8; 2],
    /// The first end that was stored.
    pub(crate) end: Option<JobState>,
    pub(crate) broken: Option<Property>,
}

impl World {
    /// A job was submitted at c1 and waits.
    pub(crate) fn new(row: Row, faults: u8, loses_commits: bool) -> Self {
        let node = Node {
            is_up: true,
            is_paused: false,
            is_late: false,
            is_gated: false,
            epoch: 1,
            unit: Unit::None,
            copy: Bytes::default(),
            flushed: Bytes::default(),
            children: [Child::None; SLOTS],
            tasks: [Task::Idle; SLOTS],
        };
        let store = Store {
            row,
            output: None,
            complete: [false; 2],
            epoch: [1; 2],
            expired: [false; 2],
            sent: [false; SLOTS],
        };
        Self {
            store,
            standby: loses_commits.then_some(store),
            nodes: [Node { unit: Unit::Open, ..node }, node],
            instance: Instance {
                is_up: true,
                runs: [Run::None; SLOTS],
                refused: [false; SLOTS],
                was_started: [false; SLOTS],
                coming: [false; SLOTS],
            },
            cut: [false; 5],
            faults_left: faults,
            placements: 0,
            issued: [1; 2],
            end: None,
            broken: None,
        }
    }

    pub(crate) fn is_cut(&self, way: Way) -> bool {
        self.cut[way.place()]
    }

    pub(crate) fn set_cut(&mut self, way: Way, is_cut: bool) {
        self.cut[way.place()] = is_cut;
    }

    /// Whether a control node does anything.
    pub(crate) fn acts(&self, node: usize) -> bool {
        self.nodes[node].is_up && !self.nodes[node].is_paused
    }

    pub(crate) fn reaches_store(&self, node: usize) -> bool {
        self.acts(node) && !self.is_cut(Way::ToStore(node))
    }

    pub(crate) fn reaches_instance(&self, node: usize) -> bool {
        self.acts(node) && self.instance.is_up && !self.is_cut(Way::ToInstance(node))
    }

    pub(crate) fn reach_each_other(&self) -> bool {
        self.acts(0) && self.acts(1) && !self.is_cut(Way::BetweenNodes)
    }

    pub(crate) fn holds_lease(&self, node: usize) -> bool {
        self.store.epoch[node] == self.nodes[node].epoch
    }

    /// What a control node writes with.
    pub(crate) fn pen(&self, node: usize) -> Pen {
        Pen { node, epoch: self.nodes[node].epoch }
    }

    /// Whether a control node can write the job: it reaches the store and is not fenced.
    pub(crate) fn drives(&self, node: usize, view: &View) -> bool {
        self.reaches_store(node) && view.owner == Some(self.pen(node))
    }

    /// The first property that is broken counts.
    pub(crate) fn note(&mut self, property: Property) {
        self.broken.get_or_insert(property);
    }
}
