//! The network between hosts: it carries the bytes of connections and datagrams with delays, and fails as networks do.
//! It knows which connections hosts have opened, but not what they carry.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshd_machine::{self as machine, Datagram, Dial, Host};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// The delay of a healthy way from one host to another.
const DELAY: Duration = Duration::from_micros(500);
/// Most pieces under way in one direction of a connection; then the sender waits.
const UNDER_WAY: usize = 64;
const PIECE: usize = 64 * 1024;
/// The most additional delay of a datagram on a way that loses some.
const SCATTER: Duration = Duration::from_millis(20);

/// The state of the way from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    /// The delay of everything on the way.
    pub(super) delay: Duration,
    /// Nothing arrives meanwhile. A connection's bytes arrive afterwards, because TCP repeats them.
    pub(super) silent: bool,
    /// This percentage of datagrams is lost, as many arrive twice, and all are up to [`SCATTER`] later, so that they
    /// overtake each other.
    pub(super) lost: u32,
}

impl Default for Way {
    fn default() -> Self {
        Self { delay: DELAY, silent: false, lost: 0 }
    }
}

/// All ways. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Net(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    ways: BTreeMap<(Host, Host), watch::Sender<Way>>,
    connections: Vec<Connection>,
}

struct Connection {
    between: (Host, Host),
    /// Breaks the connection when it is dropped.
    breaks: watch::Sender<()>,
}

impl Net {
    /// Carries connections and datagrams from now on. The seed decides the fate of datagrams.
    pub(super) fn start(seed: u64) -> Self {
        let net = Self::default();
        let (sender, sent) = mpsc::unbounded_channel();
        machine::carry_datagrams_by(move |datagram| drop(sender.send(datagram)));
        tokio::spawn(net.clone().carry_datagrams(sent, SmallRng::seed_from_u64(seed)));
        let (sender, mut dials) = mpsc::unbounded_channel();
        machine::carry_by(move |dial| drop(sender.send(dial)));
        let carrier = net.clone();
        tokio::spawn(async move {
            while let Some(dial) = dials.recv().await {
                carrier.begin(dial);
            }
        });
        net
    }

    fn way(&self, from: Host, to: Host) -> watch::Sender<Way> {
        self.0
            .lock()
            .unwrap()
            .ways
            .entry((from, to))
            .or_insert_with(|| watch::Sender::new(Way::default()))
            .clone()
    }

    /// Changes the state of a way.
    pub(super) fn set(&self, from: Host, to: Host, way: Way) {
        self.way(from, to).send_replace(way);
    }

    /// Breaks all connections between two hosts. Both ends notice at once.
    pub(super) fn cut(&self, one: Host, other: Host) {
        let is_it = |connection: &Connection| {
            connection.between == (one, other) || connection.between == (other, one)
        };
        self.0.lock().unwrap().connections.retain(|connection| !is_it(connection));
    }

    fn begin(&self, dial: Dial) {
        let (breaks, mut broken) = watch::channel(());
        let between = (dial.from, machine::host_of(*dial.to.ip()));
        let connections = &mut self.0.lock().unwrap().connections;
        connections.retain(|connection| !connection.breaks.is_closed());
        connections.push(Connection { between, breaks });
        let net = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = net.carry(dial) => {}
                _cut = broken.changed() => {}
            }
        });
    }

    async fn carry_datagrams(self, mut sent: mpsc::UnboundedReceiver<Datagram>, mut rng: SmallRng) {
        let mut under_way: BTreeMap<(Instant, u64), Datagram> = BTreeMap::new();
        let mut count = 0;
        loop {
            let next = under_way.keys().next().map(|(due, _)| *due);
            tokio::select! {
                biased;
                Some(datagram) = sent.recv() => {
                    for due in self.arrivals(&datagram, &mut rng) {
                        count += 1;
                        under_way.insert((due, count), datagram.clone());
                    }
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    let later = under_way.split_off(&(Instant::now(), u64::MAX));
                    std::mem::replace(&mut under_way, later).into_values().for_each(machine::deliver_datagram);
                }
            }
        }
    }

    /// The arrival times of a datagram's copies.
    fn arrivals(&self, datagram: &Datagram, rng: &mut SmallRng) -> Vec<Instant> {
        let ends = [datagram.from, datagram.to].map(|end| machine::host_of(*end.ip()));
        let Way { delay, silent, lost } = *self.way(ends[0], ends[1]).borrow();
        let due = Instant::now() + delay;
        if lost == 0 {
            return if silent { Vec::new() } else { vec![due] };
        }
        let copies = match rng.random_range(0..100) {
            chance if chance < lost => 0,
            chance if chance < 2 * lost => 2,
            _ => 1,
        };
        (0..copies).map(|_| due + rng.random_range(Duration::ZERO..SCATTER)).collect()
    }

    async fn carry(&self, dial: Dial) {
        let Dial { from, local, to, end } = dial;
        let listener = machine::host_of(*to.ip());
        let (there, back) = (self.way(from, listener), self.way(listener, from));
        passes(&mut there.subscribe()).await;
        let Ok(far) = machine::deliver(local, to) else { return };
        let (near_read, near_write) = stream(end).into_split();
        let (far_read, far_write) = stream(far).into_split();
        tokio::join!(
            one_way(near_read, far_write, there.subscribe()),
            one_way(far_read, near_write, back.subscribe())
        );
    }
}

fn stream(end: OwnedFd) -> UnixStream {
    UnixStream::from_std(net::UnixStream::from(end)).unwrap()
}

/// Waits for the present delay of a way.
async fn passes(way: &mut watch::Receiver<Way>) {
    let delay = way.borrow().delay;
    tokio::time::sleep(delay).await;
    let _gone = way.wait_for(|way| !way.silent).await;
}

async fn one_way(mut from: OwnedReadHalf, mut into: OwnedWriteHalf, mut way: watch::Receiver<Way>) {
    let (sender, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let delays = way.clone();
    let write = async move {
        while let Some((due, bytes)) = under_way.recv().await {
            tokio::time::sleep_until(due).await;
            if way.wait_for(|way| !way.silent).await.is_err() || into.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _gone = into.shutdown().await;
    };
    let read = async move {
        let mut buffer = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + delays.borrow().delay;
            if sender.send((due, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
