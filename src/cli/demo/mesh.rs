//! Three nodes as child processes: control - hop - execution. Owns their directory, configurations, processes and
//! end; knows nothing of jobs.

use std::{
    fs::{self, DirBuilder, File},
    future::Future,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    process::{Child, Command as Process},
    time::{Instant, sleep, timeout},
};

use crate::cli::{
    DAEMON_ARGUMENT,
    demo::trust,
    exit::{Exit, Failure},
    work::units,
};
use crate::control::client::{Client, Command, ControlError, Deadlines, Endpoint};

const NODES: [&str; 3] = ["hop", "control", "execution"];
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// How long a node may take to end when asked, before it is made to.
const GRACE: Duration = Duration::from_secs(5);

/// The three nodes.
pub struct Mesh {
    dir: PathBuf,
    program: PathBuf,
    arguments: Vec<&'static str>,
    outlives_us: bool,
    control: Client,
    nodes: Vec<Node>,
}

struct Node {
    name: &'static str,
    client: Client,
    process: Child,
}

impl Mesh {
    /// Makes the directory and the configurations; starts nothing. `program` replaces the node built into meshctl.
    ///
    /// # Errors
    /// If the directory cannot be made or written.
    pub fn prepare(program: Option<PathBuf>, outlives_us: bool) -> Result<Self, Failure> {
        let (program, arguments) = match program {
            Some(program) => (program, vec![]),
            None => (std::env::current_exe().map_err(failed("find meshctl itself"))?, vec![DAEMON_ARGUMENT]),
        };
        let dir = make_dir().map_err(failed("make a temporary directory"))?;
        let control = client(&dir, "control");
        let mesh = Self { dir, program, arguments, outlives_us, control, nodes: Vec::new() };
        trust::prepare(&mesh.dir, &NODES)?;
        mesh.write_configurations().map_err(failed("write the nodes' configurations"))?;
        Ok(mesh)
    }

    fn write_configurations(&self) -> io::Result<()> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        for node in NODES {
            fs::write(
                self.dir.join(format!("{node}.yml")),
                format!("{:#}\n", self.configuration(node, port)),
            )?;
        }
        Ok(())
    }

    /// JSON is YAML, so a node reads this as it is.
    fn configuration(&self, node: &str, port: u16) -> Value {
        let mut items = vec![
            json!({"node": {"id": node, "datadir": self.dir.join("data")}}),
            json!({"log-level": "info"}),
            json!({"control-service": {"service": "control", "filename": socket(&self.dir, node),
                "tls": trust::SERVER}}),
        ];
        items.extend(trust::profiles(&self.dir, node));
        if node == "hop" {
            items
                .push(json!({"tcp-listener": {"bindaddr": "127.0.0.1", "port": port, "tls": trust::SERVER}}));
        } else {
            items.push(json!({"tcp-peer": {"address": format!("127.0.0.1:{port}"), "tls": trust::CLIENT}}));
        }
        if node == "control" {
            items.push(trust::signing(&self.dir));
        }
        if node == "execution" {
            items.push(trust::verification(&self.dir));
            let runner = json!({"worktype": "ansible-runner", "command": "ansible-runner", "params": "worker",
                "allowruntimeparams": true, "verifysignature": true});
            let shell = json!({"worktype": "shell", "command": "sh", "params": "-c",
                "allowruntimeparams": true, "verifysignature": true});
            items.extend([json!({"work-command": runner}), json!({"work-command": shell})]);
        }
        Value::Array(items)
    }

    /// The nodes' directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The node that jobs are handed to.
    pub fn control(&self) -> &Client {
        &self.control
    }

    /// Starts the three and waits until each answers on its socket.
    ///
    /// # Errors
    /// If one cannot be started or ends early; the message holds the end of its log.
    pub async fn start(&mut self) -> Result<(), Failure> {
        for name in NODES {
            let (process, client) = (self.spawn(name)?, client(&self.dir, name));
            self.nodes.push(Node { name, client: client.clone(), process });
            // One after the other: a node that dials before hop listens would wait for its next attempt.
            self.until("every node to answer", async || client.connect().await.is_ok()).await?;
        }
        Ok(())
    }

    fn spawn(&self, name: &str) -> Result<Child, Failure> {
        let log = File::create(self.log(name)).map_err(failed("write a log"))?;
        let errors = log.try_clone().map_err(failed("write a log"))?;
        let what = format!("start the node {}", self.program.display());
        Process::new(&self.program)
            .args(&self.arguments)
            .arg("--config")
            .arg(self.dir.join(format!("{name}.yml")))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Ctrl-C is for meshctl, which ends the nodes in good order.
            .process_group(0)
            .kill_on_drop(!self.outlives_us)
            .spawn()
            .map_err(failed(&what))
    }

    /// Waits until control can reach execution.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn wait_for_route(&mut self) -> Result<(), Failure> {
        let control = self.control.clone();
        let ping = Command::json(&json!({"command": "ping", "target": "execution"}));
        let reachable = async || match control.command(&ping).await {
            Ok(answer) => answer["Success"] == json!(true),
            Err(_) => false,
        };
        self.until("a route from control to execution", reachable).await
    }

    async fn until<F: Future<Output = bool>>(
        &mut self,
        what: &str,
        condition: impl Fn() -> F,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while !condition().await {
            self.check_alive()?;
            if Instant::now() > deadline {
                let message = format!("waited {} s in vain for {what}", PATIENCE.as_secs());
                return Err(Failure::new(Exit::Unreachable, message));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<(), Failure> {
        for index in 0..self.nodes.len() {
            if let Ok(Some(status)) = self.nodes[index].process.try_wait() {
                return Err(self.died(self.nodes[index].name, status));
            }
        }
        Ok(())
    }

    fn died(&self, name: &str, status: ExitStatus) -> Failure {
        let log = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n  ");
        Failure::new(
            Exit::Failed,
            format!("node {name} ended by itself ({status}); its last words:\n  {tail}"),
        )
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// Ends what runs on the nodes, then the nodes, and removes the directory. Bounded in time.
    pub async fn stop(&mut self) {
        // Jobs outlive their node by design: here they must not.
        let clients: Vec<Client> = self.nodes.iter().map(|node| node.client.clone()).collect();
        let release = async {
            for client in clients {
                // A node that is already gone has nothing left to release through it.
                let _ = release_all(&client).await;
            }
        };
        let _ = timeout(GRACE, release).await;
        for node in &mut self.nodes {
            node.stop().await;
        }
        // What cannot be removed lies in the system's temporary directory, which is swept.
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// How to talk to a mesh that stays, and how to end it.
    pub fn farewell(&self) -> String {
        let pids: Vec<String> =
            self.nodes.iter().filter_map(|node| node.process.id()).map(|id| id.to_string()).collect();
        let socket = socket(&self.dir, "control");
        format!(
            "\nThe mesh stays. Talk to it:\n  export RECEPTORCTL_SOCKET={}\n  meshctl status\n  meshctl work submit shell --node execution --tls-client mesh --signwork -n -f -- \"'echo hello from \\$(hostname)'\"\nLogs and configurations: {}\nStop it:\n  kill {} && rm -r {}",
            socket.display(),
            self.dir.display(),
            pids.join(" "),
            self.dir.display()
        )
    }

    /// The nodes with their sockets and process ids.
    pub fn describe(&self) -> Value {
        let nodes = self.nodes.iter().map(|node| {
            json!({"node": node.name, "socket": socket(&self.dir, node.name), "pid": node.process.id()})
        });
        nodes.collect()
    }
}

impl Node {
    async fn stop(&mut self) {
        let pid = self.process.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended by itself; it is not reaped yet, so its id is nobody else's.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if timeout(GRACE, self.process.wait()).await.is_err() {
            let _ = self.process.kill().await;
        }
    }
}

async fn release_all(client: &Client) -> Result<(), ControlError> {
    for unit in units::ids(&client.command(&Command::words("work list")?).await?) {
        units::operate(client, "release", &unit).await?;
    }
    Ok(())
}

fn socket(dir: &Path, node: &str) -> PathBuf {
    dir.join(format!("{node}.sock"))
}

fn client(dir: &Path, node: &str) -> Client {
    Client::new(Endpoint::Unix(socket(dir, node)), Deadlines::default())
}

fn make_dir() -> io::Result<PathBuf> {
    let name = format!("meshd-demo-{:08x}", rand::random::<u32>());
    let mut parent = std::env::temp_dir();
    // The kernel takes socket paths of up to 107 bytes.
    if parent.as_os_str().len() > 70 {
        parent = PathBuf::from("/tmp");
    }
    let dir = parent.join(name);
    DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(Exit::Failed, format!("cannot {what}: {error}"))
}
