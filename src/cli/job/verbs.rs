//! The verbs of `meshctl job`: most of them send one operation for each job and print its result.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;

use super::flags::{Placing, RunFlags, label};
use super::follow::{JobId, OutputOf, ending, exit_of, final_job, has_ended};
use super::playbook::Playbook;
use super::submit::submit;
use crate::cli::Context;
use crate::cli::completion::{groups, instances, jobs};
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::{Columns, Operation, describe, is_for_people, print, print_each, rows};
use crate::cli::table;
use crate::cli::work::payload::Payload;

const COLUMNS: Columns = (
    "jobs",
    &[
        ("ID", "id"),
        ("NAME", "name"),
        ("KIND", "kind"),
        ("STATE", "state"),
        ("GROUP", "instance_group"),
        ("NODE", "execution_node"),
        ("IMPACT", "impact"),
        ("CREATED", "created"),
        ("EXPLANATION", "explanation"),
    ],
);
const HOSTS: Columns = (
    "hosts",
    &[
        ("HOST", "host"),
        ("OK", "ok"),
        ("CHANGED", "changed"),
        ("UNREACHABLE", "dark"),
        ("FAILED", "failures"),
        ("SKIPPED", "skipped"),
        ("RESCUED", "rescued"),
        ("IGNORED", "ignored"),
    ],
);
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
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(in crate::cli) struct One {
    /// Its number
    #[arg(add = jobs())]
    id: JobId,
}

/// Which hosts of a job are listed.
#[derive(Debug, Args, Serialize)]
pub(in crate::cli) struct HostPage {
    #[command(flatten)]
    #[serde(flatten)]
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
#[derive(Debug, Args, Serialize)]
pub(in crate::cli) struct Filter {
    /// Only those in this state
    #[arg(long)]
    state: Vec<String>,
    /// Only those of this kind
    #[arg(long)]
    kind: Vec<String>,
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
    #[serde(skip)]
    label: Vec<(String, String)>,
    /// Only those created at this time or later, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those created at this time or earlier
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
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
#[derive(Debug, Args, Serialize)]
pub(in crate::cli) struct EventFlags {
    #[command(flatten)]
    #[serde(skip)]
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
        let each = |op, some: Several| some.ids.into_iter().map(move |id| Operation::new(op).with("id", id));
        match self {
            Self::Run(flags) => flags.run(context).await,
            Self::Submit(flags) => flags.run(context).await,
            Self::List(filter) => {
                let labels: Map<String, Value> =
                    filter.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
                let list = Operation::of("job.list", &filter).with("label", labels);
                list.print_list(context, COLUMNS).await
            }
            Self::Show(one) => {
                let job = Operation::of("job.get", &one).ask(&context.client).await?;
                let text = is_for_people(context).then(|| described(&job));
                print(context, &job, text)
            }
            Self::Hosts(page) => Operation::of("job.hosts", &page).print_list(context, HOSTS).await,
            Self::Explain(one) => {
                let explained = Operation::of("job.explain", &one).ask(&context.client).await?;
                let text = if is_for_people(context) { Some(explanation(&explained)) } else { None };
                print(context, &explained, text)
            }
            Self::Output(flags) => flags.run(context).await,
            Self::Events(flags) => flags.run(context).await,
            Self::Cancel(some) => print_each(context, each("job.cancel", some)).await,
            Self::Rerun { some, failed_hosts } => {
                let rerun = each("job.rerun", some);
                print_each(context, rerun.map(|one| one.with("failed_hosts", failed_hosts))).await
            }
            Self::Wait(some) => {
                let mut exit = Exit::Success;
                for id in some.ids {
                    let job = final_job(context, id).await?;
                    if is_for_people(context) {
                        context.output.line(&ending(id, &job))?;
                    } else {
                        let end = json!({"id": id, "state": job["state"], "rc": job["rc"]});
                        context.output.value_line(&end)?;
                    }
                    exit = Some(exit_of(&job)).filter(|exit| *exit != Exit::Success).unwrap_or(exit);
                }
                Ok(exit)
            }
            Self::Delete(some) => print_each(context, each("job.delete", some)).await,
        }
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
        let events = Operation::of("job.events", &self).with("id", self.one.id).with("from", 0);
        let (_, mut connection) = events.begin(&context.client).await?;
        let (mut buffer, mut raw) = (vec![0; CHUNK], context.output.foreign_bytes());
        loop {
            let read = connection.reader().read(&mut buffer).await;
            let count = read.map_err(|error| {
                Failure::new(Exit::Unreachable, format!("the events are cut off: {error}"))
            })?;
            if count == 0 && self.follow && !has_ended(context, self.one.id).await? {
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
fn described(job: &Value) -> String {
    let mut shown = job.clone();
    let hosts = job["host_stats"].as_object().cloned().unwrap_or_default();
    let count = hosts.len();
    let hosts = hosts.into_iter().map(|(host, mut counts)| {
        counts["host"] = host.into();
        counts
    });
    let hosts: Vec<Value> = hosts.collect();
    let table = if hosts.is_empty() { None } else { Some(rows(&json!({"hosts": hosts}), HOSTS)) };
    if let Value::Object(fields) = &mut shown {
        fields.remove("host_stats");
        fields.remove("host_counts");
    }
    let table = table.map(|table| format!("\n\nhosts:\n{table}")).unwrap_or_default();
    let more = more_hosts(job, count).map(|more| format!("\n{more}")).unwrap_or_default();
    format!("{}{table}{more}", describe(&shown))
}

/// That a job has more hosts than the ones which are shown with it, and how to see them.
pub(super) fn more_hosts(job: &Value, shown: usize) -> Option<String> {
    let count = |key: &str| job["host_counts"][key].as_u64().unwrap_or(0);
    let more = count("hosts").saturating_sub(shown as u64);
    let kept = count("kept").saturating_sub(shown as u64);
    let list = match kept {
        0 => "none of them is kept".to_owned(),
        _ if kept < more => {
            format!("{kept} of them are kept: meshctl job hosts {} --from {shown}", job["id"])
        }
        _ => format!("meshctl job hosts {} --from {shown}", job["id"]),
    };
    (more > 0).then(|| {
        format!(
            "and {more} more hosts ({} failed, {} unreachable in all): {list}",
            count("failed"),
            count("unreachable")
        )
    })
}

/// Why a job waits, for people: the sum, what holds it up, and each instance that it could run on.
fn explanation(explained: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut lines = vec![format!(
        "Job {} is {}: {}",
        explained["id"],
        text(&explained["state"]),
        text(&explained["summary"])
    )];
    let failed = list(&explained["checks"]).into_iter().filter(|check| check["ok"] != true);
    lines.extend(failed.map(|check| format!("  {}: {}", text(&check["check"]), text(&check["detail"]))));
    let mut rows = Vec::new();
    for group in list(&explained["groups"]) {
        let row = |name: &Value, one: &Value| {
            let number = |key: &str| one[key].as_i64().map(|it| it.to_string()).unwrap_or_default();
            let why = if one["ok"] == true { "fits".to_owned() } else { text(&one["why"]) };
            [text(&group["name"]), text(name), why, number("needs"), number("remaining")]
        };
        rows.push(row(&Value::Null, &group));
        rows.extend(list(&group["instances"]).iter().map(|one| row(&one["name"], one)));
    }
    if !rows.is_empty() {
        lines.push(table::render(["GROUP", "INSTANCE", "WHY", "NEEDS", "REMAINING"], rows));
    }
    lines.join("\n")
}

fn object(text: &str) -> Result<HeaderObject, String> {
    serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_with_many_hosts_says_how_many_more_there_are() {
        let counts = json!({"ok": 1, "changed": 0, "dark": 0, "failures": 1, "skipped": 0, "rescued": 0, "ignored": 0});
        let of = |hosts: u64, kept: u64| {
            let all = json!({"hosts": hosts, "failed": 1, "unreachable": 0, "kept": kept});
            described(&json!({"id": 7, "state": "failed", "host_stats": {"web": counts}, "host_counts": all}))
        };
        let one = of(1, 1);
        assert!(one.starts_with("id     7\nstate  failed\n\nhosts:\nHOST"), "{one}");
        assert!(one.ends_with("\nweb   1   0        0            1       0        0        0"), "{one}");
        let more = "\nand 4 more hosts (1 failed, 0 unreachable in all): meshctl job hosts 7 --from 1";
        assert!(of(5, 5).ends_with(more), "{}", of(5, 5));
        assert!(of(5, 3).ends_with("2 of them are kept: meshctl job hosts 7 --from 1"), "{}", of(5, 3));
        assert_eq!(described(&json!({"id": 7, "host_stats": {}, "host_counts": null})), "id  7");
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
        assert_eq!(explanation(&explained), expected);
    }
}
