//! What the controller decides, pure: from plain state and a given time.
//!
//! Nothing here waits, sends, saves or asks for the time. The same state gives the same decision on any
//! control node, so whoever holds the scheduler's lock may make it, and tests run years in seconds.

mod capacity;
mod explain;
mod fit;
mod group;
mod impact;
mod instance;
mod load;
mod names;
mod pass;
mod policy;
mod queue;
mod state;
mod time;

pub use self::capacity::{Adjustment, Capacities, Cpus, MEMORY_RESERVE, Rates, memory_from_override};
pub use self::explain::{Check, Explanation, GroupAnswer, InstanceAnswer, explain};
pub use self::fit::{Why, unusable};
pub use self::group::{Backing, Group, LaunchGroups, Level, Member, Origin, Policy};
pub use self::impact::{CONTROL_IMPACT, Class, Kind, Size, Slice};
pub use self::instance::{
    CLOCK_TOLERANCE, HEALTH_BACK_OFF, HealthReport, Instance, NodeState, NodeType, Offer, SIGHTING_LIFE,
    Sighting,
};
pub use self::load::{Claim, GroupCapacity, GroupLoad, InstanceLoad, Loads};
pub use self::names::{AttemptNo, GroupName, InstanceName, JobId, Word};
pub use self::pass::{Scene, pass};
pub use self::policy::{MemberChange, member_changes};
pub use self::queue::{ChildType, Decision, Hold, Need, PendingEnd, PendingJob, Placement, Waiting};
pub use self::state::State;
pub use self::time::{BackOff, Time};
