//! Following a unit's standard output, byte for byte, until the unit is final and all of it has arrived.
//! Owns the continuation after a lost connection: a node that is restarted in the middle closes its sockets as if
//! the output were complete, so the end of the stream is believed only together with the unit's status.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep, timeout_at},
};

use super::request::{Request, WorkRequest};
use super::{CallError, Client, ControlConnection, UnitReport};
use crate::os::back_off::BackOff;

const CHUNK: usize = 256 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// After a connection that lasted this long, earlier losses no longer count.
const STABLE: Duration = Duration::from_secs(10);
/// How often the stream of a final unit may end early, without one more byte, before the rest counts as missing.
const BARREN_ATTEMPTS: u32 = 5;

/// What happened to a followed unit.
#[derive(Debug)]
pub enum FollowEvent {
    /// More output.
    Data(Bytes),
    /// The connection broke, for this reason; the next call tries to continue.
    Lost(CallError),
    /// Connected again, at the byte where it stopped.
    Resumed,
    /// The unit is final and all its output has arrived. Nothing follows.
    End {
        /// How it ended.
        report: UnitReport,
        /// The same as the node sent it. A newer node may send more keys.
        answer: Value,
    },
}

/// A unit's output, from a position on.
pub struct FollowedOutput {
    client: Client,
    unit: String,
    position: u64,
    connection: Option<ControlConnection>,
    pauses: BackOff,
    /// When to give up; set from the first loss on, until output arrives or a connection proves stable.
    gone_until: Option<Instant>,
    connected: Instant,
    barren: u32,
}

impl FollowedOutput {
    pub(super) async fn open(client: Client, unit: &str, start: u64) -> Result<Self, CallError> {
        let connection = Some(client.output(unit, start).await?);
        let unit = unit.to_owned();
        Ok(Self {
            client,
            unit,
            position: start,
            connection,
            pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE),
            gone_until: None,
            connected: Instant::now(),
            barren: 0,
        })
    }

    /// How far the output has arrived, in bytes from its start.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Waits for the next event. Not cancel-safe: if the future was dropped, go on only with a new stream.
    ///
    /// # Errors
    /// [`CallError::Absent`] if the node stayed away too long, [`CallError::Refused`] if the unit is gone
    /// (released, most likely), [`CallError::Truncated`] if output is missing.
    pub async fn next(&mut self) -> Result<FollowEvent, CallError> {
        let Some(connection) = &mut self.connection else { return self.resume().await };
        let mut buffer = BytesMut::with_capacity(CHUNK);
        match connection.reader().read_buf(&mut buffer).await {
            Ok(0) => self.ended().await,
            Ok(count) => {
                self.position += count as u64;
                self.forgive();
                Ok(FollowEvent::Data(buffer.freeze()))
            }
            Err(error) => Ok(self.lost(CallError::io("reading results")(error))),
        }
    }

    /// Finds out whether the stream ended because the unit is done or because the node went away.
    async fn ended(&mut self) -> Result<FollowEvent, CallError> {
        let status = Request::Work(WorkRequest::Status { unit: self.unit.clone(), signature: None });
        let answer = match self.client.command(&status).await {
            Ok(answer) => answer,
            Err(error) if error.is_absence() => return Ok(self.lost(error)),
            Err(error) => return Err(error),
        };
        let report = UnitReport::from_answer(&answer)?;
        if !report.state.is_final() {
            return Ok(self.lost(CallError::Closed("last result")));
        }
        if self.position >= report.stdout_size {
            return Ok(FollowEvent::End { report, answer });
        }
        self.barren += 1;
        if self.barren > BARREN_ATTEMPTS {
            let (unit, size) = (self.unit.clone(), report.stdout_size);
            return Err(CallError::Truncated { unit, position: self.position, size });
        }
        Ok(self.lost(CallError::Closed("last result")))
    }

    fn lost(&mut self, cause: CallError) -> FollowEvent {
        self.connection = None;
        if self.connected.elapsed() > STABLE {
            self.forgive();
        }
        self.gone_until.get_or_insert_with(|| Instant::now() + self.client.deadlines.absence);
        FollowEvent::Lost(cause)
    }

    /// Earlier losses no longer count.
    fn forgive(&mut self) {
        (self.barren, self.gone_until) = (0, None);
        self.pauses.reset();
    }

    async fn resume(&mut self) -> Result<FollowEvent, CallError> {
        let after = self.client.deadlines.absence;
        let until = *self.gone_until.get_or_insert_with(|| Instant::now() + after);
        let mut cause = CallError::Closed("last result");
        while Instant::now() < until {
            sleep(self.pauses.next()).await;
            match timeout_at(until, self.client.output(&self.unit, self.position)).await {
                Ok(Ok(connection)) => {
                    (self.connection, self.connected) = (Some(connection), Instant::now());
                    return Ok(FollowEvent::Resumed);
                }
                Ok(Err(error)) if error.is_absence() => cause = error,
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
        let (unit, position) = (self.unit.clone(), self.position);
        Err(CallError::Absent { unit, position, after, cause: Box::new(cause) })
    }
}
