//! Where clients come from: the Unix socket, a TCP port, and a service of the mesh.
//!
//! Owns the sockets themselves, from making them, without a moment of wrong permissions, to removing them. It does
//! not know what is spoken on them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::channel::Link;
use super::session::Peer;
use crate::stream::{self, StreamListener};
use crate::tls::{Handshakes, ServerProfile};

/// The longest path of a Unix socket in bytes: what the kernel's address has room for, less its end mark.
pub const MAX_SOCKET_PATH: usize = 107;

/// Clients that may wait to be accepted; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// After how much silence the kernel asks a TCP client whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Why no clients can be heard.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process holds the lock beside the socket.
    #[error("control socket {0} is in use by another daemon: stop it, or choose another filename")]
    InUse(PathBuf),
    /// The path does not fit a socket address.
    #[error("control socket path {0} is too long: at most {MAX_SOCKET_PATH} bytes are possible")]
    PathTooLong(PathBuf),
    /// Something that is no socket stands in the way; it may be anybody's data.
    #[error("control socket {0} exists and is not a socket: remove it, or choose another filename")]
    NotASocket(PathBuf),
    /// The system refused a step on the way to the Unix socket.
    #[error("control socket {path}: failed to {step}: {source}")]
    Unix {
        /// The socket's path.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The TCP address cannot be understood, found or bound.
    #[error("control service: failed to listen on TCP address {address}: {source}")]
    Tcp {
        /// The address as configured.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The mesh service cannot be offered.
    #[error("control service: {0}")]
    Mesh(#[from] stream::ListenError),
}

/// A client that just came, and who it is.
pub(super) type Client = (Box<dyn Link>, Peer);

/// A source of clients.
pub(super) trait Accept: Send + 'static {
    /// Waits for the next client; `None` once there will be no more. Dropping the wait loses nobody.
    fn accept(&mut self) -> impl Future<Output = io::Result<Option<Client>>> + Send;
}

/// A bound Unix socket. Its file goes when this is dropped, its lock file stays.
pub(super) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file: only our own is removed.
    file: (u64, u64),
    _lock: File,
}

impl UnixSocket {
    /// Binds `path` with file mode `mode`. Makes missing directories, and replaces a socket that nobody holds.
    pub(super) fn bind(path: &Path, mode: u32) -> Result<Self, ListenError> {
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(ListenError::PathTooLong(path.to_owned()));
        }
        let failed = |step| move |source| ListenError::Unix { path: path.to_owned(), step, source };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            made.map_err(failed("create its directory"))?;
        }
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener = bind(path, mode).map_err(failed("bind"))?;
        let made = fs::symlink_metadata(path).map_err(failed("find the socket just bound"))?;
        Ok(Self { listener, path: path.to_owned(), file: (made.dev(), made.ino()), _lock: lock })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // The lock is still held here, so no other daemon can have put its socket in between.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove the control socket");
        }
    }
}

/// Takes the lock that the Go node takes too, in `<path>.lock`.
fn lock(path: &Path) -> Result<File, ListenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |source| ListenError::Unix { path: path.to_owned(), step: "open its lock file", source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(name);
    let file = file.map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ListenError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Removes what an earlier daemon left behind.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::Unix { path: path.to_owned(), step: "replace the old socket", source };
    match fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(path).map_err(failed),
        Ok(_) => Err(ListenError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The mode is set before the name exists, so that nobody gets in between; the kernel takes the process's mask off
/// it, and the second step puts back what the mask took.
fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(std::os::fd::OwnedFd::from(socket).into())
}

impl Accept for UnixSocket {
    async fn accept(&mut self) -> io::Result<Option<Client>> {
        let (stream, _) = self.listener.accept().await?;
        let peer = Peer { local: true, name: unix_peer(&stream) };
        Ok(Some((Box::new(stream), peer)))
    }
}

fn unix_peer(stream: &UnixStream) -> String {
    match stream.peer_cred() {
        Ok(cred) => format!("unix uid={} pid={}", cred.uid(), cred.pid().unwrap_or_default()),
        Err(_) => "unix".to_owned(),
    }
}

/// Binds `host:port`, or `port` on every IPv4 address. Port 0 takes any free one.
pub(super) async fn bind_tcp(address: &str) -> Result<TcpListener, ListenError> {
    let full = match address.rsplit_once(':') {
        None => format!("0.0.0.0:{address}"),
        Some(("", port)) => format!("[::]:{port}"),
        Some(_) => address.to_owned(),
    };
    TcpListener::bind(&full).await.map_err(|source| ListenError::Tcp { address: address.to_owned(), source })
}

impl Accept for TcpListener {
    async fn accept(&mut self) -> io::Result<Option<Client>> {
        let (stream, address) = TcpListener::accept(self).await?;
        tune(&stream);
        Ok(Some((Box::new(stream), Peer { local: false, name: address.to_string() })))
    }
}

/// A TCP port whose clients speak TLS.
pub(super) struct TlsPort {
    listener: TcpListener,
    profile: ServerProfile,
    handshakes: Handshakes<Client>,
}

impl TlsPort {
    pub(super) fn new(listener: TcpListener, profile: ServerProfile) -> Self {
        Self { listener, profile, handshakes: Handshakes::default() }
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr) {
        tune(&stream);
        let profile = self.profile.clone();
        self.handshakes.begin(async move {
            let secured = profile.accept(stream).await.inspect_err(|error| {
                tracing::info!(peer = %address, %error, "control client refused");
            })?;
            // receptorctl ends a payload by shutting the socket below TLS.
            let link: Box<dyn Link> = Box::new(secured.ending_like_tcp());
            Ok((link, Peer { local: false, name: address.to_string() }))
        });
    }
}

impl Accept for TlsPort {
    async fn accept(&mut self) -> io::Result<Option<Client>> {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.have_room() => {
                    let (stream, address) = accepted?;
                    self.begin(stream, address);
                }
                // One that failed has been told of.
                ended = self.handshakes.next() => if let Ok(client) = ended {
                    return Ok(Some(client));
                },
            }
        }
    }
}

/// Answers are small and wanted at once, and a client whose machine died says no good-bye.
fn tune(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    let tuned = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keepalive));
    if let Err(error) = tuned {
        tracing::debug!(%error, "failed to set options of a TCP client");
    }
}

impl Accept for StreamListener {
    async fn accept(&mut self) -> io::Result<Option<Client>> {
        let Some(stream) = StreamListener::accept(self).await else { return Ok(None) };
        let name = stream.remote().map_or_else(String::new, |(node, service)| format!("{node}:{service}"));
        Ok(Some((Box::new(stream), Peer { local: false, name })))
    }
}
