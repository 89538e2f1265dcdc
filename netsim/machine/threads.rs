//! Threads: one thread of the run runs at a time. A thread gives way where it would wait, and where it yields.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{pthread_attr_t, pthread_t};

use crate::epoll;
use crate::memory;
use crate::state::{Host, Machine, WORLD, become_thread, me, with};
use crate::sys::{self, Original};

/// The thread that calls `run`.
pub(crate) const FIRST: u32 = 0;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A time.
    Sleep,
    /// A wake-up at this address.
    Futex(usize),
    /// An event on what this descriptor watches.
    Epoll(c_int),
    /// The end of this thread.
    Join(u32),
    /// A signal for this number, from the simulated kernel.
    Signal(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runnable,
    Waiting { what: Wait, deadline: Option<u64> },
}

struct Thread {
    host: Host,
    state: State,
    /// The thread waited for something that did not happen in time.
    late: bool,
    /// 1 when it may run.
    turn: Arc<AtomicU32>,
    handle: pthread_t,
}

/// All threads of the run.
pub(crate) struct Threads {
    all: BTreeMap<u32, Thread>,
    handles: BTreeMap<pthread_t, u32>,
    next: u32,
}

thread_local! {
    /// The host of the threads that this one starts, if not its own.
    static START_ON: Cell<Option<Host>> = const { Cell::new(None) };
}

impl Threads {
    pub(crate) fn new() -> Self {
        let mut all = BTreeMap::new();
        let turn = Arc::new(AtomicU32::new(0));
        all.insert(FIRST, Thread { host: WORLD, state: State::Runnable, late: false, turn, handle: 0 });
        Self { all, handles: BTreeMap::new(), next: FIRST + 1 }
    }

    pub(crate) fn host_of(&self, thread: u32) -> Option<Host> {
        self.all.get(&thread).map(|thread| thread.host)
    }

    /// Wakes up to `count` threads that wait for this, the oldest first. Returns how many it woke.
    pub(crate) fn wake(&mut self, what: Wait, count: usize) -> usize {
        let waiting = self
            .all
            .values_mut()
            .filter(|thread| matches!(thread.state, State::Waiting { what: found, .. } if found == what));
        let mut woken = 0;
        for thread in waiting.take(count) {
            (thread.state, thread.late) = (State::Runnable, false);
            woken += 1;
        }
        woken
    }
}

/// Calls `start`; threads that it starts belong to this host.
pub fn on_host<T>(host: Host, start: impl FnOnce() -> T) -> T {
    let before = START_ON.replace(Some(host));
    let done = start();
    START_ON.set(before);
    done
}

/// The host of this thread.
pub fn host() -> Option<Host> {
    let me = me()?;
    with(|machine| machine.threads.host_of(me))
}

/// How many threads a host has.
pub fn threads_of(host: Host) -> usize {
    with(|machine| machine.threads.all.values().filter(|thread| thread.host == host).count())
}

/// Pauses a host: none of its threads runs until it is resumed.
pub fn pause(host: Host) {
    with(|machine| machine.hosts.entry(host).or_default().paused = true);
}

/// Resumes a host.
pub fn resume(host: Host) {
    with(|machine| machine.hosts.entry(host).or_default().paused = false);
}

/// Gives way until what the thread waits for has happened. Returns whether this was in time.
pub(crate) fn block(me: u32, what: Wait, deadline: Option<u64>) -> bool {
    with(|machine| set(machine, me, State::Waiting { what, deadline }));
    give_way(me);
    with(|machine| machine.threads.all.get(&me).is_some_and(|thread| !thread.late))
}

/// Lets other ready threads run.
pub(crate) fn yield_turn(me: u32) {
    with(|machine| set(machine, me, State::Runnable));
    give_way(me);
}

fn set(machine: &mut Machine, thread: u32, state: State) {
    let thread = machine.threads.all.get_mut(&thread).expect("a thread of the run");
    (thread.state, thread.late) = (state, false);
}

fn give_way(me: u32) {
    let (next, turn) = with(|machine| {
        let next = choose(machine);
        (next, machine.threads.all[&me].turn.clone())
    });
    if next == me {
        return;
    }
    hand_to(next);
    wait_for(&turn);
}

fn hand_to(next: u32) {
    let turn = with(|machine| machine.threads.all[&next].turn.clone());
    turn.store(1, Ordering::Release);
    sys::futex_wake(&turn);
}

fn wait_for(turn: &AtomicU32) {
    while turn.swap(0, Ordering::Acquire) == 0 {
        sys::futex_wait(turn, 0);
    }
}

/// The thread that runs next. If no thread can run, time passes until one can.
fn choose(machine: &mut Machine) -> u32 {
    loop {
        let ready = ready(machine);
        if !ready.is_empty() {
            let chosen = ready[machine.chance.below(ready.len())];
            set_runnable(machine, chosen);
            return chosen;
        }
        pass_time(machine);
    }
}

fn set_runnable(machine: &mut Machine, thread: u32) {
    machine.threads.all.get_mut(&thread).expect("it was listed").state = State::Runnable;
}

fn is_paused(machine: &Machine, thread: &Thread) -> bool {
    machine.hosts.get(&thread.host).is_some_and(|host| host.paused)
}

/// The threads that can run now.
fn ready(machine: &Machine) -> Vec<u32> {
    let (mut ready, mut watching) = (Vec::new(), Vec::new());
    for (number, thread) in &machine.threads.all {
        match thread.state {
            _ if is_paused(machine, thread) => {}
            State::Runnable => ready.push(*number),
            State::Waiting { what: Wait::Epoll(descriptor), .. } => watching.push((*number, descriptor)),
            State::Waiting { .. } => {}
        }
    }
    // Threads that watch descriptors are checked only if no other thread can run, because each check costs a system
    // call.
    if ready.is_empty() {
        ready = epoll::ready(&watching);
    }
    ready
}

/// Lets time pass to the next moment for which a thread waits, and wakes the threads that wait for it.
fn pass_time(machine: &mut Machine) {
    let waiting = |thread: &Thread| match thread.state {
        State::Waiting { deadline, .. } => deadline,
        State::Runnable => None,
    };
    let next =
        machine.threads.all.values().filter(|thread| !is_paused(machine, thread)).filter_map(waiting).min();
    let Some(next) = next else { stuck(machine) };
    machine.clock.pass_to(next);
    let now = machine.clock.now;
    let hosts = &machine.hosts;
    for thread in machine.threads.all.values_mut() {
        let paused = hosts.get(&thread.host).is_some_and(|host| host.paused);
        if !paused && waiting(thread).is_some_and(|deadline| deadline <= now) {
            (thread.state, thread.late) = (State::Runnable, true);
        }
    }
}

fn stuck(machine: &Machine) -> ! {
    let all = machine.threads.all.iter();
    let all: Vec<_> = all.map(|(number, thread)| (number, thread.host, thread.state)).collect();
    eprintln!("the simulation stands still for ever at {} ns: {all:?}", machine.clock.now);
    std::process::abort();
}

/// What a new thread begins with.
struct Begin {
    number: u32,
    host: Host,
    turn: Arc<AtomicU32>,
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
}

extern "C" fn begin(begin: *mut c_void) -> *mut c_void {
    let begin = unsafe { Box::from_raw(begin.cast::<Begin>()) };
    wait_for(&begin.turn);
    become_thread(Some(begin.number));
    memory::count_for(begin.host);
    let result = (begin.routine)(begin.argument);
    become_thread(None);
    let next = with(|machine| {
        let ended = machine.threads.all.remove(&begin.number).expect("a thread of the run");
        machine.threads.handles.remove(&ended.handle);
        machine.threads.wake(Wait::Join(begin.number), usize::MAX);
        choose(machine)
    });
    hand_to(next);
    result
}

type Create = unsafe extern "C" fn(
    *mut pthread_t,
    *const pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;
static PTHREAD_CREATE: Original = Original::new(c"pthread_create");
static PTHREAD_JOIN: Original = Original::new(c"pthread_join");

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    handle: *mut pthread_t,
    attributes: *const pthread_attr_t,
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let create: Create = unsafe { std::mem::transmute(PTHREAD_CREATE.get()) };
    let Some(me) = me() else { return unsafe { create(handle, attributes, routine, argument) } };
    let (number, host, turn) = with(|machine| {
        let threads = &mut machine.threads;
        let host = START_ON.get().unwrap_or(threads.all[&me].host);
        let (number, turn) = (threads.next, Arc::new(AtomicU32::new(0)));
        threads.next += 1;
        let thread = Thread { host, state: State::Runnable, late: false, turn: turn.clone(), handle: 0 };
        threads.all.insert(number, thread);
        (number, host, turn)
    });
    let start = Box::into_raw(Box::new(Begin { number, host, turn, routine, argument }));
    let created = unsafe { create(handle, attributes, begin, start.cast()) };
    with(|machine| {
        if created != 0 {
            machine.threads.all.remove(&number);
            return drop(unsafe { Box::from_raw(start) });
        }
        let handle = unsafe { *handle };
        machine.threads.all.get_mut(&number).expect("it waits for its turn").handle = handle;
        machine.threads.handles.insert(handle, number);
    });
    created
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(handle: pthread_t, result: *mut *mut c_void) -> c_int {
    if let Some(me) = me()
        && let Some(number) = with(|machine| machine.threads.handles.get(&handle).copied())
    {
        block(me, Wait::Join(number), None);
    }
    type Join = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
    let join: Join = unsafe { std::mem::transmute(PTHREAD_JOIN.get()) };
    unsafe { join(handle, result) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sched_yield() -> c_int {
    match me() {
        Some(me) => yield_turn(me),
        None => drop(unsafe { sys::raw(libc::SYS_sched_yield, [0; 6]) }),
    }
    0
}
