//! Two endpoints on a simulated network in virtual time, with a delay, a bottleneck with a buffer, losses, and an
//! address that changes. Everything above the socket is the product's code.

use std::io::IoSliceMut;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::*;

/// The largest datagram that fits into a frame of Ethernet.
const MTU: usize = 1_472;
/// Bytes of headers that a datagram costs in addition.
const HEADERS: usize = 28;

/// What the network does to datagrams, in each direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wan {
    pub(crate) delay: Duration,
    /// Bytes a second.
    pub(crate) rate: u32,
    /// How long a datagram may wait for the bottleneck; a datagram that would wait longer is dropped.
    pub(crate) buffer: Duration,
    /// The share of datagrams that get lost.
    pub(crate) loss: f64,
}

/// An established session, and the network below it.
pub(crate) struct Joined {
    pub(crate) dialed: Session,
    pub(crate) accepted: Session,
    /// The address at which the dialer is seen and reached.
    dialer: Arc<Mutex<SocketAddr>>,
}

impl Wan {
    /// Two hosts with a session between them.
    pub(crate) async fn join(self) -> Joined {
        let (pki, listener) = (pki(), SocketAddr::from(([192, 0, 2, 1], 27_199)));
        let dialer = Arc::new(Mutex::new(SocketAddr::from(([192, 0, 2, 2], 40_000))));
        let (near, far) = self.sockets(&dialer, &Arc::new(Mutex::new(listener)));
        let server = server_config(&pki.server("n"), Congestion::Bbr).unwrap().0;
        let far = on_network(far, Some(server));
        let accepting = async {
            let options = QuicListenOptions::new("unused", 0, pki.server("n"));
            shake_hands(far.accept().await.unwrap(), &options).await.unwrap()
        };
        let dialing = async {
            // The name in the certificate.
            let (name, profile) = ("127.0.0.1", pki.client("n"));
            let expected = Expected::Host(ServerName::try_from(name).unwrap());
            let config = client_config(&profile, expected.clone(), Congestion::Bbr).unwrap().0;
            let connecting = on_network(near, None).connect_with(config, listener, name).unwrap();
            dialed(connecting.await.unwrap(), &profile, expected, name)
        };
        let (mut dialed, mut accepted) = tokio::join!(dialing, accepting);
        // Clears these, so that nodes of any name can use the sessions.
        (dialed.info.certified_nodes, accepted.info.certified_nodes) = (None, None);
        Joined { dialed, accepted, dialer }
    }

    fn sockets(self, one: &Arc<Mutex<SocketAddr>>, other: &Arc<Mutex<SocketAddr>>) -> (Socket, Socket) {
        let ((to_other, from_one), (to_one, from_other)) = (self.line(), self.line());
        let socket = |own: &Arc<Mutex<SocketAddr>>, peer: &Arc<Mutex<SocketAddr>>, sent, arrived| Socket {
            own: own.clone(),
            peer: peer.clone(),
            wan: self,
            bottleneck: Mutex::new(Bottleneck { free_at: Instant::now(), rng: SmallRng::seed_from_u64(7) }),
            sent,
            arrived: Mutex::new(arrived),
        };
        (socket(one, other, to_other, from_other), socket(other, one, to_one, from_one))
    }

    /// Gives out each datagram at the time it was put in with.
    fn line(self) -> (UnboundedSender<(Instant, Datagram)>, UnboundedReceiver<Datagram>) {
        let (sent, mut under_way) = unbounded_channel();
        let (arriving, arrived) = unbounded_channel();
        tokio::spawn(async move {
            while let Some((due, datagram)) = under_way.recv().await {
                sleep_until(due).await;
                let _gone = arriving.send(datagram);
            }
        });
        (sent, arrived)
    }
}

impl Joined {
    /// Gives the dialer another address from now on. Datagrams sent to the old one are lost.
    pub(crate) fn change_address(&self) {
        let mut address = self.dialer.lock();
        let SocketAddr::V4(old) = *address else { unreachable!("it is one of IPv4") };
        let [a, b, c, d] = old.ip().octets();
        *address = SocketAddr::from(([a, b, c, d + 1], old.port()));
    }
}

/// A datagram's source and its bytes.
type Datagram = (SocketAddr, Vec<u8>);

#[derive(Debug)]
struct Socket {
    own: Arc<Mutex<SocketAddr>>,
    peer: Arc<Mutex<SocketAddr>>,
    wan: Wan,
    bottleneck: Mutex<Bottleneck>,
    sent: UnboundedSender<(Instant, Datagram)>,
    arrived: Mutex<UnboundedReceiver<Datagram>>,
}

#[derive(Debug)]
struct Bottleneck {
    free_at: Instant,
    rng: SmallRng,
}

impl Bottleneck {
    /// When a datagram sent now arrives; `None` if it is lost.
    fn arrival(&mut self, bytes: usize, wan: Wan) -> Option<Instant> {
        let now = Instant::now();
        let wait = self.free_at.saturating_duration_since(now);
        if bytes > MTU || wait > wan.buffer || self.rng.random_bool(wan.loss) {
            return None;
        }
        self.free_at = now + wait + Duration::from_secs(1) * (bytes + HEADERS) as u32 / wan.rate;
        Some(self.free_at + wan.delay)
    }
}

fn on_network(socket: Socket, server: Option<ServerConfig>) -> Endpoint {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(LARGEST_PACKET).unwrap();
    Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), Arc::new(TokioRuntime)).unwrap()
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysReady)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for datagram in transmit.contents.chunks(size) {
            let arrival = self.bottleneck.lock().arrival(datagram.len(), self.wan);
            if let Some(arrival) = arrival
                && transmit.destination == *self.peer.lock()
            {
                let _gone = self.sent.send((arrival, (*self.own.lock(), datagram.to_vec())));
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Some((addr, datagram)) = ready!(self.arrived.lock().poll_recv(cx)) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let len = datagram.len();
        bufs[0][..len].copy_from_slice(&datagram);
        meta[0] = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(*self.own.lock())
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysReady;

impl UdpPoller for AlwaysReady {
    fn poll_writable(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
