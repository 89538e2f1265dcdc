//! Copies bytes between a stream of the mesh and a local socket, both ways at once.
//!
//! Owns how a connection ends. Each direction ends by itself, and what was sent before an end arrives. Bytes that
//! the mesh lost must not look like an end: the local side is reset then. It does not know who connected to whom.

use std::io;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::os::coop::ByteBudget;
use crate::stream::MeshStream;

/// Bytes in hand for each direction of a connection.
const BUFFER: usize = 64 << 10;

/// A socket outside the mesh.
pub(super) trait Local: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    /// Drops the socket so that its other end learns that bytes are missing, where the kind of socket can say so.
    fn abort(self) {}
}

impl Local for UnixStream {}

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
    /// The proxy is closed.
    Stopped,
}

/// Copies bytes until both directions have ended, or until `stop`.
pub(super) async fn copy<L: Local>(mut local: L, mut mesh: MeshStream, stop: CancellationToken) {
    let end = tokio::select! {
        end = exchange(&mut local, &mut mesh) => end,
        () = stop.cancelled() => End::Stopped,
    };
    match end {
        End::Orderly => debug!("proxy connection ended"),
        // A stream that is cut short must not look complete at either end.
        End::Stopped => {
            mesh.abort("proxy closed");
            local.abort();
        }
        End::Lost(error) => {
            debug!(%error, "proxy connection lost by the mesh");
            local.abort();
        }
    }
}

async fn exchange<L: Local>(local: &mut L, mesh: &mut MeshStream) -> End {
    let mut gone = pin!(mesh.closed());
    let ((local_read, local_write), (mesh_read, mesh_write)) = (split(local), split(mesh));
    let mut outward = pin!(half(local_read, mesh_write));
    let mut inward = pin!(half(mesh_read, local_write));
    let (mut outward_ended, mut inward_ended) = (false, false);
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
                Ok(()) => outward_ended = true,
            },
            ended = &mut inward, if !inward_ended => match ended {
                Err(Fault::Read(error)) => return End::Lost(error),
                Err(Fault::Write(error)) => {
                    debug!(%error, "a proxy's socket takes no more");
                    inward_ended = true;
                }
                Ok(()) => inward_ended = true,
            },
            // A reader would notice, but there is none left: only the local side could still speak, to nobody.
            () = &mut gone, if inward_ended => return End::Orderly,
        }
    }
    End::Orderly
}

/// One direction, its end included.
async fn half(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Result<(), Fault> {
    let (mut buffer, mut budget) = (vec![0; BUFFER], ByteBudget::default());
    loop {
        let read = from.read(&mut buffer).await.map_err(Fault::Read)?;
        if read == 0 {
            return to.shutdown().await.map_err(Fault::Write);
        }
        to.write_all(&buffer[..read]).await.map_err(Fault::Write)?;
        to.flush().await.map_err(Fault::Write)?;
        budget.spend(read).await;
    }
}
