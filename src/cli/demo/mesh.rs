//! The nodes of the demo: their directory, configurations, keys, processes and end. Processes that their jobs started
//! are found by an environment variable, and end with the nodes.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, Command as Process};
use tokio::time::{sleep, timeout};

use super::{NODE_WITHIN, story};
use crate::cli::DAEMON_ARGUMENT;
use crate::cli::endpoint::{Endpoint, EndpointDialer};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::rpc::{Client, Deadlines};
use crate::tls::AccessLevel;
use crate::tls::access::AccessTokens;
use crate::tls::commands::{self, CommandError, RequestKey};
use crate::tls::make::{CertSubject, Dates, KeyKind};

/// In the order of their starts, because a node that dials before hop listens would wait for its next attempt.
pub(super) const NODES: [&str; 4] = ["hop", "control", "e1", "e2"];
/// How long a node may take to end when asked, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Control - hop - e1 and e2, as child processes.
pub(super) struct DemoMesh {
    dir: PathBuf,
    nodes: Vec<(&'static str, Child)>,
    keep: bool,
    /// The program that runs all nodes but control, if it is not this one.
    program: Option<PathBuf>,
    has_ansible: bool,
    page: Option<DemoPage>,
}

/// The port of the control node's page, and the token that opens it.
struct DemoPage {
    port: u16,
    token: String,
}

impl DemoMesh {
    /// Makes a directory for a mesh in which no node runs yet.
    pub(super) fn new(keep: bool, has_page: bool, program: Option<PathBuf>) -> Result<Self, Failure> {
        let has_ansible = ["ansible-runner", "ansible-playbook"].iter().all(|name| is_on_path(name));
        let dir = make_dir()?;
        let page = || {
            let token = AccessTokens::new(dir.join("tokens")).add("demo", AccessLevel::Admin);
            let token = token.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
            Ok::<_, Failure>(DemoPage { port: free_port().map_err(failed("find a port"))?, token })
        };
        let page = has_page.then(page).transpose()?;
        Ok(Self { dir, nodes: Vec::new(), keep, program, has_ansible, page })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.dir
    }

    pub(super) fn has_ansible(&self) -> bool {
        self.has_ansible
    }

    /// Lines that tell where the page is; empty if there is none.
    pub(super) fn page(&self) -> String {
        let Some(DemoPage { port, token }) = &self.page else { return String::new() };
        format!(
            "\n  the page of control: http://127.0.0.1:{port}/\n  to change things there, sign in with the token {token}"
        )
    }

    /// Writes keys, certificates, configurations and the playbooks, and links meshctl itself under its name.
    pub(super) fn write_files(&self) -> Result<(), Failure> {
        let certificates = make_certificates(&self.dir);
        certificates
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot make certificates: {error}")))?;
        let write = || {
            let port = free_port()?;
            for node in NODES {
                fs::write(self.dir.join(format!("{node}.yml")), self.configuration(node, port))?;
            }
            symlink(std::env::current_exe()?, self.dir.join("meshctl"))?;
            for directory in ["run", "project/project", "project/inventory"] {
                fs::create_dir_all(self.dir.join(directory))?;
            }
            fs::write(self.dir.join("runner"), story::STAND_IN)?;
            fs::write(self.dir.join("project/project/site.yml"), story::SITE)?;
            fs::write(self.dir.join("project/project/long.yml"), story::LONG)?;
            fs::write(self.dir.join("project/inventory/hosts"), story::INVENTORY)
        };
        write().map_err(failed("write the nodes' configurations"))
    }

    fn configuration(&self, node: &str, port: u16) -> String {
        let dir = self.dir.display();
        let peer = format!("- tcp-peer: {{address: '127.0.0.1:{port}', tls: mesh}}\n");
        let runner = if self.has_ansible { "ansible-runner".to_owned() } else { format!("sh {dir}/runner") };
        let words = format!("{}={node} {}={dir} {runner} worker", story::NODE, story::MESH);
        let page = self.page.as_ref().map(|DemoPage { port, .. }| {
            format!("- web: {{address: '127.0.0.1:{port}', tokens: '{dir}/tokens', allow: admin}}\n")
        });
        let page = page.unwrap_or_default();
        let role = match node {
            "hop" => format!("- tcp-listener: {{bindaddr: 127.0.0.1, port: {port}, tls: mesh-server}}\n"),
            "control" => format!(
                "{peer}{page}- work-signing: {{privatekey: '{dir}/work.key', tokenexpiration: 5m}}\n\
                 - work-controller: {{nodetype: hybrid, runner: 'env {words}', discovery: enabled, tlsclient: mesh, \
                 rundir: '{dir}/run', heartbeat: 500ms, poll: 1s}}\n"
            ),
            _ => format!(
                "{peer}- work-verification: {{publickey: '{dir}/work.pub'}}\n\
                 - work-command: {{worktype: ansible-runner, command: env, params: '{words}', \
                 allowruntimeparams: true, verifysignature: true}}\n"
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
    pub(super) async fn start(&mut self, name: &'static str) -> Result<(), Failure> {
        let mut process = match self.program.as_ref().filter(|_| name != "control") {
            Some(program) => Process::new(program),
            None => {
                let mut process = Process::new(self.dir.join("meshctl"));
                process.arg(DAEMON_ARGUMENT);
                process
            }
        };
        // Temporary files that a killed node's jobs leave are removed with the directory.
        process.env("TMPDIR", &self.dir);
        let log = File::create(self.log(name)).map_err(failed("write a log"))?;
        process.arg("--config").arg(self.dir.join(format!("{name}.yml"))).stdin(Stdio::null());
        process.stderr(log.try_clone().map_err(failed("write a log"))?).stdout(log);
        // Ctrl-C is for meshctl, which ends the nodes in order.
        let child = process.process_group(0).kill_on_drop(!self.keep).spawn();
        self.nodes.push((name, child.map_err(failed("start a node"))?));
        let client = self.client(name);
        self.until("every node to answer", NODE_WITHIN, async || client.connect().await.is_ok()).await
    }

    /// Waits until a condition holds.
    ///
    /// # Errors
    /// A node ended, or the condition did not hold in time.
    pub(super) async fn until(
        &mut self,
        what: &str,
        patience: Duration,
        condition: impl AsyncFn() -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        while !condition().await {
            for (name, process) in &mut self.nodes {
                if let Ok(Some(status)) = process.try_wait() {
                    let name = *name;
                    return Err(self.ended(name, status));
                }
            }
            if Instant::now() > deadline {
                let message = format!("waited {} s in vain for {what}", patience.as_secs());
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

    /// Ends a node at once, with all that its jobs started, like a power cut.
    pub(super) async fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let at = self.nodes.iter().position(|(node, _)| *node == name);
        let at = at.ok_or_else(|| Failure::new(Exit::Failed, format!("there is no node {name:?}")))?;
        let (_, mut process) = self.nodes.remove(at);
        process.kill().await.map_err(failed("kill a node"))?;
        self.kill_jobs(Some(name));
        Ok(())
    }

    /// Kills what jobs started, on one node or on all.
    fn kill_jobs(&self, node: Option<&str>) {
        let mesh = format!("{}={}", story::MESH, self.dir.display());
        let node = node.map(|node| format!("{}={node}", story::NODE));
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            // The environment of other users' processes cannot be read.
            let (Some(pid), Ok(variables)) = (pid, fs::read(entry.path().join("environ"))) else { continue };
            let has = |wanted: &str| variables.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes());
            if has(&mesh) && node.as_deref().is_none_or(has) {
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Runs commands in a shell, in the mesh's directory, for the control node.
    pub(super) async fn run_script(
        &self,
        output: Output,
        script: &str,
        variables: &[(&str, String)],
    ) -> Result<(), Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([self.dir.clone()].into_iter().chain(std::env::split_paths(&path)));
        let path = path.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let mut shell = Process::new("sh");
        shell.args(["-c", script]).current_dir(&self.dir).stdin(Stdio::null()).kill_on_drop(true);
        shell.env("PATH", path).env("RECEPTORCTL_SOCKET", self.socket("control"));
        shell.envs(variables.iter().map(|(name, value)| (name, value)));
        if output.json {
            shell.stdout(io::stderr());
        }
        shell.status().await.map(drop).map_err(failed("run sh"))
    }

    /// Ends the nodes and what their jobs started, and removes the directory. Bounded in time.
    pub(super) async fn stop(&mut self) {
        for (_, process) in &mut self.nodes {
            let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
            // The process is not reaped yet, so no other process has its ID.
            let _ended = pid.map(|pid| kill_process(pid, Signal::TERM));
            if timeout(GRACE, process.wait()).await.is_err() {
                let _ended = process.kill().await;
            }
        }
        // Jobs outlive their node by design, but not in the demo.
        self.kill_jobs(None);
        // An error does not matter: the system cleans its directory of temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// Text that says how to talk to a mesh that stays, and how to end it.
    pub(super) fn farewell(&self) -> String {
        let ids = self.nodes.iter().filter_map(|(_, process)| process.id());
        let (ids, dir) = (ids.map(|id| id.to_string()).collect::<Vec<_>>().join(" "), self.dir.display());
        let socket = self.socket("control");
        format!(
            "{}\nThe mesh stays. Talk to it:\n  export RECEPTORCTL_SOCKET={}\n  meshctl status\n  meshctl job run \
             {dir}/project -p site.yml --group east\nLogs and configurations: {dir}\nStop it:\n  kill {ids} && rm -r {dir}",
            self.page(),
            socket.display()
        )
    }

    /// The nodes that run, with their sockets and process IDs.
    pub(super) fn describe(&self) -> Value {
        let nodes = self
            .nodes
            .iter()
            .map(|(name, process)| json!({"node": name, "socket": self.socket(name), "pid": process.id()}));
        nodes.collect()
    }

    pub(super) fn client(&self, node: &str) -> Client {
        Client::new(EndpointDialer::new(Endpoint::Unix(self.socket(node)), None), Deadlines::default())
    }

    fn socket(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.sock"))
    }

    fn log(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.log"))
    }
}

/// An authority, a certificate for each node, and a pair of keys for signing.
fn make_certificates(dir: &Path) -> Result<(), CommandError> {
    let (ca, ca_key) = (dir.join("ca.crt"), dir.join("ca.key"));
    commands::init("demo authority", KeyKind::EcdsaP256, Dates::default(), &ca, &ca_key)?;
    for node in NODES {
        let names = CertSubject {
            common_name: node.to_owned(),
            addresses: vec![std::net::Ipv4Addr::LOCALHOST.into()],
            node_ids: vec![node.to_owned()],
            ..CertSubject::default()
        };
        let file = |ending: &str| dir.join(format!("{node}.{ending}"));
        let key = RequestKey::New(KeyKind::EcdsaP256, file("key"));
        commands::make_request(&names, &key, &file("req"))?;
        commands::sign_request(&file("req"), (&ca, &ca_key), Dates::default(), &file("crt"), |_| true)?;
    }
    // RSA, because every receptor node can verify it.
    commands::generate_key(KeyKind::Rsa(2048), &dir.join("work.key"), &dir.join("work.pub"))
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
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
