//! The children of jobs as units of this node's registry.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use super::core::ChildEnd;
use super::driver::world::{ChildInput, ChildNews, ChildRequest, ChildStream, Children, Doing, Known};
use crate::rpc::UnitState;
use crate::rpc::request::{AdoptRequest, SubmitRequest};
use crate::work::{Caller, ChildWatch, Registry, ResultStream, WorkError};

/// Bytes of payload that are handed on at a time.
const CHUNK: usize = 128 * 1024;
/// The parameter of a command with arguments.
const PARAMS: &str = "params";

/// The units of this node.
#[derive(Debug, Clone)]
pub struct RegistryChildren(pub Registry);

impl RegistryChildren {
    async fn submit(&self, request: ChildRequest, input: ChildInput) -> Result<(), WorkError> {
        let ChildRequest { unit, node, work_type, params, signed, tls, ttl } = request;
        let request = SubmitRequest {
            node: node.to_string(),
            work_type,
            params: BTreeMap::from([(PARAMS.to_owned(), params)]),
            tls_client: tls,
            ttl: ttl.map(|ttl| format!("{}s", ttl.as_secs())),
            sign_work: signed,
            unit_id: Some(unit),
            ..SubmitRequest::default()
        };
        let mut submission = self.0.submit(request, Caller::local()).await?;
        let sent = async {
            if !input.head.is_empty() {
                submission.write(&input.head).await?;
            }
            let Some((path, from)) = input.file else { return Ok::<_, WorkError>(()) };
            let failed = |error| WorkError::Job(format!("its payload cannot be read: {error}"));
            let open = || -> std::io::Result<File> {
                let mut file = File::open(&path)?;
                file.seek(SeekFrom::Start(from))?;
                Ok(file)
            };
            let mut file = open().map_err(failed)?;
            loop {
                let read = tokio::task::spawn_blocking(move || {
                    let mut buffer = vec![0; CHUNK];
                    file.read(&mut buffer).map(|count| {
                        buffer.truncate(count);
                        (file, buffer)
                    })
                });
                let (rest, bytes) = read.await.map_err(std::io::Error::other).flatten().map_err(failed)?;
                if bytes.is_empty() {
                    return Ok(());
                }
                file = rest;
                submission.write(&bytes).await?;
            }
        };
        match sent.await {
            Ok(()) => submission.finish().await.map(drop),
            Err(error) => {
                submission.abort(error.to_string()).await;
                Err(error)
            }
        }
    }
}

impl Children for RegistryChildren {
    fn known(&self, unit: &str) -> Known {
        match self.0.lacks_payload(unit) {
            Ok(true) => Known::Unsent,
            Ok(false) => Known::Here,
            Err(_) => Known::Unknown,
        }
    }

    fn send(&self, request: ChildRequest, input: ChildInput) -> Doing<'_, Result<(), String>> {
        Box::pin(async move {
            let unit = request.unit.clone();
            match self.submit(request, input).await {
                Ok(()) => Ok(()),
                // A unit that was made and could not be started is followed: its Detail says why.
                Err(_) if self.known(&unit) == Known::Here => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn adopt(&self, request: ChildRequest) -> Doing<'_, Result<(), String>> {
        Box::pin(async move {
            let request = AdoptRequest {
                node: request.node.to_string(),
                unit: request.unit,
                tls_client: request.tls,
                sign_work: request.signed,
                signature: None,
            };
            self.0.adopt(request, Caller::local()).await.map(drop).map_err(|error| error.to_string())
        })
    }

    fn follow(&self, unit: String, from: u64) -> Doing<'_, Box<dyn ChildStream>> {
        Box::pin(async move {
            let watch = self.0.watch_child(&unit).ok();
            let results = self.0.results(&unit, from, &Caller::local()).await.ok();
            let stream = Followed { watch, results, is_accepted: false, unit };
            Box::new(stream) as Box<dyn ChildStream>
        })
    }

    fn cancel(&self, unit: String) -> Doing<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.0.cancel_child(&unit).await {
                tracing::debug!(unit, %error, "a child is not cancelled");
            }
        })
    }

    fn release(&self, unit: String) -> Doing<'_, bool> {
        Box::pin(async move {
            match self.0.release_child(&unit).await {
                // What is pending the registry goes on with, over restarts too.
                Ok(_) | Err(WorkError::UnknownUnit(_) | WorkError::Released { .. }) => true,
                Err(error) => {
                    tracing::debug!(unit, %error, "a child is not released yet");
                    false
                }
            }
        })
    }
}

struct Followed {
    unit: String,
    /// `None` once the unit is gone.
    watch: Option<ChildWatch>,
    /// `None` once all of it was delivered, or it cannot be read.
    results: Option<ResultStream>,
    is_accepted: bool,
}

impl Followed {
    fn ended(&mut self) -> ChildNews {
        let Some(watch) = &mut self.watch else {
            let detail = format!("unit {} is gone", self.unit);
            return ChildNews::Ended { end: ChildEnd::Released, detail };
        };
        let status = watch.now();
        let end = match status.state {
            UnitState::Succeeded => ChildEnd::Succeeded,
            UnitState::Canceled => ChildEnd::Canceled,
            UnitState::Pending | UnitState::Running | UnitState::Failed => ChildEnd::Failed,
        };
        ChildNews::Ended { end, detail: status.detail }
    }
}

impl ChildStream for Followed {
    fn next(&mut self) -> Doing<'_, ChildNews> {
        Box::pin(async move {
            loop {
                let (Some(watch), Some(results)) = (&mut self.watch, &mut self.results) else {
                    return self.ended();
                };
                let status = watch.now();
                if status.is_accepted && !status.state.is_final() && !self.is_accepted {
                    self.is_accepted = true;
                    return ChildNews::Accepted;
                }
                tokio::select! {
                    biased;
                    next = results.next() => match next {
                        Ok(Some(bytes)) => return ChildNews::Output(bytes),
                        Ok(None) => self.results = None,
                        Err(error) => {
                            tracing::warn!(unit = self.unit, %error, "the output of a child ends early");
                            self.results = None;
                        }
                    },
                    () = watch.changed() => {}
                }
            }
        })
    }
}
