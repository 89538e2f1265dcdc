//! The operations on saved jobs: lists, details, and starts. A start makes the stream on this node, and hands it to the
//! door through which any client's submission comes, with the rights of whoever asked for it. Nothing here keeps, logs or
//! answers the values of variables.

use std::io::Read as _;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{bad, conflict, missing};
use crate::controller::core::{JobId, Word};
use crate::controller::header::Header;
use crate::controller::pack::{PackedJob, PackedStream};
use crate::controller::saved::{LoadedJob, NodeGuards, SavedEntry, SavedJob, SavedVar};
use crate::controller::service::Service;
use crate::os::answers::fitting;
use crate::rpc::operation::{OperationCode, OperationRefusal, SavedFilter, SavedStart};
use crate::rpc::report::Lenient;
use crate::rpc::report::saved::{SavedPage, SavedReport, SavedSummary, StartedJob, VarReport};
use crate::rpc::request::SubmitRequest;
use crate::work::jobs::{CONTROLLER, HEADER};
use crate::work::{Caller, Rights, WorkError};

/// Texts that are parsed at a time, aside from the threads that carry links: a large one takes milliseconds.
static PARSING: Semaphore = Semaphore::const_new(1);
/// Streams that are packed at a time, because each may read a whole directory.
static PACKING: Semaphore = Semaphore::const_new(2);
/// Rows of a list unless the caller asks for another number, and the most of them.
const PAGE: u32 = 1000;
/// Bytes after which a page ends.
const PAGE_BYTES: usize = 1 << 20;
/// Faults of the directory itself that are listed.
const FAULTS: usize = 100;
/// Bytes of a stream that are handed over at a time.
const PIECE: usize = 256 << 10;

/// What a job gets beside what its file says.
#[derive(Debug, Default)]
pub(in crate::controller) struct LaunchTerms {
    /// Only one job has it, however often it is started. Begins with `meshd/`, as no client's key does.
    pub key: Option<String>,
    /// A label of the controller's own.
    pub label: Option<(String, String)>,
    /// A word of which only one running job may hold each.
    pub exclusive: Option<Word>,
}

impl Service {
    pub(super) fn list_saved(&self, asked: SavedFilter) -> SavedPage {
        let saved = self.saved.now();
        let is_after =
            |(name, _): &(&String, &SavedEntry)| asked.after.as_ref().is_none_or(|after| *name > after);
        let summaries = saved.entries().iter().filter(is_after).map(|(name, entry)| summary(name, entry));
        let (page, next) = page(summaries, asked.limit, |one| &one.name);
        let faults = saved.faults().iter().filter(|_| asked.after.is_none());
        SavedPage { saved: page, faults: faults.map(ToString::to_string).take(FAULTS).collect(), next }
    }

    pub(super) async fn saved_job(&self, name: &str) -> Result<SavedReport, OperationRefusal> {
        let saved = self.saved.now();
        let entry = saved.entries().get(name).ok_or_else(|| no_such(name))?;
        let summary = summary(name, entry);
        let Some(loaded) = &entry.job else { return Ok(SavedReport { summary, ..SavedReport::default() }) };
        let job = parsed(loaded).await?;
        let lines = |text: &String| match text.lines().count() {
            0 | 1 => text.clone(),
            lines => format!("{lines} lines"),
        };
        Ok(SavedReport {
            summary,
            revision: job.project.as_ref().and_then(|project| project.revision.clone()),
            inventory: job.inventory.iter().map(lines).collect(),
            limit: job.limit.clone(),
            tags: job.tags.clone(),
            skip_tags: job.skip_tags.clone(),
            extra_vars: job.extra_vars.keys().cloned().collect(),
            vars: job.vars.iter().map(|(name, var)| (name.clone(), VarReport::from(var))).collect(),
            hook: job.hook.as_ref().map(|hook| Lenient::Known(hook.kind)),
            header: serde_json::from_str(&job.header(name, &loaded.hash()).to_string()).unwrap_or_default(),
        })
    }

    /// Starts a saved job.
    pub(super) async fn start_saved(
        &self,
        asked: SavedStart,
        who: &Caller,
    ) -> Result<StartedJob, OperationRefusal> {
        self.launch_saved(asked, who, LaunchTerms::default()).await
    }

    /// Starts a saved job, unless there is a job with this key already. Returns the number of that one, if so.
    pub(in crate::controller) async fn start_saved_once(
        &self,
        asked: SavedStart,
        who: &Caller,
        terms: LaunchTerms,
    ) -> Result<Result<StartedJob, JobId>, OperationRefusal> {
        if let Some(key) = &terms.key
            && let Some(known) = self.driver.store.job_of_key(key.clone()).await?
        {
            return Ok(Err(known));
        }
        self.launch_saved(asked, who, terms).await.map(Ok)
    }

    /// Goes on if its caller goes away, so that nothing is left half done.
    async fn launch_saved(
        &self,
        asked: SavedStart,
        who: &Caller,
        terms: LaunchTerms,
    ) -> Result<StartedJob, OperationRefusal> {
        let SavedStart { name, vars } = asked;
        let loaded = self.startable(&name)?;
        let job = parsed(&loaded).await?;
        if let Some(why) = job.needs_admin().filter(|_| !who.may(Rights::Admin)) {
            return Err(OperationRefusal::new(OperationCode::Refused, format!("{name}: {why}")));
        }
        let options = self.driver.options();
        for target in job.notify.keys().filter(|target| !options.notify.contains_key(*target)) {
            tracing::warn!(saved = name, target, "notify names a target that work-controller does not have");
        }
        let variables = job.variables(vars.0).map_err(|why| bad(format!("{name}: {why}")))?;
        let (this, who) = (self.clone(), who.clone());
        let started = tokio::spawn(async move {
            this.submit_saved(&name, &loaded.hash(), job, variables, who, terms).await
        });
        started.await.map_err(|error| conflict(error.to_string()))?
    }

    /// The version of a saved job that is started now.
    fn startable(&self, name: &str) -> Result<Arc<LoadedJob>, OperationRefusal> {
        let saved = self.saved.now();
        let entry = saved.entries().get(name).ok_or_else(|| no_such(name))?;
        let fault = || entry.fault.as_ref().map(ToString::to_string).unwrap_or_default();
        entry
            .job
            .clone()
            .ok_or_else(|| conflict(format!("{name}: its file has never been right: {}", fault())))
    }

    async fn submit_saved(
        &self,
        name: &str,
        hash: &str,
        job: SavedJob,
        variables: Map<String, Value>,
        who: Caller,
        terms: LaunchTerms,
    ) -> Result<StartedJob, OperationRefusal> {
        let mut header = job.header(name, hash);
        header.key = terms.key;
        header.labels.extend(terms.label);
        header.exclusive.extend(terms.exclusive);
        let mut stream = self.pack_saved(name, job, variables).await?;
        let refused =
            |error: WorkError| OperationRefusal::new(OperationCode::Refused, format!("{name}: {error}"));
        let request = own_request(self.driver.node.as_str(), &header);
        let mut submission = self.registry.submit_own(request, who).await.map_err(refused)?;
        let unit = submission.id().to_string();
        loop {
            let (rest, piece) = match read_piece(stream).await {
                Ok(read) => read,
                Err(error) => {
                    submission.discard(error.to_string()).await;
                    return Err(conflict(format!("{name}: cannot read the packed job: {error}")));
                }
            };
            if piece.is_empty() {
                break;
            }
            stream = rest;
            if let Err(error) = submission.write(&piece).await {
                submission.discard(error.to_string()).await;
                return Err(refused(error));
            }
        }
        submission.finish().await.map_err(refused)?;
        let id = self.registry.job_unit(&unit).and_then(|unit| unit.extra().job_id);
        tracing::info!(saved = name, hash, unit, job = id, "started a saved job");
        Ok(StartedJob { id, unit, hash: hash.to_owned() })
    }

    /// Packs the stream of a saved job.
    async fn pack_saved(
        &self,
        name: &str,
        job: SavedJob,
        variables: Map<String, Value>,
    ) -> Result<PackedStream, OperationRefusal> {
        let options = self.driver.options();
        let home = std::env::home_dir();
        let node = Some(self.saved.node_directory().to_owned());
        let own = [options.credentials.clone(), options.jobs.clone(), node, home];
        let guards = NodeGuards {
            guarded: own.into_iter().flatten().chain(["/etc".into()]).collect(),
            most_bytes: options.bounds.max_payload,
        };
        // The semaphore is never closed.
        let _turn = PACKING.acquire().await.map_err(|error| conflict(error.to_string()))?;
        let packed = spawn_blocking(move || {
            let ident = format!("{:032x}", rand::random::<u128>());
            let parts = job.parts(variables, guards).map_err(|error| error.to_string())?;
            // The daemon's own environment says nothing about a job.
            let job = PackedJob::collect(&parts, &ident, &|_| None).map_err(|error| error.to_string())?;
            let warnings = job.warnings.clone();
            let stream = job.stream().map_err(|error| format!("cannot pack the job: {error}"))?;
            Ok::<_, String>((stream, warnings))
        });
        let packed = packed.await.map_err(|error| conflict(error.to_string()))?;
        let (stream, warnings) = packed.map_err(|why| conflict(format!("{name}: {why}")))?;
        warnings.iter().for_each(|warning| tracing::warn!(saved = name, %warning, "packed a saved job"));
        Ok(stream)
    }
}

/// What the text of a saved job says.
pub(super) async fn parsed(loaded: &Arc<LoadedJob>) -> Result<SavedJob, OperationRefusal> {
    let loaded = loaded.clone();
    // The semaphore is never closed.
    let _turn = PARSING.acquire().await.map_err(|error| conflict(error.to_string()))?;
    let parsed = spawn_blocking(move || loaded.job()).await.map_err(|error| conflict(error.to_string()))?;
    parsed.map_err(|fault| conflict(fault.text))
}

/// The request with which this node submits a job to itself.
fn own_request(node: &str, header: &Header) -> SubmitRequest {
    SubmitRequest {
        node: node.to_owned(),
        work_type: CONTROLLER.to_owned(),
        params: [(HEADER.to_owned(), header.to_string())].into(),
        ..SubmitRequest::default()
    }
}

/// The next bytes of a stream; none at its end.
async fn read_piece(mut stream: PackedStream) -> std::io::Result<(PackedStream, Vec<u8>)> {
    let read = spawn_blocking(move || {
        let mut piece = Vec::with_capacity(PIECE);
        stream.by_ref().take(PIECE as u64).read_to_end(&mut piece)?;
        Ok((stream, piece))
    });
    read.await.map_err(std::io::Error::other)?
}

/// The first page of the rows, with the name of its last one if there are more.
pub(super) fn page<T: Serialize>(
    rows: impl Iterator<Item = T>,
    limit: Option<u32>,
    name: impl Fn(&T) -> &String,
) -> (Vec<T>, Option<String>) {
    let mut rows = rows.peekable();
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE) as usize;
    let (page, is_cut): (Vec<T>, bool) = fitting(rows.by_ref().take(limit), PAGE_BYTES);
    let is_more = is_cut || rows.peek().is_some();
    let next = page.last().filter(|_| is_more).map(|last| name(last).clone());
    (page, next)
}

fn no_such(name: &str) -> OperationRefusal {
    missing(format!("there is no saved job {name} on this control node"))
}

fn summary(name: &str, entry: &SavedEntry) -> SavedSummary {
    let fault = entry.fault.as_ref().map(ToString::to_string);
    let name = name.to_owned();
    let Some(loaded) = &entry.job else { return SavedSummary { name, fault, ..SavedSummary::default() } };
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    SavedSummary {
        name,
        description: text(&loaded.description),
        runs: text(&loaded.runs),
        source: text(&loaded.source),
        hash: Some(loaded.hash()),
        fault,
    }
}

impl From<&SavedVar> for VarReport {
    fn from(var: &SavedVar) -> Self {
        Self {
            kind: Lenient::Known(var.kind),
            description: var.description.clone(),
            default: var.default.clone(),
            choices: var.choices.clone(),
            pattern: var.pattern.clone(),
            secret: var.secret,
        }
    }
}
