//! The verbs of `meshctl job`: most of them send one operation for each job and print its result.

use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::json;

use super::chosen::{Chosen, Filter};
use super::errors::ErrorFlags;
use super::explain::ExplainFlags;
use super::export::ExportFlags;
use super::flags::{Placing, RunFlags};
use super::follow::{JobNumber, OutputOf, ending, exit_of, final_job, has_ended};
use super::playbook::Playbook;
use super::report::{HOSTS, JOBS, described, state};
use super::run::attend;
use super::submit::submit;
use crate::cli::CliContext;
use crate::cli::completion::jobs;
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::{each, list, show};
use crate::cli::output::Interrupts;
use crate::cli::table::Layout;
use crate::cli::work::payload::SentPayload;
use crate::controller::header::Header;
use crate::rpc::SubmitEnd;
use crate::rpc::operation::{self, Answered, ById, EventFilter, JobFilter, LostAttempt, Question, Rerun};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{JobDetail, Jobs};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum JobVerb {
    /// Run a playbook or a module on a node that the controller chooses, and print its output
    Run(Box<RunFlags>),
    /// Submit the output of ansible-runner transmit, with or without a header line before it
    Submit(Box<SubmitFlags>),
    /// List jobs, newest first
    List(JobList),
    /// Show everything known about a job
    Show(One),
    /// List what a job did on its hosts, beginning with those that failed or were not reached
    Hosts(HostPageOptions),
    /// Print each failure of a job whole: host, task, the module's messages, and where they stand in the output
    Errors(ErrorFlags),
    /// Show why a job waits, which jobs are before it, and whether its node can be reached
    Explain(ExplainFlags),
    /// Print what a job's runner writes: lines of JSON, and its artifacts at the end
    Output(OutputFlags),
    /// Print a job's events, one JSON object per line
    Events(EventFlags),
    /// Print jobs that have ended, one JSON object per line, each once
    Export(ExportFlags),
    /// Cancel jobs: by their numbers, or all that match the flags and have not ended
    Cancel(Chosen),
    /// Run jobs again, each as a new job: by their numbers, or all that match the flags and have ended
    Rerun {
        #[command(flatten)]
        chosen: Chosen,
        /// Run only on the hosts that failed or were not reached
        #[arg(long)]
        failed_hosts: bool,
        /// Print what each new job prints, one after the other, and exit with their result; Ctrl-C cancels the job
        #[arg(long, short)]
        follow: bool,
    },
    /// Wait until jobs have ended; the exit code is that of the last one that did not succeed
    Wait(WaitFlags),
    /// Confirm that a lost attempt of a job is not running and never will, so that the job can run again
    ConfirmLost {
        #[command(flatten)]
        one: One,
        /// Number of the attempt, as explain and show print it
        #[arg(long, value_name = "N")]
        attempt: u32,
    },
    /// Delete jobs that have ended, with their output
    Delete(Several),
}

/// One job.
#[derive(Debug, Clone, Copy, Args)]
pub(in crate::cli) struct One {
    /// Number of the job; `last` is the newest one
    #[arg(add = jobs())]
    id: Which,
}

/// Which job is meant.
#[derive(Debug, Clone, Copy)]
enum Which {
    Number(JobNumber),
    Newest,
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "last" => Ok(Self::Newest),
            number => number.parse().map(Self::Number).map_err(|_| "a job is a number, or last"),
        }
    }
}

/// Which hosts of a job are listed.
#[derive(Debug, Args)]
pub(in crate::cli) struct HostPageOptions {
    #[command(flatten)]
    one: One,
    /// Skip this many
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// At most this many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    layout: Layout,
}

/// The numbers of jobs.
#[derive(Debug, Args)]
pub(in crate::cli) struct Several {
    /// Numbers of the jobs
    #[arg(required = true, value_name = "ID", add = jobs())]
    ids: Vec<JobNumber>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct SubmitFlags {
    /// File with the stream; - for standard input
    #[arg(default_value = "-")]
    file: String,
    /// The header as JSON, instead of a header line; the flags below replace its keys
    #[arg(long, value_parser = |text: &str| Header::parse(text.as_bytes()))]
    header: Option<Header>,
    #[command(flatten)]
    placing: Placing,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct WaitFlags {
    #[command(flatten)]
    jobs: Several,
    /// Print what their playbooks print meanwhile, one after the other
    #[arg(long)]
    output: bool,
}

/// Which jobs are listed.
#[derive(Debug, Args)]
pub(in crate::cli) struct JobList {
    #[command(flatten)]
    filter: Filter,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only jobs older than this one
    #[arg(long, value_name = "ID")]
    before: Option<JobNumber>,
    #[command(flatten)]
    layout: Layout,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct OutputFlags {
    #[command(flatten)]
    one: One,
    /// Follow until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Only of this attempt
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Print the playbook's output instead
    #[arg(long)]
    text: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct EventFlags {
    #[command(flatten)]
    one: One,
    /// Follow until the job has ended
    #[arg(long, short)]
    follow: bool,
    /// Only of this host
    #[arg(long)]
    host: Option<String>,
    /// Only failures, and hosts that were not reached
    #[arg(long)]
    failed: bool,
}

impl JobVerb {
    pub(in crate::cli) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::Run(flags) => flags.run(context).await,
            Self::Submit(flags) => flags.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Show(one) => {
                let width = context.output.width();
                let id = one.number(context).await?;
                show(context, operation::get_job(ById { id }), |job| {
                    described(job, width, &context.output.now())
                })
                .await
            }
            Self::Hosts(HostPageOptions { one, from, limit, layout }) => {
                let id = one.number(context).await?;
                let page = operation::HostPage { id, from, limit: Some(limit) };
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
            Self::Errors(flags) => flags.run(context).await,
            Self::Explain(flags) => flags.run(context).await,
            Self::Output(flags) => flags.run(context).await,
            Self::Events(flags) => flags.run(context).await,
            Self::Export(flags) => flags.run(context).await,
            Self::Cancel(chosen) => {
                let ids = chosen.ids(context, "Cancel", |state| !state.is_final()).await?;
                let said =
                    |id, one: &JobDetail| context.output.done(&format!("Job {id} {}", state(&one.job)));
                each(context, Several { ids }.each(operation::cancel_job), said).await
            }
            Self::Rerun { chosen, failed_hosts, follow } => {
                let ids = chosen.ids(context, "Run again", JobState::is_final).await?;
                let reruns = ids.into_iter().map(|id| (id, operation::rerun_job(Rerun { id, failed_hosts })));
                let note = |id, former| context.output.note(&format!("Job {id} runs job {former} again"));
                if !follow {
                    // Only the number goes to standard output, as with `job run --detach`.
                    let said = |former, new: &JobDetail| {
                        note(new.job.id, former);
                        context.output.line(&new.job.id.to_string())
                    };
                    return each(context, reruns, said).await;
                }
                let (mut interrupts, mut exit) = (Interrupts::new(), Exit::Success);
                for (former, rerun) in reruns {
                    let id = rerun.ask(&context.client).await?.report.job.id;
                    note(id, former);
                    exit = exit.then(attend(context, id, None, &mut interrupts).await?);
                }
                Ok(exit)
            }
            Self::Wait(flags) => flags.run(context).await,
            Self::ConfirmLost { one, attempt } => {
                let id = one.number(context).await?;
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
    /// Its number.
    pub(super) async fn number(self, context: &CliContext) -> Result<JobNumber, Failure> {
        match self.id {
            Which::Number(id) => Ok(id),
            Which::Newest => {
                let newest = JobFilter { limit: Some(1), brief: true, ..JobFilter::default() };
                let found = operation::list_jobs(newest).ask(&context.client).await?.report.jobs;
                found.first().map(|job| job.id).ok_or_else(|| Failure::new(Exit::Failed, "there is no job"))
            }
        }
    }
}

impl WaitFlags {
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let mut exit = Exit::Success;
        for id in self.jobs.ids {
            if self.output && !context.output.json {
                print_text(context, OutputOf::new(context, id, true)).await?;
            }
            let job = final_job(context, id).await?.report;
            match context.output.json {
                true => {
                    let JobDetail { job, output_lost, .. } = &job;
                    let said =
                        json!({"id": id, "state": job.state, "rc": job.rc, "output_lost": output_lost});
                    context.output.value_line(&said)?;
                }
                false => context.output.line(&ending(&job, &context.output.now()))?,
            }
            exit = exit.then(exit_of(&job));
        }
        Ok(exit)
    }
}

/// Prints what a job's playbook prints.
async fn print_text(context: &CliContext, mut output: OutputOf) -> Result<(), Failure> {
    let mut playbook = Playbook::new(context.output, None);
    while let Some(bytes) = output.next().await? {
        context.output.bytes(playbook.push(&bytes)?.as_bytes()).await?;
    }
    Ok(())
}

impl Several {
    /// The same question for each job.
    fn each<A>(self, question: fn(ById) -> Question<A>) -> impl Iterator<Item = (JobNumber, Question<A>)> {
        self.ids.into_iter().map(move |id| (id, question(ById { id })))
    }
}

impl JobList {
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let Self { filter, limit, before, layout } = self;
        let now = context.output.now();
        let page = async |before, limit| {
            operation::list_jobs(filter.page(before, limit, &now)).ask(&context.client).await
        };
        let Answered { report: Jobs { mut jobs, mut next }, mut json } = page(before, limit).await?;
        // A page may have fewer jobs than asked for, because its bytes are limited.
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
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let is_given = self.header.is_some();
        let header = self.placing.onto(self.header.unwrap_or_default());
        let header = (is_given || header != Header::default()).then(|| header.to_string());
        let payload = match self.file.as_str() {
            "-" => SentPayload::stdin(context.output),
            file => SentPayload::file(file).await?,
        };
        let (id, SubmitEnd { unit, result }) = submit(context, payload, header).await?;
        let text = || format!("Job {id}: {result}, unit {unit}");
        context.output.answer(&json!({"id": id, "unit": unit, "result": result}), text)
    }
}

impl OutputFlags {
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let id = self.one.number(context).await?;
        let mut output = OutputOf::new(context, id, self.follow).of_attempt(self.attempt);
        if self.text {
            print_text(context, output).await?;
            return Ok(Exit::Success);
        }
        let mut raw = context.output.foreign_bytes();
        while let Some(bytes) = output.next().await? {
            raw.write(&bytes).await?;
        }
        raw.finish().await?;
        Ok(Exit::Success)
    }
}

impl EventFlags {
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let id = self.one.number(context).await?;
        let (host, failed, follow) = (self.host, self.failed, self.follow);
        let events = operation::read_events(EventFilter { id, from: 0, host, failed, follow });
        let (_, mut connection) = events.begin(&context.client).await?;
        let mut raw = context.output.foreign_bytes();
        raw.copy("the events are", connection.reader()).await?;
        if follow && !has_ended(context, id).await? {
            return Err(Failure::new(Exit::Unreachable, "the events are cut off: the job goes on"));
        }
        raw.finish().await?;
        Ok(Exit::Success)
    }
}
