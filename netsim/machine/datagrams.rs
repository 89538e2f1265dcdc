//! UDP between hosts. A bound socket becomes a Unix socket under the same descriptor, which is readable while datagrams
//! wait. This module keeps the datagrams, and the test's carrier delivers or loses them.
//!
//! The kernel refuses to join or split datagrams for such a socket. A sender to a closed port gets no error, as behind
//! most firewalls.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::mem::size_of;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use libc::{mmsghdr, msghdr, sockaddr_in, ssize_t, timespec};

use crate::state::{Host, me, with};
use crate::{files, sockets, sys};

/// Most bytes that wait for a reader; more datagrams are lost.
const ROOM: usize = 4 << 20;

/// What a host sends.
#[derive(Debug, Clone)]
pub struct Datagram {
    /// The sender's address.
    pub from: SocketAddrV4,
    /// The receiver's address.
    pub to: SocketAddrV4,
    /// Its content.
    pub bytes: Vec<u8>,
}

type Carrier = Arc<dyn Fn(Datagram) + Send + Sync>;

/// The UDP sockets of the run.
#[derive(Default)]
pub(crate) struct Datagrams {
    carrier: Option<Carrier>,
    sockets: BTreeMap<c_int, Socket>,
}

struct Socket {
    at: SocketAddrV4,
    /// The only sender that it hears, if it is connected.
    peer: Option<SocketAddrV4>,
    waiting: VecDeque<Datagram>,
    bytes: usize,
    /// A byte written here makes the socket readable.
    bell: OwnedFd,
    rung: bool,
}

/// From now on `carrier` is given every datagram that is sent. It is called on the sender's thread.
pub fn carry_datagrams_by(carrier: impl Fn(Datagram) + Send + Sync + 'static) {
    with(|machine| machine.datagrams.carrier = Some(Arc::new(carrier)));
}

/// Gives a datagram to the socket that is bound to its address. The datagram is lost if there is no such socket or no
/// room.
pub fn deliver_datagram(datagram: Datagram) {
    with(|machine| {
        let hears = |socket: &&mut Socket| {
            socket.at == datagram.to && socket.peer.is_none_or(|peer| peer == datagram.from)
        };
        let Some(socket) = machine.datagrams.sockets.values_mut().find(hears) else { return };
        if socket.bytes + datagram.bytes.len() > ROOM {
            return;
        }
        socket.bytes += datagram.bytes.len();
        socket.waiting.push_back(datagram);
        if !std::mem::replace(&mut socket.rung, true) {
            let one = [1u8];
            let args = [socket.bell.as_raw_fd() as usize, one.as_ptr() as usize, one.len(), 0, 0, 0];
            unsafe { sys::raw(libc::SYS_write, args) };
        }
    });
}

impl Datagrams {
    /// Forgets a descriptor, because it is closed.
    pub(crate) fn forget(&mut self, fd: c_int) {
        self.sockets.remove(&fd);
    }

    /// The next datagram. If there is none, the socket stops being readable.
    fn take(&mut self, fd: c_int) -> Option<Datagram> {
        let socket = self.sockets.get_mut(&fd)?;
        let next = socket.waiting.pop_front();
        match &next {
            Some(next) => socket.bytes -= next.bytes.len(),
            None if std::mem::take(&mut socket.rung) => {
                let mut rung = [0u8];
                let args = [fd as usize, rung.as_mut_ptr() as usize, rung.len(), 0, 0, 0];
                unsafe { sys::raw(libc::SYS_read, args) };
            }
            None => {}
        }
        next
    }
}

/// Binds a socket of a host.
pub(crate) fn bind(host: Host, fd: c_int, at: SocketAddrV4) -> io::Result<()> {
    let [near, bell] = sockets::pair(libc::SOCK_DGRAM)?;
    sockets::replace(fd, near)?;
    with(|machine| {
        let at = machine.sockets.place(host, fd, at.port());
        let socket = Socket { at, peer: None, waiting: VecDeque::new(), bytes: 0, bell, rung: false };
        machine.datagrams.sockets.insert(fd, socket);
    });
    Ok(())
}

/// Makes a socket hear only this sender.
pub(crate) fn connect(fd: c_int, to: SocketAddrV4) -> io::Result<()> {
    with(|machine| {
        let bound = machine.datagrams.sockets.get_mut(&fd);
        bound.map(|socket| socket.peer = Some(to)).ok_or(io::Error::from_raw_os_error(libc::EINVAL))
    })
}

fn is_ours(fd: c_int) -> bool {
    me().is_some() && with(|machine| machine.datagrams.sockets.contains_key(&fd))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        return unsafe {
            sys::call(libc::SYS_sendmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0])
        };
    }
    let message = unsafe { &*message };
    let pieces = unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
    let mut bytes = Vec::new();
    for piece in pieces {
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
        });
    }
    let count = bytes.len() as ssize_t;
    let Some(to) = (unsafe { sockets::address(message.msg_name.cast()) }) else {
        return sys::fail(libc::EDESTADDRREQ);
    };
    let (from, carrier) =
        with(|machine| (machine.datagrams.sockets[&fd].at, machine.datagrams.carrier.clone()));
    // A host that is off sends nothing, but gets no error.
    if let (Some(carrier), false) = (carrier, files::is_off()) {
        carrier(Datagram { from, to, bytes });
    }
    count
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut timespec,
) -> c_int {
    if !is_ours(fd) {
        let args = [fd as usize, messages as usize, count as usize, flags as usize, limit as usize, 0];
        return unsafe { sys::call(libc::SYS_recvmmsg, args) as c_int };
    }
    let messages = unsafe { std::slice::from_raw_parts_mut(messages, count as usize) };
    let mut received = 0;
    for message in messages {
        let Some(datagram) = with(|machine| machine.datagrams.take(fd)) else { break };
        message.msg_len = unsafe { fill(&mut message.msg_hdr, &datagram) };
        received += 1;
    }
    if received == 0 { sys::fail(libc::EAGAIN) as c_int } else { received }
}

/// Puts a datagram into the first buffer of a message. Returns the number of bytes that had room.
unsafe fn fill(message: &mut msghdr, datagram: &Datagram) -> c_uint {
    (message.msg_controllen, message.msg_flags) = (0, 0);
    unsafe {
        let buffer = &*message.msg_iov;
        let length = datagram.bytes.len().min(buffer.iov_len);
        datagram.bytes.as_ptr().cast::<c_void>().copy_to(buffer.iov_base, length);
        if !message.msg_name.is_null() {
            let name = sockets::sockaddr_of(datagram.from);
            (&raw const name).cast::<c_void>().copy_to(message.msg_name, size_of::<sockaddr_in>());
            message.msg_namelen = size_of::<sockaddr_in>() as u32;
        }
        length as c_uint
    }
}
