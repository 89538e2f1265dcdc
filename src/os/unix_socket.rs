//! Unix sockets that a daemon listens on: made without a moment of wrong permissions, locked, and removed again.
//!
//! Owns the file and the lock beside it, which the Go node takes too, so that two daemons never share one path.
//! It does not know what is spoken on a socket.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

/// The longest path of a Unix socket in bytes: what the kernel's address has room for, less its end mark.
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// Clients that may wait to be accepted; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// A socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// Another process holds the lock beside the socket.
    #[error("socket {0} is in use by another daemon: stop it, or choose another filename")]
    InUse(PathBuf),
    /// The path does not fit a socket address.
    #[error("socket path {0} is too long: at most {MAX_SOCKET_PATH} bytes are possible")]
    PathTooLong(PathBuf),
    /// Something that is no socket stands in the way; it may be anybody's data.
    #[error("socket {0} exists and is not a socket: remove it, or choose another filename")]
    NotASocket(PathBuf),
    /// The system refused a step on the way.
    #[error("socket {path}: failed to {step}: {source}")]
    Step {
        /// The socket's path.
        path: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// A bound Unix socket. Its file goes when this is dropped, its lock file stays.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file: only our own is removed.
    file: (u64, u64),
    lock: File,
}

impl UnixSocket {
    /// Binds `path` with file mode `mode`. Makes missing directories, and replaces a socket that nobody holds.
    /// Clients connect from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`]; nothing that was there has been touched then.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Self, BindError> {
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(BindError::PathTooLong(path.to_owned()));
        }
        let failed = |step| move |source| BindError::Step { path: path.to_owned(), step, source };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            made.map_err(failed("create its directory"))?;
        }
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener = listen(path, mode).map_err(failed("bind"))?;
        let made = fs::symlink_metadata(path).map_err(failed("find the socket just bound"))?;
        Ok(Self { listener, path: path.to_owned(), file: (made.dev(), made.ino()), lock })
    }

    /// The next client, and its user and process for logs.
    ///
    /// # Errors
    /// As the system's `accept`: out of descriptors as a rule.
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.listener.accept().await?;
        let name = match stream.peer_cred() {
            Ok(cred) => format!("unix uid={} pid={}", cred.uid(), cred.pid().unwrap_or_default()),
            Err(_) => "unix".to_owned(),
        };
        Ok((stream, name))
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // The lock is still held here, so no other daemon can have put its socket in between.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove a socket");
        }
        // Closing the file is not enough: a process that is just being started has a copy of it until it runs its
        // own program, and with the copy the lock.
        if let Err(error) = rustix::fs::flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(path = %self.path.display(), %error, "failed to unlock a socket");
        }
    }
}

/// Takes the lock that the Go node takes too, in `<path>.lock`.
fn lock(path: &Path) -> Result<File, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |source| BindError::Step { path: path.to_owned(), step: "open its lock file", source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(name);
    let file = file.map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(BindError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Removes what an earlier daemon left behind.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Step { path: path.to_owned(), step: "replace the old socket", source };
    match fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(path).map_err(failed),
        Ok(_) => Err(BindError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The mode is set before the name exists, so that nobody can connect in between. The kernel subtracts the process's
/// umask from it, and the second step restores it.
fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(std::os::fd::OwnedFd::from(socket).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_is_free_at_once_although_a_starting_process_has_a_copy_of_its_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = UnixSocket::bind(&path, 0o600).unwrap();
        let copy = first.lock.try_clone().unwrap();
        assert!(matches!(UnixSocket::bind(&path, 0o600), Err(BindError::InUse(_))));
        drop(first);
        let second = UnixSocket::bind(&path, 0o600).unwrap();
        drop(copy);
        assert!(matches!(UnixSocket::bind(&path, 0o600), Err(BindError::InUse(_))), "the second's own lock");
        drop(second);
    }
}
