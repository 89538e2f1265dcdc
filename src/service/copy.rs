//! Copies bytes between a stream of the mesh and a local socket, both ways at once.
//!
//! Owns how a connection ends. Each direction ends on its own, and bytes sent before the end arrive. If the mesh loses
//! bytes, or this process is killed, the local side is reset, because the loss must not look like an end. When one
//! direction has ended, the other is kept while somebody is left at the socket. It does not know who connected to whom.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::pulse::Pulse;
use crate::os::coop::ByteBudget;
use crate::stream::MeshStream;

/// Bytes of the buffer for each direction of a connection.
const BUFFER: usize = 64 << 10;

/// How long a connection of which one direction has ended may be silent. Long, because a client may follow a job with
/// little output; the kernel notices sooner if the client is gone.
const HALF_CLOSED: Duration = Duration::from_secs(2 * 3600);
const SILENT: &str = "half closed and silent";
/// The time between two checks that the other end of a half-closed socket is still there.
const OTHER_END_EVERY: Duration = Duration::from_secs(15);

/// A socket outside the mesh. Unless [`Self::complete`] was called, its close tells the other end that bytes are
/// missing, if the kind of socket can.
pub(super) trait LocalSocket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// From now on a close is an ordinary end.
    fn complete(&self) {}
}

/// Which side of a direction failed.
enum Fault {
    Read(io::Error),
    Write(io::Error),
}

/// How a connection ended.
enum CopyEnd {
    /// Both directions have ended, or the local socket is gone.
    Orderly,
    /// The mesh lost the stream.
    Lost(io::Error),
    /// The proxy gives the connection up, for this reason.
    Cut(&'static str),
    /// The local side has received everything, and has been silent for too long.
    Silent,
}

/// Copies bytes until both directions have ended, or until `stop`.
pub(super) async fn copy<L: LocalSocket>(mut local: L, mut mesh: MeshStream, stop: CancellationToken) {
    let gone = mesh.closed();
    let end = tokio::select! {
        end = exchange(&mut local, &mut mesh, gone) => end,
        () = stop.cancelled() => CopyEnd::Cut("proxy closed"),
    };
    match end {
        CopyEnd::Orderly => {
            debug!("proxy connection ended");
            local.complete();
        }
        // A stream that is cut short must not look complete at either end.
        CopyEnd::Cut(reason) => {
            debug!(reason, "proxy connection given up");
            mesh.abort(reason);
        }
        // The kernel may still hold bytes for the local side, which a reset would discard.
        CopyEnd::Silent => {
            local.complete();
            mesh.abort(SILENT);
        }
        CopyEnd::Lost(error) => debug!(%error, "proxy connection lost by the mesh"),
    }
}

async fn exchange(
    local: impl AsyncRead + AsyncWrite + Unpin,
    mesh: impl AsyncRead + AsyncWrite + Unpin,
    gone: impl Future<Output = ()>,
) -> CopyEnd {
    let (mut gone, pulse) = (pin!(gone), Pulse::new());
    let ((local_read, local_write), (mesh_read, mesh_write)) = (split(local), split(mesh));
    let mut outward = pin!(half(local_read, mesh_write, &pulse));
    let mut inward = pin!(half(mesh_read, local_write, &pulse));
    let (mut outward_ended, mut inward_ended, mut local_at_end) = (false, false, None);
    while !(outward_ended && inward_ended) {
        tokio::select! {
            ended = &mut outward, if !outward_ended => match ended {
                // A socket that was reset takes no more bytes either. What it sent before still arrives.
                Err(Fault::Read(error)) => {
                    debug!(%error, "proxy socket broken");
                    return CopyEnd::Orderly;
                }
                // The far side may refuse to read and still send.
                Err(Fault::Write(error)) => {
                    debug!(%error, "cannot send any more of a proxy connection over the mesh");
                    outward_ended = true;
                }
                Ok(local) => (outward_ended, local_at_end) = (true, Some(local)),
            },
            ended = &mut inward, if !inward_ended => match ended {
                Err(Fault::Read(error)) => return CopyEnd::Lost(error),
                Err(Fault::Write(error)) => {
                    debug!(%error, "cannot write to a proxy's socket any more");
                    inward_ended = true;
                }
                Ok(_mesh) => inward_ended = true,
            },
            () = pulse.silence(HALF_CLOSED), if outward_ended || inward_ended => {
                return if inward_ended { CopyEnd::Silent } else { CopyEnd::Cut(SILENT) };
            }
            error = broken(local_at_end.as_mut()) => {
                debug!(%error, "the other end of a proxy's socket has gone");
                return CopyEnd::Orderly;
            }
            // Nobody reads the mesh stream any more, so its loss shows only here; the local side's bytes could not
            // arrive.
            () = &mut gone, if inward_ended => return CopyEnd::Orderly,
        }
    }
    CopyEnd::Orderly
}

/// Copies one direction and then its end. Returns the reader.
async fn half<R: AsyncRead + Unpin>(
    mut from: R,
    mut to: impl AsyncWrite + Unpin,
    pulse: &Pulse,
) -> Result<R, Fault> {
    let (mut buffer, mut budget) = (vec![0; BUFFER], ByteBudget::default());
    loop {
        let read = from.read(&mut buffer).await.map_err(Fault::Read)?;
        pulse.beat();
        if read == 0 {
            to.shutdown().await.map_err(Fault::Write)?;
            return Ok(from);
        }
        to.write_all(&buffer[..read]).await.map_err(Fault::Write)?;
        to.flush().await.map_err(Fault::Write)?;
        pulse.beat();
        budget.spend(read).await;
    }
}

/// The kernel's error once the other end of a socket is gone. Keepalive finds that out, but only a read reports it.
async fn broken(socket: Option<&mut (impl AsyncRead + Unpin)>) -> io::Error {
    let Some(socket) = socket else { return std::future::pending().await };
    loop {
        sleep(OTHER_END_EVERY).await;
        if let Err(error) = socket.read(&mut [0]).await {
            return error;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{DuplexStream, ReadBuf, duplex};
    use tokio::net::UnixStream;
    use tokio::time::{Instant, timeout};

    use super::super::unix::UnixSide;
    use super::*;

    /// A socket whose other end has ended its direction, and is gone after `gone`.
    struct Leaving {
        gone: Instant,
    }

    impl AsyncRead for Leaving {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let reset = || io::ErrorKind::ConnectionReset.into();
            Poll::Ready(if Instant::now() < self.gone { Ok(()) } else { Err(reset()) })
        }
    }

    impl AsyncWrite for Leaving {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Runs an exchange; returns how long it takes and how it ends.
    async fn watched(local: impl AsyncRead + AsyncWrite + Unpin, mesh: DuplexStream) -> (Duration, CopyEnd) {
        let begun = Instant::now();
        let end = timeout(Duration::from_secs(86_400), exchange(local, mesh, pending())).await;
        (begun.elapsed(), end.expect("it ends within a day"))
    }

    /// A client that follows a job sends nothing more, but may receive output after hours.
    #[tokio::test(start_paused = true)]
    async fn one_direction_alone_is_kept_though_it_is_silent_for_an_hour() {
        for local_ends in [true, false] {
            let ((mut client, local), (mesh, mut server)) = (duplex(64), duplex(64));
            let exchanging = tokio::spawn(watched(local, mesh));
            let (ending, speaking) =
                if local_ends { (&mut client, &mut server) } else { (&mut server, &mut client) };
            ending.shutdown().await.unwrap();
            for byte in 0..5 {
                sleep(Duration::from_secs(3600)).await;
                speaking.write_all(&[byte]).await.unwrap();
                assert_eq!(ending.read_u8().await.unwrap(), byte);
            }
            let (lasted, end) = exchanging.await.unwrap();
            assert_eq!(lasted, Duration::from_secs(5 * 3600) + HALF_CLOSED);
            match end {
                CopyEnd::Cut(_) => assert!(local_ends, "what the local side has been sent still arrives"),
                CopyEnd::Silent => assert!(!local_ends, "what is missing does not look complete"),
                CopyEnd::Orderly | CopyEnd::Lost(_) => panic!("it is given up"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_unix_socket_at_whose_end_nobody_is_left_ends_its_connection() {
        for is_gone in [true, false] {
            let (mut client, local) = UnixStream::pair().unwrap();
            client.shutdown().await.unwrap();
            let kept = (!is_gone).then_some(client);
            let (mesh, _server) = duplex(64);
            let (lasted, _) = watched(UnixSide::from(local), mesh).await;
            assert_eq!(lasted < 2 * OTHER_END_EVERY, is_gone, "{lasted:?}");
            drop(kept);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_directions_may_be_silent_for_ever() {
        let ((_client, local), (mesh, _server)) = (duplex(64), duplex(64));
        let day = timeout(Duration::from_secs(86_400), exchange(local, mesh, pending()));
        assert!(day.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_at_whose_end_nobody_is_left_ends_its_connection() {
        let (mesh, _server) = duplex(64);
        let gone = Duration::from_secs(100);
        let (lasted, end) = watched(Leaving { gone: Instant::now() + gone }, mesh).await;
        assert!(matches!(end, CopyEnd::Orderly));
        assert!((gone..gone + OTHER_END_EVERY).contains(&lasted), "{lasted:?}");
    }
}
