//! A submission from its first byte until it is a job: checks whether its caller may ask for this, and then stores the
//! job or lets it wait for the store. It knows nothing of placement.

use super::door::Door;
use super::{WAITING, enter, enter_later, follow_in_any_case, submission};
use crate::confine::Support;
use crate::controller::credentials::{CredentialError, Credentials};
use crate::controller::header::{Header, Purpose};
use crate::controller::options::ControllerOptions;
use crate::controller::saved::RESERVED;
use crate::controller::store::{Error, Submitted};
use crate::controller::stream;
use crate::rpc::UnitState;
use crate::work::jobs::{Act, JobIntake, JobUnit, ShownJob};

pub(super) const NEEDS_FENCE: &str = "the header's sync.requirements needs all rights on this control node, because \
                                      it cannot keep what they install from its files: leave them out \
                                      (requirements: false)";

/// A submission whose payload is arriving.
#[derive(Debug)]
pub(super) struct Intake {
    door: Door,
    stream: stream::Submission,
    is_admin: bool,
    /// The controller makes it of its own.
    is_own: bool,
}

impl Intake {
    pub(super) fn new(door: Door, stream: stream::Submission, is_admin: bool, is_own: bool) -> Self {
        Self { door, stream, is_admin, is_own }
    }
}

impl JobIntake for Intake {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.push(bytes).map_err(|error| error.to_string())?;
        let (is_admin, support) = (self.is_admin, self.door.support());
        let Some(header) = self.stream.header() else { return Ok(()) };
        let is_reserved = |name: &String| name.starts_with(RESERVED);
        let (label, key) =
            (header.labels.keys().any(is_reserved), header.key.as_ref().is_some_and(is_reserved));
        if !self.is_own && (label || key) {
            let what = if label { "labels: names" } else { "key: keys" };
            return Err(format!("header: {what} that begin with {RESERVED} are the controller's own"));
        }
        check(header, is_admin, support)
    }

    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>> {
        Box::pin(async move {
            let Self { door, stream, is_admin, is_own: _ } = *self;
            let accepted = stream.finish().map_err(|error| error.to_string())?;
            permit(&door.options(), &accepted.header, is_admin, door.support()).await?;
            let stream::WholeSubmission { header: wanted, asked, unjudged, .. } = accepted;
            if let Some(zip) = unjudged {
                judge(zip, unit.payload()).await?;
            }
            let (state, detail, extra) = (UnitState::Pending, WAITING.to_owned(), unit.extra());
            let launched_by = extra.launched_by.clone();
            let mut report = ShownJob { state, detail, extra };
            let Some(unit) = door.keep(unit, &report).await? else { return Ok(false) };
            let driver = door.driver()?;
            let mut submission = submission(&driver, &unit, &wanted, &asked, &launched_by);
            submission.is_admin = is_admin;
            let entering = driver.entering.clone().read_owned().await;
            match enter(&driver, &submission).await {
                Ok(job) => {
                    report.extra.job_id = Some(job.id().0);
                    report.detail = "pending".to_owned();
                    match job {
                        Submitted::New(_) => unit.report(report).await,
                        // After a restart, only the number tells which job this unit follows.
                        Submitted::Known(_) => unit.report_durably(report).await,
                    }
                    let followed = follow_in_any_case(&driver, entering, job, unit).await;
                    followed.map(|()| true).map_err(|error| error.to_string())
                }
                Err(Error::Away(_)) => {
                    drop(entering);
                    unit.report(report).await;
                    tokio::spawn(async move {
                        if let Err(error) = enter_later(&driver, submission, unit.clone()).await {
                            tracing::warn!(%error, "cannot make a job of a submission that waited for the store");
                            unit.fail(&error.to_string()).await;
                        }
                    });
                    Ok(false)
                }
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

/// Whether the zip of a stored payload may accompany a project from elsewhere.
async fn judge(zip: stream::StoredZip, payload: std::path::PathBuf) -> Result<(), String> {
    let judged = tokio::task::spawn_blocking(move || -> Result<(), String> {
        let mut payload = std::fs::File::open(payload).map_err(|error| error.to_string())?;
        zip.judge(&mut payload).map_err(|fault| fault.to_string())
    });
    judged.await.map_err(|error| error.to_string())?
}

/// Checks that a caller may run what a header asks for, with the credentials that the header names.
pub(in crate::controller) async fn permit(
    options: &ControllerOptions,
    header: &Header,
    is_admin: bool,
    support: Support,
) -> Result<(), String> {
    check(header, is_admin, support)?;
    check_credentials(options, header, is_admin).await
}

/// Checks that the caller may ask for this, apart from the credentials.
fn check(header: &Header, is_admin: bool, support: Support) -> Result<(), String> {
    let has_requirements = header.sync.as_ref().is_some_and(|sync| sync.requirements);
    if has_requirements && !is_admin && support == Support::SocketsOnly {
        return Err(NEEDS_FENCE.to_owned());
    }
    if let Some(why) = header.needs_admin().filter(|_| !is_admin) {
        return Err(why.to_owned());
    }
    Ok(())
}

/// Checks that the credentials of a header exist, fit their use, and are for this caller. Their use reads them again.
async fn check_credentials(
    options: &ControllerOptions,
    header: &Header,
    is_admin: bool,
) -> Result<(), String> {
    if header.credentials().is_empty() {
        return Ok(());
    }
    let (credentials, header) = (Credentials::new(options.credentials.clone()), header.clone());
    let checked = tokio::task::spawn_blocking(move || {
        for (name, purpose) in header.credentials() {
            if !is_admin {
                credentials.check_mesh(name)?;
            }
            match purpose {
                Purpose::Registry { image: Some(image) } => drop(credentials.registry(name, image)?),
                Purpose::Registry { image: None } => credentials.check_registry(name)?,
                Purpose::Repository(url) => drop(credentials.repository(name, url)?),
            }
        }
        Ok::<_, CredentialError>(())
    });
    let checked = checked.await.map_err(|error| error.to_string())?;
    checked.map_err(|error| format!("header: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_fence_requirements_need_all_rights() {
        let header = |requirements: bool| {
            let sync = json!({"url": "https://git.example/a", "requirements": requirements});
            Header::parse(json!({"controller": 1, "sync": sync}).to_string().as_bytes()).unwrap()
        };
        for (requirements, is_admin, support, expected) in [
            (true, false, Support::SocketsOnly, false),
            (true, true, Support::SocketsOnly, true),
            (false, false, Support::SocketsOnly, true),
            (true, false, Support::Files, true),
        ] {
            let checked = check(&header(requirements), is_admin, support);
            assert_eq!(checked.is_ok(), expected, "{requirements} {is_admin} {support:?}");
        }
    }
}
