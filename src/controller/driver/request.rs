//! Describes the unit of an attempt: its node, work type and parameters. `input` prepares what the unit reads.

use super::attempts::Attempts;
use super::world::ChildRequest;
use crate::controller::core::{Attempt, JobId, JobKind};
use crate::controller::header::Header;
use crate::controller::store::{Error, JobRecord};
use crate::rpc::OutputBound;
use crate::work::SYNC;
use crate::work::jobs::private_dir;
use crate::work::run_dir::{KEPT_PLACEHOLDER, PLACEHOLDER};

/// The unit of an attempt, or why there can be none.
pub(super) async fn request(
    on: &Attempts,
    detail: &JobRecord,
    header: &Header,
    attempt: &Attempt,
) -> Result<Result<ChildRequest, String>, Error> {
    let options = on.base.options();
    let (job, max_stdout) = (&detail.job, job_bound(on, detail.row.id, attempt, header));
    let Some(node) = attempt.node.clone() else {
        return on.pods.request(job.id, attempt, header, max_stdout).await;
    };
    let is_own = node == on.base.node;
    let offer = on.base.store.offer_of(node.clone()).await?.unwrap_or_default();
    let unit = attempt.unit.to_string();
    let is_sync = job.kind == JobKind::ProjectSync;
    let (work_type, directory) = match header.sync.as_ref().filter(|_| is_sync) {
        Some(sync) => (SYNC.to_owned(), on.syncs.directory(job.id, sync)),
        None => {
            // If possible, the node itself makes the directory, so that nobody else can make it first.
            let place = if header.cleanup { PLACEHOLDER } else { KEPT_PLACEHOLDER };
            (on.base.child_type(attempt).await?, format!("{place}/{}", private_dir(&unit)))
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
        // The last parameter says what the sync may do on this machine.
        params.push_str(&format!(" {}", on.syncs.confinement(job.id, sync)));
    }
    let tls = options.tls_client.clone().filter(|_| offer.tls && !is_own);
    let signed = offer.secure && !is_own;
    let run_dir = (!is_own).then(|| options.run_dir.display().to_string());
    let (ttl, far, pod) = (None, None, None);
    Ok(Ok(ChildRequest { unit, node, work_type, params, run_dir, signed, tls, ttl, max_stdout, far, pod }))
}

/// How much an attempt of a job may print: the job's limit, less what earlier attempts printed.
fn job_bound(on: &Attempts, id: JobId, attempt: &Attempt, header: &Header) -> OutputBound {
    let most = on.base.options().bounds.job_output;
    let (most, setting) = match header.output_limit {
        Some(asked) if asked < most => (asked, "output_limit of the job's header"),
        Some(_) | None => (most, "joboutput of work-controller"),
    };
    let printed = on.publisher.first_unit(id).map_or(0, |unit| {
        let extra = unit.extra();
        // A node that takes over a job may already have a part of this attempt's output.
        if extra.output_attempt == attempt.n.0 { extra.output_from } else { unit.output_size() }
    });
    OutputBound { bytes: most.saturating_sub(printed), setting: setting.into() }
}
