//! The real daemon as a process, and the requests of clients over its control socket.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;
use crate::until::{LIMIT, until};

/// A directory, in memory if possible.
pub(crate) fn scratch_in_memory() -> TempDir {
    let shm = Path::new("/dev/shm");
    tempfile::tempdir_in(if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }).unwrap()
}

/// The daemon, killed when dropped. Its configuration is `c.yml` in its directory, its control socket `s`, its log
/// `log`.
pub(crate) struct Daemon {
    process: Process,
    dir: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "---- log
{}",
                self.log()
            );
        }
    }
}

impl Daemon {
    pub(crate) fn start(dir: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--config").arg(dir.join("c.yml"));
        Self::start_by(command, dir)
    }

    /// Starts it by another command.
    pub(crate) fn start_by(mut command: Command, dir: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        Self { process: Process::start(&mut command, log), dir: dir.to_owned() }
    }

    /// Kills it, and starts it again.
    pub(crate) fn restart(&mut self) {
        let _unless_it_has_ended = self.process.kill();
        self.process.wait().unwrap();
        *self = Self::start(&self.dir);
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// Resident memory in bytes, without the program's own code, which comes and goes.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Opens a client's connection; returns it and the answer to its first line.
    pub(crate) fn converse(&self, line: &str) -> (BufReader<UnixStream>, String) {
        let stream = until("the daemon answers", || UnixStream::connect(self.dir.join("s")).ok());
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut stream = BufReader::new(stream);
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        answer.clear();
        stream.read_line(&mut answer).unwrap();
        (stream, answer)
    }

    pub(crate) fn ask(&self, line: &str) -> String {
        self.converse(line).1
    }

    /// Submits a unit; returns its ID and the last answer.
    pub(crate) fn submit(&self, work_type: &str, params: Value, payload: &[u8]) -> (String, String) {
        let mut request = json!({
            "command": "work", "subcommand": "submit", "node": "localhost", "worktype": work_type,
        });
        request.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        let (mut client, created) = self.converse(&request.to_string());
        let id = created.split(' ').nth(5).unwrap_or_else(|| panic!("{created}: {}", self.log()));
        client.get_mut().write_all(payload).unwrap();
        client.get_mut().shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        (id.trim_end_matches('.').to_owned(), answer)
    }

    /// Submits a unit that is refused; returns the answer.
    pub(crate) fn submit_refused(&self, work_type: &str) -> String {
        let line = json!({
            "command": "work", "subcommand": "submit", "node": "localhost", "worktype": work_type,
        });
        self.ask(&line.to_string())
    }

    /// Waits until the status of a unit is as it should be.
    pub(crate) fn until(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until("the status is as it should be", || {
            let status: Value = serde_json::from_str(&self.ask(&format!("work status {id}"))).unwrap();
            is_so(&status).then_some(status)
        })
    }
}
