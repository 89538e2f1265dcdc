//! A unit as its followers on other nodes see it: frames with its output and states, until it is final.
//! [`rpc::follow`](crate::rpc::follow) defines the frames, and the control service sends them.

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
    /// No frame was sent yet.
    is_new: bool,
    is_over: bool,
}

impl Frames {
    /// Opens the frames of a unit, with its output from byte `start` on. The unit may still wait for its payload.
    ///
    /// # Errors
    /// The unit is unknown, or the caller may not follow it.
    pub async fn open(
        registry: &Registry,
        unit: &str,
        start: u64,
        caller: &Caller,
    ) -> Result<Self, WorkError> {
        let mut results = registry.results(unit, start, caller).await?;
        // The stream sees a final status before it is durable here, because the following node makes it durable before
        // it tells anybody.
        results.status = results.unit.subscribe_ahead();
        let (registry, entry, changes) = (registry.clone(), results.unit.clone(), results.unit.subscribe());
        Ok(Self { registry, entry, results, changes, is_new: true, is_over: false })
    }

    /// The next frame; `None` after the final status. The future must not be dropped before it is done.
    ///
    /// # Errors
    /// The output cannot be read. The caller has to break the connection, because an error text would be read as a
    /// frame.
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
                        // The rest of the output is lost, so the final status counts what is left. If the unit was
                        // released, this is an error.
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
                    // A final status is sent only after all output.
                    if !report.state.is_final() {
                        return Ok(Some(Frame::Status(report)));
                    }
                }
            }
        }
    }
}
