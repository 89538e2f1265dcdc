//! The two tasks of one session on a link: a reader that forwards packets, and a writer that drains the queue.
//!
//! Neither decides anything. A session ends when its writer does: the driver has closed the queue, or the link has
//! broken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::budget::Budget;
use super::clock::TickClock;
use super::dial::Dial;
use super::driver::Input;
use super::forwarding::{Bursts, ForwardingPlane};
use super::queue::Queue;
use super::stats::Traffic;
use crate::backend::{Direction, Reader, Session, SessionEnd, SessionInfo, Writer};
use crate::congestion::InFlight;
use crate::mesh::{SessionId, Tick};
use crate::os::coop::ByteBudget;
use crate::wire::{MessageType, NodeId};

/// Most messages of one session that may wait for the core. So one neighbour's backlog delays another's messages only
/// for a bounded time.
const MOST_PENDING: usize = 128;

/// How long writing the last messages of a closing session may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// A link that still lacks updates and takes nothing for this long is closed, because it occupies room that others
/// need.
const STALLED: Duration = Duration::from_secs(5);

/// Bytes of datagrams that a writer takes at once: at most, and at least. It takes less while writing a batch takes
/// longer than `PROMPT`.
const MOST_DATA: usize = 256 << 10;
const LEAST_DATA: usize = 32 << 10;
const PROMPT: Duration = Duration::from_millis(5);

/// Slots that a writer keeps between two batches. Data fills fewer, and only the first updates of a large mesh fill far
/// more.
const BUSY_SLOTS: usize = 512;

/// The state that the driver and a session's tasks share.
#[derive(Debug)]
pub(super) struct SessionShared {
    pub(super) id: SessionId,
    pub(super) direction: Direction,
    /// The peer that was dialled, if one was.
    pub(super) dial: Option<Arc<Dial>>,
    pub(super) queue: Arc<Queue>,
    /// Permits for messages that wait for the core.
    pending: Arc<Semaphore>,
    /// Set by the driver once the peer is known: datagrams are forwarded from then on.
    pub(super) established: AtomicBool,
    /// When a datagram was last heard, in nanoseconds of the node's clock.
    heard: AtomicU64,
    /// The transport that carries it, and the other end's address.
    pub(super) transport: &'static str,
    pub(super) address: String,
    pub(super) traffic: Traffic,
    /// Bytes in flight on the network, if the transport knows them.
    pub(super) in_flight: OnceLock<InFlight>,
    /// Cancelled by the driver: nothing more is read, but queued messages are still written.
    pub(super) closing: CancellationToken,
    /// Cancelled by the writer when the session is over.
    pub(super) done: CancellationToken,
    /// Why the link ended, if it did.
    pub(super) cause: OnceLock<String>,
}

impl SessionShared {
    pub(super) fn new(
        id: SessionId,
        info: &SessionInfo,
        budget: Arc<Budget>,
        dial: Option<Arc<Dial>>,
        now: Tick,
    ) -> Self {
        Self {
            id,
            direction: info.direction,
            dial,
            queue: Arc::new(Queue::new(budget)),
            pending: Arc::new(Semaphore::new(MOST_PENDING)),
            established: AtomicBool::new(false),
            heard: AtomicU64::new(nanos(now)),
            transport: info.transport,
            address: info.peer.clone(),
            traffic: Traffic::default(),
            in_flight: OnceLock::new(),
            closing: CancellationToken::new(),
            done: CancellationToken::new(),
            cause: OnceLock::new(),
        }
    }

    /// A node has introduced itself.
    pub(super) fn note_peer(&self, peer: &NodeId) {
        if let Some(dial) = &self.dial {
            dial.note(peer);
        }
    }

    /// Whether its peer has not introduced itself, but still may.
    pub(super) fn is_pending(&self) -> bool {
        !self.established.load(Ordering::Acquire) && !self.closing.is_cancelled() && !self.done.is_cancelled()
    }

    /// When a datagram was last heard.
    pub(super) fn heard(&self) -> Tick {
        Tick::at(Duration::from_nanos(self.heard.load(Ordering::Relaxed)))
    }

    /// Lets the writer finish, then ends the session.
    pub(super) fn close(&self) {
        self.queue.close();
        self.closing.cancel();
    }
}

fn nanos(tick: Tick) -> u64 {
    u64::try_from(tick.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

/// What a session's tasks need from their node.
#[derive(Debug, Clone)]
pub(super) struct SessionContext {
    pub(super) plane: Arc<ForwardingPlane>,
    pub(super) inbox: mpsc::Sender<Input>,
    pub(super) clock: TickClock,
    /// A link that takes no written bytes for longer than this is dead.
    pub(super) max_idle: Duration,
    /// Cancelled when the session's listener or dialled peer is removed.
    pub(super) link: CancellationToken,
}

/// Starts both tasks.
pub(super) fn spawn(session: Session, shared: Arc<SessionShared>, context: SessionContext) {
    let Session { reader, writer, info } = session;
    debug!(session = %shared.id, transport = info.transport, peer = %info.peer, "link opened");
    if let Some(in_flight) = writer.in_flight() {
        let _first = shared.in_flight.set(in_flight);
    }
    tokio::spawn(read(reader, shared.clone(), context.clone()));
    tokio::spawn(write(writer, shared, context));
}

async fn read(mut reader: Reader, shared: Arc<SessionShared>, context: SessionContext) {
    let end = tokio::select! {
        end = carry_all(&mut reader, &shared, &context) => end.map_or_else(|e| e.to_string(), |()| "node stopped".into()),
        () = shared.closing.cancelled() => return,
        () = shared.done.cancelled() => return,
        () = context.link.cancelled() => "closed by this node".to_owned(),
    };
    let _stopped = context.inbox.send(Input::Ended(shared.id, end)).await;
}

/// Forwards packets until the link ends, or, returning `Ok`, until the node ends.
async fn carry_all(
    reader: &mut Reader,
    shared: &SessionShared,
    context: &SessionContext,
) -> Result<(), SessionEnd> {
    let mut batch: Vec<BytesMut> = Vec::new();
    let (mut bursts, mut budget) = (Bursts::default(), ByteBudget::default());
    loop {
        reader.read_batch(&mut batch).await?;
        let bytes = batch.iter().map(|message| message.len()).sum();
        shared.traffic.heard(batch.len(), bytes);
        let carries = shared.established.load(Ordering::Acquire);
        // The core may not see data, which also shows that the peer is alive.
        if carries && batch.iter().any(|message| is_data(message)) {
            shared.heard.store(nanos(context.clock.tick()), Ordering::Relaxed);
        }
        let table = context.plane.table.load_full();
        for message in batch.drain(..) {
            let data = carries && is_data(&message);
            let for_core =
                if data { context.plane.carry(&table, message, &mut bursts) } else { Some(message) };
            if let Some(message) = for_core {
                // Earlier datagrams must not wait while this message does.
                bursts.send();
                if !hand_over(message.freeze(), shared, context).await {
                    return Ok(());
                }
            }
        }
        bursts.send();
        budget.spend(bytes).await;
    }
}

/// Gives a message to the core, once this session has a permit; false once the node has stopped.
async fn hand_over(message: Bytes, shared: &SessionShared, context: &SessionContext) -> bool {
    let Ok(turn) = shared.pending.clone().acquire_owned().await else { return false };
    context.inbox.send(Input::Packet(shared.id, message, turn)).await.is_ok()
}

fn is_data(message: &[u8]) -> bool {
    message.first() == Some(&MessageType::Data.byte())
}

async fn write(mut writer: Writer, shared: Arc<SessionShared>, context: SessionContext) {
    let (mut batch, mut budget, mut most) = (VecDeque::new(), ByteBudget::default(), MOST_DATA);
    while shared.queue.take(&mut batch, most).await {
        let (packets, bytes) = (batch.len(), batch.iter().map(Bytes::len).sum());
        let begun = Instant::now();
        if let Err(end) = write_in_time(&mut writer, &mut batch, &shared, context.max_idle).await {
            let _stopped = context.inbox.send(Input::Ended(shared.id, end)).await;
            break;
        }
        shared.traffic.sent(packets, bytes);
        // Messages in a batch cannot be overtaken, so a slow link takes smaller batches.
        let slow = begun.elapsed() > PROMPT;
        most = if slow { (most / 2).max(LEAST_DATA) } else { (most * 2).min(MOST_DATA) };
        if batch.capacity() > BUSY_SLOTS {
            batch.shrink_to(BUSY_SLOTS);
        }
        budget.spend(bytes).await;
    }
    // Boxed to keep the task small: there is one for each session, and it mostly waits.
    let _in_time = tokio::time::timeout(FAREWELL, Box::pin(writer.close())).await;
    shared.done.cancel();
}

/// Writes a batch. An error if the other side has stopped reading.
async fn write_in_time(
    writer: &mut Writer,
    batch: &mut VecDeque<Bytes>,
    shared: &SessionShared,
    limit: Duration,
) -> Result<(), String> {
    let farewell = async {
        shared.closing.cancelled().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::pin!(farewell);
    let (mut left, mut since) = ((batch.len(), writer.unsent()), Instant::now());
    loop {
        let wait = STALLED.min(limit.saturating_sub(since.elapsed()));
        tokio::select! {
            written = writer.write_batch(batch) => return written.map_err(|e| e.to_string()),
            () = tokio::time::sleep(wait) => {}
            () = &mut farewell => return Err("the peer did not take the last messages".to_owned()),
        }
        // Any progress counts: the first updates of a large mesh take a slow link minutes.
        let now_left = (batch.len(), writer.unsent());
        let limit = if shared.queue.is_behind() { STALLED.min(limit) } else { limit };
        if now_left != left {
            (left, since) = (now_left, Instant::now());
        } else if since.elapsed() >= limit {
            return Err(format!("the peer took no data for {} s", since.elapsed().as_secs()));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::backend::{
        DialSpec, ListenSpec, Listener, MemoryDialOptions, MemoryListenOptions, MemoryNet, dial,
    };
    use crate::node::queue::IfFull;
    use crate::wire::{DataHeader, NameHash, NodeId, ServiceName};

    fn shared(number: u64) -> SessionShared {
        let (transport, peer, direction) = ("tcp", number.to_string(), Direction::Inbound);
        let info = SessionInfo { transport, peer, direction, certified_nodes: None, is_newcomer: false };
        SessionShared::new(SessionId(number), &info, Arc::default(), None, Tick::at(Duration::ZERO))
    }

    fn context() -> (SessionContext, mpsc::Receiver<Input>) {
        let (inbox, waiting) = mpsc::channel(10 * MOST_PENDING);
        let context = SessionContext {
            plane: Arc::new(ForwardingPlane::new(NodeId::new("here").unwrap())),
            inbox,
            clock: TickClock::start(),
            max_idle: Duration::from_secs(21),
            link: CancellationToken::new(),
        };
        (context, waiting)
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_does_not_hold_up_what_another_neighbour_tells() {
        let (context, mut waiting) = context();
        let (loud, quiet) = (shared(1), shared(2));
        let flood = async { while hand_over(Bytes::new(), &loud, &context).await {} };
        assert!(timeout(Duration::from_secs(1), flood).await.is_err(), "it waits for its turn");
        assert_eq!(waiting.len(), MOST_PENDING);
        assert!(hand_over(Bytes::new(), &quiet, &context).await);
        assert_eq!(waiting.len(), MOST_PENDING + 1, "the other one need not wait");
        drop(waiting.recv().await);
        let turn = hand_over(Bytes::new(), &loud, &context);
        assert_eq!(timeout(Duration::from_secs(1), turn).await, Ok(true), "one was worked off");
    }

    /// Both ends of a link.
    async fn link() -> (Session, Session) {
        let (net, name) = (MemoryNet::new(), "far".to_owned());
        let listen = ListenSpec::Memory(MemoryListenOptions { net: net.clone(), name: name.clone() });
        let mut listener = Listener::bind(&listen).await.unwrap();
        let near = MemoryDialOptions { net, from: "near".to_owned(), to: name };
        let dialed = dial(&DialSpec::Memory(near)).await.unwrap();
        (dialed, listener.accept().await.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_alive_as_long_as_it_takes_anything_and_then_dead() {
        let ((mut near, mut far), shared) = (link().await, shared(1));
        let limit = Duration::from_secs(21);
        let packets = || (0..40).map(|_| Bytes::from(vec![7; 50_000])).collect::<VecDeque<_>>();
        let slow = tokio::spawn(async move {
            let mut read = Vec::new();
            while read.len() < 40 {
                tokio::time::sleep(limit / 2).await;
                far.reader.read_batch(&mut read).await.unwrap();
            }
            far
        });
        let written = write_in_time(&mut near.writer, &mut packets(), &shared, limit).await;
        assert_eq!(written, Ok(()), "each of its reads was in time");
        let _far = slow.await.unwrap();
        let start = tokio::time::Instant::now();
        let error = write_in_time(&mut near.writer, &mut packets(), &shared, limit).await.unwrap_err();
        assert!(error.contains("took no data for 21 s"), "{error}");
        assert!(start.elapsed() <= limit * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_overtakes_what_waits_for_a_link_that_paces() {
        const RATE: u32 = 1_000_000;
        let ((near, mut far), shared) = (link().await, Arc::new(shared(1)));
        let (context, _waiting) = context();
        let of = |service| {
            let node = NameHash(7);
            DataHeader { hops: 1, from_node: node, to_node: node, from_service: service, to_service: service }
        };
        let (bulk, ping) = (of(ServiceName::CONTROL), of(ServiceName::PING));
        let packet = bulk.message(&[7; 16 << 10]);
        let fill = || while shared.queue.push_data(&bulk, packet.clone(), IfFull::Wait).is_ok() {};
        fill();
        let writing = tokio::spawn(write(near.writer, shared.clone(), context));
        let (mut read, mut passed, mut asked, mut slowest) = (Vec::new(), 0, None, Duration::ZERO);
        while passed < 5 * RATE as usize {
            far.reader.read_batch(&mut read).await.unwrap();
            for packet in read.drain(..) {
                tokio::time::sleep(Duration::from_secs(1) * packet.len() as u32 / RATE).await;
                passed += packet.len();
                fill();
                if packet == ping.message(b"ping") {
                    slowest =
                        slowest.max(asked.take().map_or(Duration::ZERO, |asked: Instant| asked.elapsed()));
                }
                // Once the writer has learned how slow the link is.
                if asked.is_none() && passed > RATE as usize {
                    asked = Some(Instant::now());
                    shared.queue.push_data(&ping, ping.message(b"ping"), IfFull::Wait).unwrap();
                }
            }
        }
        // The queue holds 4 MiB, and some 128 KiB are in flight between the two.
        assert!(slowest > Duration::ZERO && slowest < Duration::from_millis(250), "{slowest:?}");
        drop(far);
        writing.await.unwrap();
    }
}
