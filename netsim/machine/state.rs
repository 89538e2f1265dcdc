//! The state of the machine, one for the process, and the way in.
//!
//! Only the thread whose turn it is touches the state, so that its lock is never waited for by those that belong to the run;
//! it is there for threads that do not.

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

/// A machine of the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u32);

/// The host of the test itself: never paused, never wrong.
pub const WORLD: Host = Host(0);

/// All there is of a run.
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

/// What is so of a host now.
#[derive(Default)]
pub(crate) struct HostState {
    pub(crate) paused: bool,
    /// What its wall clock is ahead of the world's, in nanoseconds.
    pub(crate) clock_ahead: i64,
    pub(crate) disk: Disk,
    /// Tells the time since it booted from all others, as the kernel's random ID does.
    pub(crate) boot: u64,
    /// Nothing that its threads do has an effect.
    pub(crate) off: bool,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static LOCKED: AtomicBool = AtomicBool::new(false);
static MACHINE: Cellar = Cellar(UnsafeCell::new(None));

struct Cellar(UnsafeCell<Option<Machine>>);
// Entered under `LOCKED` alone.
unsafe impl Sync for Cellar {}

thread_local! {
    /// This thread's number in the run, if it belongs to one.
    static ME: Cell<Option<u32>> = const { Cell::new(None) };
    /// In the machine already: what it calls of the C library is for real.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread's number, if what it asks of the C library is the machine's to answer.
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

/// Runs a simulation on this thread, which belongs to [`WORLD`], until it returns. The process can have one, once.
///
/// # Panics
/// In a process that has had one.
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

/// These hosts boot, as one machine: what tells one boot from another is new.
pub fn boot(hosts: &[Host]) {
    with(|machine| {
        machine.boots += 1;
        for host in hosts {
            machine.hosts.entry(*host).or_default().boot = machine.boots;
        }
    });
}

/// How long the run has taken, in its own time.
pub fn now() -> Duration {
    with(|machine| Duration::from_nanos(machine.clock.now))
}
