//! The verbs of `meshctl job`: most of them send one operation for each job and print its result.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;

use super::flags::{Placing, RunFlags, label};
use super::follow::{JobId, OutputOf, ending, exit_of, final_job, has_ended};
use super::playbook::Playbook;
use super::submit::submit;
use crate::cli::Context;
use crate::cli::completion::{groups, instances, jobs};
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::{Columns, describe, given, is_for_people, print_as, print_each, rows};
use crate::cli::table;
use crate::cli::work::payload::Payload;
use crate::rpc::operation::{self, ById, EventFilter, JobFilter, Question, Rerun};
use crate::rpc::report::controller::{Explained, HostReport, JobDetail, JobReport};
use crate::rpc::report::{JobKind, JobState};

const COLUMNS: Columns<JobReport> = &[
    ("ID", |one| one.id.to_string()),
    ("NAME", |one| one.name.clone()),
    ("KIND", |one| one.kind.to_string()),
    ("STATE", |one| one.state.to_string()),
    ("GROUP", |one| given(&one.instance_group)),
    ("NODE", |one| given(&one.execution_node)),
    ("IMPACT", |one| one.impact.to_string()),
    ("CREATED", |one| one.created.clone()),
    ("EXPLANATION", |one| one.explanation.clone()),
];
const HOSTS: Columns<HostReport> = &[
    ("HOST", |one| one.host.clone()),
    ("OK", |one| one.stats.ok.to_string()),
    ("CHANGED", |one| one.stats.changed.to_string()),
    ("UNREACHABLE", |one| one.stats.dark.to_string()),
    ("FAILED", |one| one.stats.failures.to_string()),
    ("SKIPPED", |one| one.stats.skipped.to_string()),
    ("RESCUED", |one| one.stats.rescued.to_string()),
    ("IGNORED", |one| one.stats.ignored.to_string()),
];
/// Bytes of events that are read at a time.
const CHUNK: usize = 64 << 10;

/// Verbs of `meshctl job`.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum JobVerb {
    /// Run a playbook or a module on a node that the controller chooses, and print what it does
    Run(Box<RunFlags>),
    /// Submit what ansible-runner transmit writes, with a header line before it or without
    Submit(Box<SubmitFlags>),
    /// List jobs, newest first: a table on a terminal, else JSON
    List(Filter),
    /// Show all that is known of a job
    Show(One),
    /// List what a job did on its hosts, those that failed or were not reached first
    Hosts(HostPage),
    /// Say why a job waits
    Explain(One),
    /// Print what a job's runner writes: lines of JSON, and its artifacts at the end
    Output(OutputFlags),
    /// Print a job's events, one JSON object a line
    Events(EventFlags),
    /// Cancel jobs
    Cancel(Several),
    /// Run jobs again, each as a new job
    Rerun {
        #[command(flatten)]
        some: Several,
        /// Only on the hosts that failed or were not reached
        #[arg(long)]
        failed_hosts: bool,
    },
    /// Wait for the ends of jobs; the exit code is that of the last one that did not succeed
    Wait(Several),
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
}

/// The numbers of jobs.
#[derive(Debug, Args)]
pub(in crate::cli) struct Several {
    /// Their numbers
    #[arg(required = true, value_name = "ID", add = jobs())]
    ids: Vec<JobId>,
}

/// Arguments of `meshctl job submit`.
#[derive(Debug, Args)]
pub(in crate::cli) struct SubmitFlags {
    /// The stream [default: standard input]
    #[arg(default_value = "-")]
    file: String,
    /// The header as JSON, instead of a header line; the flags below replace its keys
    #[arg(long, value_parser = object)]
    header: Option<HeaderObject>,
    #[command(flatten)]
    placing: Placing,
}

/// A header as typed.
type HeaderObject = Map<String, Value>;

/// Which jobs are listed.
#[derive(Debug, Args)]
pub(in crate::cli) struct Filter {
    /// Only those in this state
    #[arg(long, value_parser = job_state)]
    state: Vec<JobState>,
    /// Only those of this kind
    #[arg(long, value_parser = job_kind)]
    kind: Vec<JobKind>,
    /// Only those whose name begins like this
    #[arg(long)]
    name: Option<String>,
    /// Only those that ran in this group
    #[arg(long, add = groups())]
    group: Option<String>,
    /// Only those that ran on this node
    #[arg(long, add = instances())]
    node: Option<String>,
    /// Only those with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Only those created at this time or later, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Only those created at this time or earlier
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// At most that many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only older ones than this job
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
}

/// Arguments of `meshctl job output`.
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

/// Arguments of `meshctl job events`.
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
            Self::List(filter) => {
                let list = operation::list_jobs(filter.operation());
                print_as(context, list, |answer| rows("jobs", &answer.report.jobs, COLUMNS)).await
            }
            Self::Show(one) => {
                print_as(context, operation::get_job(one.operation()), |job| {
                    described(&job.report, &job.json)
                })
                .await
            }
            Self::Hosts(HostPage { one, from, limit }) => {
                let page = operation::HostPage { id: one.id, from, limit: Some(limit) };
                let hosts = operation::list_hosts(page);
                print_as(context, hosts, |answer| rows("hosts", &answer.report.hosts, HOSTS)).await
            }
            Self::Explain(one) => {
                let explain = operation::explain_job(one.operation());
                print_as(context, explain, |answer| explanation(&answer.report)).await
            }
            Self::Output(flags) => flags.run(context).await,
            Self::Events(flags) => flags.run(context).await,
            Self::Cancel(some) => print_each(context, some.each(operation::cancel_job)).await,
            Self::Rerun { some, failed_hosts } => {
                let rerun = |id| operation::rerun_job(Rerun { id, failed_hosts });
                print_each(context, some.ids.into_iter().map(rerun)).await
            }
            Self::Wait(some) => some.wait(context).await,
            Self::Delete(some) => print_each(context, some.each(operation::delete_job)).await,
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
    fn each<A>(self, question: fn(ById) -> Question<A>) -> impl Iterator<Item = Question<A>> {
        self.ids.into_iter().map(move |id| question(ById { id }))
    }

    async fn wait(self, context: &Context) -> Result<Exit, Failure> {
        let mut exit = Exit::Success;
        for id in self.ids {
            let job = final_job(context, id).await?.report.job;
            if is_for_people(context) {
                context.output.line(&ending(&job))?;
            } else {
                context.output.value_line(&json!({"id": id, "state": job.state, "rc": job.rc}))?;
            }
            exit = Some(exit_of(&job)).filter(|exit| *exit != Exit::Success).unwrap_or(exit);
        }
        Ok(exit)
    }
}

impl Filter {
    fn operation(self) -> JobFilter {
        let Self { state, kind, name, group, node, label, since, until, limit, before } = self;
        let (label, limit) = (label.into_iter().collect(), Some(limit));
        JobFilter { state, kind, name, group, node, label, since, until, before, limit }
    }
}

impl SubmitFlags {
    async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut header = self.header;
        if let Value::Object(flags) = self.placing.header(false, None)
            && flags.len() > 1
        {
            header.get_or_insert_default().extend(flags);
        }
        let payload = match self.file.as_str() {
            "-" => Payload::stdin(context.output),
            file => Payload::file(file).await?,
        };
        let (id, submitted) =
            submit(context, payload, header.map(|header| json!(header).to_string())).await?;
        if context.output.json {
            let (unit, result) = (submitted.unit, submitted.result);
            context.output.value(&json!({"id": id, "unit": unit, "result": result}))?;
        } else {
            context.output.line(&format!("Job {id}: {}, unit {}", submitted.result, submitted.unit))?;
        }
        Ok(Exit::Success)
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

/// All that is known of a job, for people: the counters of its hosts are a table, which may be the beginning of one.
fn described(detail: &JobDetail, all: &Value) -> String {
    let mut shown = all.clone();
    if let Value::Object(fields) = &mut shown {
        fields.retain(|key, _| !key.starts_with("host_"));
    }
    let hosts =
        detail.host_stats.iter().map(|(host, stats)| HostReport { stats: *stats, host: host.clone() });
    let hosts: Vec<_> = hosts.collect();
    let table = Some(&hosts).filter(|hosts| !hosts.is_empty()).map(|hosts| rows("hosts", hosts, HOSTS));
    let table = table.map(|table| format!("\n\nhosts:\n{table}")).unwrap_or_default();
    let more = more_hosts(detail).map(|more| format!("\n{more}")).unwrap_or_default();
    format!("{}{table}{more}", describe(&shown))
}

/// That a job has more hosts than the ones which are shown with it, and how to see them.
pub(super) fn more_hosts(detail: &JobDetail) -> Option<String> {
    let (counts, id) = (detail.host_counts.as_ref()?, detail.job.id);
    let shown = detail.host_stats.len() as u64;
    let (more, kept) = (counts.hosts.saturating_sub(shown), counts.kept.saturating_sub(shown));
    let list = match kept {
        0 => "none of them is kept".to_owned(),
        _ if kept < more => format!("{kept} of them are kept: meshctl job hosts {id} --from {shown}"),
        _ => format!("meshctl job hosts {id} --from {shown}"),
    };
    let (failed, unreachable) = (counts.failed, counts.unreachable);
    (more > 0)
        .then(|| format!("and {more} more hosts ({failed} failed, {unreachable} unreachable in all): {list}"))
}

/// Why a job waits, for people: the sum, what holds it up, and each instance that it could run on.
fn explanation(explained: &Explained) -> String {
    let Explained { id, state, summary, checks, groups } = explained;
    let mut lines = vec![format!("Job {id} is {state}: {summary}")];
    let failed = checks.iter().filter(|check| !check.ok);
    lines.extend(failed.map(|check| format!("  {}: {}", check.check, check.detail)));
    let fits = |ok: bool, why: &Option<String>| if ok { "fits".to_owned() } else { given(why) };
    let mut rows = Vec::new();
    for group in groups {
        let (none, why) = (String::new(), fits(group.ok, &group.why));
        rows.push([group.name.clone(), none.clone(), why, none.clone(), none]);
        rows.extend(group.instances.iter().map(|one| {
            let (needs, remaining) = (one.needs.to_string(), one.remaining.to_string());
            [group.name.clone(), one.name.clone(), fits(one.ok, &one.why), needs, remaining]
        }));
    }
    if !rows.is_empty() {
        lines.push(table::render(["GROUP", "INSTANCE", "WHY", "NEEDS", "REMAINING"], rows));
    }
    lines.join("\n")
}

fn job_state(name: &str) -> Result<JobState, String> {
    named(&JobState::ALL, JobState::name, name)
}

fn job_kind(name: &str) -> Result<JobKind, String> {
    named(&JobKind::ALL, JobKind::name, name)
}

fn named<T: Copy>(all: &[T], name_of: fn(T) -> &'static str, name: &str) -> Result<T, String> {
    let names = || all.iter().map(|one| name_of(*one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|one| name_of(*one) == name).ok_or_else(|| format!("it is one of {}", names()))
}

fn object(text: &str) -> Result<HeaderObject, String> {
    serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report;

    #[test]
    fn a_job_with_many_hosts_says_how_many_more_there_are() {
        let counts = json!({"ok": 1, "changed": 0, "dark": 0, "failures": 1, "skipped": 0, "rescued": 0, "ignored": 0});
        let shown = |job: Value| described(&report::read(&job).unwrap(), &job);
        let of = |hosts: u64, kept: u64| {
            let all = json!({"hosts": hosts, "failed": 1, "unreachable": 0, "kept": kept});
            shown(json!({"id": 7, "state": "failed", "host_stats": {"web": counts}, "host_counts": all}))
        };
        let one = of(1, 1);
        assert!(one.starts_with("id     7\nstate  failed\n\nhosts:\nHOST"), "{one}");
        assert!(one.ends_with("\nweb   1   0        0            1       0        0        0"), "{one}");
        let more = "\nand 4 more hosts (1 failed, 0 unreachable in all): meshctl job hosts 7 --from 1";
        assert!(of(5, 5).ends_with(more), "{}", of(5, 5));
        assert!(of(5, 3).ends_with("2 of them are kept: meshctl job hosts 7 --from 1"), "{}", of(5, 3));
        assert_eq!(shown(json!({"id": 7, "host_stats": {}, "host_counts": null})), "id  7");
    }

    #[test]
    fn an_explanation_names_what_holds_a_job_up() {
        let explained = json!({"id": 42, "state": "pending", "summary": "waiting for capacity in east",
            "checks": [{"check": "dependencies", "ok": true, "detail": ""},
                {"check": "paused", "ok": false, "detail": "resume it"}],
            "groups": [{"name": "east", "level": "template", "ok": false, "why": "capacity", "instances":
                [{"name": "e1", "ok": false, "why": "capacity", "needs": 21, "remaining": 9}]}]});
        let expected = "\
Job 42 is pending: waiting for capacity in east
  paused: resume it
GROUP  INSTANCE  WHY       NEEDS  REMAINING
east             capacity
east   e1        capacity  21     9";
        assert_eq!(explanation(&report::read(&explained).unwrap()), expected);
    }
}
