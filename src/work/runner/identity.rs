//! Identifies a runner's process by process ID, start time and boot, so that no later process can be mistaken for it.
//! Owns the private file `runner` of a unit directory; a runner claims its unit by making that file. Signals are sent
//! only through a descriptor that was checked against the identity.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::os::boot::boot;
use crate::work::store::UnitDir;

/// A process, distinguished from all others before and after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// Clock ticks between boot and the process's start.
    start: u64,
    /// The kernel's random name for the time since it booted.
    boot: String,
}

impl Identity {
    /// This process.
    pub(crate) fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, start: Stat::read(pid)?.start, boot: boot()? })
    }

    /// Writes the identity into the unit directory unless one is there; says whether it was written.
    pub(crate) fn claim(&self, dir: &UnitDir) -> io::Result<bool> {
        let draft = dir.file(&format!(".runner.{}", self.pid));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        // A link appears whole or not at all, and only one can have the name.
        let linked = fs::hard_link(&draft, dir.file("runner"));
        fs::remove_file(&draft)?;
        match linked {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The runner that claimed a unit; `None` if none did, or if its claim is damaged.
    ///
    /// # Errors
    /// The claim cannot be read now, but may be there.
    pub(crate) fn load(dir: &UnitDir) -> io::Result<Option<Self>> {
        let found = if_there(dir.read("runner"))?;
        Ok(found.and_then(|claim| serde_json::from_slice(&claim).ok()))
    }

    /// The Go runner of a unit that a Go node started and left behind: the process must name the directory.
    ///
    /// # Errors
    /// When that cannot be known for now.
    pub(crate) fn of_go_runner(pid: u32, dir: &UnitDir) -> io::Result<Option<Self>> {
        let Some(arguments) = if_there(fs::read(format!("/proc/{pid}/cmdline")))? else { return Ok(None) };
        let wanted = [b"unitdir=", dir.path().as_os_str().as_bytes()].concat();
        let names_it = arguments.split(|&b| b == 0).any(|argument| argument == wanted);
        if names_it { if_there(Self::of(pid)) } else { Ok(None) }
    }

    /// A descriptor of exactly this process; `None` when it is gone.
    ///
    /// # Errors
    /// When the system refuses for another reason, such as too many open files.
    pub(crate) fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let descriptor = match rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Checked after opening: if the process is there now, the descriptor is of this process and no other.
        Ok(self.is_there()?.then_some(descriptor))
    }

    /// Whether the machine has not been restarted since the process was started.
    ///
    /// # Errors
    /// When that cannot be known for now.
    pub(crate) fn is_of_this_boot(&self) -> io::Result<bool> {
        Ok(boot()? == self.boot)
    }

    /// Whether the process is there. A process that cannot be looked at, for example for want of descriptors, does not
    /// count as dead.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_there().unwrap_or(true)
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(if_there(Self::of(self.pid))?.is_some_and(|now| now == *self))
    }

    /// Sends a signal to exactly this process; nothing happens when it is gone.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(descriptor) = self.open()? else { return Ok(()) };
        match rustix::process::pidfd_send_signal(descriptor, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// `None` if the file or the process is not there; a process may end while it is looked at.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What `/proc/PID/stat` says.
pub(super) struct Stat {
    /// Ended, and not yet reaped.
    pub(super) dead: bool,
    /// The process group's ID.
    pub(super) group: u32,
    /// The session's ID.
    pub(super) session: u32,
    /// The parent's process ID.
    pub(super) parent: u32,
    /// Start time, in clock ticks since boot.
    pub(super) start: u64,
}

impl Stat {
    pub(super) fn read(pid: u32) -> io::Result<Self> {
        // The kernel gives all of it at once: some 52 numbers and a name of 15 bytes.
        let mut text = [0; 2048];
        let length = fs::File::open(format!("/proc/{pid}/stat"))?.read(&mut text)?;
        let text = String::from_utf8_lossy(&text[..length]);
        Self::parse(&text)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat makes no sense: {text:?}")))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may hold anything, so fields are counted from its end.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            dead: matches!(*fields.first()?, "Z" | "X"),
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_with_the_same_number_is_not_taken_for_the_runner() {
        let me = Identity::own().unwrap();
        assert!(me.open().unwrap().is_some());
        let earlier = Identity { start: me.start - 1, ..me.clone() };
        assert!(earlier.open().unwrap().is_none());
        let other_boot = Identity { boot: "x".into(), ..me.clone() };
        assert!(other_boot.open().unwrap().is_none());
        // This would end the test if it were sent.
        other_boot.signal(Signal::KILL).unwrap();
        assert!(Identity { pid: 0, ..me.clone() }.open().unwrap().is_none());
        assert!(Identity { pid: u32::MAX, ..me }.open().unwrap().is_none());
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let text = "7 (a) b) (c) S 42 1 3 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 9876 1 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.session, stat.start, stat.dead), (42, 3, 9876, false));
        assert!(Stat::parse("").is_none() && Stat::parse("7 (x) S").is_none());
    }

    #[test]
    fn one_runner_only_claims_a_unit() {
        let temp = tempfile::tempdir().unwrap();
        let dir = UnitDir::at(temp.path());
        assert_eq!(Identity::load(&dir).unwrap(), None);
        let me = Identity::own().unwrap();
        assert!(me.claim(&dir).unwrap());
        assert!(!me.claim(&dir).unwrap());
        assert_eq!(Identity::load(&dir).unwrap(), Some(me));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
        fs::write(dir.file("runner"), "{").unwrap();
        assert_eq!(Identity::load(&dir).unwrap(), None);
        // A directory in its place names no runner.
        fs::remove_file(dir.file("runner")).unwrap();
        fs::create_dir(dir.file("runner")).unwrap();
        assert_eq!(Identity::load(&dir).unwrap(), None);
    }

    #[test]
    fn a_process_that_cannot_be_looked_at_is_not_taken_for_dead() {
        let gone = |error: io::Error| if_there::<()>(Err(error)).unwrap().is_none();
        assert!(gone(io::ErrorKind::NotFound.into()));
        assert!(gone(rustix::io::Errno::SRCH.into()));
        assert!(if_there::<()>(Err(rustix::io::Errno::MFILE.into())).is_err());
    }
}
