//! Copies bytes between a stream of the mesh and a local socket, both ways at once.
//!
//! Owns how a connection ends. Each direction ends by itself, and what was sent before an end arrives. Bytes that
//! the mesh lost must not look like an end: the local side is reset then, also if this process is killed. One direction
//! alone is kept for as long as somebody is left at the socket. It does not know who connected to whom.

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

/// Bytes in hand for each direction of a connection.
const BUFFER: usize = 64 << 10;

/// How long a connection of which one direction has ended may be silent: its other end may follow a job that says little.
/// Who has gone is found sooner by the kernel.
const HALF_CLOSED: Duration = Duration::from_secs(2 * 3600);
const SILENT: &str = "half closed and silent";
/// Between looks at a socket that has said all, whether its other end is still there.
const LOOK: Duration = Duration::from_secs(15);

/// A socket outside the mesh. However it is closed, its other end learns that bytes are missing, where the kind of socket
/// can say so.
pub(super) trait Local: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// From now on a close says that there are no more bytes.
    fn complete(&self) {}
}

/// Which side of a direction failed.
enum Fault {
    Read(io::Error),
    Write(io::Error),
}

/// How a connection ended.
enum End {
    /// As its sides wanted, or with the local socket.
    Orderly,
    /// The mesh lost the stream.
    Lost(io::Error),
    /// It is given up, for this reason.
    Cut(&'static str),
    /// The local side has been sent all, and says no more.
    Silent,
}

/// Copies bytes until both directions have ended, or until `stop`.
pub(super) async fn copy<L: Local>(mut local: L, mut mesh: MeshStream, stop: CancellationToken) {
    let gone = mesh.closed();
    let end = tokio::select! {
        end = exchange(&mut local, &mut mesh, gone) => end,
        () = stop.cancelled() => End::Cut("proxy closed"),
    };
    match end {
        End::Orderly => {
            debug!("proxy connection ended");
            local.complete();
        }
        // A stream that is cut short must not look complete at either end.
        End::Cut(reason) => {
            debug!(reason, "proxy connection given up");
            mesh.abort(reason);
        }
        // Some of it may still wait in the kernel.
        End::Silent => {
            local.complete();
            mesh.abort(SILENT);
        }
        End::Lost(error) => debug!(%error, "proxy connection lost by the mesh"),
    }
}

async fn exchange(
    local: impl AsyncRead + AsyncWrite + Unpin,
    mesh: impl AsyncRead + AsyncWrite + Unpin,
    gone: impl Future<Output = ()>,
) -> End {
    let (mut gone, pulse) = (pin!(gone), Pulse::new());
    let ((local_read, local_write), (mesh_read, mesh_write)) = (split(local), split(mesh));
    let mut outward = pin!(half(local_read, mesh_write, &pulse));
    let mut inward = pin!(half(mesh_read, local_write, &pulse));
    let (mut outward_ended, mut inward_ended, mut local_at_end) = (false, false, None);
    while !(outward_ended && inward_ended) {
        tokio::select! {
            ended = &mut outward, if !outward_ended => match ended {
                // A socket that was reset takes nothing more either. What it sent before still arrives.
                Err(Fault::Read(error)) => {
                    debug!(%error, "proxy socket broken");
                    return End::Orderly;
                }
                // The far side may refuse to read and still have something to say.
                Err(Fault::Write(error)) => {
                    debug!(%error, "the mesh takes no more of a proxy connection");
                    outward_ended = true;
                }
                Ok(local) => (outward_ended, local_at_end) = (true, Some(local)),
            },
            ended = &mut inward, if !inward_ended => match ended {
                Err(Fault::Read(error)) => return End::Lost(error),
                Err(Fault::Write(error)) => {
                    debug!(%error, "a proxy's socket takes no more");
                    inward_ended = true;
                }
                Ok(_mesh) => inward_ended = true,
            },
            () = pulse.silence(HALF_CLOSED), if outward_ended || inward_ended => {
                return if inward_ended { End::Silent } else { End::Cut(SILENT) };
            }
            error = broken(local_at_end.as_mut()) => {
                debug!(%error, "nobody is left at a proxy's socket");
                return End::Orderly;
            }
            // A reader would notice, but there is none left: only the local side could still speak, to nobody.
            () = &mut gone, if inward_ended => return End::Orderly,
        }
    }
    End::Orderly
}

/// One direction, its end included; then nothing is left to read.
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

/// What the kernel says of a socket at whose end nobody reads any more. Keepalive finds that out, and only who looks is
/// told.
async fn broken(socket: Option<&mut (impl AsyncRead + Unpin)>) -> io::Error {
    let Some(socket) = socket else { return std::future::pending().await };
    loop {
        sleep(LOOK).await;
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

    /// A socket whose other end has closed, and goes away for good at `gone`.
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

    /// How long an exchange takes, and how it ends.
    async fn watched(local: impl AsyncRead + AsyncWrite + Unpin, mesh: DuplexStream) -> (Duration, End) {
        let begun = Instant::now();
        let end = timeout(Duration::from_secs(86_400), exchange(local, mesh, pending())).await;
        (begun.elapsed(), end.expect("it ends within a day"))
    }

    /// Whoever listens alone may do so for long: a client that follows a job has said all that it will.
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
                End::Cut(_) => assert!(local_ends, "what the local side has been sent still arrives"),
                End::Silent => assert!(!local_ends, "what is missing does not look complete"),
                End::Orderly | End::Lost(_) => panic!("it is given up"),
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
            assert_eq!(lasted < 2 * LOOK, is_gone, "{lasted:?}");
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
        assert!(matches!(end, End::Orderly));
        assert!((gone..gone + LOOK).contains(&lasted), "{lasted:?}");
    }
}
