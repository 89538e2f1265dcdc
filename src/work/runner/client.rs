//! The daemon's end of the spawner: starts it, hands it requests, matches answers to them, and starts another when it
//! dies. Requests may be repeated freely, because only the first runner can claim a unit. Of a unit it knows only the
//! directory.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::os::back_off::BackOff;
use crate::os::readiness;
use crate::work::cgroup;

use super::{MAX_MESSAGE, Outcome, Reply, RunnerJob, SPAWNER_ARGUMENT};

/// The number of requests that may wait for the spawner; further callers wait.
const QUEUE: usize = 1024;
/// Pauses between attempts to start a spawner that does not come up, or ends before it has done anything.
const RESTART_PAUSES: BackOff = BackOff::new(Duration::from_millis(200), Duration::from_secs(2));
/// Such attempts in a row before waiting requests are refused.
const RESTARTS: u32 = 5;

/// Variables that systemd sets for the daemon alone. A job that had them would speak for the daemon: podman, for
/// example, hands the socket to the container and waits for the container's message.
const DAEMONS_OWN: [&str; 9] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "CACHE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
];

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Started {
    /// The command runs under this process ID.
    Running(u32),
    /// Some runner has the unit; its directory says which.
    AlreadyTaken,
    /// Nothing runs, for this cause.
    Failed(String),
}

type RunnerAnswer = oneshot::Sender<Started>;

/// Hands requests to the spawner; the spawner ends with the last handle.
#[derive(Debug, Clone)]
pub(crate) struct SpawnerHandle {
    requests: mpsc::Sender<(RunnerJob, RunnerAnswer)>,
    /// The process ID of the latest spawner.
    pid: Arc<AtomicU32>,
}

impl SpawnerHandle {
    /// Starts the spawner.
    pub(crate) fn start(executable: PathBuf) -> io::Result<Self> {
        let process = Process::start(&executable)?;
        let pid = Arc::new(AtomicU32::new(process.child.id()));
        let (requests, queue) = mpsc::channel(QUEUE);
        let (waiting, unsent) = (BTreeMap::new(), VecDeque::new());
        let connection = SpawnerConnection {
            executable,
            process,
            pid: pid.clone(),
            waiting,
            unsent,
            pauses: RESTART_PAUSES,
            has_answered: false,
        };
        tokio::spawn(connection.run(queue));
        Ok(Self { requests, pid })
    }

    /// The spawner's process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Lets the spawner start a unit's command.
    pub(crate) async fn spawn(&self, job: RunnerJob) -> Started {
        let length = serde_json::to_vec(&job).map_or(usize::MAX, |bytes| bytes.len());
        if length > MAX_MESSAGE {
            let cause =
                format!("the work type's settings take {length} bytes, more than the {MAX_MESSAGE} that fit");
            return Started::Failed(cause);
        }
        let (answer, answered) = oneshot::channel();
        let asked = self.requests.send((job, answer)).await;
        let gone = || Started::Failed("the process that starts jobs is gone".into());
        match asked {
            Ok(()) => answered.await.unwrap_or_else(|_| gone()),
            Err(_) => gone(),
        }
    }
}

struct Process {
    socket: Arc<AsyncFd<OwnedFd>>,
    child: Child,
}

impl Process {
    fn start(executable: &PathBuf) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new(executable);
        command.arg(SPAWNER_ARGUMENT).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        for name in DAEMONS_OWN {
            command.env_remove(name);
        }
        let socket = Arc::new(readiness::register(ours, Interest::READABLE | Interest::WRITABLE)?);
        let child = command.spawn()?;
        // Before the first request, because runners inherit both.
        crate::os::rlimit::restore_for(child.id());
        cgroup::move_apart(child.id());
        Ok(Self { socket, child })
    }
}

struct SpawnerConnection {
    executable: PathBuf,
    process: Process,
    pid: Arc<AtomicU32>,
    /// Requests without an answer, by directory.
    waiting: BTreeMap<PathBuf, (RunnerJob, RunnerAnswer)>,
    unsent: VecDeque<PathBuf>,
    pauses: BackOff,
    /// The present spawner has answered a request.
    has_answered: bool,
}

impl SpawnerConnection {
    async fn run(mut self, mut queue: mpsc::Receiver<(RunnerJob, RunnerAnswer)>) {
        loop {
            let socket = self.process.socket.clone();
            tokio::select! {
                request = queue.recv() => match request {
                    Some(request) => self.accept(request),
                    None => break,
                },
                reply = receive(&socket) => match reply {
                    Ok(Some(reply)) => self.answer(reply),
                    Ok(None) | Err(_) => self.restart().await,
                },
                sent = send_next(&socket, self.unsent.front(), &self.waiting) => match sent {
                    Ok(()) => drop(self.unsent.pop_front()),
                    Err(_) => self.restart().await,
                },
            }
        }
        let Process { socket, mut child } = self.process;
        drop(socket);
        // The spawner ends by itself now; waiting removes it from the process table.
        tokio::task::spawn_blocking(move || child.wait());
    }

    fn accept(&mut self, (job, answer): (RunnerJob, RunnerAnswer)) {
        self.unsent.push_back(job.dir.clone());
        self.waiting.insert(job.dir.clone(), (job, answer));
    }

    fn answer(&mut self, reply: Reply) {
        self.has_answered = true;
        let Some((_, answer)) = self.waiting.remove(&reply.dir) else { return };
        let started = match reply.outcome {
            Outcome::Started(pid) => Started::Running(pid),
            Outcome::AlreadyTaken => Started::AlreadyTaken,
            Outcome::Failed(cause) => Started::Failed(cause),
        };
        let _ = answer.send(started);
    }

    /// Replaces a spawner that has died, and repeats the requests that it may not have carried out.
    async fn restart(&mut self) {
        tracing::warn!(
            "the process that starts jobs has ended, starting another; running jobs are not affected"
        );
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
        if std::mem::take(&mut self.has_answered) {
            self.pauses.reset();
        } else {
            tokio::time::sleep(self.pauses.next()).await;
        }
        let cause = match Process::start(&self.executable) {
            Ok(process) => {
                self.pid.store(process.child.id(), Ordering::Relaxed);
                self.process = process;
                "it ended before it had done anything".to_owned()
            }
            Err(error) => {
                tracing::error!(%error, "cannot start the process that starts jobs");
                error.to_string()
            }
        };
        self.unsent = self.waiting.keys().cloned().collect();
        if self.pauses.failures() < RESTARTS {
            return;
        }
        self.unsent.clear();
        for (_, (_, answer)) in std::mem::take(&mut self.waiting) {
            let cause = format!(
                "cannot start the process that starts jobs ({}): {cause}; put the program back in its place, or restart \
                 the node",
                self.executable.display()
            );
            let _ = answer.send(Started::Failed(cause));
        }
    }
}

async fn receive(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<Reply>> {
    let mut reply = Vec::with_capacity(MAX_MESSAGE);
    let receive = |fd: &OwnedFd| {
        let received = rustix::net::recv(fd, spare_capacity(&mut reply), RecvFlags::empty());
        received.map(drop).map_err(io::Error::from)
    };
    socket.async_io(Interest::READABLE, receive).await?;
    if reply.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&reply).map(Some).map_err(io::Error::other)
}

/// Sends the first request in the queue; never ends if there is none.
async fn send_next(
    socket: &AsyncFd<OwnedFd>,
    next: Option<&PathBuf>,
    waiting: &BTreeMap<PathBuf, (RunnerJob, RunnerAnswer)>,
) -> io::Result<()> {
    let Some(dir) = next else { return std::future::pending().await };
    // Answered already: nothing to send.
    let Some((job, _)) = waiting.get(dir) else { return Ok(()) };
    let bytes = serde_json::to_vec(job)?;
    let send = |fd: &OwnedFd| rustix::net::send(fd, &bytes, SendFlags::NOSIGNAL).map_err(io::Error::from);
    socket.async_io(Interest::WRITABLE, send).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_spawner_that_ends_at_once_is_started_ever_more_rarely_and_requests_are_refused() {
        let begun = tokio::time::Instant::now();
        let spawner = SpawnerHandle::start("/bin/false".into()).unwrap();
        let job = serde_json::json!({"dir": "/nowhere/unit", "command": "true", "grace_ms": 0});
        let job = serde_json::from_value(job).unwrap();
        let Started::Failed(why) = spawner.spawn(job).await else { panic!("nothing can be started") };
        assert!(why.contains("/bin/false") && why.contains("it ended before it had done anything"), "{why}");
        assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
    }
}
