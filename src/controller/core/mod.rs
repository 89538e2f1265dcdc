//! What the controller decides, pure: from plain state and a given time.
//!
//! Nothing here waits, sends, saves or asks for the time. The same state gives the same decision on any
//! control node, so whoever holds the scheduler's lock may make it, and tests run years in seconds.

mod capacity;
mod impact;
mod names;
mod time;

pub use self::capacity::{Adjustment, Capacities, Cpus, MEMORY_RESERVE, Rates, memory_from_override};
pub use self::impact::{CONTROL_IMPACT, Class, Kind, Size, Slice};
pub use self::names::{AttemptNo, GroupName, InstanceName, JobId, Word};
pub use self::time::{BackOff, Time};
