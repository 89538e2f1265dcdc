//! A QUIC connection to a service: when it has to end, and how a connection with a single stream ends with that stream.
//!
//! How a connection ends matters to receptor nodes: if a close overtakes data, they lose what they have not read yet.
//! Therefore only the dialer closes, once both sides have sent everything; the listener waits for the close, for a
//! limited time. Connections with many streams are `mux`'s.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::time::sleep;

use super::far_end::{FarDoubt, FarEnd};
use super::mesh_stream::{Carrier, Halves, MeshStream};
use super::socket::service_at;
use super::windows::Windows;
use crate::congestion::InFlight;
use crate::node::NodeHandle;
use crate::tls::Guard;

/// The code of a close that is no failure (docs/protocol.md#stream-closing).
const NORMAL_CLOSE: VarInt = VarInt::from_u32(0);
/// The code of a close because the certificate is no longer accepted.
const REVOKED: VarInt = VarInt::from_u32(501);
/// The code of a connection or stream that is aborted.
pub(super) const ABORTED: VarInt = VarInt::from_u32(500);
/// The code with which a direction is cancelled that nobody reads any more (docs/protocol.md#stream-closing).
const READ_CANCELLED: VarInt = VarInt::from_u32(499);
/// How long a far end in doubt may take to answer, in addition to four round trips.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How often a far end is asked. More than once, because packets sent before it went away may still arrive.
const QUESTIONS: usize = 3;
/// Most probes of a new route to the far end.
const PROBES: usize = 20;
/// The shortest pause after such a probe.
const PROBE_AGAIN: Duration = Duration::from_millis(250);
/// How long an ending stream waits while nothing moves on its connection.
const LINGER: Duration = Duration::from_secs(30);
/// How often the connection is looked at within that time.
const LOOKS: u32 = 6;
/// Acknowledgements between two looks that are no progress, because keep-alives are acknowledged, too.
const IDLE_ACKS: u64 = 4;

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Dialer,
    Listener,
}

/// An open connection.
pub(super) struct Opened {
    pub(super) node: NodeHandle,
    pub(super) connection: Connection,
    pub(super) side: Side,
    pub(super) far_end: Arc<FarEnd>,
    pub(super) windows: Arc<Windows>,
    pub(super) guard: Option<Guard>,
}

impl Opened {
    /// From now on, closes the connection when its far end is found to be gone or its certificate is revoked.
    pub(super) fn watch(&mut self) {
        let (connection, far_end, windows) =
            (self.connection.clone(), self.far_end.clone(), self.windows.clone());
        tokio::spawn(end_when_gone(self.node.clone(), connection, far_end, windows, self.guard.take()));
    }

    /// The connection's only stream. If it is `strict`, a drop without a shutdown aborts it, so that it does not look
    /// complete.
    pub(super) fn into_only_stream(mut self, halves: (SendStream, RecvStream), strict: bool) -> MeshStream {
        self.watch();
        let exclusive = Exclusive { side: self.side, strict };
        MeshStream::new(self.connection, self.windows, halves, Carrier::Exclusive(exclusive))
    }
}

/// The hold of a single stream on its connection, which ends with the stream.
#[derive(Debug)]
pub(super) struct Exclusive {
    side: Side,
    strict: bool,
}

impl Exclusive {
    /// Ends the connection at once.
    pub(super) fn abort(self, connection: &Connection, reason: &str) {
        connection.close(ABORTED, reason.as_bytes());
    }

    /// Ends the connection in good order, unless its stream is strict and was not shut down.
    pub(super) fn end(self, connection: Connection, halves: Halves) {
        if self.strict && !halves.shut {
            connection.close(ABORTED, b"given up");
        } else {
            let until_closed = self.side == Side::Listener;
            spawn_or_close(connection.clone(), async move {
                finish(&connection, halves, until_closed).await;
                close(&connection);
            });
        }
    }
}

/// Closes a connection that has served its purpose.
pub(super) fn close(connection: &Connection) {
    connection.close(NORMAL_CLOSE, b"normal close");
}

/// Runs `ending` in a task; without a runtime, closes the connection at once.
pub(super) fn spawn_or_close(connection: Connection, ending: impl Future<Output = ()> + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(ending)),
        Err(_) => close(&connection),
    }
}

/// Ends a stream in good order: written bytes arrive, and reading is cancelled. Returns once the other end has
/// everything (and, with `until_closed`, has closed the connection), or when there is no more progress.
pub(super) async fn finish(connection: &Connection, halves: Halves, until_closed: bool) {
    let Halves { mut send, mut recv, .. } = halves;
    let _already = send.finish();
    cancel(&mut recv);
    let received = async {
        let _acknowledged = send.stopped().await;
        if until_closed {
            connection.closed().await;
        }
    };
    tokio::select! {
        _ended = connection.closed() => {}
        () = received => {}
        () = stands_still(connection) => {}
    }
}

/// Tells the peer that nobody reads any more.
pub(super) fn cancel(recv: &mut RecvStream) {
    let _ended = recv.stop(READ_CANCELLED);
}

/// Ready once nothing has moved on a connection for [`LINGER`]. Megabytes may wait for a slow link, and they are kept
/// while it carries some of them. The idle timeout ends the connection of a dead peer.
async fn stands_still(connection: &Connection) {
    // Stream frames sent, and acknowledgements received.
    let movement = || {
        let stats = connection.stats();
        (stats.frame_tx.stream, stats.frame_rx.acks)
    };
    let (mut last, mut still) = (movement(), 0);
    while still < LOOKS {
        sleep(LINGER / LOOKS).await;
        let now = movement();
        if now.0 == last.0 && now.1 <= last.1 + IDLE_ACKS {
            still += 1;
        } else {
            (last, still) = (now, 0);
        }
    }
}

/// Closes a connection when its far end is found to be gone, or its certificate is revoked. Returns when the connection
/// has ended, for whatever reason.
async fn end_when_gone(
    node: NodeHandle,
    connection: Connection,
    far_end: Arc<FarEnd>,
    windows: Arc<Windows>,
    guard: Option<Guard>,
) {
    let revoked = async {
        match &guard {
            Some(guard) => guard.cut().cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = revoked => connection.close(REVOKED, b"certificate no longer accepted"),
        _ended = connection.closed() => {}
        doubt = outlives_its_far_end(&connection, &far_end, &windows) => {
            let reason = match doubt {
                FarDoubt::Restarted => "node restarted",
                FarDoubt::ServiceUnknown => "service unknown",
            };
            connection.close(NORMAL_CLOSE, reason.as_bytes());
        }
        never = goes_on_when_back(&node, &connection, &windows) => match never {},
    }
}

/// Sends probes whenever the route to the far end comes back or changes. Packets in flight were lost, and QUIC by
/// itself would wait for about as long as the route was gone. A link may also be replaced without a gap.
async fn goes_on_when_back(node: &NodeHandle, connection: &Connection, windows: &Windows) -> Infallible {
    let far = service_at(connection.remote_address());
    let (Some((far, _)), Some(in_flight)) = (far, InFlight::on(connection)) else {
        return std::future::pending().await;
    };
    let mut way = node.way(far);
    loop {
        way = Some(node.other_way(far, way).await);
        for question in 1..=PROBES {
            let received = || connection.stats().udp_rx.datagrams;
            let before = received();
            in_flight.probe();
            windows.ask(connection);
            // The far end may not have a route back yet.
            sleep(connection.rtt().max(PROBE_AGAIN)).await;
            // Packets sent before the change may still arrive.
            if question >= QUESTIONS && received() != before {
                break;
            }
        }
    }
}

/// Ready when there is a doubt about the far end, and it does not answer any more. A doubt alone proves nothing: any
/// node can send the news in another's name, and the new process's first packets may overtake the news of its restart.
async fn outlives_its_far_end(connection: &Connection, far_end: &FarEnd, windows: &Windows) -> FarDoubt {
    let mut doubts = far_end.doubts();
    // The sender lives in `far_end`.
    while doubts.changed().await.is_ok() {
        let doubt = *doubts.borrow_and_update();
        for _ in 0..QUESTIONS {
            let received = || connection.stats().udp_rx.datagrams;
            let before = received();
            windows.ask(connection);
            sleep(SIGN_OF_LIFE + connection.rtt() * 4).await;
            if let Some(doubt) = doubt.filter(|_| received() == before) {
                return doubt;
            }
        }
    }
    std::future::pending().await
}
