//! Sessions inside one process, over a named switchboard that tests can make fail.
//!
//! It owns names, links and their faults; tests of the node use it in place of sockets. Packets go through the same
//! frames as on TCP, with the same back-pressure, so tests over it cover serialisation too.

mod pipe;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use self::pipe::{Pipe, PipeReader, PipeWriter};
use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;
use super::listener::{Accepted, Listener};
use super::session::{TransportReader, TransportWriter};
use super::{DialFailure, Direction, Session, SessionEnd, SessionInfo};

const TRANSPORT: &str = "memory";

/// Dialed sessions that may wait for the listener to accept them; further dials are refused.
const BACKLOG: usize = 1024;

/// A switchboard of named listeners. Clones are handles to the same switchboard.
#[derive(Clone, Default)]
pub struct MemoryNet {
    // A lock rather than a task, because each use is a handful of map operations and faults must act at once.
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<String, mpsc::Sender<Accepted>>,
    links: Vec<Link>,
    faults: BTreeMap<Direct, Arc<Mutex<Fault>>>,
    prepared: BTreeMap<String, Session>,
}

/// The direction from one name to another.
type Direct = (String, String);

struct Link {
    ends: Direct,
    pipes: [Weak<Pipe>; 2],
}

/// What happens to packets in one direction.
#[derive(Debug, Default)]
struct Fault {
    black_hole: bool,
    drop_next: usize,
}

impl Fault {
    fn swallows(&mut self) -> bool {
        let dropped = self.drop_next > 0;
        self.drop_next -= usize::from(dropped);
        dropped || self.black_hole
    }
}

impl MemoryNet {
    /// A switchboard with nobody on it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Breaks every link between two names, whichever side dialed. Both ends see a reset connection, and packets
    /// under way are lost. Gives the number of links broken. New dials get through.
    pub fn cut(&self, one: &str, other: &str) -> usize {
        let links = &self.lock().links;
        let between = |link: &&Link| {
            let (from, to) = &link.ends;
            (from == one && to == other) || (from == other && to == one)
        };
        links.iter().filter(between).filter(|link| link.cut()).count()
    }

    /// Makes whole packets from one name to another vanish from now on, or ends this. It holds for present and
    /// future links. The writer sees success, as in a half-dead session.
    pub fn black_hole(&self, from: &str, to: &str, on: bool) {
        self.fault(from, to).lock().black_hole = on;
    }

    /// The next `count` packets from one name to another vanish.
    pub fn drop_next(&self, from: &str, to: &str, count: usize) {
        self.fault(from, to).lock().drop_next = count;
    }

    /// The next dial of that name gets this session.
    pub(crate) fn prepare(&self, name: &str, session: Session) {
        self.lock().prepared.insert(name.to_owned(), session);
    }

    fn fault(&self, from: &str, to: &str) -> Arc<Mutex<Fault>> {
        self.lock().faults.entry((from.to_owned(), to.to_owned())).or_default().clone()
    }

    fn remember(&self, from: &str, to: &str, pipes: &[&Arc<Pipe>; 2]) {
        let links = &mut self.lock().links;
        links.retain(Link::is_alive);
        links.push(Link { ends: (from.to_owned(), to.to_owned()), pipes: pipes.map(Arc::downgrade) });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Link {
    fn cut(&self) -> bool {
        // `count` cuts both pipes; `any` would stop at the first.
        self.pipes.iter().filter_map(Weak::upgrade).filter(|pipe| pipe.cut()).count() > 0
    }

    fn is_alive(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.strong_count() > 0)
    }
}

impl PartialEq for MemoryNet {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl Eq for MemoryNet {}

impl fmt::Debug for MemoryNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryNet({:p})", Arc::as_ptr(&self.state))
    }
}

/// Where to listen on a switchboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryListenOptions {
    /// The switchboard.
    pub net: MemoryNet,
    /// The name to listen on.
    pub name: String,
}

/// Whom to dial on a switchboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryDialOptions {
    /// The switchboard.
    pub net: MemoryNet,
    /// The dialer's name, by which the link can be cut. It need not be listening.
    pub from: String,
    /// The listener's name.
    pub to: String,
}

/// A name on a switchboard, held by its listener.
#[derive(Debug)]
struct MemoryName {
    net: MemoryNet,
    name: String,
}

pub(super) fn listen(options: &MemoryListenOptions) -> io::Result<Listener> {
    let MemoryListenOptions { net, name } = options.clone();
    let (sender, incoming) = mpsc::channel(BACKLOG);
    match net.lock().listeners.entry(name.clone()) {
        std::collections::btree_map::Entry::Vacant(entry) => entry.insert(sender),
        std::collections::btree_map::Entry::Occupied(_) => {
            let text =
                format!("cannot listen on {TRANSPORT} {name}: address in use; drop the other listener");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
    };
    Ok(Listener::new(TRANSPORT, name.clone(), incoming, MemoryName { net, name }))
}

impl Drop for MemoryName {
    fn drop(&mut self) {
        self.net.lock().listeners.remove(&self.name);
    }
}

pub(super) fn dial(options: &MemoryDialOptions) -> Result<Session, DialFailure> {
    let MemoryDialOptions { net, from, to } = options;
    let prepared = net.lock().prepared.remove(to);
    if let Some(session) = prepared {
        return Ok(session);
    }
    let [there, back] = connect(options)?;
    Ok(session(&back, &there, net.fault(from, to), to, Direction::Outbound))
}

/// Hands one end of a new link to the listener and gives the pipes there and back.
fn connect(options: &MemoryDialOptions) -> Result<[Arc<Pipe>; 2], DialFailure> {
    let MemoryDialOptions { net, from, to } = options;
    let refused = |what: &str| DialFailure::Connect {
        address: to.clone(),
        source: io::Error::new(io::ErrorKind::ConnectionRefused, what.to_owned()),
    };
    let listener = net.lock().listeners.get(to).cloned().ok_or_else(|| refused("nobody listens there"))?;
    let [there, back] = [Pipe::new(), Pipe::new()];
    let inbound = session(&there, &back, net.fault(to, from), from, Direction::Inbound);
    listener.try_send(Ok(inbound)).map_err(|_| refused("the listener does not accept"))?;
    net.remember(from, to, &[&there, &back]);
    Ok([there, back])
}

/// The bytes of a link without frames, for tests of broken peers.
pub(super) type RawLink = tokio::io::Join<PipeReader, PipeWriter>;

pub(super) fn dial_raw(options: &MemoryDialOptions) -> RawLink {
    let [there, back] = connect(options).expect("somebody listens");
    tokio::io::join(PipeReader::new(&back), PipeWriter::new(&there))
}

fn session(
    receiving: &Arc<Pipe>,
    sending: &Arc<Pipe>,
    fault: Arc<Mutex<Fault>>,
    peer: &str,
    direction: Direction,
) -> Session {
    let reader = MemoryReader { frames: FrameReader::new(PipeReader::new(receiving)) };
    let writer = MemoryWriter { frames: FrameWriter::new(PipeWriter::new(sending)), fault };
    let info = SessionInfo {
        transport: TRANSPORT,
        peer: peer.to_owned(),
        direction,
        certified_nodes: None,
        is_newcomer: false,
    };
    Session::new(TransportReader::Memory(reader), TransportWriter::Memory(writer), info)
}

/// The receiving half of an in-process session.
#[derive(Debug)]
pub(super) struct MemoryReader {
    frames: FrameReader<PipeReader>,
}

impl MemoryReader {
    pub(super) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        self.frames.read_batch(out).await
    }
}

/// The sending half of an in-process session.
#[derive(Debug)]
pub(super) struct MemoryWriter {
    frames: FrameWriter<PipeWriter>,
    fault: Arc<Mutex<Fault>>,
}

impl MemoryWriter {
    pub(super) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        self.apply_faults(batch);
        self.frames.write_batch(batch).await
    }

    pub(super) fn unsent(&self) -> usize {
        self.frames.unsent()
    }

    /// Drops whole packets, never single bytes, because a stream transport cannot lose a part.
    fn apply_faults(&self, batch: &mut VecDeque<Bytes>) {
        let mut fault = self.fault.lock();
        batch.retain(|_| !fault.swallows());
    }

    /// Finishes the pipe, which outlives this half, so the reader still finds what was written. A reader that takes
    /// nothing until the limit gets a truncated stream, as on a socket.
    pub(super) async fn close(mut self) -> io::Result<()> {
        self.frames.finish().await
    }
}

#[cfg(test)]
mod tests;
