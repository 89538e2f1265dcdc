//! Units that run here: starting them, the queue of those that wait, their end, and their release after a time.

mod queue;
mod reconcile;
mod retention;
mod start;

pub(crate) use self::queue::Queues;
