//! `meshctl doctor`: what is wrong on this node, on the way to another one, and on that one. Owns whom it asks, and how
//! findings are shown; nodes know what is wrong with themselves, `way` what is wrong between them.

mod way;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::Context;
use super::completion::nodes;
use super::exit::{Exit, Failure};
use super::output::Output;
use super::table::count;
use crate::rpc::report::doctor::DoctorReport;
use crate::rpc::report::finding::{Finding, Severity};
use crate::rpc::report::{self};
use crate::rpc::request::{DoctorRequest, Request};
use crate::rpc::{CallError, ErrorCode};
use way::Way;

/// Examines the host of a node that does not run, by its configuration, which is a file or a directory, and the files
/// below a root. That is the daemon's knowledge.
pub(crate) type ExamineFiles = fn(&Path, &Path) -> Vec<Finding>;

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Node to examine as well, with the way there
    #[arg(add = nodes())]
    node: Option<String>,
    /// Work type that the node ought to have
    #[arg(long, value_name = "TYPE", requires = "node")]
    work_type: Option<String>,
    /// TLS profile of this node towards the control services of others
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
    /// Configuration, a file or a directory, of a node that does not run
    #[arg(long, value_name = "PATH", default_value = "/etc/meshd/conf.d")]
    node_config: PathBuf,
    /// Ask no node, and look at the files of a host below this directory
    #[arg(long, value_name = "DIR", conflicts_with = "node")]
    root: Option<PathBuf>,
}

/// Something that was found, and on which node or way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Told {
    at: String,
    #[serde(flatten)]
    finding: Finding,
}

/// What was found, by where.
#[derive(Debug, Default)]
struct Diagnosis(Vec<(String, Vec<Finding>)>);

impl Diagnosis {
    fn add(&mut self, at: impl Into<String>, mut findings: Vec<Finding>) {
        let rank = |finding: &Finding| match finding.severity {
            Severity::Error => 0,
            Severity::NotAsked => 1,
            Severity::Warning => 2,
        };
        findings.sort_by_key(rank);
        self.0.push((at.into(), findings));
    }

    fn count(&self, severity: Severity) -> usize {
        self.0.iter().flat_map(|(_, findings)| findings).filter(|one| one.severity == severity).count()
    }

    fn show(&self, output: Output) -> Result<Exit, Failure> {
        if output.json {
            let told = |at: &String, finding: &Finding| Told { at: at.clone(), finding: finding.clone() };
            let all: Vec<Told> = self
                .0
                .iter()
                .flat_map(|(at, findings)| findings.iter().map(move |one| told(at, one)))
                .collect();
            output.value(&json!(all))?;
        } else {
            output.line(&self.text())?;
        }
        Ok(if self.count(Severity::Error) > 0 { Exit::Failed } else { Exit::Success })
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for (at, findings) in &self.0 {
            lines.push(at.clone());
            if findings.is_empty() {
                lines.push("  nothing is wrong".to_owned());
            }
            for Finding { what, place, severity, remedy } in findings {
                let word = match severity {
                    Severity::Error => "FAULT ",
                    Severity::NotAsked => "not asked:",
                    Severity::Warning => "advice",
                };
                let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
                lines.push(format!("  {word} {place}{what}"));
                lines.extend(remedy.as_ref().map(|remedy| format!("         -> {remedy}")));
            }
            lines.push(String::new());
        }
        let [faults, advice, not_asked] =
            [Severity::Error, Severity::Warning, Severity::NotAsked].map(|severity| self.count(severity));
        lines.push(format!("{}, {advice} advice, {not_asked} not asked", count(faults, "fault")));
        lines.join("\n")
    }
}

impl Doctor {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<Context, Failure>,
        output: Output,
        examine: ExamineFiles,
    ) -> Result<Exit, Failure> {
        let mut diagnosis = Diagnosis::default();
        if let Some(root) = self.root {
            let found = files(examine, self.node_config, root).await;
            diagnosis.add("this host", found);
            return diagnosis.show(output);
        }
        let context = match context() {
            Ok(context) => context,
            Err(failure) => {
                diagnosis.add("this host", without_node(None, &failure, examine, self.node_config).await);
                return diagnosis.show(output);
            }
        };
        let signs = match ask(&context, None, None).await {
            Ok(own) => {
                let signs = own.signs;
                diagnosis.add(format!("this node ({})", own.node_id), findings(own));
                signs
            }
            // What anybody may ask it answers all the same.
            Err(error) if is_unknown(&error) => {
                let what = "it is a node of receptor, or a meshd from before this question";
                diagnosis.add("this node", vec![not_asked(what, "meshd check --running FILE on its host")]);
                false
            }
            Err(error) => {
                let found = without_node(Some(&context), &error.into(), examine, self.node_config).await;
                diagnosis.add("this host", found);
                if let Some(node) = self.node {
                    let what = "no way leads there without a node here";
                    diagnosis.add(node, vec![not_asked(what, "first what is wrong on this host")]);
                }
                return diagnosis.show(output);
            }
        };
        if let Some(node) = self.node.filter(|node| node != "localhost") {
            let way = Way::explore(&context, signs, node, self.tls_client, self.work_type).await?;
            diagnosis.add(way.title(), way.findings());
            for hop in way.hops {
                let mut found = hop.findings(signs);
                found.extend(hop.report.findings);
                diagnosis.add(hop.node, found);
            }
        }
        diagnosis.show(output)
    }
}

fn findings(report: DoctorReport) -> Vec<Finding> {
    match report.refused {
        Some(refused) => vec![not_asked(refused.text, "use the Unix socket of the node")],
        None => report.findings,
    }
}

fn not_asked(what: impl Into<String>, remedy: &str) -> Finding {
    Finding::new(Severity::NotAsked, "", what.into(), remedy)
}

/// Asks the node at the socket what is wrong with it, or has it ask another one.
async fn ask(
    context: &Context,
    node: Option<String>,
    tls: Option<String>,
) -> Result<DoctorReport, CallError> {
    let request = Request::Doctor(DoctorRequest { node, tls_client: tls, signature: None });
    // It waits for checks that look at file systems and at other hosts.
    let answer = context.client.long_command(&request).await?;
    report::read(&answer)
        .map_err(|error| CallError::Protocol { question: "doctor", answer: error.to_string() })
}

async fn files(examine: ExamineFiles, config: PathBuf, root: PathBuf) -> Vec<Finding> {
    let looked = tokio::task::spawn_blocking(move || examine(&config, &root)).await;
    looked
        .unwrap_or_else(|error| vec![not_asked(format!("the files of the host: {error}"), "run meshd check")])
}

/// What can be found where the node does not answer.
async fn without_node(
    context: Option<&Context>,
    failure: &Failure,
    examine: ExamineFiles,
    config: PathBuf,
) -> Vec<Finding> {
    let address = context.map(|context| context.client.address()).unwrap_or_default();
    let path = address.strip_prefix("unix:").map(PathBuf::from);
    // Without a socket at any of the usual places none was dialled.
    let dialled = path.as_deref().map_or(Err(io::ErrorKind::NotFound), |path| {
        UnixStream::connect(path).map(drop).map_err(|error| error.kind())
    });
    let (mut found, is_absent) = socket(&address, path.as_deref(), dialled, failure);
    if is_absent && config.exists() {
        found.extend(files(examine, config, PathBuf::from("/")).await);
    } else {
        let what = match is_absent {
            true => format!("the configuration: there is no {}", config.display()),
            false => "the configuration and the host, as seen by the node".to_owned(),
        };
        found.push(not_asked(
            what,
            "--node-config names another file or directory; meshd check FILE examines it",
        ));
    }
    found
}

/// What is wrong with the socket, and whether that means that no node runs.
fn socket(
    address: &str,
    path: Option<&Path>,
    dialled: Result<(), io::ErrorKind>,
    failure: &Failure,
) -> (Vec<Finding>, bool) {
    let fault =
        |remedy: String| vec![Finding::new(Severity::Error, "control socket", &failure.message, remedy)];
    let start = "systemctl start meshd; why it ended: journalctl -u meshd -n 50, and systemctl status meshd";
    match (path, dialled) {
        (None, Err(_)) if !address.is_empty() => {
            (fault(format!("see that the node at {address} runs: {start}")), false)
        }
        (Some(path), Err(io::ErrorKind::PermissionDenied)) => {
            let path = path.display();
            (fault(format!("ls -l {path} shows whose it is: run as that user, or join its group")), false)
        }
        (None | Some(_), Err(_)) => (fault(start.to_owned()), true),
        // It is there now, or stuck.
        (None | Some(_), Ok(())) => (fault(start.to_owned()), false),
    }
}

/// Whether a node does not know what it was asked.
fn is_unknown(error: &CallError) -> bool {
    matches!(error, CallError::Refused(line) if line.code() == ErrorCode::UnknownCommand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_first_each_with_its_remedy_and_the_sum_at_the_end() {
        let mut diagnosis = Diagnosis::default();
        let advice = Finding::new(Severity::Warning, "/tmp", "it is mounted noexec", "remount it");
        let fault = Finding::new(Severity::Error, "", "it is down", "start it");
        diagnosis.add("this node (a)", vec![advice, not_asked("b: no key", "give it one"), fault]);
        diagnosis.add("the way to b", Vec::new());
        let expected = "\
this node (a)
  FAULT  it is down
         -> start it
  not asked: b: no key
         -> give it one
  advice /tmp: it is mounted noexec
         -> remount it

the way to b
  nothing is wrong

1 fault, 1 advice, 1 not asked";
        assert_eq!(diagnosis.text(), expected);
    }

    #[test]
    fn a_socket_tells_a_node_that_does_not_run_from_one_that_may_not_be_asked() {
        let failure = Failure::new(Exit::Unreachable, "cannot connect");
        let told = |path: Option<&str>, address: &str, dialled| {
            let (found, is_absent) = socket(address, path.map(Path::new), dialled, &failure);
            (found[0].severity, found[0].remedy.clone().unwrap(), is_absent)
        };
        let refused = told(Some("/s"), "unix:/s", Err(io::ErrorKind::ConnectionRefused));
        assert!(refused.2 && refused.1.contains("systemctl start meshd"), "{refused:?}");
        let denied = told(Some("/s"), "unix:/s", Err(io::ErrorKind::PermissionDenied));
        assert!(!denied.2 && denied.1.contains("ls -l /s"), "{denied:?}");
        let none = told(None, "", Err(io::ErrorKind::NotFound));
        assert!(none.2 && none.0 == Severity::Error, "{none:?}");
        let far = told(None, "tcp://h:1", Err(io::ErrorKind::NotFound));
        assert!(!far.2 && far.1.contains("tcp://h:1"), "{far:?}");
        let stuck = told(Some("/s"), "unix:/s", Ok(()));
        assert!(!stuck.2 && stuck.0 == Severity::Error, "{stuck:?}");
    }
}
