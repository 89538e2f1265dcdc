//! Faults: how each begins and ends.

use std::rc::Rc;
use std::time::Duration;

use meshd_machine::{self as machine, Disk};
use tokio::time::sleep;

use super::authority;
use super::history::Note;
use super::postgres::BEHIND;
use super::runner::jobs_of;
use super::strangers;
use super::transport::Transport;
use super::wire::Way;
use super::world::{World, host};

/// How long a fault lasts, in milliseconds.
const SPANS: [u64; 8] = [0, 20, 100, 400, 1500, 5000, 20_000, 90_000];

#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The daemon is killed; its jobs keep running.
    Kill(usize),
    /// The machine loses its power, with all processes and unflushed data.
    Reset(usize),
    /// The daemon is paused, but its jobs keep running.
    Pause(usize),
    /// The daemon and its jobs are paused.
    Freeze(usize),
    /// A link breaks, and can be opened again at once.
    Cut(usize, usize),
    /// Nothing passes over a link, in one or both directions.
    Silence(usize, usize, bool),
    /// Everything on a link is late.
    Slow(usize, usize, Duration),
    /// A percentage of datagrams is lost, as many are doubled, and all are late by a random time.
    Lose(usize, usize, u32),
    /// The wall clock is wrong by this many seconds.
    Clock(usize, i64),
    /// The disk is full.
    Fill(usize),
    /// The disk ignores flushes, and then the machine loses its power.
    Lie(usize),
    /// The machine is replaced by one with an empty disk.
    Replace(usize),
    /// A stranger has the name of a node and a link to this hop, and perhaps takes jobs.
    Twin(usize, usize, bool),
    /// A stranger to the mesh sends lies to this hop.
    Liar(usize),
    /// A node's certificate ends, and it is renewed only later.
    Expire(usize),
    /// The configuration changes and is reloaded.
    Reload(usize),
    /// A job's runner is killed.
    KillJobs(usize),
    /// The shared store of the control nodes is killed, but keeps what it has committed.
    Restart,
    /// A standby of the store takes over, without this many of the last transactions.
    FailOver(usize),
    /// The API server of the pods' cluster stops and returns later. Its pods keep running.
    RestartApi,
    /// Somebody else deletes a pod.
    Evict,
}

const CLOCKS: [i64; 6] = [-86_400, -3600, -5, 5, 3600, 86_400];

pub(super) fn span(world: &World) -> Duration {
    Duration::from_millis(world.choose(&SPANS).unwrap())
}

impl Fault {
    /// Chooses a fault that is compatible with the present ones.
    pub(super) fn choose(world: &World) -> Option<Self> {
        let node = world.choose(&(0..world.nodes.len()).collect::<Vec<_>>())?;
        let (one, other) = world.choose(&world.links)?;
        let spare = world.choose(&(world.controls..world.nodes.len()).collect::<Vec<_>>())?;
        let hop = world.choose(&(world.controls..world.controls + world.hops).collect::<Vec<_>>())?;
        let fault = match world.choose(&(0..37).collect::<Vec<_>>())? {
            0..3 => Self::Kill(node),
            3 => Self::Reset(node),
            4 => Self::Pause(node),
            5 => Self::Freeze(node),
            6..8 => Self::Cut(one, other),
            8..10 => Self::Silence(one, other, true),
            10 => Self::Silence(one, other, false),
            11 => Self::Silence(other, one, false),
            12 => Self::Slow(one, other, world.millis(20..3000)),
            13 => Self::Clock(node, world.choose(&CLOCKS)?),
            14..16 => Self::KillJobs(node),
            16..18 => Self::Fill(node),
            18..20 => Self::Lie(spare),
            20 => Self::Replace(spare),
            21..23 => Self::Twin(node, hop, world.chance(0.5)),
            23..25 => Self::Liar(hop),
            25..27 if world.authority.is_some() => Self::Expire(node),
            25..28 => Self::Reload(node),
            28..30 => {
                let (one, other) = world.choose(&world.links_over(Transport::Udp))?;
                Self::Lose(one, other, world.choose(&[1, 5, 30])?)
            }
            34.. if world.cluster.is_none() => return Self::choose(world),
            34 => Self::RestartApi,
            35 => Self::Pause(world.cluster()),
            36 => Self::Evict,
            _ if world.postgres.is_none() => return Self::choose(world),
            _ => match world.choose(&[0, 0, 1, 1, 2, 3])? {
                0 => Self::Pause(world.store()),
                1 => Self::Restart,
                2 => Self::Clock(world.store(), world.choose(&CLOCKS)?),
                _ => Self::FailOver(world.choose(&[0, 1, 2, 5, 20, BEHIND])?),
            },
        };
        fault.is_free(world).then_some(fault)
    }

    fn node(&self, world: &World) -> Option<usize> {
        match self {
            Self::Restart | Self::FailOver(_) => Some(world.store()),
            Self::RestartApi => Some(world.cluster()),
            Self::Kill(node)
            | Self::Reset(node)
            | Self::Pause(node)
            | Self::Freeze(node)
            | Self::Fill(node)
            | Self::Lie(node)
            | Self::Replace(node)
            | Self::Twin(node, ..)
            | Self::Expire(node)
            | Self::Reload(node)
            | Self::Clock(node, _) => Some(*node),
            _ => None,
        }
    }

    fn link(&self) -> Option<(usize, usize)> {
        match self {
            Self::Silence(one, other, _) | Self::Slow(one, other, _) | Self::Lose(one, other, _) => {
                Some((*one.min(other), *one.max(other)))
            }
            _ => None,
        }
    }

    fn is_free(&self, world: &World) -> bool {
        self.node(world).is_none_or(|node| !world.busy.borrow().contains(&node))
            && self.link().is_none_or(|link| !world.busy_links.borrow().contains(&link))
    }

    /// Makes the fault happen, and ends it after this time.
    pub(super) async fn happen(self, world: Rc<World>, span: Duration) {
        let (node, link) = (self.node(&world), self.link());
        node.map(|node| world.busy.borrow_mut().insert(node));
        link.map(|link| world.busy_links.borrow_mut().insert(link));
        world.history.tell(format!("{} for {span:?}", self.words(&world)));
        let name = |node: usize| world.names[node].clone();
        let struck = match self {
            Self::Kill(node)
            | Self::Reset(node)
            | Self::KillJobs(node)
            | Self::Fill(node)
            | Self::Lie(node)
            | Self::Replace(node)
            | Self::Twin(node, ..) => Some(node),
            Self::RestartApi | Self::Evict => Some(world.cluster()),
            _ => None,
        };
        if let Some(node) = struck {
            world.history.note(Note::Struck { node: name(node) });
        }
        self.act(&world, span).await;
        match self {
            Self::Lie(node) | Self::Replace(node) => world.history.note(Note::Robbed { node: name(node) }),
            Self::Twin(node, ..) => world.history.note(Note::Doubled { node: name(node) }),
            _ => {}
        }
        world.history.tell(format!("over: {}", self.words(&world)));
        node.map(|node| world.busy.borrow_mut().remove(&node));
        link.map(|link| world.busy_links.borrow_mut().remove(&link));
    }

    fn words(&self, world: &World) -> String {
        let name = |node: &usize| world.names[*node].as_str();
        match self {
            Self::Kill(node) => format!("kill {}", name(node)),
            Self::Reset(node) => format!("reset {}", name(node)),
            Self::Pause(node) => format!("pause {}", name(node)),
            Self::Freeze(node) => format!("freeze {}", name(node)),
            Self::Cut(one, other) => format!("cut {} and {}", name(one), name(other)),
            Self::Silence(one, other, true) => format!("silence {} and {}", name(one), name(other)),
            Self::Silence(one, other, false) => format!("silence from {} to {}", name(one), name(other)),
            Self::Slow(one, other, delay) => format!("{} and {} {delay:?} apart", name(one), name(other)),
            Self::Lose(one, other, percent) => {
                format!("{percent} % of datagrams lost between {} and {}", name(one), name(other))
            }
            Self::Clock(node, seconds) => format!("clock of {} ahead by {seconds} s", name(node)),
            Self::Fill(node) => format!("fill {}", name(node)),
            Self::Lie(node) => format!("the disk of {} lies", name(node)),
            Self::Replace(node) => format!("replace {}", name(node)),
            Self::Twin(node, hop, true) => format!("another {}, with jobs, at {}", name(node), name(hop)),
            Self::Twin(node, hop, false) => format!("another {} at {}", name(node), name(hop)),
            Self::Liar(hop) => format!("a liar at {}", name(hop)),
            Self::Expire(node) => format!("the certificate of {} ends", name(node)),
            Self::Reload(node) => format!("reload {}", name(node)),
            Self::KillJobs(node) => format!("kill the jobs of {}", name(node)),
            Self::Restart => "restart the store".to_owned(),
            Self::RestartApi => "restart the API server".to_owned(),
            Self::Evict => "delete a pod".to_owned(),
            Self::FailOver(lost) => format!("fail over without up to {lost} transactions"),
        }
    }

    async fn act(&self, world: &World, span: Duration) {
        match *self {
            Self::Kill(node) | Self::Reset(node) => {
                world.crash(node, matches!(self, Self::Reset(_))).await;
                sleep(span).await;
                world.boot(node);
            }
            Self::Lie(node) => {
                machine::set_disk(host(node), Disk { lies: true, ..Disk::default() });
                world.nodes[node].borrow_mut().has_lied = true;
                sleep(span).await;
                world.crash(node, true).await;
                machine::set_disk(host(node), Disk::default());
                world.boot(node);
            }
            Self::Replace(node) => {
                world.crash(node, true).await;
                machine::wipe(&world.nodes[node].borrow().data());
                sleep(span).await;
                world.boot(node);
            }
            Self::Pause(node) => {
                machine::pause(host(node));
                sleep(span).await;
                machine::resume(host(node));
            }
            Self::Freeze(node) => {
                let hosts = [host(node), jobs_of(host(node))];
                hosts.into_iter().for_each(machine::pause);
                sleep(span).await;
                hosts.into_iter().for_each(machine::resume);
            }
            Self::Cut(one, other) => world.net.cut(host(one), host(other)),
            Self::Silence(one, other, both) => {
                worsen(world, (one, other, both), Way { silent: true, ..Way::default() }, span).await;
            }
            Self::Slow(one, other, delay) => {
                worsen(world, (one, other, true), Way { delay, ..Way::default() }, span).await;
            }
            Self::Lose(one, other, lost) => {
                worsen(world, (one, other, true), Way { lost, ..Way::default() }, span).await;
            }
            Self::Clock(node, seconds) => {
                if node == world.store() {
                    world.history.note(Note::StoreClock);
                }
                machine::set_clock(host(node), seconds);
                sleep(span).await;
                machine::set_clock(host(node), 0);
            }
            Self::Fill(node) => {
                machine::set_disk(host(node), Disk { full: true, ..Disk::default() });
                sleep(span).await;
                machine::set_disk(host(node), Disk::default());
            }
            Self::Twin(node, hop, takes_jobs) => strangers::twin(world, node, hop, takes_jobs, span).await,
            Self::Liar(hop) => strangers::liar(world, hop, span).await,
            Self::Expire(node) => {
                renew(world, node, Duration::from_secs(1));
                sleep(Duration::from_secs(2)).await;
                // Existing links would stay, so they are cut.
                let links = world.links.iter().filter(|(one, other)| [*one, *other].contains(&node));
                links.for_each(|(one, other)| world.net.cut(host(*one), host(*other)));
                sleep(span).await;
                renew(world, node, authority::LONG);
            }
            Self::Reload(node) => {
                for more in [true, false] {
                    world.nodes[node].borrow().change_configuration(more);
                    // Configuration files of the first version are reloaded only on request.
                    let answer = world.ask(node, "reload").await;
                    world.history.tell(format!("reload answered: {}", answer.is_ok()));
                    if more {
                        sleep(span).await;
                    }
                }
            }
            Self::KillJobs(node) => machine::kill_all(jobs_of(host(node))),
            Self::Restart => {
                world.postgres().restart(span);
                sleep(span).await;
            }
            Self::FailOver(lost) => {
                if let Some(since) = world.postgres().fail_over(span, lost).await {
                    world.history.note(Note::Lost { since });
                }
                sleep(span).await;
            }
            Self::RestartApi => {
                world.pods().restart(span);
                sleep(span).await;
            }
            Self::Evict => world.pods().evict(),
        }
    }
}

/// Gives a node a certificate that ends after this time.
fn renew(world: &World, node: usize, ends: Duration) {
    if let Some(authority) = &world.authority {
        let (file, text) = authority.issue(&world.names[node], host(node), ends);
        world.nodes[node].borrow().put(file, &text);
    }
}

/// Changes a way for a while, in one or both directions.
async fn worsen(world: &World, (one, other, both): (usize, usize, bool), way: Way, span: Duration) {
    let set = |way| {
        world.net.set(host(one), host(other), way);
        if both {
            world.net.set(host(other), host(one), way);
        }
    };
    set(way);
    sleep(span).await;
    set(Way::default());
}
