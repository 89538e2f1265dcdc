//! The unit of an attempt: which work type of which node, and with which parameters. What it reads is `input`'s.

use super::JobDriver;
use super::world::ChildRequest;
use crate::controller::core::{Attempt, ChildType, JobId, JobKind};
use crate::controller::header::Header;
use crate::controller::options::RUNNER_TYPE;
use crate::controller::store::{Error, JobDetail};
use crate::rpc::OutputBound;
use crate::work::SYNC;
use crate::work::jobs::private_dir;
use crate::work::run_dir::{KEPT_PLACEHOLDER, PLACEHOLDER};

impl JobDriver {
    /// The unit of an attempt, or why there can be none.
    pub(super) async fn request(
        &self,
        detail: &JobDetail,
        attempt: &Attempt,
    ) -> Result<Result<ChildRequest, String>, Error> {
        let options = self.options();
        let Some(node) = attempt.node.clone() else { return self.pod_request(detail, attempt).await };
        let is_own = node == self.node;
        let offer = self.store.offer_of(node.clone()).await?.unwrap_or_default();
        let (job, header) = (&detail.job, parsed(detail)?);
        let max_stdout = self.job_bound(job.id, attempt, &header);
        let unit = attempt.unit.to_string();
        let is_sync = job.kind == JobKind::ProjectSync;
        let (work_type, directory) = match header.sync.as_ref().filter(|_| is_sync) {
            Some(sync) => (SYNC.to_owned(), self.sync_directory(job.id, sync)),
            None => {
                // Made by the node itself where it can: nobody else can be there first.
                let place = if header.cleanup { PLACEHOLDER } else { KEPT_PLACEHOLDER };
                (self.child_type(attempt).await?, format!("{place}/{}", private_dir(&unit)))
            }
        };
        let mut params = format!("--private-data-dir={directory}");
        if header.cleanup {
            params.push_str(" --delete");
        }
        if let Some(seconds) = header.runner.as_ref().and_then(|runner| runner.keepalive) {
            params.push_str(&format!(" --keepalive-seconds {seconds}"));
        }
        if let Some(sync) = header.sync.as_ref().filter(|_| is_sync) {
            // The last one says what it may do on this machine.
            params.push_str(&format!(" {}", self.confinement(job.id, sync)));
        }
        let tls = options.tls_client.clone().filter(|_| offer.tls && !is_own);
        let signed = offer.secure && !is_own;
        let run_dir = (!is_own).then(|| options.run_dir.display().to_string());
        let (ttl, far, pod) = (None, None, None);
        Ok(Ok(ChildRequest {
            unit,
            node,
            work_type,
            params,
            run_dir,
            signed,
            tls,
            ttl,
            max_stdout,
            far,
            pod,
        }))
    }

    /// How much an attempt of a job may print: what earlier ones have left of what the job may.
    pub(super) fn job_bound(&self, id: JobId, attempt: &Attempt, header: &Header) -> OutputBound {
        let most = self.options().bounds.job_output;
        let (most, setting) = match header.output_limit {
            Some(asked) if asked < most => (asked, "output_limit of the job's header"),
            Some(_) | None => (most, "joboutput of work-controller"),
        };
        let printed = self.first_unit(id).map_or(0, |unit| {
            let extra = unit.extra();
            // A node that takes a job over may have a part of this attempt's already.
            if extra.output_attempt == attempt.n.0 { extra.output_from } else { unit.output_size() }
        });
        OutputBound { bytes: most.saturating_sub(printed), setting: setting.into() }
    }

    /// The work type of an attempt's unit.
    pub(in crate::controller) async fn child_type(&self, attempt: &Attempt) -> Result<String, Error> {
        Ok(match attempt.child {
            ChildType::Local => self.options().runner.name.clone(),
            ChildType::Runner => RUNNER_TYPE.to_owned(),
            ChildType::Container => self.pod_type(&attempt.group).await?.to_owned(),
        })
    }
}

/// The header of a job.
///
/// # Errors
/// No program of ours wrote it.
pub fn parsed(detail: &JobDetail) -> Result<Header, Error> {
    let id = detail.row.id;
    Header::parse(detail.header.as_bytes())
        .map_err(|error| Error::Corrupt(format!("header of job {id}: {error}")))
}
