//! `meshctl demo`: a mesh of three nodes on this machine, one real job through it, and nothing left behind.
//! Owns the order of events; the nodes are `mesh`'s, the job is `job`'s.

mod job;
mod mesh;
mod trust;

use std::{path::PathBuf, pin::pin, time::Instant};

use clap::Args;
use serde_json::{Value, json};

use self::{job::Job, mesh::Mesh};
use super::{
    exit::{Exit, Failure},
    output::{Output, interrupted},
};
use crate::control::client::{Command, UnitReport, UnitState};

/// Arguments of `meshctl demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Leave the mesh running, and say how to talk to it and how to stop it
    #[arg(long)]
    keep: bool,
    /// Another node program, started with --config FILE
    #[arg(long, hide = true, value_name = "PATH")]
    meshd: Option<PathBuf>,
}

impl Demo {
    pub(super) async fn run(self, output: Output) -> Result<Exit, Failure> {
        let mut mesh = Mesh::prepare(self.meshd, self.keep)?;
        let shown = {
            let mut show = pin!(show(&mut mesh, output));
            let mut stop = pin!(interrupted());
            tokio::select! {
                shown = &mut show => shown,
                failure = &mut stop => Err(failure),
            }
        };
        if self.keep && shown.is_ok() {
            say(output, &mesh.farewell())?;
        } else {
            mesh.stop().await;
            // After a broken pipe nobody is there to be told.
            let _ = say(output, "Stopped the three nodes and removed their directory.");
        }
        let (report, unit) = shown?;
        if output.json {
            let state = report.state.name();
            output.value(
                &json!({"unitid": unit, "state": state, "kept": self.keep, "mesh": mesh.describe()}),
            )?;
        }
        Ok(if report.state == UnitState::Succeeded { Exit::Success } else { Exit::Failed })
    }
}

/// With `--json` the story goes to standard error, since standard output is for the summary.
fn say(output: Output, text: &str) -> Result<(), Failure> {
    if output.json {
        output.note(text);
        return Ok(());
    }
    output.line(text)
}

async fn show(mesh: &mut Mesh, output: Output) -> Result<(UnitReport, String), Failure> {
    say(output, &format!("Starting three nodes in {} ...", mesh.dir().display()))?;
    let begun = Instant::now();
    mesh.start().await?;
    say(output, &format!("  all three answer after {:.2} s", begun.elapsed().as_secs_f64()))?;
    mesh.wait_for_route().await?;
    say(
        output,
        &format!("  control has a route to execution after {:.2} s\n", begun.elapsed().as_secs_f64()),
    )?;
    topology(mesh, output).await?;

    say(output, "\n  links and jobs over mutual TLS, jobs signed: keys and certificates made just now")?;
    let job = Job::choose(mesh.dir())?;
    say(output, &format!("\nSubmitting {} to execution, through control and hop ...", job.title()))?;
    let begun = Instant::now();
    let (report, unit) = job.run(mesh.control(), output).await?;
    let seconds = begun.elapsed().as_secs_f64();
    say(output, &format!("\nUnit {unit}: {} after {seconds:.2} s ({})", report.state.name(), report.detail))?;
    Ok((report, unit))
}

async fn topology(mesh: &Mesh, output: Output) -> Result<(), Failure> {
    say(output, "  control ---- hop ---- execution\n")?;
    let command = json!({"command": "traceroute", "target": "execution"});
    let answer = mesh.control().command(&Command::json(&command)).await?;
    for (number, hop) in super::traceroute::hops(&answer)? {
        let text = |key: &str| hop.get(key).and_then(Value::as_str).unwrap_or("?");
        say(output, &format!("  {number}: {:<10} {}", text("From"), text("TimeStr")))?;
    }
    Ok(())
}
