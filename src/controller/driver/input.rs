//! What the child of a job reads: the runner's stream as the client sent it, but with its first line changed where
//! necessary, and with the job's project inserted after this line.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;
use tokio::sync::watch;

use super::attempts::Attempts;
use super::sync::Project;
use super::world::ChildInput;
use crate::controller::core::{Attempt, ChildType, Duty, Ending, JobKind};
use crate::controller::credentials::{CredentialName, Credentials, RegistryLogin};
use crate::controller::header::Header;
use crate::controller::projects::{Held, search_paths};
use crate::controller::refusal::LINE_LIMIT;
use crate::controller::store::{Error, JobRecord};
use crate::controller::stream::KwargsChange;
use crate::work::jobs::is_header;

/// The key of the kwargs that names an image.
const IMAGE: &str = "container_image";

/// What was prepared for an attempt that is to be sent.
pub(super) enum Prepared {
    /// What its unit reads, and the project, which is kept on disk until the unit has been sent.
    Ready(ChildInput, Option<Held>),
    /// It cannot be sent: the attempt's ending, and the job's explanation.
    Impossible(Ending, String),
    /// It must not be sent any more.
    Unwanted,
}

impl Prepared {
    fn error(why: String) -> Self {
        Self::Impossible(Ending::Error, why)
    }
}

/// Prepares what the child of a job reads, which may include a sync of its project.
pub(super) async fn input(
    on: &Attempts,
    detail: &JobRecord,
    header: &Header,
    attempt: &Attempt,
    duty: &mut watch::Receiver<Duty>,
) -> Result<Prepared, Error> {
    let job = &detail.job;
    if job.kind == JobKind::ProjectSync {
        return Ok(match on.syncs.input(job.id, header).await {
            Ok(stream) => Prepared::Ready(ChildInput { head: stream, files: Vec::new() }, None),
            Err(why) => Prepared::error(why),
        });
    }
    let Some(unit) = on.publisher.first_unit(job.id) else {
        return Ok(Prepared::error(
            "its payload is gone: its unit was released by force, or shows an end that the store has lost"
                .to_owned(),
        ));
    };
    let tree = match &header.sync {
        None => None,
        Some(sync) => match on.syncs.project(job.id, attempt, sync, duty).await? {
            Project::There(tree) => Some(tree),
            Project::Missing(why) => {
                return Ok(Prepared::Impossible(Ending::Failed, why));
            }
            Project::Unwanted => return Ok(Prepared::Unwanted),
        },
    };
    let mut wanted = Wanted {
        credentials: Credentials::new(on.base.options().credentials.clone()),
        in_pod: attempt.child == ChildType::Container,
        limit: detail.row.terms.limit.clone(),
        header: header.clone(),
    };
    let (path, project) = (unit.payload(), tree.as_ref().map(|tree| tree.path().to_owned()));
    let read = tokio::task::spawn_blocking(move || wanted.read(&path, project.as_deref())).await;
    Ok(match read.unwrap_or_else(|_| Err("its payload could not be read".to_owned())) {
        Ok(input) => Prepared::Ready(input, tree),
        Err(why) => Prepared::error(why),
    })
}

/// How to change a payload.
struct Wanted {
    header: Header,
    credentials: Credentials,
    in_pod: bool,
    /// The only hosts to run on; empty for all.
    limit: Vec<String>,
}

impl Wanted {
    /// Finds the runner's stream in a payload, rewrites its first line if necessary, and inserts the project after it.
    fn read(&mut self, path: &Path, project: Option<&Path>) -> Result<ChildInput, String> {
        let broken = |error: std::io::Error| format!("its payload cannot be read: {error}");
        let mut file = BufReader::new(std::fs::File::open(path).map_err(broken)?);
        let mut line = |at: &mut u64| -> Result<Vec<u8>, String> {
            let mut line = Vec::new();
            let limit = LINE_LIMIT as u64 + 1;
            *at += (&mut file).take(limit).read_until(b'\n', &mut line).map_err(broken)? as u64;
            Ok(line)
        };
        let mut from = 0;
        let first = line(&mut from)?;
        let is_header = is_header(&first);
        let kwargs_at = if is_header { from } else { 0 };
        let registry = self.header.runner.as_ref().and_then(|runner| runner.registry.clone());
        let variables = project.map(|_| search_paths());
        let limit = Some(self.limit.as_slice()).filter(|hosts| !hosts.is_empty());
        let change = KwargsChange { variables, limit, in_pod: self.in_pod, ..KwargsChange::of(&self.header) };
        if change.is_none() && registry.is_none() {
            return Ok(ChildInput { head: Vec::new(), files: vec![(path.to_owned(), kwargs_at)] });
        }
        let kwargs = if is_header { line(&mut from)? } else { first };
        // A pod's stream needs no login, because the pod's image is pulled before anything runs in the pod.
        let login = match registry.filter(|_| !self.in_pod) {
            Some(name) => Some(self.login(&name, &kwargs)?),
            None => None,
        };
        let change = KwargsChange { registry: login.as_ref(), ..change };
        let head = change.apply(&kwargs).map_err(|error| error.to_string())?;
        let project = project.map(|project| (project.to_owned(), 0));
        let files = project.into_iter().chain([(path.to_owned(), from)]).collect();
        Ok(ChildInput { head, files })
    }

    /// The login for the image that the header names, or else for the image that the stream names.
    fn login(&self, name: &CredentialName, kwargs: &[u8]) -> Result<RegistryLogin, String> {
        let stream = || {
            let line: Value = serde_json::from_slice(kwargs).ok()?;
            Some(line.get("kwargs")?.get(IMAGE)?.as_str()?.to_owned())
        };
        let image = self.header.runner.as_ref().and_then(|runner| runner.image.clone()).or_else(stream);
        let image = image
            .ok_or_else(|| format!("runner.registry: {name} is for an image, but the job names none"))?;
        self.credentials.registry(name, &image).map_err(|error| error.to_string())
    }
}
