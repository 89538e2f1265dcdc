//! The interface by which the requests of operators reach a node's controller.

use bytes::Bytes;
use http::HeaderMap;

use super::Act;
use crate::counters::ControllerCounters;
use crate::rpc::operation::{Operated, Operation, OperationRefusal};
use crate::rpc::report::saved::HookAnswer;
use crate::work::Caller;

/// What somebody has sent to the hook of a saved job. Nothing of it is proven, and all of it may be a secret.
pub struct HookDelivery {
    /// The name of the saved job.
    pub name: String,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// What has become of a delivery.
pub enum Hooked {
    /// It proves nothing, or there is no such hook: nobody is told which.
    Stranger,
    /// The hook has started too many jobs.
    TooMany,
    /// It came from whom it says.
    Heard(HookAnswer),
}

/// The controller of a node, for the requests of operators.
pub trait Operations: Send + Sync + 'static {
    /// Carries out one operation for a caller who may ask for it. Jobs that it starts have no more rights than the
    /// caller.
    fn operate<'a>(&'a self, operation: Operation, who: &'a Caller) -> Act<'a, Operated>;

    /// Starts the saved job of a hook, if the delivery proves itself and is meant. No request of a client reaches this.
    fn deliver(&self, delivery: HookDelivery) -> Act<'_, Result<Hooked, OperationRefusal>>;

    /// The controller's counters; `None` before its store is there.
    fn figures(&self) -> Act<'_, Option<ControllerCounters>>;

    /// The `tls-client` profile with which it reaches control services of other nodes.
    fn tls_client(&self) -> Option<String>;
}
