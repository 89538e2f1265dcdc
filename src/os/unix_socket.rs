//! Unix sockets that a daemon listens on: made without a moment of wrong permissions, locked, and removed again.
//!
//! Owns the file and the lock beside it. The Go node takes the same lock, so that two daemons never share one path.
//! It does not know what is spoken on a socket.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

/// The longest path of a Unix socket, in bytes: the size of the kernel's field, less the final zero byte.
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// Clients that may wait to be accepted; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// A socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnixBindError {
    /// Another process holds the lock beside the socket.
    #[error("socket {0} is in use by another daemon: stop it, or choose another filename")]
    InUse(PathBuf),
    /// The path does not fit a socket address.
    #[error("socket path {0} is too long: at most {MAX_SOCKET_PATH} bytes are possible")]
    PathTooLong(PathBuf),
    /// A file that is no socket has this path; it may be anybody's data.
    #[error("socket {0} exists and is not a socket: remove it, or choose another filename")]
    NotASocket(PathBuf),
    /// The system refused one of the steps.
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

/// A bound Unix socket. Dropping it removes its file; the lock file stays.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of our socket file, so that no other file is removed.
    file: (u64, u64),
    lock: File,
}

impl UnixSocket {
    /// Binds `path` with file mode `mode`. Makes missing directories, and replaces a socket whose lock nobody
    /// holds. Clients can connect as soon as this returns. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`UnixBindError`]; existing files are then unchanged.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Self, UnixBindError> {
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(UnixBindError::PathTooLong(path.to_owned()));
        }
        let failed = |step| move |source| UnixBindError::Step { path: path.to_owned(), step, source };
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
    /// Those of the system's `accept`: usually too few descriptors.
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
        // Closing the file is not enough: a process that is just being started has a copy of the descriptor until
        // it runs its own program, and the copy would keep the lock.
        if let Err(error) = rustix::fs::flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(path = %self.path.display(), %error, "failed to unlock a socket");
        }
    }
}

/// Takes the lock in `<path>.lock`, which the Go node takes too.
fn lock(path: &Path) -> Result<File, UnixBindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |source| UnixBindError::Step { path: path.to_owned(), step: "open its lock file", source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(name);
    let file = file.map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(UnixBindError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Removes the socket that an earlier daemon left.
fn remove_stale(path: &Path) -> Result<(), UnixBindError> {
    let failed =
        |source| UnixBindError::Step { path: path.to_owned(), step: "replace the old socket", source };
    match fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => fs::remove_file(path).map_err(failed),
        Ok(_) => Err(UnixBindError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Sets the mode before the path exists, so that nobody can connect in between. The kernel subtracts the process's
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
        assert!(matches!(UnixSocket::bind(&path, 0o600), Err(UnixBindError::InUse(_))));
        drop(first);
        let second = UnixSocket::bind(&path, 0o600).unwrap();
        drop(copy);
        assert!(
            matches!(UnixSocket::bind(&path, 0o600), Err(UnixBindError::InUse(_))),
            "the second's own lock"
        );
        drop(second);
    }
}
