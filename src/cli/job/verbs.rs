//! The verbs of `meshctl job`: most of them send one operation for each job and print its result.

use clap::{Args, Subcommand};
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::chosen::{Chosen, Filter};
use super::explain::ExplainFlags;
use super::flags::{Placing, RunFlags};
use super::follow::{JobId, OutputOf, ending, exit_of, final_job, has_ended};
use super::playbook::Playbook;
use super::report::{HOSTS, JOBS, described, state};
use super::submit::submit;
use crate::cli::Context;
use crate::cli::completion::jobs;
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::{each, list, show};
use crate::cli::table::Layout;
use crate::cli::work::payload::Payload;
use crate::controller::header::Header;
use crate::rpc::Submitted;
use crate::rpc::operation::{self, Answered, ById, EventFilter, LostAttempt, Question, Rerun};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{JobDetail, Jobs};

/// Bytes of events that are read at a time.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum JobVerb {
    /// Run a playbook or a module on a node that the controller chooses, and print what it does
    Run(Box<RunFlags>),
    /// Submit what ansible-runner transmit writes, with a header line before it or without
    Submit(Box<SubmitFlags>),
    /// List jobs, newest first
    List(JobList),
    /// Show all that is known of a job
    Show(One),
    /// List what a job did on its hosts, those that failed or were not reached first
    Hosts(HostPage),
    /// Say why a job waits, who is before it, and whether its node can be reached
    Explain(ExplainFlags),
    /// Print what a job's runner writes: lines of JSON, and its artifacts at the end
    Output(OutputFlags),
    /// Print a job's events, one JSON object a line
    Events(EventFlags),
    /// Cancel jobs: some by their numbers, or all that are so and have not ended
    Cancel(Chosen),
    /// Run jobs again, each as a new job: some by their numbers, or all that are so and have ended
    Rerun {
        #[command(flatten)]
        chosen: Chosen,
        /// Only on the hosts that failed or were not reached
        #[arg(long)]
        failed_hosts: bool,
    },
    /// Wait for the ends of jobs; the exit code is that of the last one that did not succeed
    Wait(Several),
    /// Say that a lost attempt of a job does not run and will not, so that the job can run again
    ConfirmLost {
        #[command(flatten)]
        one: One,
        /// Its number: explain and show name it
        #[arg(long, value_name = "N")]
        attempt: u32,
    },
    /// Delete jobs that have ended, with their output
    Delete(Several),
}

/// The number of a job.
#[derive(Debug, Clone, Copy, Args)]
pub(in crate::cli) struct One {
    /// Its number
    #[arg(add = jobs())]
    id: JobId,
}

/// Which hosts of a job are listed.
#[derive(Debug, Args)]
pub(in crate::cli) struct HostPage {
    #[command(flatten)]
    one: One,
    /// Begin behind that many
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// At most that many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    layout: Layout,
}

/// The numbers of jobs.
#[derive(Debug, Args)]
pub(in crate::cli) struct Several {
    /// Their numbers
    #[arg(required = true, value_name = "ID", add = jobs())]
    ids: Vec<JobId>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SubmitFlags {
    /// The stream; - is standard input
    #[arg(default_value = "-")]
    file: String,
    /// The header as JSON, instead of a header line; the flags below replace its keys
    #[arg(long, value_parser = |text: &str| Header::parse(text.as_bytes()))]
    header: Option<Header>,
    #[command(flatten)]
    placing: Placing,
}

/// Which jobs are listed.
#[derive(Debug, Args)]
pub(in crate::cli) struct JobList {
    #[command(flatten)]
    filter: Filter,
    /// At most that many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only older ones than this job
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
    #[command(flatten)]
    layout: Layout,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct OutputFlags {
    #[command(flatten)]
    one: One,
    /// Go on until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Of this attempt alone
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Print what the playbook printed instead
    #[arg(long)]
    text: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct EventFlags {
    #[command(flatten)]
    one: One,
    /// Go on until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Of this host alone
    #[arg(long)]
    host: Option<String>,
    /// Only failures, and hosts that were not reached
    #[arg(long)]
    failed: bool,
}

impl JobVerb {
    pub(in crate::cli) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        match self {
            Self::Run(flags) => flags.run(context).await,
            Self::Submit(flags) => flags.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Show(one) => {
                let width = context.output.width();
                show(context, operation::get_job(one.operation()), |job| described(job, width)).await
            }
            Self::Hosts(HostPage { one, from, limit, layout }) => {
                let page = operation::HostPage { id: one.id, from, limit: Some(limit) };
                list(
                    context,
                    operation::list_hosts(page),
                    "hosts",
                    |answer| answer.hosts.clone(),
                    HOSTS,
                    layout,
                )
                .await
            }
            Self::Explain(flags) => flags.run(context).await,
            Self::Output(flags) => flags.run(context).await,
            Self::Events(flags) => flags.run(context).await,
            Self::Cancel(chosen) => {
                let ids = chosen.ids(context, "Cancel", |state| !state.is_final()).await?;
                let said =
                    |id, one: &JobDetail| context.output.done(&format!("Job {id} {}", state(&one.job)));
                each(context, Several { ids }.each(operation::cancel_job), said).await
            }
            Self::Rerun { chosen, failed_hosts } => {
                let ids = chosen.ids(context, "Run again", JobState::is_final).await?;
                let rerun = |id| (id, operation::rerun_job(Rerun { id, failed_hosts }));
                // The number alone is the result, as with `job run --detach`.
                let said = |former, new: &JobDetail| {
                    let id = new.job.id;
                    context.output.note(&format!("Job {id} runs job {former} again"));
                    context.output.line(&id.to_string())
                };
                each(context, ids.into_iter().map(rerun), said).await
            }
            Self::Wait(some) => some.wait(context).await,
            Self::ConfirmLost { one, attempt } => {
                let id = one.id;
                let said = |id, one: &JobDetail| {
                    context.output.done(&format!("Job {id} {}: attempt {attempt} is over", state(&one.job)))
                };
                let confirm = operation::confirm_lost(LostAttempt { id, attempt });
                each(context, [(id, confirm)], said).await
            }
            Self::Delete(some) => {
                let said = |id, _: &_| context.output.done(&format!("Job {id} deleted"));
                each(context, some.each(operation::delete_job), said).await
            }
        }
    }
}

impl One {
    fn operation(self) -> ById {
        ById { id: self.id }
    }
}

impl Several {
    /// The same for each of them.
    fn each<A>(self, question: fn(ById) -> Question<A>) -> impl Iterator<Item = (JobId, Question<A>)> {
        self.ids.into_iter().map(move |id| (id, question(ById { id })))
    }

    async fn wait(self, context: &Context) -> Result<Exit, Failure> {
        let mut exit = Exit::Success;
        for id in self.ids {
            let job = final_job(context, id).await?.report;
            match context.output.json {
                true => {
                    let JobDetail { job, output_lost, .. } = &job;
                    let said =
                        json!({"id": id, "state": job.state, "rc": job.rc, "output_lost": output_lost});
                    context.output.value_line(&said)?;
                }
                false => context.output.line(&ending(&job))?,
            }
            exit = Some(exit_of(&job)).filter(|exit| *exit != Exit::Success).unwrap_or(exit);
        }
        Ok(exit)
    }
}

impl JobList {
    async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Self { filter, limit, before, layout } = self;
        let page =
            async |before, limit| operation::list_jobs(filter.page(before, limit)).ask(&context.client).await;
        let Answered { report: Jobs { mut jobs, mut next }, mut json } = page(before, limit).await?;
        // A page may end by its bytes.
        while let Some(before) = next
            && let left @ 1.. = limit.saturating_sub(jobs.len() as u32)
        {
            let mut more = page(Some(before), left).await?;
            jobs.append(&mut more.report.jobs);
            next = more.report.next;
            if let (Some(all), Some(more)) = (json["jobs"].as_array_mut(), more.json["jobs"].as_array_mut()) {
                all.append(more);
            }
            json["next"] = more.json["next"].take();
        }
        if context.output.json {
            context.output.value(&json)?;
            return Ok(Exit::Success);
        }
        context.output.list("jobs", &jobs, JOBS, layout)?;
        if let Some(next) = next {
            context.output.note(&format!("There are more: --before {next}, or a higher --limit"));
        }
        Ok(Exit::Success)
    }
}

impl SubmitFlags {
    async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let is_given = self.header.is_some();
        let header = self.placing.onto(self.header.unwrap_or_default());
        let header = (is_given || header != Header::default()).then(|| header.to_string());
        let payload = match self.file.as_str() {
            "-" => Payload::stdin(context.output),
            file => Payload::file(file).await?,
        };
        let (id, Submitted { unit, result }) = submit(context, payload, header).await?;
        let text = || format!("Job {id}: {result}, unit {unit}");
        context.output.answer(&json!({"id": id, "unit": unit, "result": result}), text)
    }
}

impl OutputFlags {
    async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut output = OutputOf::new(context, self.one.id, self.follow).of_attempt(self.attempt);
        let mut text = self.text.then(|| Playbook::new(context.output, None));
        let mut raw = context.output.foreign_bytes();
        while let Some(bytes) = output.next().await? {
            match &mut text {
                None => raw.write(&bytes).await?,
                Some(playbook) => context.output.bytes(playbook.push(&bytes)?.as_bytes()).await?,
            }
        }
        raw.finish().await?;
        Ok(Exit::Success)
    }
}

impl EventFlags {
    async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let (id, host, failed, follow) = (self.one.id, self.host, self.failed, self.follow);
        let events = operation::read_events(EventFilter { id, from: 0, host, failed, follow });
        let (_, mut connection) = events.begin(&context.client).await?;
        let (mut buffer, mut raw) = (vec![0; CHUNK], context.output.foreign_bytes());
        loop {
            let read = connection.reader().read(&mut buffer).await;
            let count = read.map_err(|error| {
                Failure::new(Exit::Unreachable, format!("the events are cut off: {error}"))
            })?;
            if count == 0 && follow && !has_ended(context, id).await? {
                return Err(Failure::new(Exit::Unreachable, "the events are cut off: the job goes on"));
            }
            if count == 0 {
                raw.finish().await?;
                return Ok(Exit::Success);
            }
            raw.write(&buffer[..count]).await?;
        }
    }
}
