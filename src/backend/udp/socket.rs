//! A UDP socket that sends and receives many datagrams with one system call.
//!
//! It owns the socket's options, the kernel's offloads, and the list of errors that concern one datagram only. It
//! knows addresses and bytes, but nothing of sessions.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::sockopt::{set_ip_mtu_discover, set_ipv6_mtu_discover};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tracing::{debug, error};

/// The largest datagram that IPv4 can carry, in bytes.
pub(super) const MAX_DATAGRAM: usize = 65_507;

/// Buffers that one receive can fill; each holds one datagram, or up to 64 that the kernel has joined.
const SLOT_COUNT: usize = 8;
const SLOT_SIZE: usize = 64 * 1024;

/// The buffer asked of the kernel, in bytes: a burst of large packets comes faster than a busy host reads.
const KERNEL_BUFFER: usize = 4 * 1024 * 1024;

/// The largest segment joined with others after a larger one was refused; an Ethernet frame carries it.
const SAFE_SEGMENT: usize = 1_472;

const WOULD_BLOCK: io::ErrorKind = io::ErrorKind::WouldBlock;

thread_local! {
    /// A buffer that joins packets which leave with one call. One for each thread: at up to 64 KiB each, one for
    /// each of a listener's sessions would be too much.
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The destination of datagrams, and the address of this host that they come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatagramRoute {
    pub(super) to: SocketAddr,
    /// The address at which the other side knows us, where the host has several.
    pub(super) from: Option<IpAddr>,
}

/// Memory to receive into. The system provides a page only once a datagram reaches it.
#[derive(Debug)]
pub(super) struct Slots(Vec<u8>);

impl Slots {
    pub(super) fn new() -> Self {
        Self(vec![0; SLOT_COUNT * SLOT_SIZE])
    }
}

/// A UDP socket, bound and perhaps connected.
#[derive(Debug)]
pub(super) struct DatagramSocket {
    socket: UdpSocket,
    offloads: UdpSocketState,
    /// The largest segment that is joined with others.
    segment_limit: AtomicUsize,
}

impl DatagramSocket {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let offloads = UdpSocketState::new((&socket).into())?;
        if let Err(error) = allow_fragments(&socket) {
            // Without it, packets larger than the path allows are lost, and the overlay survives that.
            debug!(%error, "cannot allow datagrams to be fragmented");
        }
        enlarge_buffers(&socket);
        Ok(Self { socket, offloads, segment_limit: AtomicUsize::new(usize::MAX) })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for datagrams, or an error: "port unreachable" does not make a socket readable.
    pub(super) async fn readable(&self) -> io::Result<()> {
        let ready = self.socket.ready(Interest::READABLE | Interest::ERROR).await?;
        if ready.is_error() {
            // Clears the readiness; `take_error` gives the error itself.
            let _seen = self.socket.try_io(Interest::ERROR, || io::Result::<()>::Err(WOULD_BLOCK.into()));
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Polls for datagrams on a shared socket; one task alone receives from it.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_recv_ready(cx)
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Gives each datagram at hand to `each`, up to some hundreds of them.
    pub(super) fn try_receive(
        &self,
        slots: &mut Slots,
        mut each: impl FnMut(DatagramRoute, &[u8]),
    ) -> io::Result<()> {
        let mut metas = [RecvMeta::default(); SLOT_COUNT];
        let mut rest = slots.0.as_mut_slice();
        let mut buffers = std::array::from_fn::<_, SLOT_COUNT, _>(|_| {
            let (slot, others) = std::mem::take(&mut rest).split_at_mut(SLOT_SIZE);
            rest = others;
            IoSliceMut::new(slot)
        });
        let receive = || self.offloads.recv((&self.socket).into(), &mut buffers, &mut metas);
        let count = self.socket.try_io(Interest::READABLE, receive)?;
        for (slot, meta) in slots.0.chunks_exact(SLOT_SIZE).zip(&metas[..count.min(SLOT_COUNT)]) {
            let route = DatagramRoute { to: meta.addr, from: meta.dst_ip };
            let bytes = &slot[..meta.len.min(SLOT_SIZE)];
            match meta.stride {
                0 => each(route, bytes),
                stride if bytes.is_empty() => debug_assert!(stride > 0),
                stride => bytes.chunks(stride).for_each(|datagram| each(route, datagram)),
            }
        }
        Ok(())
    }

    /// Sends packets from the front of the batch with one call and takes them out. A datagram that cannot be sent
    /// for a reason of its own is dropped, as others get lost on their way.
    pub(super) fn try_send(&self, route: DatagramRoute, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        let Some(first) = batch.front().cloned() else { return Ok(()) };
        if first.len() > MAX_DATAGRAM {
            error!(len = first.len(), limit = MAX_DATAGRAM, "dropped a packet that no datagram can carry");
            batch.pop_front();
            return Ok(());
        }
        let run = self.joinable(batch);
        let sent = match run {
            0 | 1 => self.send(route, &first, None),
            _ => JOINED.with_borrow_mut(|joined| {
                joined.clear();
                batch.iter().take(run).for_each(|packet| joined.extend_from_slice(packet));
                self.send(route, joined, Some(first.len()))
            }),
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) if run > 1 => {
                debug!(%error, segment = first.len(), "cannot send datagrams of this size in batches, sending them one by one");
                self.segment_limit.store((first.len() - 1).min(SAFE_SEGMENT), Ordering::Relaxed);
                return Ok(());
            }
            Err(error) if !concerns_one_datagram(&error) => return Err(error),
            Err(_) | Ok(()) => {}
        }
        batch.drain(..run);
        Ok(())
    }

    fn send(&self, route: DatagramRoute, contents: &[u8], segment_size: Option<usize>) -> io::Result<()> {
        let transmit =
            Transmit { destination: route.to, ecn: None, contents, segment_size, src_ip: route.from };
        self.socket.try_io(Interest::WRITABLE, || self.offloads.try_send((&self.socket).into(), &transmit))
    }

    /// How many packets from the front can go as segments of one send: packets as long as the first, and then
    /// perhaps a shorter one.
    fn joinable(&self, batch: &VecDeque<Bytes>) -> usize {
        let Some(first) = batch.front().map(Bytes::len) else { return 0 };
        if first == 0 || first > self.segment_limit.load(Ordering::Relaxed) {
            return 1;
        }
        let most = self.offloads.max_gso_segments().min(MAX_DATAGRAM / first);
        let whole = batch.iter().take(most).take_while(|packet| packet.len() == first).count();
        let shorter = batch.get(whole).is_some_and(|packet| (1..first).contains(&packet.len()));
        (whole + usize::from(shorter && whole < most)).max(1)
    }
}

/// Lets the kernel fragment datagrams, because packets of the mesh may be larger than a network carries.
fn allow_fragments(socket: &UdpSocket) -> io::Result<()> {
    set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::WANT)?;
    if socket.local_addr()?.is_ipv6() {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::WANT)?;
        setsockopt(socket, sockopt::Ipv6DontFrag, &false)?;
    }
    Ok(())
}

/// Asks the kernel for larger buffers than its default; a limit of the host may prevent this.
pub(in crate::backend) fn enlarge_buffers(socket: &impl AsFd) {
    let plain = SockRef::from(socket);
    let wanted = [
        setsockopt(socket, sockopt::RcvBufForce, &KERNEL_BUFFER)
            .map_err(io::Error::from)
            .or_else(|_| plain.set_recv_buffer_size(KERNEL_BUFFER)),
        plain.set_send_buffer_size(KERNEL_BUFFER / 4),
    ];
    for error in wanted.into_iter().filter_map(Result::err) {
        debug!(%error, "cannot enlarge a buffer of a UDP socket");
    }
}

/// Whether the next datagram may well get through after this error.
fn concerns_one_datagram(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MSGSIZE | Errno::NOBUFS | Errno::PERM | Errno::INTR | Errno::INVAL)
    )
}
