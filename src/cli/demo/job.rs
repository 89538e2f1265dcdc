//! The demo's job: a playbook through ansible-runner if this machine has it, else a few lines of shell.
//! Owns the job's two ends, where its payload comes from and where its output goes.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::{AsyncRead, AsyncWriteExt, empty},
    process::{Child, ChildStdin, Command as Process},
};

use crate::cli::{
    exit::{Exit, Failure},
    output::Output,
};
use crate::control::client::{Client, ResultEvent, SubmitRequest, UnitReport};

const PLAYBOOK: &str = "\
- hosts: all
  gather_facts: false
  tasks:
    - name: Ask the execution node who it is
      ansible.builtin.command: hostname
      register: host
    - name: Tell
      ansible.builtin.debug:
        msg: 'Hello from {{ host.stdout }}, through the mesh'
";
/// The interpreter that runs Ansible itself: one found by looking around may be a broken shim.
const INVENTORY: &str =
    "localhost ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'\n";
const SHELL: &str = r#"'for step in 1 2 3; do echo "step $step of 3"; sleep 0.3; done; echo "Hello from $(hostname), through the mesh"'"#;

/// What the demo runs.
pub enum Job {
    /// A playbook: its project's directory, and where its artifacts go.
    Playbook {
        /// The private data directory that is sent.
        project: PathBuf,
        /// The directory that is filled.
        artifacts: PathBuf,
    },
    /// A shell command.
    Shell,
}

impl Job {
    /// The best job this machine can run; writes its project below `dir`.
    ///
    /// # Errors
    /// If the project cannot be written.
    pub fn choose(dir: &Path) -> Result<Self, Failure> {
        if !(on_path("ansible-runner") && on_path("ansible-playbook")) {
            return Ok(Self::Shell);
        }
        let (project, artifacts) = (dir.join("project"), dir.join("out"));
        write_project(&project).map_err(|error| failed("write the demo's playbook", &error))?;
        Ok(Self::Playbook { project, artifacts })
    }

    /// For the user.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Playbook { .. } => "an Ansible playbook",
            Self::Shell => "a shell command (ansible-runner is not on PATH)",
        }
    }

    fn request(&self) -> SubmitRequest {
        let (work_type, params) = match self {
            Self::Playbook { .. } => ("ansible-runner", vec![]),
            Self::Shell => ("shell", vec![("params".to_owned(), SHELL.to_owned())]),
        };
        SubmitRequest {
            node: "execution".to_owned(),
            work_type: work_type.to_owned(),
            params: params.into_iter().collect(),
            tls_client: Some(super::trust::CLIENT.to_owned()),
            sign_work: true,
            ..SubmitRequest::default()
        }
    }

    /// Submits the job, shows its output, and returns how it ended, with its unit's ID.
    ///
    /// # Errors
    /// If the mesh or ansible-runner's own ends of the pipe fail.
    pub async fn run(&self, control: &Client, output: Output) -> Result<(UnitReport, String), Failure> {
        let mut submission = control.submit(&self.request()).await?;
        let unit = submission.unit().to_owned();
        let report = match self {
            Self::Shell => {
                submission.send(empty(), |_| {}).await?;
                copy(control, &unit, &mut Sink::Output(output)).await?
            }
            Self::Playbook { project, artifacts } => {
                let (mut source, payload) = transmit(project)?;
                submission.send(payload, |_| {}).await?;
                finished("ansible-runner transmit", &mut source).await?;
                let (mut child, stdin) = process(artifacts, output)?;
                let mut sink = Sink::Process(stdin);
                let report = copy(control, &unit, &mut sink).await?;
                // Closing its input is what tells the process that the stream is complete.
                drop(sink);
                finished("ansible-runner process", &mut child).await?;
                report
            }
        };
        Ok((report, unit))
    }
}

enum Sink {
    Output(Output),
    Process(ChildStdin),
}

impl Sink {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Output(output) if output.json => {
                output.note(String::from_utf8_lossy(bytes).trim_end());
                Ok(())
            }
            Self::Output(output) => output.bytes(bytes).await,
            Self::Process(stdin) => stdin
                .write_all(bytes)
                .await
                .map_err(|error| failed("hand the output to ansible-runner", &error)),
        }
    }
}

async fn copy(control: &Client, unit: &str, sink: &mut Sink) -> Result<UnitReport, Failure> {
    let mut stream = control.results(unit, 0).await?;
    loop {
        match stream.next().await? {
            ResultEvent::Data(bytes) => sink.write(&bytes).await?,
            ResultEvent::Lost(_) | ResultEvent::Resumed => {}
            ResultEvent::End(report) => return Ok(report),
        }
    }
}

fn transmit(project: &Path) -> Result<(Child, impl AsyncRead + Unpin), Failure> {
    let mut child = Process::new("ansible-runner")
        .arg("transmit")
        .arg(project)
        .args(["-p", "site.yml"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed("start ansible-runner transmit", &error))?;
    let payload = child.stdout.take().ok_or_else(|| lost("ansible-runner transmit"))?;
    Ok((child, payload))
}

fn process(artifacts: &Path, output: Output) -> Result<(Child, ChildStdin), Failure> {
    let mut child = Process::new("ansible-runner")
        .arg("process")
        .arg(artifacts)
        .stdin(Stdio::piped())
        .stdout(if output.json { Stdio::from(io::stderr()) } else { Stdio::inherit() })
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed("start ansible-runner process", &error))?;
    let stdin = child.stdin.take().ok_or_else(|| lost("ansible-runner process"))?;
    Ok((child, stdin))
}

async fn finished(what: &str, child: &mut Child) -> Result<(), Failure> {
    let status = child.wait().await.map_err(|error| failed(what, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(Exit::Failed, format!("{what} failed: {status}")))
    }
}

fn write_project(project: &Path) -> io::Result<()> {
    for dir in ["project", "inventory"] {
        fs::create_dir_all(project.join(dir))?;
    }
    fs::write(project.join("project/site.yml"), PLAYBOOK)?;
    fs::write(project.join("inventory/hosts"), INVENTORY)
}

fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot {what}: {error}"))
}

fn lost(what: &str) -> Failure {
    Failure::new(Exit::Failed, format!("{what} has no pipe"))
}
