//! Simulated processes: a program that a host starts is a thread of the test, with a number, a start time, a descriptor
//! to wait with and signals to read.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::state::{Host, WORLD, me, with};
use crate::sys::{self, Original};
use crate::threads::{self, Wait};

/// Numbers of simulated processes are above all real ones, which Linux keeps below 2^22.
const FIRST_PID: u32 = 1 << 23;

/// A process that a host wants to start.
#[derive(Debug)]
pub struct Start {
    /// The host.
    pub host: Host,
    /// The standard input, if it is not inherited.
    pub stdin: Option<OwnedFd>,
    /// The process.
    pub process: Process,
}

/// A process of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the host booted.
    pub started: u64,
}

type Starter = Arc<dyn Fn(Start) + Send + Sync>;

struct State {
    host: Host,
    started: u64,
    signals: VecDeque<c_int>,
    /// Its wait status once it has ended.
    ended: Option<c_int>,
    /// Descriptors that become readable when the process ends.
    watched: Vec<OwnedFd>,
}

/// The processes of the run.
#[derive(Default)]
pub(crate) struct Processes {
    starter: Option<Starter>,
    all: BTreeMap<u32, State>,
    next: u32,
    /// The process of each descriptor.
    descriptors: BTreeMap<c_int, u32>,
}

/// From now on `starter` is called for each program that a host starts, on the thread that starts it.
pub fn start_by(starter: impl Fn(Start) + Send + Sync + 'static) {
    with(|machine| machine.processes.starter = Some(Arc::new(starter)));
}

/// Begins a process on a host.
pub fn begin(host: Host) -> Process {
    with(|machine| {
        let started = machine.clock.now / 10_000_000;
        let processes = &mut machine.processes;
        let pid = FIRST_PID + processes.next;
        processes.next += 1;
        let state = State { host, started, signals: VecDeque::new(), ended: None, watched: Vec::new() };
        processes.all.insert(pid, state);
        Process { pid, started }
    })
}

/// Kills all processes of a host. They notice when they run next; on a paused host, once it is resumed.
pub fn kill_all(host: Host) {
    let living: Vec<u32> = with(|machine| {
        let all = machine.processes.all.iter();
        all.filter(|(_, state)| state.host == host && state.ended.is_none()).map(|(pid, _)| *pid).collect()
    });
    living.into_iter().for_each(|pid| send(pid, libc::SIGKILL));
}

impl Process {
    /// Waits for a signal, at most for this time.
    pub fn signal(&self, limit: Duration) -> Option<c_int> {
        let me = me().expect("a thread of the run");
        let deadline = with(|machine| machine.clock.now + limit.as_nanos() as u64);
        loop {
            let found = with(|machine| {
                let state = machine.processes.all.get_mut(&self.pid);
                let signal = state.and_then(|state| state.signals.pop_front());
                (signal, machine.clock.now >= deadline)
            });
            match found {
                (Some(signal), _) => return Some(signal),
                (None, true) => return None,
                (None, false) => drop(threads::block(me, Wait::Signal(u64::from(self.pid)), Some(deadline))),
            }
        }
    }

    /// Ends the process with this wait status.
    pub fn end(&self, status: c_int) {
        let watched = with(|machine| {
            let Some(state) = machine.processes.all.get_mut(&self.pid) else { return Vec::new() };
            if state.ended.is_some() {
                return Vec::new();
            }
            state.ended = Some(status);
            machine.threads.wake(Wait::Signal(u64::from(self.pid)), usize::MAX);
            machine.threads.wake(Wait::Signal(u64::from(self.pid) | 1 << 40), usize::MAX);
            std::mem::take(&mut state.watched)
        });
        for descriptor in watched {
            let one = 1u64.to_ne_bytes();
            let args = [descriptor.as_raw_fd() as usize, one.as_ptr() as usize, one.len(), 0, 0, 0];
            unsafe { sys::raw(libc::SYS_write, args) };
        }
    }
}

fn is_pretended(pid: u32) -> bool {
    pid >= FIRST_PID
}

fn send(pid: u32, signal: c_int) {
    with(|machine| {
        let Some(state) = machine.processes.all.get_mut(&pid) else { return };
        if state.ended.is_none() && signal != 0 {
            state.signals.push_back(signal);
            machine.threads.wake(Wait::Signal(u64::from(pid)), usize::MAX);
        }
    });
}

/// The content of `/proc/PID/stat`, if the path belongs to a simulated process.
fn stat_file(path: &CStr) -> Option<Result<OwnedFd, c_int>> {
    me()?;
    let pid = path.to_str().ok()?.strip_prefix("/proc/")?.strip_suffix("/stat")?.parse().ok()?;
    if !is_pretended(pid) {
        return None;
    }
    let started = with(|machine| {
        let state = machine.processes.all.get(&pid)?;
        state.ended.is_none().then_some(state.started)
    });
    let Some(started) = started else { return Some(Err(libc::ENOENT)) };
    let zeros = " 0".repeat(17);
    let text = format!("{pid} (pretended) S{zeros} 0 {started} 0 0\n");
    Some(file_of(text.as_bytes()))
}

/// The kernel's random ID of this boot of the thread's host, if the path is that of this ID.
fn boot_file(path: &CStr) -> Option<Result<OwnedFd, c_int>> {
    let me = me().filter(|_| path == c"/proc/sys/kernel/random/boot_id")?;
    let boot =
        with(|machine| Some(machine.hosts.get(&machine.threads.host_of(me)?)?.boot)).unwrap_or_default();
    Some(file_of(format!("{boot:08x}-0000-4000-8000-000000000000\n").as_bytes()))
}

/// A file with this content.
fn file_of(bytes: &[u8]) -> Result<OwnedFd, c_int> {
    let args = [c"machine".as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0];
    let made = unsafe { sys::raw(libc::SYS_memfd_create, args) };
    if made < 0 {
        return Err(-made as c_int);
    }
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(made as c_int) });
    let written = file.write_all(bytes);
    unsafe { sys::raw(libc::SYS_lseek, [file.as_raw_fd() as usize, 0, 0, 0, 0, 0]) };
    written.map(|()| file.into()).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// A duplicate of the descriptor, if one is free.
fn copy_of(fd: c_int) -> Option<OwnedFd> {
    let args = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0];
    let copy = unsafe { sys::raw(libc::SYS_fcntl, args) };
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy as c_int) })
}

/// `pidfd_open`, if it names a simulated process.
pub(crate) fn open_descriptor(pid: usize) -> Option<isize> {
    me()?;
    let pid = u32::try_from(pid).ok().filter(|pid| is_pretended(*pid))?;
    let made = unsafe {
        sys::raw(
            libc::SYS_eventfd2,
            [0, libc::EFD_CLOEXEC as usize | libc::EFD_NONBLOCK as usize, 0, 0, 0, 0],
        )
    };
    if made < 0 {
        return Some(sys::answer(made));
    }
    let Some(copy) = copy_of(made as c_int) else { return Some(sys::fail(libc::EMFILE)) };
    let known = with(|machine| {
        let state = machine.processes.all.get_mut(&pid).filter(|state| state.ended.is_none());
        let known = state.is_some();
        if let Some(state) = state {
            state.watched.push(copy);
            machine.processes.descriptors.insert(made as c_int, pid);
        }
        known
    });
    if known {
        return Some(made);
    }
    unsafe { sys::raw(libc::SYS_close, [made as usize, 0, 0, 0, 0, 0]) };
    Some(sys::fail(libc::ESRCH))
}

/// `pidfd_send_signal`, if it is for a simulated process.
pub(crate) fn signal_by_descriptor(fd: usize, signal: usize) -> Option<isize> {
    me()?;
    let pid = with(|machine| machine.processes.descriptors.get(&(fd as c_int)).copied())?;
    let alive = with(|machine| machine.processes.all.get(&pid).is_some_and(|state| state.ended.is_none()));
    if !alive {
        return Some(sys::fail(libc::ESRCH));
    }
    send(pid, signal as c_int);
    Some(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int {
    open_descriptor(pid as usize).unwrap_or_else(|| unsafe {
        sys::call(libc::SYS_pidfd_open, [pid as usize, flags as usize, 0, 0, 0, 0])
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pidfd_send_signal(fd: c_int, signal: c_int, info: *mut c_void, flags: c_uint) -> c_int {
    signal_by_descriptor(fd as usize, signal as usize).unwrap_or_else(|| {
        let args = [fd as usize, signal as usize, info as usize, flags as usize, 0, 0];
        unsafe { sys::call(libc::SYS_pidfd_send_signal, args) }
    }) as c_int
}

/// Forgets a descriptor, because it is closed.
pub(crate) fn forget(processes: &mut Processes, fd: c_int) {
    processes.descriptors.remove(&fd);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn kill(pid: pid_t, signal: c_int) -> c_int {
    match u32::try_from(pid).ok().filter(|pid| is_pretended(*pid) && me().is_some()) {
        Some(pid) => {
            send(pid, signal);
            0
        }
        None => unsafe { sys::call(libc::SYS_kill, [pid as usize, signal as usize, 0, 0, 0, 0]) as c_int },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    let pretended = u32::try_from(pid).ok().filter(|pid| is_pretended(*pid));
    let (Some(number), Some(me)) = (pretended, me()) else {
        let args = [pid as usize, status as usize, options as usize, 0, 0, 0];
        return unsafe { sys::call(libc::SYS_wait4, args) as pid_t };
    };
    loop {
        let ended = with(|machine| machine.processes.all.get(&number).map(|state| state.ended));
        match ended {
            None => return sys::fail(libc::ECHILD) as pid_t,
            Some(Some(ended)) => {
                if !status.is_null() {
                    unsafe { *status = ended };
                }
                with(|machine| machine.processes.all.remove(&number));
                return pid;
            }
            Some(None) if options & libc::WNOHANG != 0 => return 0,
            Some(None) => drop(threads::block(me, Wait::Signal(u64::from(number) | 1 << 40), None)),
        }
    }
}

thread_local! {
    /// The standard input of the next process that this thread starts.
    static STDIN: std::cell::Cell<c_int> = const { std::cell::Cell::new(-1) };
}

static ADD_DUP2: Original = Original::new(c"posix_spawn_file_actions_adddup2");
static SPAWN: Original = Original::new(c"posix_spawnp");

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    from: c_int,
    to: c_int,
) -> c_int {
    if me().is_some() && to == 0 {
        STDIN.set(from);
    }
    type Add = unsafe extern "C" fn(*mut posix_spawn_file_actions_t, c_int, c_int) -> c_int;
    let original: Add = unsafe { std::mem::transmute(ADD_DUP2.get()) };
    unsafe { original(actions, from, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    let asked = me().and_then(|me| {
        with(|machine| {
            let host = machine.threads.host_of(me).filter(|host| *host != WORLD)?;
            Some((host, machine.processes.starter.clone()?))
        })
    });
    let Some((host, starter)) = asked else {
        type Spawn = unsafe extern "C" fn(
            *mut pid_t,
            *const c_char,
            *const posix_spawn_file_actions_t,
            *const posix_spawnattr_t,
            *const *mut c_char,
            *const *mut c_char,
        ) -> c_int;
        let original: Spawn = unsafe { std::mem::transmute(SPAWN.get()) };
        return unsafe { original(pid, file, actions, attributes, arguments, environment) };
    };
    let stdin = match STDIN.replace(-1) {
        -1 => None,
        fd => copy_of(fd),
    };
    let process = begin(host);
    unsafe { *pid = process.pid as pid_t };
    starter(Start { host, stdin, process });
    0
}

/// Opens a path whose content the machine provides itself; `None` for all other paths.
pub(crate) unsafe fn opened(path: *const c_char) -> Option<c_int> {
    let path = unsafe { CStr::from_ptr(path) };
    stat_file(path).or_else(|| boot_file(path)).map(|made| match made {
        Ok(file) => file.into_raw_fd(),
        Err(errno) => sys::fail(errno) as c_int,
    })
}
