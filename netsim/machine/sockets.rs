//! TCP between hosts. A socket that listens or dials becomes a Unix socket under the same descriptor: the kernel moves
//! its bytes at once, and the test's carrier takes them from one host to another. The address of a host is 10.0.0.N.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_un, socklen_t};

use crate::state::{Host, Machine, me, with};
use crate::{datagrams, processes, sys};

/// The beginning of all socket names here, after the zero byte that keeps them off the file system.
const PREFIX: &[u8] = b"machine-";
/// The first port for sockets that do not ask for a certain port.
const FREE_PORT: u16 = 40_000;

/// A connection that a host opens, from the carrier's side.
#[derive(Debug)]
pub struct Dial {
    /// The host that dials.
    pub from: Host,
    /// The address of the dialing socket.
    pub local: SocketAddrV4,
    /// The address that it dials.
    pub to: SocketAddrV4,
    /// The other end of the dialer's socket. It does not block.
    pub end: OwnedFd,
}

type Carrier = Arc<dyn Fn(Dial) + Send + Sync>;

/// The sockets of the run.
#[derive(Default)]
pub(crate) struct Sockets {
    carrier: Option<Carrier>,
    listening: BTreeMap<c_int, SocketAddrV4>,
    /// Own and peer address of each connected socket that has no name of ours.
    dialled: BTreeMap<c_int, (SocketAddrV4, SocketAddrV4)>,
    ports: BTreeMap<Host, u16>,
}

impl Sockets {
    fn free_port(&mut self, host: Host) -> u16 {
        let next = self.ports.entry(host).or_insert(FREE_PORT);
        *next = next.wrapping_add(1).max(FREE_PORT);
        *next
    }

    /// The address of a host's datagram socket that asks for this port.
    pub(crate) fn place(&mut self, host: Host, fd: c_int, port: u16) -> SocketAddrV4 {
        let port = if port == 0 { self.free_port(host) } else { port };
        let at = SocketAddrV4::new(address_of(host), port);
        self.dialled.insert(fd, (at, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)));
        at
    }
}

/// The address of a host.
pub fn address_of(host: Host) -> Ipv4Addr {
    let [.., high, low] = host.0.to_be_bytes();
    Ipv4Addr::new(10, 0, high, low)
}

/// The host of an address.
pub fn host_of(address: Ipv4Addr) -> Host {
    let [_, _, high, low] = address.octets();
    Host(u32::from_be_bytes([0, 0, high, low]))
}

/// From now on `carrier` is given every connection to an address with a listener. It is called on the dialer's thread.
pub fn carry_by(carrier: impl Fn(Dial) + Send + Sync + 'static) {
    with(|machine| machine.sockets.carrier = Some(Arc::new(carrier)));
}

/// Hands a connection to the listener at this address. Returns the carrier's end, which does not block.
///
/// # Errors
/// Nobody listens there, or nobody accepts.
pub fn deliver(from: SocketAddrV4, to: SocketAddrV4) -> io::Result<OwnedFd> {
    let end = unix_socket(libc::SOCK_NONBLOCK)?;
    call_with(libc::SYS_bind, &end, &format!("{}-{from}", end.as_raw_fd()))?;
    call_with(libc::SYS_connect, &end, &listener_name(to))?;
    Ok(end)
}

fn unix_socket(flags: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags;
    let made = unsafe { sys::raw(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) };
    check(made).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Makes a call about a socket and one of our names.
fn call_with(number: libc::c_long, socket: &OwnedFd, name: &str) -> io::Result<isize> {
    let (name, length) = named(name);
    let args = [socket.as_raw_fd() as usize, &raw const name as usize, length, 0, 0, 0];
    check(unsafe { sys::raw(number, args) })
}

fn listener_name(at: SocketAddrV4) -> String {
    format!("L-{at}")
}

/// A name off the file system, and its length. The address is what follows the last dash.
fn named(name: &str) -> (sockaddr_un, usize) {
    let mut into = sockaddr_un { sun_family: libc::AF_UNIX as sa_family_t, sun_path: [0; 108] };
    let text = [PREFIX, std::process::id().to_string().as_bytes(), b"-", name.as_bytes()].concat();
    for (at, byte) in text.iter().enumerate() {
        into.sun_path[at + 1] = *byte as i8;
    }
    (into, offset_of!(sockaddr_un, sun_path) + 1 + text.len())
}

/// The address in such a name.
fn address_in(name: &sockaddr_un, length: usize) -> Option<SocketAddrV4> {
    let path = name.sun_path.get(1..length.checked_sub(offset_of!(sockaddr_un, sun_path))?)?;
    let text: Vec<u8> = path.iter().map(|byte| *byte as u8).collect();
    let text = std::str::from_utf8(text.strip_prefix(PREFIX)?).ok()?;
    text.rsplit('-').next()?.parse().ok()
}

fn check(result: isize) -> io::Result<isize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result) }
}

/// An option of a socket that is a number.
fn option(fd: c_int, option: c_int) -> Option<c_int> {
    let (mut value, mut length) = (0 as c_int, size_of::<c_int>() as socklen_t);
    let into = [&raw mut value as usize, &raw mut length as usize];
    let args = [fd as usize, libc::SOL_SOCKET as usize, option as usize, into[0], into[1], 0];
    let found = unsafe { sys::raw(libc::SYS_getsockopt, args) };
    (found == 0).then_some(value)
}

/// The calling thread, the address of a call on a socket, and whether the socket is a stream; `None` if the machine
/// does not answer the call.
unsafe fn asked(fd: c_int, address: *const sockaddr) -> Option<(u32, SocketAddrV4, bool)> {
    let (me, at) = (me()?, unsafe { self::address(address) }?);
    Some((me, at, option(fd, libc::SO_TYPE)? == libc::SOCK_STREAM))
}

/// An internet address. Hosts have no IPv6, so a listener on all IPv6 addresses gets the host's own address.
pub(crate) unsafe fn address(address: *const sockaddr) -> Option<SocketAddrV4> {
    if address.is_null() {
        return None;
    }
    let (ip, port) = match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            let address = unsafe { &*address.cast::<sockaddr_in>() };
            (Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)), address.sin_port)
        }
        libc::AF_INET6 => (Ipv4Addr::UNSPECIFIED, unsafe { (*address.cast::<sockaddr_in6>()).sin6_port }),
        _ => return None,
    };
    Some(SocketAddrV4::new(ip, u16::from_be(port)))
}

/// The address in the C library's form.
pub(crate) fn sockaddr_of(address: SocketAddrV4) -> sockaddr_in {
    let mut it: sockaddr_in = unsafe { std::mem::zeroed() };
    it.sin_family = libc::AF_INET as sa_family_t;
    it.sin_port = address.port().to_be();
    it.sin_addr.s_addr = u32::from(*address.ip()).to_be();
    it
}

/// Puts another socket under this descriptor, with its flags.
pub(crate) fn replace(fd: c_int, by: OwnedFd) -> io::Result<()> {
    unsafe {
        let flags = check(sys::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]))?;
        let new = by.as_raw_fd() as usize;
        check(sys::raw(libc::SYS_fcntl, [new, libc::F_SETFL as usize, flags as usize, 0, 0, 0]))?;
        check(sys::raw(libc::SYS_dup3, [new, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0]))?;
    }
    Ok(())
}

/// Two Unix sockets that are connected with each other, and do not block.
pub(crate) fn pair(kind: c_int) -> io::Result<[OwnedFd; 2]> {
    let mut ends = [0 as c_int; 2];
    let kind = (kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
    let args = [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize, 0, 0];
    check(unsafe { sys::raw(libc::SYS_socketpair, args) })?;
    Ok(ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn listen_at(me: u32, fd: c_int, at: SocketAddrV4) -> io::Result<()> {
    let at = with(|machine| {
        let host = machine.threads.host_of(me).unwrap_or(crate::WORLD);
        let port = if at.port() == 0 { machine.sockets.free_port(host) } else { at.port() };
        SocketAddrV4::new(address_of(host), port)
    });
    let new = unix_socket(0)?;
    call_with(libc::SYS_bind, &new, &listener_name(at))?;
    replace(fd, new)?;
    with(|machine| machine.sockets.listening.insert(fd, at));
    Ok(())
}

fn dial(me: u32, fd: c_int, to: SocketAddrV4) -> io::Result<()> {
    let (from, local, to, carrier) = with(|machine| {
        let host = machine.threads.host_of(me).unwrap_or(crate::WORLD);
        let to = if to.ip().is_loopback() { SocketAddrV4::new(address_of(host), to.port()) } else { to };
        let listens = machine.sockets.listening.values().any(|listening| *listening == to);
        let local = SocketAddrV4::new(address_of(host), machine.sockets.free_port(host));
        (host, local, to, machine.sockets.carrier.clone().filter(|_| listens))
    });
    let carrier = carrier.ok_or(io::Error::from_raw_os_error(libc::ECONNREFUSED))?;
    let [near, end] = pair(libc::SOCK_STREAM)?;
    replace(fd, near)?;
    with(|machine| machine.sockets.dialled.insert(fd, (local, to)));
    carrier(Dial { from, local, to, end });
    Ok(())
}

fn host_of_thread(me: u32) -> Host {
    with(|machine| machine.threads.host_of(me).unwrap_or(crate::WORLD))
}

fn done(result: io::Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => sys::fail(error.raw_os_error().unwrap_or(libc::EIO)) as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    match unsafe { asked(fd, address) } {
        Some((me, at, true)) => done(listen_at(me, fd, at)),
        Some((me, at, false)) => done(datagrams::bind(host_of_thread(me), fd, at)),
        None => unsafe {
            sys::call(libc::SYS_bind, [fd as usize, address as usize, length as usize, 0, 0, 0]) as c_int
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    match unsafe { asked(fd, address) } {
        Some((me, to, true)) => done(dial(me, fd, to)),
        Some((_, to, false)) => done(datagrams::connect(fd, to)),
        None => unsafe {
            sys::call(libc::SYS_connect, [fd as usize, address as usize, length as usize, 0, 0, 0]) as c_int
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if me().is_some() {
        with(|machine: &mut Machine| {
            machine.sockets.listening.remove(&fd);
            machine.sockets.dialled.remove(&fd);
            machine.datagrams.forget(fd);
            processes::forget(&mut machine.processes, fd);
        });
    }
    unsafe { sys::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) as c_int }
}

/// Asks the kernel for a socket's name, and returns the address in it if the name is one of ours.
unsafe fn name(
    number: libc::c_long,
    [fd, flags]: [usize; 2],
    into: *mut sockaddr,
    length: *mut socklen_t,
    of_dialled: impl FnOnce((SocketAddrV4, SocketAddrV4)) -> SocketAddrV4,
) -> c_int {
    let mut found: sockaddr_un = unsafe { std::mem::zeroed() };
    let mut size = size_of::<sockaddr_un>() as socklen_t;
    if me().is_none() || into.is_null() {
        return unsafe { sys::call(number, [fd, into as usize, length as usize, flags, 0, 0]) as c_int };
    }
    let result =
        unsafe { sys::call(number, [fd, &raw mut found as usize, &raw mut size as usize, flags, 0, 0]) };
    if result < 0 {
        return result as c_int;
    }
    let dialled = || with(|machine| machine.sockets.dialled.get(&(fd as c_int)).copied()).map(of_dialled);
    let is_unix = found.sun_family == libc::AF_UNIX as sa_family_t;
    let address = is_unix.then(|| address_in(&found, size as usize).or_else(dialled)).flatten();
    unsafe {
        let room = *length as usize;
        match address {
            Some(address) => {
                let it = sockaddr_of(address);
                let size = size_of::<sockaddr_in>();
                (&raw const it).cast::<u8>().copy_to(into.cast(), size.min(room));
                *length = size as socklen_t;
            }
            None => {
                (&raw const found).cast::<u8>().copy_to(into.cast(), (size as usize).min(room));
                *length = size;
            }
        }
    }
    result as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(fd: c_int, into: *mut sockaddr, length: *mut socklen_t) -> c_int {
    unsafe { name(libc::SYS_getsockname, [fd as usize, 0], into, length, |(own, _)| own) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(fd: c_int, into: *mut sockaddr, length: *mut socklen_t) -> c_int {
    unsafe { name(libc::SYS_getpeername, [fd as usize, 0], into, length, |(_, other)| other) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, into: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    unsafe { name(libc::SYS_accept4, [fd as usize, flags as usize], into, length, |(_, other)| other) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    which: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let of_inet = [libc::IPPROTO_TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6].contains(&level);
    if of_inet && me().is_some() && option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX) {
        return 0;
    }
    let args = [fd as usize, level as usize, which as usize, value as usize, length as usize, 0];
    unsafe { sys::call(libc::SYS_setsockopt, args) as c_int }
}
