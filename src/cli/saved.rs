//! `meshctl saved`: the jobs that a control node has as files. Lists, shows and starts them through a node, and checks files
//! without one. Asks for secret variables where nobody sees them, and takes none that would stand in the arguments of
//! this process.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use jiff::Zoned;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::CliContext;
use super::completion::saved_jobs;
use super::exit::{Exit, Failure};
use super::job::{ask_secret, attend_job, extra_vars, number_of};
use super::operation::show;
use super::output::{Interrupts, Output};
use super::table::{self, Column, Layout, always, given, telling, wide};
use crate::controller::saved::{SavedFault, SavedJobs};
use crate::rpc::operation::{self, ByName, GivenVars, Question, SavedFilter, SavedStart};
use crate::rpc::report::saved::{SavedReport, SavedSummary, VarReport};

/// Where saved jobs usually are.
const DIRECTORY: &str = "/etc/meshd/jobs.d";

const COLUMNS: &[Column<SavedSummary>] = &[
    always("NAME", |one, _| one.name.clone()),
    always("RUNS", |one, _| given(&one.runs)),
    wide("SOURCE", |one, _| given(&one.source)),
    wide("HASH", |one, _| given(&one.hash)),
    telling("FAULT", |one, _| given(&one.fault)),
    always("DESCRIPTION", |one, _| given(&one.description)),
];
const VARS: &[Column<(String, VarReport)>] = &[
    always("VARIABLE", |one, _| one.0.clone()),
    always(
        "TYPE",
        |one, _| if one.1.secret { format!("{}, secret", one.1.kind) } else { one.1.kind.to_string() },
    ),
    always("DEFAULT", |one, _| one.1.default.as_ref().map(plain).unwrap_or_default()),
    telling("ALLOWED", |one, _| allowed(&one.1)),
    telling("DESCRIPTION", |one, _| given(&one.1.description)),
];

#[derive(Debug, Subcommand)]
pub(super) enum SavedVerb {
    /// List saved jobs
    List(Layout),
    /// Show a saved job, and what may be given at its start
    Show(SavedNamed),
    /// Start a saved job
    Start(StartFlags),
    /// Check files of saved jobs, without a node
    Check {
        /// Files, or directories with such files
        #[arg(value_name = "PATH", default_value = DIRECTORY)]
        paths: Vec<PathBuf>,
    },
}

/// The name of a saved job.
#[derive(Debug, Args)]
pub(super) struct SavedNamed {
    /// Name of the saved job
    #[arg(add = saved_jobs())]
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct StartFlags {
    #[command(flatten)]
    named: SavedNamed,
    /// Variables: KEY=VALUE, a JSON object, or @FILE
    #[arg(long = "extra-vars", short = 'e', value_name = "VARS")]
    extra_vars: Vec<String>,
    /// Print its output, and exit with its result
    #[arg(long, short)]
    follow: bool,
}

impl SavedVerb {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        match self {
            Self::List(layout) => list(&context()?, layout).await,
            Self::Show(SavedNamed { name }) => {
                let context = context()?;
                let width = context.output.width();
                show(&context, operation::get_saved(ByName { name }), |one| {
                    described(one, width, &context.output.now())
                })
                .await
            }
            Self::Start(flags) => flags.run(&context()?).await,
            Self::Check { paths } => check(output, &paths),
        }
    }
}

impl StartFlags {
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let name = self.named.name;
        let saved = operation::get_saved(ByName { name: name.clone() }).ask(&context.client).await?.report;
        let mut vars = Map::new();
        for text in &self.extra_vars {
            let some = extra_vars(text)?;
            let is_file = text.starts_with('@');
            if let Some(secret) = some.keys().find(|key| !is_file && is_secret(&saved, key)) {
                let text = format!(
                    "{secret} is secret, and -e {secret}=... is seen by all users of this host: leave it out to be \
                                    asked for it, or use -e @FILE"
                );
                return Err(Failure::usage(text));
            }
            vars.extend(some);
        }
        for secret in saved.vars.keys().filter(|name| is_secret(&saved, name)) {
            if !vars.contains_key(secret) {
                vars.insert(secret.clone(), ask_secret(format!("{secret}: ")).await?.into());
            }
        }
        let start = operation::start_saved(SavedStart { name, vars: GivenVars(vars) });
        let started = start.ask(&context.client).await?;
        let id = match started.report.id {
            Some(id) => id,
            None => number_of(context, &started.report.unit).await?,
        };
        context.output.note(&format!("Job {id}"));
        if self.follow {
            return attend_job(context, id, &mut Interrupts::new()).await;
        }
        let report = &started.report;
        let json = json!({"id": id, "unit": report.unit, "hash": report.hash});
        context.output.answer(&json, || id.to_string())
    }
}

/// All rows of a list of saved jobs, page by page; `take` takes a page apart, with what begins the next one.
pub(super) async fn all_of_saved<P: DeserializeOwned, T>(
    context: &CliContext,
    ask: impl Fn(SavedFilter) -> Question<P>,
    mut take: impl FnMut(P) -> (Vec<T>, Option<String>),
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    let mut asked = SavedFilter::default();
    loop {
        let (page, next) = take(ask(asked).ask(&context.client).await?.report);
        all.extend(page);
        if next.is_none() {
            return Ok(all);
        }
        asked = SavedFilter { after: next, ..SavedFilter::default() };
    }
}

fn is_secret(saved: &SavedReport, name: &str) -> bool {
    saved.vars.get(name).is_some_and(|var| var.secret)
}

async fn list(context: &CliContext, layout: Layout) -> Result<Exit, Failure> {
    let mut faults = Vec::new();
    let saved = all_of_saved(context, operation::list_saved, |page| {
        faults.extend(page.faults);
        (page.saved, page.next)
    });
    let saved = saved.await?;
    if context.output.json {
        context.output.value(&json!({"saved": saved, "faults": faults, "next": null}))?;
    } else {
        context.output.list("saved jobs", &saved, COLUMNS, layout)?;
        faults.iter().for_each(|fault| context.output.error(&format!("meshctl: {fault}")));
    }
    Ok(Exit::Success)
}

/// A saved job, and the variables that may be given at its start.
fn described(one: &SavedReport, width: usize, now: &Zoned) -> String {
    let mut fields = table::fields(&one.summary, COLUMNS, now);
    let lists = [
        ("INVENTORY", &one.inventory),
        ("TAGS", &one.tags),
        ("SKIP TAGS", &one.skip_tags),
        ("EXTRA VARS", &one.extra_vars),
    ];
    fields.extend(one.revision.iter().map(|revision| ["REVISION".to_owned(), revision.clone()]));
    fields.extend(one.limit.iter().map(|limit| ["LIMIT".to_owned(), limit.clone()]));
    let said = lists.into_iter().filter(|(_, list)| !list.is_empty());
    fields.extend(said.map(|(heading, list)| [heading.to_owned(), list.join(", ")]));
    let hook = one.hook.iter().map(|kind| format!("POST /api/v1/hooks/{} ({kind})", one.summary.name));
    fields.extend(hook.map(|hook| ["HOOK".to_owned(), hook]));
    fields.push(["HEADER".to_owned(), one.header.to_string()]);
    let saved = table::described(fields);
    let vars: Vec<(String, VarReport)> = one.vars.clone().into_iter().collect();
    if vars.is_empty() {
        return saved;
    }
    format!("{saved}\n\n{}", table::list(&vars, VARS, Layout::default(), width, now))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn allowed(var: &VarReport) -> String {
    let choices: Vec<String> = var.choices.iter().map(plain).collect();
    var.pattern.clone().into_iter().chain(choices).collect::<Vec<_>>().join(", ")
}

/// Checks files, or directories with such files, as a node would read them.
fn check(output: Output, paths: &[PathBuf]) -> Result<Exit, Failure> {
    let (mut faults, mut count) = (Vec::new(), 0);
    for path in paths {
        if path.is_dir() {
            let saved = SavedJobs::load(path, Arc::default(), |_| ());
            count += saved.entries().len();
            faults.extend(saved.all_faults().cloned());
        } else {
            count += 1;
            faults.extend(SavedFault::of_file(path));
        }
    }
    let failed = if faults.is_empty() { Exit::Success } else { Exit::Failed };
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    if output.json {
        output.value(&json!({"files": count, "faults": told}))?;
    } else if told.is_empty() {
        output.done(&format!("{} right", table::count(count, "file")))?;
    } else {
        told.iter().try_for_each(|fault| output.line(fault))?;
    }
    Ok(failed)
}
