//! The decisions of the controller, as pure functions of state and a given time.
//!
//! Nothing here waits, sends, saves or reads the clock. The same state gives the same decision on every
//! control node, so any holder of the scheduler's lock may decide, and tests simulate years in seconds.
//!
//! - `impact`, `capacity`: what a job takes and what an instance has; `load`: the sums of both.
//! - `instance`, `group`: the records; `policy`: which instance is in which group.
//! - `queue`: pending jobs and decisions; `fit`: which instances may run a job; `pass`: all jobs in order;
//!   `explain`: why a job waits.
//! - `job`, `attempt`, `state`: the life cycles; `approach`: whether an attempt's unit is followed, asked for or sent;
//!   `driven`: reports of the owner; `verdict`: how an attempt ended.
//! - `watch`: since when a row has not changed, by the observer's clock; `lease`: who may write; `loss`: who is lost,
//!   and who inherits; `clock`: whether the clock is believed; `text`: text that other programs wrote.

mod approach;
mod attempt;
mod capacity;
mod clock;
mod driven;
mod explain;
mod fit;
mod group;
mod impact;
mod instance;
mod job;
mod lease;
mod load;
mod loss;
mod names;
mod pass;
mod policy;
mod queue;
mod state;
mod text;
mod time;
mod verdict;
mod watch;

pub use self::approach::{Approach, Known, UnitPlace, approach};
pub use self::attempt::{Attempt, ChildId, Duty, OutputEnd, Progress};
pub use self::capacity::{Adjustment, Capacities, Cpus, MEMORY_RESERVE, Rates, memory_from_override};
pub use self::clock::{ClockRecord, Doubt};
pub use self::driven::Driven;
pub use self::explain::explain;
pub use self::fit::{Why, unfit, unusable};
pub use self::group::{Backing, Group, LaunchGroups, Level, Member, MemberOrigin, Policy};
pub use self::impact::{CONTROL_IMPACT, Class, JobKind, Size, Slice};
pub use self::instance::{
    CLOCK_TOLERANCE, HealthResult, Instance, InstanceFault, NodeState, NodeType, Offer, SIGHTING_LIFE,
    Sighting, SightingKey, SightingWatch,
};
pub use self::job::{Job, OnLoss, QuotaWait, Refused, Retry};
pub use self::lease::{Epoch, Fence, Fenced, Lease, LeaseTimes, LeaseWatch, Standing, Tenure};
pub use self::load::{Claim, GroupCapacity, InstanceLoad, Loads};
pub use self::loss::{Patience, Silence, heir, is_newly_lost, lost_attempts, silence};
pub use self::names::{AttemptNo, GroupName, InstanceName, JobId, Word};
pub use self::pass::{Scene, pass};
pub use self::policy::{MemberChange, member_changes};
pub use self::queue::{
    ChildType, Decision, Hold, Need, PendingEnd, PendingJob, Placement, Wait, WaitWatch, Waiting,
};
pub use self::state::JobState;
pub use self::text::readable;
pub use self::time::Time;
pub use self::verdict::{ChildEnd, Ending, Evidence, FinalStatus, Verdict, judge};
pub use self::watch::{Watch, Watched};

#[cfg(test)]
mod tests;
