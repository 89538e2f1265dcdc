//! Runs jobs on the hosts, in place of the processes that a daemon starts: its spawner, a runner for each unit, and the
//! command. It keeps the contract of src/work/runner about files and the spawner's socket: who claims a unit, what its
//! directory holds, and what an exit leaves. It outlives the daemon.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meshd_machine::{self as machine, Host, Process, Start};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};
use serde_json::{Value, json};

use super::history::{History, Note, digest};
use super::output::Task;

/// The host of a host's jobs. It is a host of its own, so that a paused daemon does not pause its jobs.
pub(super) fn jobs_of(host: Host) -> Host {
    Host(host.0 + 10_000)
}

/// The signal that no process can handle.
const KILL: i32 = nix::sys::signal::Signal::SIGKILL as i32;
/// How long a command runs before its status shows that it runs.
const SHORT: Duration = Duration::from_millis(20);
/// The longest message, in bytes.
const MESSAGE: usize = 64 * 1024;
/// The forks that each host can run: one for each 100 MiB beyond the first two GiB. Its processors would allow fewer.
pub(super) const CAPACITY: u64 = 14;
const MEMORY: u64 = (2 << 30) + CAPACITY * (100 << 20);

/// Makes each program that a daemon starts a spawner of this kind.
pub(super) fn stand_in(history: &History) {
    let history = history.clone();
    machine::start_by(move |start| {
        let history = history.clone();
        machine::on_host(jobs_of(start.host), || {
            small_thread().spawn(move || spawner(start, &history)).unwrap();
        });
    });
}

fn small_thread() -> std::thread::Builder {
    std::thread::Builder::new().stack_size(1 << 20)
}

/// Serves a daemon until the daemon is gone or this process is killed.
fn spawner(start: Start, history: &History) {
    let alive = Arc::new(AtomicBool::new(true));
    let daemon: Arc<OwnedFd> = Arc::new(start.stdin.expect("the daemon's socket"));
    let mut message = vec![0; MESSAGE];
    loop {
        let _some = rustix::event::poll(&mut [PollFd::new(&daemon, PollFlags::IN)], None);
        match rustix::net::recv(&daemon, &mut message[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => break,
            Ok((length, _)) => {
                let job: Value = serde_json::from_slice(&message[..length]).unwrap();
                let runner = Runner {
                    process: machine::begin(jobs_of(start.host)),
                    dir: PathBuf::from(job["dir"].as_str().unwrap()),
                    daemon: daemon.clone(),
                    has_spawner: alive.clone(),
                    history: history.clone(),
                };
                small_thread().spawn(move || runner.run()).unwrap();
            }
            Err(_) => {}
        }
    }
    alive.store(false, Ordering::SeqCst);
    start.process.end(0);
}

struct Runner {
    process: Process,
    dir: PathBuf,
    daemon: Arc<OwnedFd>,
    has_spawner: Arc<AtomicBool>,
    history: History,
}

/// How a command ended.
enum End {
    Exit(i32),
    /// SIGINT or SIGTERM.
    Asked,
    /// The runner itself got SIGKILL, or its machine is off: nothing more is written.
    Killed,
}

impl Runner {
    fn run(self) {
        match self.claim() {
            Ok(true) => {}
            Ok(false) => return self.leave("AlreadyTaken".into()),
            Err(error) => return self.leave(json!({"Failed": format!("cannot claim the unit: {error}")})),
        }
        let begun = self.begin();
        let (status, command) = match begun {
            Ok(begun) => begun,
            Err(error) => return self.leave(json!({"Failed": error.to_string()})),
        };
        self.answer(json!({"Started": self.process.pid}));
        let Self { process, dir, has_spawner, history, daemon, .. } = self;
        drop(daemon);
        let tag = command.tag();
        let end = command.run(process, &dir, &status);
        if let Some(tag) = tag {
            history.note(match end {
                End::Exit(0) => Note::Ended { tag, pid: process.pid },
                End::Exit(_) | End::Asked | End::Killed => Note::Killed { tag, pid: process.pid },
            });
        }
        if !matches!(end, End::Killed) {
            leave_end(process, &dir, status, &end, &has_spawner);
        }
        process.end(0);
    }

    fn leave(self, outcome: Value) {
        self.answer(outcome);
        self.process.end(0);
    }

    fn answer(&self, outcome: Value) {
        let reply = json!({"dir": self.dir, "outcome": outcome}).to_string();
        let _gone = rustix::net::send(&self.daemon, reply.as_bytes(), SendFlags::NOSIGNAL);
    }

    fn claim(&self) -> io::Result<bool> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let identity = json!({"pid": self.process.pid, "start": self.process.started, "boot": boot.trim()});
        let draft = self.dir.join(format!(".runner.{}", self.process.pid));
        fs::write(&draft, identity.to_string())?;
        let linked = fs::hard_link(&draft, self.dir.join("runner"));
        fs::remove_file(&draft)?;
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn begin(&self) -> io::Result<(Value, Command)> {
        let status: Value = serde_json::from_slice(&fs::read(self.dir.join("status"))?)?;
        let params = status["ExtraData"]["Params"].as_str().unwrap_or_default().to_owned();
        let payload = fs::read(self.dir.join("stdin"))?;
        let out =
            fs::OpenOptions::new().append(true).create(true).mode(0o600).open(self.dir.join("stdout"))?;
        let command = Command::new(&params, &payload, out, self.process.pid);
        if let Some(tag) = command.tag() {
            let unit = self.dir.file_name().unwrap().to_string_lossy().into_owned();
            let node = self.dir.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
            let pid = self.process.pid;
            self.history.note(Note::Started { tag, node, unit, pid, payload: digest(&payload) });
        }
        Ok((status, command))
    }
}

/// Writes down how a command has ended, as a runner does.
fn leave_end(process: Process, dir: &Path, mut status: Value, end: &End, has_spawner: &AtomicBool) {
    let cancelled = dir.join("cancel").exists();
    let (state, detail) = match end {
        End::Exit(0) => (2, "exit status 0".to_owned()),
        End::Exit(code) => (3, format!("exit status {code}")),
        End::Asked | End::Killed if cancelled => (4, "Canceled".to_owned()),
        End::Asked | End::Killed => (3, "Killed".to_owned()),
    };
    let _gone = fs::remove_file(dir.join("stdin"));
    let size = fs::metadata(dir.join("stdout")).map_or(0, |found| found.len());
    status["State"] = json!(state);
    status["Detail"] = json!(detail);
    status["StdoutSize"] = json!(size);
    status["ExtraData"] = Value::Null;
    let line = format!("{status}\n");
    if has_spawner.load(Ordering::SeqCst) && write(&dir.join("end"), &line).is_ok() {
        return;
    }
    // Tries again, because a full disk gets room again. A missing directory means that the unit was released.
    while replace(dir, &line).is_err() && dir.is_dir() {
        if process.signal(Duration::from_secs(1)) == Some(KILL) {
            return;
        }
    }
}

fn write(path: &Path, text: &str) -> io::Result<fs::File> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Replaces a unit's status, durably.
fn replace(dir: &Path, text: &str) -> io::Result<()> {
    replace_by(dir, text, fs::File::sync_all)?;
    fs::File::open(dir)?.sync_all()
}

fn replace_by(dir: &Path, text: &str, first: impl FnOnce(&fs::File) -> io::Result<()>) -> io::Result<()> {
    let draft = dir.join(".status.new");
    first(&write(&draft, text)?)?;
    fs::rename(draft, dir.join("status"))
}

/// What a command does.
enum Does {
    Job(Task),
    /// Prints the size of the host, if asked.
    Size(Option<Vec<u8>>),
}

/// What a unit runs.
struct Command {
    does: Does,
    out: fs::File,
}

impl Command {
    fn new(params: &str, payload: &[u8], out: fs::File, pid: u32) -> Self {
        let size = || {
            let size = json!({"cpu_count": 2, "mem_in_bytes": MEMORY, "runner_version": "2.4.0", "uuid": "u", "errors": []});
            format!("{size}\n").into_bytes()
        };
        let does = match Task::of(payload, pid) {
            Some(task) => Does::Job(task),
            None => Does::Size(params.contains("--worker-info").then(size)),
        };
        Self { does, out }
    }

    /// The name of the job, if the command is a job.
    fn tag(&self) -> Option<String> {
        match &self.does {
            Does::Job(task) => Some(task.output.tag.clone()),
            Does::Size(_) => None,
        }
    }

    fn run(mut self, process: Process, dir: &Path, status: &Value) -> End {
        let (pause, code, pieces): (_, _, Box<dyn Iterator<Item = Vec<u8>>>) = match &mut self.does {
            Does::Job(task) => (task.pause(), task.code(), Box::new(task.output.pieces())),
            Does::Size(size) => (Duration::ZERO, 0, Box::new(size.take().into_iter())),
        };
        let (mut ran, mut is_written) = (Duration::ZERO, false);
        for piece in pieces {
            if let Some(end) = ended_by(process, pause) {
                return end;
            }
            ran += pause;
            if ran >= SHORT && !std::mem::replace(&mut is_written, true) {
                let mut running = status.clone();
                running["State"] = json!(1);
                running["Detail"] = json!(format!("Running: PID {}", process.pid));
                let _later = replace_by(dir, &format!("{running}\n"), |_| Ok(()));
            }
            if self.out.write_all(&piece).is_err() {
                return End::Exit(1);
            }
        }
        ended_by(process, pause).unwrap_or(End::Exit(code))
    }
}

/// Waits for a signal, at most for this time.
fn ended_by(process: Process, limit: Duration) -> Option<End> {
    let signal = process.signal(limit)?;
    Some(if signal == KILL { End::Killed } else { End::Asked })
}
