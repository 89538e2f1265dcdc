//! Follows a unit on another node to its end: its output and its state are copied here. Knows how to follow a unit on a
//! node that supports that, and how to poll a node that does not. `submit` knows how the unit got there.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::MissedTickBehavior;

use super::Remotes;
use super::disclaim::{is_half_sent, is_inherited};
use super::output::{CopiedOutput, MissingOutput, OutputLooks, is_early, why_stopped, without_the_rest};
use super::step::extra;
use super::submit::CHUNK;
use crate::rpc::follow::Frame;
use crate::rpc::request::Follow;
use crate::rpc::{CallError, ErrorCode, UnitReport};
use crate::work::far::{ControlSession, StepError, ask_status};
use crate::work::signing::Verb;
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::unit::{State, UnitEvent};
use crate::work::units::Entry;

/// How much of a Detail is copied, in bytes. It is logged, and shown in lists of thousands of units.
const LONGEST_DETAIL: usize = 4096;
/// The time between two questions about a unit on a node that does not support following.
pub(super) const POLL: Duration = Duration::from_secs(1);

impl Remotes {
    /// Copies output and state from the other node until the unit is final, over the connection that started it if that
    /// is still open.
    pub(super) async fn follow_there(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        started: Option<Box<ControlSession>>,
    ) -> Result<(), StepError> {
        let remote = extra(entry);
        let mut output = CopiedOutput::open(self, entry).await?;
        let is_from_the_start = remote.stopped.is_empty() && output.length == 0;
        if let Some(mut session) = started.filter(|_| is_from_the_start) {
            return self.receive(entry, &mut session, &mut output).await;
        }
        let mut session = self.far.connect(&remote).await?;
        if !remote.stopped.is_empty() {
            return self.await_end(entry, &remote, session, output.length).await;
        }
        let signature = self.far.sign(&remote, Verb::Results)?;
        let (unit, start) = (remote.remote_unit_id.to_string(), output.length);
        let what = Follow { unit, start, signature, ends_with_unit: true };
        match session.connection.follow(what).await {
            Ok(()) => {
                entry.link().note_contact();
                self.receive(entry, &mut session, &mut output).await
            }
            Err(CallError::Refused(line)) if line.code() == ErrorCode::UnknownCommand => {
                self.poll(entry, &remote, session, &mut output).await
            }
            Err(error) => self.gone_or(entry, error.into(), output.length).await,
        }
    }

    async fn receive(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        session: &mut ControlSession,
        output: &mut CopiedOutput,
    ) -> Result<(), StepError> {
        loop {
            let frame = Frame::read(session.connection.reader()).await?;
            entry.link().note_progress();
            match frame {
                Frame::Output(bytes) => {
                    if !self.take_output(entry, output, bytes.into()).await? {
                        return Ok(());
                    }
                }
                Frame::Status(report) if is_half_sent(entry, &report) => return self.clear_half(entry).await,
                Frame::Status(report) if is_early(entry, &report, output.length) => {
                    return Err(StepError::Connection("the output ended before the unit did".into()));
                }
                Frame::Status(report) => {
                    if self.report_here(entry, report, output.length).await {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Follows a unit on a node that can only be polled. Like a Go node, asks every second, and streams the output over
    /// another connection.
    async fn poll(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        mut session: ControlSession,
        output: &mut CopiedOutput,
    ) -> Result<(), StepError> {
        let id = &remote.remote_unit_id;
        let mut stream = None;
        let mut looks = tokio::time::interval(POLL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = vec![0; CHUNK];
        let mut last: Option<UnitReport> = None;
        let mut looks_at_end = OutputLooks::default();
        loop {
            let is_end = |r: &mut UnitReport| r.state.is_final() && !is_early(entry, r, output.length);
            if let Some(report) = last.take_if(is_end) {
                if is_half_sent(entry, &report) {
                    return self.clear_half(entry).await;
                }
                self.report_here(entry, report, output.length).await;
                return Ok(());
            }
            tokio::select! {
                read = read_some(&mut stream, &mut buffer) => match read? {
                    0 => stream = None,
                    length => {
                        if !self.take_output(entry, output, buffer[..length].to_vec()).await? {
                            return Ok(());
                        }
                    }
                },
                _ = looks.tick() => {
                    let report = match ask_status(&mut session, id).await {
                        Err(error) => return self.gone_or(entry, error, output.length).await,
                        Ok(report) => report,
                    };
                    entry.link().note_progress();
                    if last.is_none() {
                        entry.link().note_contact();
                    }
                    if !report.state.is_final() {
                        self.report_here(entry, report.clone(), output.length).await;
                    } else {
                        match looks_at_end.look(output.length) {
                            MissingOutput::Expected => {}
                            MissingOutput::Reconnect => stream = None,
                            MissingOutput::Lost => {
                                self.report_here(entry, without_the_rest(report, output.length), output.length).await;
                                return Ok(());
                            }
                        }
                    }
                    if stream.is_none() && report.stdout_size > output.length {
                        stream = Some(self.far.results(remote, output.length).await?);
                    }
                    last = Some(report);
                }
            }
        }
    }

    /// Waits for the end of a unit that this node has asked the other one to end. Its output is ignored, because only
    /// the other node can make it obey.
    async fn await_end(
        &self,
        entry: &Arc<Entry>,
        remote: &RemoteExtra,
        mut session: ControlSession,
        have: u64,
    ) -> Result<(), StepError> {
        loop {
            let report = match ask_status(&mut session, &remote.remote_unit_id).await {
                Err(error) => return self.gone_or(entry, error, have).await,
                Ok(report) => report,
            };
            entry.link().note_progress();
            if self.report_here(entry, report, have).await {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn gone_or(&self, entry: &Arc<Entry>, error: StepError, have: u64) -> Result<(), StepError> {
        let Some(code) = error.code().filter(|code| code.is_no_unit()) else { return Err(error) };
        if is_inherited(&extra(entry)) {
            self.require_promise(entry).await?;
        }
        let was_released = code == ErrorCode::ReleasedUnit;
        self.note(entry, Durability::Deferred, |remote| {
            (remote.gone, remote.was_released) = (true, was_released);
        })
        .await?;
        let node = extra(entry).remote_node.into();
        entry.link().news.send_modify(|news| news.gone = true);
        entry.apply(self.units.store(), UnitEvent::RemoteGone { node, stdout_size: have }).await;
        Ok(())
    }

    /// Shows the state that the unit has there. Returns whether that is its end.
    async fn report_here(&self, entry: &Arc<Entry>, mut report: UnitReport, have: u64) -> bool {
        let end = report.state.is_final();
        report.detail.truncate(report.detail.floor_char_boundary(LONGEST_DETAIL));
        let how = if end { Durability::Durable } else { Durability::Deferred };
        let mut writer = entry.writer(self.units.store()).await;
        let mut status = writer.status().as_ref().clone();
        let (state, detail) = match why_stopped(&status, &report).filter(|_| end) {
            Some(why) => (State::Failed, format!("Killed: {why}")),
            None => (report.state, report.detail),
        };
        if status.life.apply(&UnitEvent::Reported(state, detail, have)) {
            status.exit_code = report.exit_code;
            let _ = writer.put(status, how).await;
        }
        end
    }
}

/// Reads from a stream of results. Never returns if there is none.
async fn read_some(stream: &mut Option<ControlSession>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match stream {
        Some(session) => session.connection.reader().read(buffer).await,
        None => std::future::pending().await,
    }
}
