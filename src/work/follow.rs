//! A unit as its followers on other nodes see it: frames with its output and states, until it is final. The frames are
//! [`rpc::follow`](crate::rpc::follow)'s; how they travel is the control service's business.

use std::sync::Arc;

use super::registry::Registry;
use super::status::Status;
use super::units::{Entry, Follower};
use super::{Caller, ResultStream, WorkError};
use crate::rpc::follow::Frame;

/// The frames of one unit, in order, each once.
#[derive(Debug)]
pub struct Frames {
    registry: Registry,
    entry: Arc<Entry>,
    results: ResultStream,
    changes: Follower,
    /// Nothing was told of it yet.
    is_new: bool,
    is_over: bool,
}

impl Frames {
    /// Those of a unit, with its output from byte `start` on. It may still wait for its payload.
    ///
    /// # Errors
    /// An unknown unit, a caller who may not.
    pub async fn open(
        registry: &Registry,
        unit: &str,
        start: u64,
        caller: &Caller,
    ) -> Result<Self, WorkError> {
        let mut results = registry.results(unit, start, caller).await?;
        // The node that follows makes the end durable before it tells anybody.
        results.status = results.unit.subscribe_ahead();
        let (registry, entry, changes) = (registry.clone(), results.unit.clone(), results.unit.subscribe());
        Ok(Self { registry, entry, results, changes, is_new: true, is_over: false })
    }

    /// The next frame; `None` after the final status. Not to be dropped half way.
    ///
    /// # Errors
    /// The output cannot be read. In words it would be taken for a frame: the connection has to be broken.
    pub async fn next(&mut self) -> Result<Option<Frame>, WorkError> {
        if self.is_over {
            return Ok(None);
        }
        if std::mem::take(&mut self.is_new) {
            self.changes.mark_unchanged();
            let report = self.registry.status_of(&self.entry).await;
            if !report.state.is_final() {
                return Ok(Some(Frame::Status(report)));
            }
        }
        loop {
            tokio::select! {
                biased;
                chunk = self.results.next() => {
                    let end = self.results.status.borrow().clone();
                    let last = match chunk {
                        Ok(Some(chunk)) => return Ok(Some(Frame::Output(chunk))),
                        Ok(None) => self.registry.report(&self.entry, &end),
                        // No waiting brings the rest back, unless the unit is no more.
                        Err(WorkError::StdoutTruncated { found, .. }) => {
                            self.registry.find(self.entry.id.as_str())?;
                            self.registry.report_with(Status::clone(&end), found)
                        }
                        Err(error) => return Err(error),
                    };
                    self.is_over = true;
                    return Ok(Some(Frame::Status(last)));
                }
                _ = self.changes.changed() => {
                    self.changes.mark_unchanged();
                    let report = self.registry.status_of(&self.entry).await;
                    // A final status has to wait for the output.
                    if !report.state.is_final() {
                        return Ok(Some(Frame::Status(report)));
                    }
                }
            }
        }
    }
}
