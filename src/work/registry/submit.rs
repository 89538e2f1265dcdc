//! Accepting a unit: the checks, the directory, the payload, the start. A unit is durable before its ID is answered,
//! and its payload is durable before its start is answered. If a submission is dropped half way, its unit fails. A long
//! payload for another node is sent on while it arrives (`remote`), but its end is sent only once the payload is
//! durable here.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::digest;
use tokio::time::Instant;

use super::{Registry, detached};
use crate::duration;
use crate::rpc::OutputBound;
use crate::rpc::request::SubmitRequest;
use crate::wire::NodeId;
use crate::work::jobs::JobIntake;
use crate::work::remote::PayloadStream;
use crate::work::signing::{PayloadHash, Subject};
use crate::work::status::{Extra, REMOTE, RemoteExtra, Status, is_secret};
use crate::work::store::{Durability, FlushOnce, UnitStore};
use crate::work::unit::{State, UnitEvent, UnitId};
use crate::work::units::{Entry, Exceeded, Leftovers, Started, UnitWriter};
use crate::work::{Caller, Submitter, WorkError};

/// The bytes of payload that are collected before they are written.
const AHEAD: usize = 128 * 1024;

/// A unit whose payload is arriving.
#[derive(Debug)]
pub struct UnitSubmission {
    pub(super) registry: Registry,
    pub(super) entry: Arc<Entry>,
    /// The unit has its payload, and runs or ran: this submission is a repetition, and its payload is dropped.
    pub(super) is_whole: bool,
    /// The status file of a unit that becomes durable together with its payload.
    made: Option<File>,
    /// The payload's file, once it is open.
    stdin: Option<File>,
    /// Payload that is not yet in the file.
    pub(super) ahead: Vec<u8>,
    /// A piece could not be written, or the future that wrote it was dropped.
    broken: bool,
    /// The hash that the signature promises, and the hash so far.
    signed: Option<SignedPayload>,
    /// The stream of a long payload to another node. It tells the unit's driver that the payload has grown.
    streamed: Option<PayloadStream>,
    /// The intake that checks the payload of a job.
    intake: Option<Box<dyn JobIntake>>,
    done: bool,
}

/// The hash that a payload must have, and the hash of what has arrived of it.
pub(super) struct SignedPayload {
    hash: PayloadHash,
    so_far: digest::Context,
}

impl SignedPayload {
    fn new(hash: PayloadHash) -> Self {
        Self { hash, so_far: digest::Context::new(&digest::SHA256) }
    }
}

impl std::fmt::Debug for SignedPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignedPayload")
    }
}

impl Registry {
    /// Accepts a unit. Once this returns, the unit survives a crash; with `at_once`, only once it has its payload.
    ///
    /// # Errors
    /// The request is refused, or a file operation failed. Then nothing is left behind.
    pub async fn submit(&self, request: SubmitRequest, caller: Caller) -> Result<UnitSubmission, WorkError> {
        if self.is_here(&request) {
            self.executor.local.admit(&request.work_type, &caller)?;
        }
        self.accept(request, caller, None, false).await
    }

    /// As [`Self::submit`], but for this node's controller, which makes the job for the caller.
    ///
    /// # Errors
    /// Those of [`Self::submit`].
    pub async fn submit_own(
        &self,
        request: SubmitRequest,
        caller: Caller,
    ) -> Result<UnitSubmission, WorkError> {
        self.accept(request, caller, None, true).await
    }

    /// As [`Self::submit`], but for this node's controller. Its units may have types that no client may use, and
    /// `max_stdout` bounds their output.
    pub async fn submit_child(
        &self,
        request: SubmitRequest,
        max_stdout: OutputBound,
    ) -> Result<UnitSubmission, WorkError> {
        self.accept(request, Caller::local(), Some(Box::new(max_stdout)), false).await
    }

    async fn accept(
        &self,
        request: SubmitRequest,
        caller: Caller,
        max_stdout: Option<Box<OutputBound>>,
        is_own: bool,
    ) -> Result<UnitSubmission, WorkError> {
        let received = Instant::now();
        let chosen = request.unit_id.as_deref().map(UnitId::chosen).transpose()?;
        let about = Subject {
            work_type: Some(&request.work_type),
            params: Some(&request.params),
            chosen_id: request.unit_id.as_deref(),
            ..Subject::default()
        };
        let signed = self.check_signature(&request.work_type, request.sign_work, &caller, &about)?;
        let (job, intake) = self.intake(&request, &caller, is_own).await?.unzip();
        let (entry, is_whole, made) =
            detached(self.clone().unit_for(request, caller.submitter(), chosen, job, max_stdout, received))
                .await?;
        let signed = signed.map(SignedPayload::new);
        let intake = intake.filter(|_| !is_whole);
        let mut submission = UnitSubmission::new(self.clone(), entry, is_whole, signed, intake);
        submission.made = made;
        Ok(submission)
    }
}

impl Registry {
    /// Whether this node itself is to run the unit.
    pub(super) fn is_here(&self, request: &SubmitRequest) -> bool {
        self.is_own_node(&request.node)
    }

    pub(super) async fn pod_status(&self, request: &SubmitRequest) -> Result<Option<Status>, WorkError> {
        let status = self.executor.pods.new_status(&request.work_type, &request.params).await?;
        if status.is_some() && request.ttl.as_ref().is_some_and(|ttl| !ttl.is_empty()) {
            return Err(WorkError::TtlIsForRemoteWork);
        }
        Ok(status)
    }

    pub(super) fn local_status(&self, request: &SubmitRequest) -> Result<Status, WorkError> {
        if request.ttl.as_ref().is_some_and(|ttl| !ttl.is_empty()) {
            return Err(WorkError::TtlIsForRemoteWork);
        }
        self.executor.local.new_status(&request.work_type, &request.params)
    }

    pub(super) fn remote_status(&self, request: SubmitRequest) -> Result<Status, WorkError> {
        let node = NodeId::new(&request.node)?;
        let tls_client = request.tls_client.unwrap_or_default();
        self.executor.remotes.far().check_request(&tls_client, request.sign_work)?;
        if tls_client.is_empty() && request.params.keys().any(|name| is_secret(name)) {
            return Err(WorkError::SecretsWithoutTls);
        }
        let expiration = match request.ttl.as_deref() {
            None | Some("") => None,
            // An expiry that the calendar cannot represent is never reached, so there is none.
            Some(ttl) => jiff::Timestamp::now().checked_add(duration::parse(ttl)?).ok(),
        };
        let remote = RemoteExtra {
            remote_node: node.as_str().into(),
            remote_work_type: request.work_type.into(),
            remote_params: request.params.into(),
            sign_work: request.sign_work,
            tls_client: tls_client.into(),
            expiration,
            ..RemoteExtra::default()
        };
        Ok(Status::new(REMOTE, Extra::Remote(Box::new(remote))))
    }

    pub(super) async fn exceeded(&self, exceeded: Exceeded, submitter: Option<Submitter>) -> WorkError {
        let node = match submitter {
            Some(Submitter::Node { node, certified }) => {
                let name = self.executor.remotes.far().name_of(node).await;
                Some((name.map_or_else(|| node.to_string(), |name| name.to_string()), certified))
            }
            Some(Submitter::Operator | Submitter::Stranger) | None => None,
        };
        let caller = match node {
            Some((name, true)) => format!("node {name}"),
            Some((name, false)) => {
                format!("all callers without a certificate together, node {name} among them,")
            }
            None => "all callers without a certificate together".to_owned(),
        };
        match exceeded {
            Exceeded::Units(most) => WorkError::PeerUnits { caller, most },
            Exceeded::Payload(most) => WorkError::PeerPayload { caller, most },
        }
    }
}

impl UnitSubmission {
    /// Whether this is a controller's job, whose payload is checked while it arrives.
    pub fn is_job(&self) -> bool {
        self.intake.is_some()
    }

    pub(super) fn new(
        registry: Registry,
        entry: Arc<Entry>,
        is_whole: bool,
        signed: Option<SignedPayload>,
        intake: Option<Box<dyn JobIntake>>,
    ) -> Self {
        Self {
            registry,
            entry,
            is_whole,
            made: None,
            stdin: None,
            ahead: Vec::new(),
            broken: false,
            signed,
            streamed: None,
            intake,
            done: is_whole,
        }
    }

    /// The unit's ID. It may be answered to the client.
    pub fn id(&self) -> &UnitId {
        &self.entry.id
    }

    /// Adds to the payload.
    ///
    /// # Errors
    /// A refused payload or a failed write. The caller should then abort the unit.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), WorkError> {
        if let Some(signed) = &mut self.signed {
            signed.so_far.update(bytes);
        }
        if self.is_whole {
            return Ok(());
        }
        if let Some(intake) = &mut self.intake {
            intake.push(bytes).map_err(WorkError::Job)?;
        }
        if let Err(exceeded) = self.entry.charge_payload(bytes.len() as u64) {
            let submitter = self.entry.status().submitter;
            return Err(self.registry.exceeded(exceeded, submitter).await);
        }
        self.ahead.extend_from_slice(bytes);
        if self.ahead.len() < AHEAD {
            return Ok(());
        }
        if self.entry.status().max_stdout.is_none() {
            self.registry.reserve.check().await?;
        }
        self.write_out(false).await
    }

    /// Takes a durable file as the whole payload, as a hard link, so that it is on disk only once. Nobody may write to
    /// the file any more.
    ///
    /// # Errors
    /// A file operation failed. The payload can still be written with [`Self::write`].
    pub async fn link(&mut self, payload: PathBuf) -> Result<(), WorkError> {
        if self.is_whole {
            return Ok(());
        }
        let _lock = self.write_lock().await?;
        self.store().link_payload(payload, &self.entry.dir).await
    }

    /// Ends the payload, makes it durable, and starts the unit.
    ///
    /// # Errors
    /// What kept the unit from starting. Its Detail says the same.
    pub async fn finish(mut self) -> Result<Started, WorkError> {
        if let Err(error) = self.close_stdin().await {
            self.fail(UnitEvent::PayloadCut(error.to_string())).await;
            return Err(error);
        }
        if let Some(signed) = self.signed.take()
            && signed.so_far.finish().as_ref() != signed.hash
        {
            self.fail(UnitEvent::PayloadCut(WorkError::OtherPayload.to_string())).await;
            return Err(WorkError::OtherPayload);
        }
        if self.is_whole {
            return answer_again(&self.entry.status());
        }
        self.done = true;
        let (registry, entry) = (self.registry.clone(), self.entry.clone());
        if let Some(intake) = self.intake.take() {
            return detached(async move { registry.start_job(&entry, intake).await }).await;
        }
        let started = detached(async move { registry.executor.start(&entry).await }).await;
        if started.is_err() {
            self.note_refused().await;
        }
        match started {
            Err(WorkError::EndedEarly(_)) => Err(self.ended_early()),
            started => started,
        }
    }

    /// Notes, durably, that the submission was refused, so that the unit is released after a while.
    async fn note_refused(&self) {
        let mut writer = self.entry.writer(self.store()).await;
        let status = Status { refused: true, ..Status::clone(&writer.status()) };
        if status.life.state == State::Failed {
            // If this fails, the writer repeats it later.
            let _ = writer.put(status, Durability::Durable).await;
        }
    }

    /// As [`Self::finish`], but removes a unit that does not start. The answer tells the client whether the unit
    /// exists.
    pub async fn finish_or_discard(self) -> Result<Started, WorkError> {
        // Refused jobs remove their units themselves.
        let is_kept = self.is_whole || self.is_job();
        let (registry, entry) = (self.registry.clone(), self.entry.clone());
        let started = self.finish().await;
        if started.is_err() && !is_kept && !entry.is_gone() {
            entry.note_discarded();
            if let Err(error) = registry.executor.release(entry.clone(), true, Leftovers::Stay).await {
                tracing::warn!(unit = %entry.id, %error, "cannot remove a unit that did not start");
            }
        }
        started
    }

    /// Fails a unit whose payload stopped half way, for this cause.
    pub async fn abort(mut self, cause: String) {
        self.fail(UnitEvent::PayloadCut(cause)).await;
    }

    /// As [`Self::abort`], but removes the unit, because the client submits it again.
    pub async fn discard(mut self, cause: String) {
        if self.is_whole {
            return;
        }
        self.fail(UnitEvent::PayloadCut(cause)).await;
        self.entry.note_discarded();
        let (registry, entry) = (self.registry.clone(), self.entry.clone());
        let removed = match self.streamed.take() {
            None => {
                detached(async move { registry.executor.local.remove(&entry, Leftovers::Stay).await }).await
            }
            // The other node has a part of the unit.
            Some(_) => {
                let released =
                    async move { registry.executor.remotes.release(&entry, false, Leftovers::Stay).await };
                detached(released).await.map(drop)
            }
        };
        if let Err(error) = removed {
            tracing::warn!(unit = %self.entry.id, %error, "cannot remove what is left of a broken submission");
        }
    }

    async fn fail(&mut self, event: UnitEvent) {
        if self.is_whole {
            return;
        }
        self.entry.apply(self.store(), event).await;
        self.note_refused().await;
        self.done = true;
    }

    /// Makes the payload durable, and the unit if it is not yet. The payload of a unit for another node is not flushed
    /// here but during the next steps, so that they need not wait.
    async fn close_stdin(&mut self) -> Result<(), WorkError> {
        // If there is nothing to write, the empty file is there already.
        if self.stdin.is_some() || !self.ahead.is_empty() || self.broken {
            self.write_out(true).await?;
        }
        match (self.made.take(), self.stdin.take()) {
            (None, None) => Ok(()),
            (None, Some(stdin)) if self.entry.status().remote().is_some() => {
                self.entry.set_unflushed(Some(FlushOnce::new(stdin).into()));
                Ok(())
            }
            (made, stdin) => {
                // The lock keeps others from changing the status meanwhile.
                let (lock, dir) = (self.write_lock().await?, self.entry.dir.clone());
                let finish = move || {
                    let _lock = lock;
                    dir.finish(made.as_ref(), stdin.as_ref())
                };
                self.store().blocking(finish).await.map_err(|e| self.stdin_error(e))
            }
        }
    }

    /// Writes the collected payload to the file.
    async fn write_out(&mut self, last: bool) -> Result<(), WorkError> {
        if std::mem::replace(&mut self.broken, true) {
            return Err(self.stdin_error(io::Error::other("an earlier piece could not be written")));
        }
        let lock = if self.stdin.is_none() { Some(self.write_lock().await?) } else { None };
        let (stdin, mut ahead) = (self.stdin.take(), std::mem::take(&mut self.ahead));
        let dir = self.entry.dir.clone();
        let write = move || {
            let _lock = lock;
            let mut stdin = match stdin {
                Some(stdin) => stdin,
                None => dir.append_stdin()?,
            };
            UnitStore::add_payload(&mut stdin, &ahead, last)?;
            ahead.clear();
            Ok((stdin, ahead))
        };
        let (stdin, ahead) = self.store().blocking(write).await.map_err(|e| self.stdin_error(e))?;
        (self.stdin, self.ahead, self.broken) = (Some(stdin), ahead, false);
        if !last {
            self.streamed =
                self.streamed.take().or_else(|| self.registry.executor.remotes.stream_payload(&self.entry));
            if let Some(streamed) = &self.streamed {
                streamed.note_growth();
            }
        }
        Ok(())
    }

    /// Takes the lock to write to the unit's directory. Fails if the unit was deleted, because another unit may have
    /// that directory now.
    async fn write_lock(&self) -> Result<UnitWriter, WorkError> {
        let writer = self.entry.writer(self.store()).await;
        if self.entry.is_gone() { Err(self.ended_early()) } else { Ok(writer) }
    }

    pub(super) fn store(&self) -> &UnitStore {
        self.registry.units.store()
    }

    fn ended_early(&self) -> WorkError {
        let id = self.entry.id.to_string();
        if self.entry.is_repeated() { WorkError::SubmittedAgain(id) } else { WorkError::EndedEarly(id) }
    }

    fn stdin_error(&self, error: io::Error) -> WorkError {
        WorkError::io("write", self.entry.dir.file("stdin"), error)
    }
}

/// The answer to a repetition: what the first submission of the unit was answered.
fn answer_again(status: &Status) -> Result<Started, WorkError> {
    let is_away = status.remote().is_some_and(|remote| !remote.remote_started);
    match status.life.start_error() {
        Some(cause) => Err(WorkError::NotStarted(cause.to_owned())),
        None if is_away => Ok(Started::Submitted),
        None => Ok(Started::Started),
    }
}

impl Drop for UnitSubmission {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.done {
            return;
        }
        let (registry, entry) = (self.registry.clone(), self.entry.clone());
        let event = UnitEvent::PayloadCut("the client went away".into());
        runtime.spawn(async move { entry.apply(registry.units.store(), event).await });
    }
}
