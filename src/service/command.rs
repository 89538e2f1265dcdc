//! The command service: each stream of a service gets a command on a terminal of its own.
//!
//! Owns the command's session, from the terminal to the last of its processes: when the stream ends, no process is
//! left, and when the command ends, all of its output arrives. Sessions that end together are killed in one pass.
//! Refuses to know what the command does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::pin::pin;
use std::time::Duration;

use pty_process::{Command, OwnedReadPty, OwnedWritePty, Size};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::accept;
use crate::node::NodeHandle;
use crate::stream::{MeshStream, StreamListenError, StreamListener, Streams};
use crate::tls::ServerProfile;
use crate::wire::ServiceName;

/// Most terminals of one neighbour at a time; all neighbours together may have twice as many.
const MOST_TERMINALS: usize = 32;
/// The terminal's rows and columns, for programs that ask. Fixed, because streams carry no size.
const SIZE: (u16, u16) = (24, 80);
/// The character (Ctrl-D) that a terminal's user types to end the input.
const END_OF_INPUT: u8 = 0x04;
/// How long a command may take to end once its terminal has hung up.
const GRACE: Duration = Duration::from_secs(2);
/// How long a killed command may take to end.
const LAST: Duration = Duration::from_secs(1);
/// Bytes of the buffer for each direction.
const BUFFER: usize = 16 << 10;

/// Why a command service cannot be offered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandServiceError {
    /// The text cannot be split into words.
    #[error("{0:?} does not split into a program and its arguments")]
    NoCommand(String),
    /// The service cannot be opened.
    #[error(transparent)]
    Listen(#[from] StreamListenError),
}

/// A service of the mesh that runs a command on a terminal for each stream.
#[derive(Debug)]
pub(crate) struct CommandService {
    node: NodeHandle,
    listener: StreamListener,
    words: Vec<String>,
}

impl CommandService {
    /// Opens the service, with TLS if a profile is given, and advertises it. `command` is split as a shell does.
    ///
    /// # Errors
    /// [`CommandServiceError`]. A program that does not exist is no error here, but ends each stream.
    pub(crate) async fn listen(
        streams: &Streams,
        service: ServiceName,
        command: &str,
        tls: Option<ServerProfile>,
    ) -> Result<Self, CommandServiceError> {
        let words = shlex::split(command).filter(|words| !words.is_empty());
        let words = words.ok_or_else(|| CommandServiceError::NoCommand(command.to_owned()))?;
        let tags = BTreeMap::from([("type".to_owned(), "Command Service".to_owned())]);
        let listener = streams.listen_with(service, Some(tags), tls).await?;
        info!(%service, program = words[0], "command service open");
        Ok(Self { node: streams.node().clone(), listener, words })
    }

    /// Serves until `stop`. Once this returns, all commands have ended and the service's name is free again.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (words, sweeper) = (self.words, Sweeper::spawn());
        let serve = |stream, stop| serve(words.clone(), sweeper.clone(), stream, stop);
        accept::outward(&self.node, self.listener, MOST_TERMINALS, serve, stop).await;
    }
}

/// One stream's command, from its start to the end of its session.
async fn serve(words: Vec<String>, sweeper: Sweeper, mut stream: MeshStream, stop: CancellationToken) {
    match start(&words) {
        Ok((read, write, child)) => {
            let session = CommandSession::new(child, sweeper);
            let talk = converse(read, write, &mut stream, &session);
            // The terminal hangs up when the talk is dropped.
            match stop.run_until_cancelled(talk).await {
                Some(()) => drop(stream),
                // A stream that is cut short must not look complete.
                None => stream.abort("service closed"),
            }
            session.end().await;
        }
        Err(error) => {
            warn!(program = words[0], %error, "cannot start the command of a command service");
            stream.abort("the command cannot be started");
        }
    }
}

fn start(words: &[String]) -> Result<(OwnedReadPty, OwnedWritePty, Child), pty_process::Error> {
    let (pty, terminal) = pty_process::open()?;
    pty.resize(Size::new(SIZE.0, SIZE.1))?;
    let child = Command::new(&words[0]).args(&words[1..]).kill_on_drop(true).spawn(terminal)?;
    if let Some(id) = child.id() {
        crate::os::rlimit::restore_for(id);
    }
    let (read, write) = pty.into_split();
    Ok((read, write, child))
}

/// Carries bytes until the command's output has ended, or the stream's other end is gone.
async fn converse(
    read: OwnedReadPty,
    write: OwnedWritePty,
    stream: &mut MeshStream,
    session: &CommandSession,
) {
    let mut gone = pin!(stream.closed());
    let (mesh_read, mesh_write) = split(stream);
    let mut said = pin!(say(read, mesh_write));
    let mut heard = pin!(hear(mesh_read, write));
    let mut exited = pin!(session.exited());
    let (mut heard_all, mut has_exited) = (false, false);
    loop {
        tokio::select! {
            ended = &mut said => {
                return ended.unwrap_or_else(|error| debug!(%error, "command's stream lost"));
            }
            outcome = &mut heard, if !heard_all => match outcome {
                Ok(_terminal) => heard_all = true,
                Err(error) => return debug!(%error, "command's stream lost"),
            },
            () = &mut exited, if !has_exited => {
                has_exited = true;
                // While another process has the terminal open, the output does not end.
                session.kill().await;
            }
            () = &mut gone, if heard_all => return,
        }
    }
}

/// Copies from the terminal into the stream, and ends the stream with the output.
async fn say(mut terminal: OwnedReadPty, mut stream: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = match terminal.read(&mut buffer).await {
            Ok(read) => read,
            // Linux's error once no process has the terminal open.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => 0,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..read]).await?;
    }
}

/// Copies from the stream into the terminal. At the stream's end, types the end of input; the terminal stays open for
/// further output.
async fn hear(mut stream: impl AsyncRead + Unpin, mut terminal: OwnedWritePty) -> io::Result<OwnedWritePty> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = stream.read(&mut buffer).await?;
        let typed = if read == 0 { &[END_OF_INPUT][..] } else { &buffer[..read] };
        // The write fails if the command has ended, which the other direction reports.
        if terminal.write_all(typed).await.is_err() || read == 0 {
            return Ok(terminal);
        }
    }
}

/// A command, and all processes that it started and that are still in its session.
struct CommandSession {
    leader: Option<Pid>,
    child: Child,
    sweeper: Sweeper,
}

impl CommandSession {
    fn new(child: Child, sweeper: Sweeper) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Self { leader, child, sweeper }
    }

    /// Waits for the leader's end without reaping it, because until it is reaped the kernel does not reuse its number.
    async fn exited(&self) {
        let Some(leader) = self.leader else { return };
        let Ok(mut children) = signal(SignalKind::child()) else { return };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while let Ok(None) = waitid(WaitId::Pid(leader), options) {
            children.recv().await;
        }
    }

    /// Kills the session's living processes; false if there were none.
    async fn kill(&self) -> bool {
        match self.leader {
            Some(leader) => self.sweeper.kill(leader).await,
            None => false,
        }
    }

    /// Ends the session after its terminal has hung up: gives it [`GRACE`] to end, then kills it.
    async fn end(mut self) {
        let _in_time = timeout(GRACE, self.exited()).await;
        // Several rounds, because a process may start another one during a round.
        for _ in 0..50 {
            if !self.kill().await {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        match timeout(LAST, self.child.wait()).await {
            Ok(Ok(status)) => debug!(%status, "command ended"),
            Ok(Err(error)) => warn!(%error, "cannot tell how a command ended"),
            // It hangs in the kernel, for example because a file system does not answer. It is not waited for: the
            // runtime reaps it whenever it ends.
            Err(_elapsed) => {
                let pid = self.child.id();
                warn!(pid, "a command was killed but has not ended, leaving it behind");
            }
        }
    }
}

/// Kills sessions: reads the process table once for all sessions that are to end at the time. Clones share one task.
#[derive(Clone)]
struct Sweeper(mpsc::Sender<(Pid, oneshot::Sender<bool>)>);

impl Sweeper {
    /// Starts the task, which ends with the last clone.
    fn spawn() -> Self {
        let (sender, mut asked) = mpsc::channel::<(Pid, oneshot::Sender<bool>)>(2 * MOST_TERMINALS);
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while asked.recv_many(&mut batch, 2 * MOST_TERMINALS).await > 0 {
                let leaders: BTreeSet<i32> = batch.iter().map(|(leader, _)| leader.as_raw_pid()).collect();
                let swept = spawn_blocking(move || kill_sessions(&leaders)).await.unwrap_or_default();
                for (leader, answer) in batch.drain(..) {
                    let _nobody_waits = answer.send(swept.contains(&leader.as_raw_pid()));
                }
            }
        });
        Self(sender)
    }

    /// Kills a session; false if it had no living process.
    async fn kill(&self, leader: Pid) -> bool {
        let (answer, answered) = oneshot::channel();
        self.0.send((leader, answer)).await.is_ok() && answered.await.unwrap_or(false)
    }
}

/// Kills all living processes of these sessions. Returns the sessions that had any.
fn kill_sessions(leaders: &BTreeSet<i32>) -> BTreeSet<i32> {
    let Ok(processes) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut swept = BTreeSet::new();
    for process in numbers.filter_map(Pid::from_raw) {
        if let Some(session) = session_of(process).filter(|session| leaders.contains(session)) {
            // Fails only if the process has just ended.
            let _gone = kill_process(process, Signal::KILL);
            swept.insert(session);
        }
    }
    swept
}

/// The session of a living process. The name may contain anything, so fields count from its end: state, parent, group,
/// session.
fn session_of(process: Pid) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    fields.nth(2)?.parse().ok().filter(|_| state != "Z")
}
