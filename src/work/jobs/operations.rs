//! The interface by which the requests of operators reach a node's controller.

use super::Act;
use crate::counters::ControllerCounters;
use crate::rpc::operation::{Operated, Operation};
use crate::work::Caller;

/// The controller of a node, for the requests of operators.
pub trait Operations: Send + Sync + 'static {
    /// Carries out one operation for a caller who may ask for it. Jobs that it starts have no more rights than the
    /// caller.
    fn operate<'a>(&'a self, operation: Operation, who: &'a Caller) -> Act<'a, Operated>;

    /// The controller's counters; `None` before its store is there.
    fn figures(&self) -> Act<'_, Option<ControllerCounters>>;

    /// The `tls-client` profile with which it reaches control services of other nodes.
    fn tls_client(&self) -> Option<String>;
}
