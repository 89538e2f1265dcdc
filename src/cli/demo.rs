//! `meshctl demo`: a mesh of three nodes on this machine, one job through it, and nothing left behind.
//!
//! Owns the nodes' directory, configurations, keys, processes and end. What it shows are meshctl's own commands, run
//! by a shell as a user would type them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::process::{Child, Command as Process};
use tokio::time::{sleep, timeout};

use super::DAEMON_ARGUMENT;
use super::endpoint::{Endpoint, EndpointDialer};
use super::exit::{Exit, Failure};
use super::output::{Output, interrupted};
use super::work::units;
use crate::rpc::request::{Request, WorkRequest};
use crate::rpc::{CallError, Client, Deadlines, UnitReport, UnitState};
use crate::tls::commands::{self, CommandError, RequestKey};
use crate::tls::make::{Dates, KeyKind, Subject};

/// In the order of their starts: a node that dials before hop listens would wait for its next attempt.
const NODES: [&str; 3] = ["hop", "control", "execution"];
/// How long a node may take to answer, and to find its route.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a node may take to end when asked, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// What a user would type, with RECEPTORCTL_SOCKET set to the socket of control.
const SCRIPT: &str = r#"
echo '$ meshctl traceroute execution'
meshctl traceroute execution || exit
if command -v ansible-runner >/dev/null && command -v ansible-playbook >/dev/null; then
    printf '\n%s\n' '$ ansible-runner transmit project -p site.yml |
    meshctl work submit ansible-runner --node execution --tls-client mesh --signwork --payload - --follow |
    ansible-runner process out'
    ansible-runner transmit project -p site.yml |
        meshctl work submit ansible-runner --node execution --tls-client mesh --signwork --payload - --follow |
        ansible-runner process out
else
    job="'for step in 1 2 3; do echo step \$step of 3; sleep 0.3; done; echo Hello from \$(hostname), through the mesh'"
    printf '\n%s\n' "\$ meshctl work submit shell --node execution --tls-client mesh --signwork --no-payload --follow -- \"$job\""
    meshctl work submit shell --node execution --tls-client mesh --signwork --no-payload --follow -- "$job"
fi
"#;

const PLAYBOOK: &str = "\
- hosts: all
  gather_facts: false
  tasks:
    - name: Ask the execution node who it is
      ansible.builtin.command: hostname
      register: host
    - name: Show the answer
      ansible.builtin.debug:
        msg: 'Hello from {{ host.stdout }}, through the mesh'
";
/// With the interpreter that runs Ansible itself: one found by looking around may be a broken shim.
const INVENTORY: &str =
    "localhost ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'\n";

/// Arguments of `meshctl demo`.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Leave the mesh running, and say how to talk to it and how to stop it
    #[arg(long)]
    keep: bool,
    /// Another node program, started with --config FILE
    #[arg(long, hide = true, value_name = "PATH")]
    meshd: Option<PathBuf>,
}

impl Demo {
    pub(super) async fn run(self, output: Output) -> Result<Exit, Failure> {
        let mut mesh = DemoMesh { dir: make_dir()?, nodes: Vec::new() };
        let shown = tokio::select! {
            shown = self.show(&mut mesh, output) => shown,
            failure = interrupted() => Err(failure),
        };
        if self.keep && shown.is_ok() {
            say(output, &mesh.farewell())?;
        } else {
            mesh.stop().await;
            // After a broken pipe nobody reads this.
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

    async fn show(&self, mesh: &mut DemoMesh, output: Output) -> Result<(UnitReport, String), Failure> {
        say(output, &format!("Starting three nodes in {} ...", mesh.dir.display()))?;
        mesh.write_files()?;
        let begun = Instant::now();
        for name in NODES {
            mesh.start(name, self).await?;
        }
        say(output, &format!("  all three answer after {:.2} s", begun.elapsed().as_secs_f64()))?;
        let control = mesh.client("control");
        let ping = Request::Ping { target: "execution".to_owned() };
        let reached =
            async || control.command(&ping).await.is_ok_and(|answer| answer["Success"] == json!(true));
        mesh.until("a route from control to execution", reached).await?;
        say(
            output,
            &format!(
                "  control has a route to execution after {:.2} s\n\n  control ---- hop ---- execution\n\n  \
                 links and jobs over mutual TLS, jobs signed: keys and certificates made just now\n",
                begun.elapsed().as_secs_f64()
            ),
        )?;
        let begun = Instant::now();
        mesh.run_script(output).await?;
        let units = control.command(&Request::Work(WorkRequest::List { unit: None })).await?;
        let Some(unit) = units::ids(&units).into_iter().next() else {
            return Err(Failure::new(Exit::SubmitFailed, "the job was not accepted"));
        };
        let report = UnitReport::from_answer(&units[&unit])?;
        let (state, seconds) = (report.state.name(), begun.elapsed().as_secs_f64());
        say(output, &format!("\nUnit {unit}: {state} after {seconds:.2} s ({})", report.detail))?;
        Ok((report, unit))
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

/// Control - hop - execution, as child processes.
struct DemoMesh {
    dir: PathBuf,
    nodes: Vec<(&'static str, Child)>,
}

impl DemoMesh {
    /// Keys, certificates, configurations, the playbook, and meshctl itself under its name.
    fn write_files(&self) -> Result<(), Failure> {
        let certificates = make_certificates(&self.dir);
        certificates
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot make certificates: {error}")))?;
        let write = || {
            let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            for node in NODES {
                fs::write(self.dir.join(format!("{node}.yml")), self.configuration(node, port))?;
            }
            symlink(std::env::current_exe()?, self.dir.join("meshctl"))?;
            fs::create_dir_all(self.dir.join("project/project"))?;
            fs::create_dir_all(self.dir.join("project/inventory"))?;
            fs::write(self.dir.join("project/project/site.yml"), PLAYBOOK)?;
            fs::write(self.dir.join("project/inventory/hosts"), INVENTORY)
        };
        write().map_err(failed("write the nodes' configurations"))
    }

    fn configuration(&self, node: &str, port: u16) -> String {
        let dir = self.dir.display();
        let role = match node {
            "hop" => format!("- tcp-listener: {{bindaddr: 127.0.0.1, port: {port}, tls: mesh-server}}\n"),
            "control" => format!(
                "- tcp-peer: {{address: '127.0.0.1:{port}', tls: mesh}}\n\
                 - work-signing: {{privatekey: '{dir}/work.key', tokenexpiration: 5m}}\n"
            ),
            _ => format!(
                "- tcp-peer: {{address: '127.0.0.1:{port}', tls: mesh}}\n\
                 - work-verification: {{publickey: '{dir}/work.pub'}}\n\
                 - work-command: {{worktype: ansible-runner, command: ansible-runner, params: worker, \
                 allowruntimeparams: true, verifysignature: true}}\n\
                 - work-command: {{worktype: shell, command: sh, params: '-c', allowruntimeparams: true, \
                 verifysignature: true}}\n"
            ),
        };
        format!(
            "- node: {{id: {node}, datadir: '{dir}/data'}}\n\
             - log-level: info\n\
             - control-service: {{service: control, filename: '{dir}/{node}.sock', tls: mesh-server}}\n\
             - tls-server: {{name: mesh-server, cert: '{dir}/{node}.crt', key: '{dir}/{node}.key', \
             clientcas: '{dir}/ca.crt', requireclientcert: true}}\n\
             - tls-client: {{name: mesh, cert: '{dir}/{node}.crt', key: '{dir}/{node}.key', rootcas: '{dir}/ca.crt'}}\n\
             {role}"
        )
    }

    /// Starts a node and waits until it answers on its socket.
    async fn start(&mut self, name: &'static str, demo: &Demo) -> Result<(), Failure> {
        let mut process = match &demo.meshd {
            Some(program) => Process::new(program),
            None => {
                let mut process = Process::new(self.dir.join("meshctl"));
                process.arg(DAEMON_ARGUMENT);
                process
            }
        };
        let log = File::create(self.log(name)).map_err(failed("write a log"))?;
        process.arg("--config").arg(self.dir.join(format!("{name}.yml"))).stdin(Stdio::null());
        process.stderr(log.try_clone().map_err(failed("write a log"))?).stdout(log);
        // Ctrl-C is for meshctl, which ends the nodes in order.
        let child = process.process_group(0).kill_on_drop(!demo.keep).spawn();
        self.nodes.push((name, child.map_err(failed("start a node"))?));
        let client = self.client(name);
        self.until("every node to answer", async || client.connect().await.is_ok()).await
    }

    async fn until(&mut self, what: &str, condition: impl AsyncFn() -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + START_LIMIT;
        while !condition().await {
            for (name, process) in &mut self.nodes {
                if let Ok(Some(status)) = process.try_wait() {
                    let name = *name;
                    return Err(self.ended(name, status));
                }
            }
            if Instant::now() > deadline {
                let message = format!("waited {} s in vain for {what}", START_LIMIT.as_secs());
                return Err(Failure::new(Exit::Unreachable, message));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn ended(&self, name: &str, status: ExitStatus) -> Failure {
        let log = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n  ");
        let text = format!("node {name} ended by itself ({status}); its last words:\n  {tail}");
        Failure::new(Exit::Failed, text)
    }

    /// Runs the commands. How the job ended is asked of its unit.
    async fn run_script(&self, output: Output) -> Result<(), Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([self.dir.clone()].into_iter().chain(std::env::split_paths(&path)));
        let path = path.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let mut shell = Process::new("sh");
        shell.args(["-c", SCRIPT]).current_dir(&self.dir).stdin(Stdio::null()).kill_on_drop(true);
        shell.env("PATH", path).env("RECEPTORCTL_SOCKET", self.socket("control"));
        if output.json {
            shell.stdout(io::stderr());
        }
        shell.status().await.map(drop).map_err(failed("run sh"))
    }

    /// Ends what runs on the nodes, then the nodes, and removes the directory. Bounded in time.
    async fn stop(&mut self) {
        // Jobs outlive their node by design: here they must not.
        let _late = timeout(GRACE, async {
            for (name, _) in &self.nodes {
                // A node that has ended holds nothing that could be released.
                let _gone = release_all(&self.client(name)).await;
            }
        })
        .await;
        for (_, process) in &mut self.nodes {
            let pid = process.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
            // It is not reaped yet, so its ID is nobody else's.
            let _ended = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
            if timeout(GRACE, process.wait()).await.is_err() {
                let _ended = process.kill().await;
            }
        }
        // What cannot be removed is in the system's temporary directory, which is swept.
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// How to talk to a mesh that stays, and how to end it.
    fn farewell(&self) -> String {
        let ids = self.nodes.iter().filter_map(|(_, process)| process.id());
        let (ids, dir) = (ids.map(|id| id.to_string()).collect::<Vec<_>>().join(" "), self.dir.display());
        let socket = self.socket("control");
        format!(
            "\nThe mesh stays. Talk to it:\n  export RECEPTORCTL_SOCKET={}\n  meshctl status\n  meshctl work submit \
             shell --node execution --tls-client mesh --signwork -n -f -- \"'echo hello from \\$(hostname)'\"\n\
             Logs and configurations: {dir}\nStop it:\n  kill {ids} && rm -r {dir}",
            socket.display()
        )
    }

    /// The nodes with their sockets and process IDs.
    fn describe(&self) -> Value {
        let nodes = self
            .nodes
            .iter()
            .map(|(name, process)| json!({"node": name, "socket": self.socket(name), "pid": process.id()}));
        nodes.collect()
    }

    fn socket(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.sock"))
    }

    fn log(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.log"))
    }

    fn client(&self, node: &str) -> Client {
        Client::new(EndpointDialer::new(Endpoint::Unix(self.socket(node)), None), Deadlines::default())
    }
}

/// An authority, a certificate for each node, and a pair of keys for signing.
fn make_certificates(dir: &Path) -> Result<(), CommandError> {
    let (ca, ca_key) = (dir.join("ca.crt"), dir.join("ca.key"));
    commands::init("demo authority", KeyKind::EcdsaP256, Dates::default(), &ca, &ca_key)?;
    for node in NODES {
        let names = Subject {
            common_name: node.to_owned(),
            addresses: vec![std::net::Ipv4Addr::LOCALHOST.into()],
            node_ids: vec![node.to_owned()],
            ..Subject::default()
        };
        let file = |ending: &str| dir.join(format!("{node}.{ending}"));
        let key = RequestKey::New(KeyKind::EcdsaP256, file("key"));
        commands::make_request(&names, &key, &file("req"))?;
        commands::sign_request(&file("req"), (&ca, &ca_key), Dates::default(), &file("crt"), |_| true)?;
    }
    // RSA, which every node of a receptor mesh verifies.
    commands::generate_key(KeyKind::Rsa(2048), &dir.join("work.key"), &dir.join("work.pub"))
}

async fn release_all(client: &Client) -> Result<(), CallError> {
    for unit in units::ids(&client.command(&Request::Work(WorkRequest::List { unit: None })).await?) {
        units::operate(client, units::release(&unit, false)).await?;
    }
    Ok(())
}

fn make_dir() -> Result<PathBuf, Failure> {
    let mut parent = std::env::temp_dir();
    // The kernel takes socket paths of up to 107 bytes.
    if parent.as_os_str().len() > 70 {
        parent = PathBuf::from("/tmp");
    }
    let dir = parent.join(format!("meshd-demo-{:08x}", rand::random::<u32>()));
    DirBuilder::new().mode(0o700).create(&dir).map_err(failed("make a temporary directory"))?;
    Ok(dir)
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(Exit::Failed, format!("cannot {what}: {error}"))
}
