//! The state of the machine, one for the process, and the way in.
//!
//! Only the thread whose turn it is touches the state, so threads of the run never wait for its lock. The lock is there
//! for threads outside of the run.

use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::chance::Chance;
use crate::datagrams::Datagrams;
use crate::disk::{Disk, Disks};
use crate::processes::Processes;
use crate::sockets::Sockets;
use crate::threads::{self, Threads};
use crate::time::Clock;

/// A computer of the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u32);

/// The host of the test itself, which is never paused and whose clock is never wrong.
pub const WORLD: Host = Host(0);

/// The whole state of a run.
pub(crate) struct Machine {
    pub(crate) chance: Chance,
    pub(crate) clock: Clock,
    pub(crate) threads: Threads,
    pub(crate) hosts: BTreeMap<Host, HostState>,
    pub(crate) disks: Disks,
    pub(crate) sockets: Sockets,
    pub(crate) datagrams: Datagrams,
    pub(crate) processes: Processes,
    boots: u64,
}

/// The present state of a host.
#[derive(Default)]
pub(crate) struct HostState {
    pub(crate) paused: bool,
    /// Nanoseconds by which its wall clock is ahead of the world's.
    pub(crate) clock_ahead: i64,
    pub(crate) disk: Disk,
    /// Identifies this boot, like the kernel's random boot ID.
    pub(crate) boot: u64,
    /// The host is off: nothing that its threads do has an effect.
    pub(crate) off: bool,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static LOCKED: AtomicBool = AtomicBool::new(false);
static MACHINE: Cellar = Cellar(UnsafeCell::new(None));

struct Cellar(UnsafeCell<Option<Machine>>);
// Its content is used only while `LOCKED` is held.
unsafe impl Sync for Cellar {}

thread_local! {
    /// This thread's number in the run, if it belongs to one.
    static ME: Cell<Option<u32>> = const { Cell::new(None) };
    /// This thread is inside the machine, so its calls of the C library are real ones.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread's number, if the machine answers its calls of the C library.
pub(crate) fn me() -> Option<u32> {
    if !ACTIVE.load(Ordering::Relaxed) || INSIDE.get() { None } else { ME.get() }
}

pub(crate) fn become_thread(number: Option<u32>) {
    ME.set(number);
}

/// Looks at or changes the state.
pub(crate) fn with<T>(act: impl FnOnce(&mut Machine) -> T) -> T {
    let outer = INSIDE.replace(true);
    while LOCKED.swap(true, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    let done = act(unsafe { (*MACHINE.0.get()).as_mut() }.expect("a run is under way"));
    LOCKED.store(false, Ordering::Release);
    INSIDE.set(outer);
    done
}

/// Runs a simulation on this thread, which belongs to [`WORLD`], until it returns. Each process can do this once.
///
/// # Panics
/// The process has run a simulation before.
pub fn run<T>(seed: u64, simulation: impl FnOnce() -> T) -> T {
    let before = unsafe { &mut *MACHINE.0.get() };
    assert!(before.is_none(), "one run for a process");
    let hosts = BTreeMap::from([(WORLD, HostState::default())]);
    *before = Some(Machine {
        chance: Chance::new(seed),
        clock: Clock::new(),
        threads: Threads::new(),
        hosts,
        disks: Disks::default(),
        sockets: Sockets::default(),
        datagrams: Datagrams::default(),
        processes: Processes::default(),
        boots: 0,
    });
    ACTIVE.store(true, Ordering::SeqCst);
    become_thread(Some(threads::FIRST));
    let done = simulation();
    become_thread(None);
    done
}

/// Boots these hosts as one computer: they get a new common boot ID.
pub fn boot(hosts: &[Host]) {
    with(|machine| {
        machine.boots += 1;
        for host in hosts {
            machine.hosts.entry(*host).or_default().boot = machine.boots;
        }
    });
}

/// The virtual time since the run began.
pub fn now() -> Duration {
    with(|machine| Duration::from_nanos(machine.clock.now))
}
