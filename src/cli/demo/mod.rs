//! `meshctl demo`: starts a mesh of four nodes on this machine with a controller, spreads playbooks over them, loses
//! one node with its job, and leaves nothing behind.
//!
//! Owns the order of events. `mesh` owns the nodes. `story` owns what is typed (meshctl's own commands, run by a shell
//! as a user would type them) and what jobs do.

mod mesh;
mod story;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use self::mesh::{DemoMesh, NODES};
use super::exit::{Exit, Failure};
use super::output::{Output, interrupted};
use crate::rpc::operation::{self, InstanceFilter, JobFilter};
use crate::rpc::report::controller::JobReport;
use crate::rpc::report::{JobState, Lenient};

/// The state in which every job of the story should end.
const SUCCESSFUL: Lenient<JobState> = Lenient::Known(JobState::Successful);

/// How long a node may take to answer, or to begin a job.
const NODE_WITHIN: Duration = Duration::from_secs(30);
/// How long the controller may take to find its instances: a Go node advertises its work types only once a minute.
const DISCOVERY: Duration = Duration::from_secs(90);

#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Leave the mesh running, and print how to talk to it and how to stop it
    #[arg(long)]
    keep: bool,
    /// Serve the control node's page on loopback, print its address, and leave the mesh running until Ctrl-C
    #[arg(long)]
    web: bool,
    /// Another node program for all but the control node, started with --config FILE
    #[arg(long, hide = true, value_name = "PATH")]
    meshd: Option<PathBuf>,
}

impl Demo {
    pub(super) async fn run(self, output: Output) -> Result<Exit, Failure> {
        let mut mesh = DemoMesh::new(self.keep, self.web, self.meshd.clone())?;
        let shown = tokio::select! {
            shown = show(&mut mesh, output) => shown,
            failure = interrupted() => Err(failure),
        };
        if self.web && !self.keep && shown.is_ok() {
            say(output, &format!("{}\nThe mesh stays until Ctrl-C.", mesh.page()))?;
            let _asked_to_end = interrupted().await;
        }
        if self.keep && shown.is_ok() {
            say(output, &mesh.farewell())?;
        } else {
            mesh.stop().await;
            // After a broken pipe nobody reads this.
            let _ = say(output, "\nStopped the nodes and removed their directory.");
        }
        let jobs = shown?;
        if output.json {
            output.value(&json!({"jobs": jobs, "kept": self.keep, "mesh": mesh.describe()}))?;
        }
        let has_failed = jobs.is_empty() || jobs.iter().any(|job| job.state != SUCCESSFUL);
        Ok(if has_failed { Exit::Failed } else { Exit::Success })
    }
}

/// Tells the story; returns the jobs.
async fn show(mesh: &mut DemoMesh, output: Output) -> Result<Vec<JobReport>, Failure> {
    say(output, &format!("Starting four nodes in {} ...", mesh.directory().display()))?;
    mesh.write_files()?;
    let begun = Instant::now();
    for name in NODES {
        mesh.start(name).await?;
    }
    say(output, &format!("  all of them answer after {:.2} s", begun.elapsed().as_secs_f64()))?;
    let control = mesh.client("control");
    let list = operation::list_instances(InstanceFilter::default());
    let is_ready = async || {
        let answer = list.ask(&control).await;
        let all = answer.into_iter().flat_map(|answer| answer.report.instances).flatten();
        all.filter(|one| one.capacity > 0).count() == 3
    };
    mesh.until("the controller to find three instances", DISCOVERY, is_ready).await?;
    say(
        output,
        &format!(
            "  the controller has its instances after {:.2} s\n\n                     .--- e1\n  control ---- hop --\
             <\n                     '--- e2\n\n  links and jobs over mutual TLS, jobs signed: keys and certificates \
             made just now",
            begun.elapsed().as_secs_f64()
        ),
    )?;
    let runner =
        if mesh.has_ansible() { "ansible-runner" } else { "a stand-in, as there is no ansible-runner here" };
    say(output, &format!("  jobs are run by {runner}{}", mesh.page()))?;
    mesh.run_script(output, &story::first(), &[]).await?;

    let newest = operation::list_jobs(JobFilter { limit: Some(1), ..JobFilter::default() });
    let runs = async || {
        let newest = newest.ask(&control).await;
        newest.is_ok_and(|page| {
            page.report.jobs.iter().any(|job| job.state == Lenient::Known(JobState::Running))
        })
    };
    mesh.until("the longer job to run", NODE_WITHIN, runs).await?;
    let job = newest.ask(&control).await?.report.jobs.pop().unwrap_or_default();
    let lost = job.execution_node.unwrap_or_default();
    mesh.kill(&lost).await?;
    mesh.run_script(output, &story::then(), &[("LOST", lost), ("JOB", job.id.to_string())]).await?;

    let jobs = operation::list_jobs(JobFilter::default()).ask(&control).await?.report.jobs;
    let done = jobs.iter().filter(|job| job.state == SUCCESSFUL).count();
    say(
        output,
        &format!("\n{done} of {} jobs successful, {:.1} s", jobs.len(), begun.elapsed().as_secs_f64()),
    )?;
    Ok(jobs)
}

/// With `--json` the story goes to standard error, since standard output is for the summary.
fn say(output: Output, text: &str) -> Result<(), Failure> {
    if output.json {
        output.note(text);
        return Ok(());
    }
    output.line(text)
}
