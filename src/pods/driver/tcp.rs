//! A pod that connects to this node: the listener, who may connect, and stdin and stdout over that connection. Owns
//! these; the machine decides what they mean for the unit.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{PodDriver, finished, now};
use crate::pods::machine::TcpNews;
use crate::pods::pod_status::PodSeen;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;
/// Most connections held until the pod's addresses are known.
const HELD: usize = 16;

/// The listener for a pod, then the pod's connection.
pub(super) enum PodTcpPeer {
    /// The pod has not connected. Holds the connections whose source cannot be judged yet.
    Listening(TcpListener, Vec<(TcpStream, SocketAddr)>),
    Connected(OwnedReadHalf, Option<JoinHandle<Result<(), String>>>),
    /// The connection has ended.
    Ended,
}

/// What happens to a [`PodTcpPeer`].
pub(super) enum TcpEvent {
    Accepted(TcpStream),
    Sent(Result<(), String>),
    Output(Vec<u8>),
    Ended,
    Failed(String),
}

impl PodTcpPeer {
    /// Listens on a port that the system chooses, and returns the port too.
    pub(super) async fn listen(address: IpAddr) -> Result<(Self, u16), String> {
        let bound = TcpListener::bind((address, 0)).await;
        let bound = bound.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        let (port, listener) = bound.map_err(|error| format!("Error listening: {error}"))?;
        Ok((Self::Listening(listener, Vec::new()), port))
    }
}

/// The next event. `pod` tells who may connect; output is read while there is room for it.
pub(super) async fn next(peer: &mut Option<PodTcpPeer>, pod: Option<&PodSeen>, has_room: bool) -> TcpEvent {
    match peer {
        Some(PodTcpPeer::Listening(listener, held)) => accept(listener, held, pod).await,
        Some(PodTcpPeer::Connected(from, sending)) => {
            let mut piece = Vec::new();
            tokio::select! {
                sent = finished(sending) => {
                    TcpEvent::Sent(sent.unwrap_or_else(|error| Err(error.to_string())))
                }
                read = read(from, &mut piece, has_room) => match read {
                    Ok(0) => TcpEvent::Ended,
                    Ok(_) => TcpEvent::Output(piece),
                    Err(error) => TcpEvent::Failed(format!("Error reading stdout from pod: {error}")),
                },
            }
        }
        Some(PodTcpPeer::Ended) | None => std::future::pending().await,
    }
}

async fn read(from: &mut OwnedReadHalf, piece: &mut Vec<u8>, has_room: bool) -> std::io::Result<usize> {
    if !has_room {
        return std::future::pending().await;
    }
    from.readable().await?;
    piece.reserve(PIECE);
    from.read_buf(piece).await
}

async fn accept(
    listener: &TcpListener,
    held: &mut Vec<(TcpStream, SocketAddr)>,
    pod: Option<&PodSeen>,
) -> TcpEvent {
    let pod = pod.filter(|pod| !pod.pod_ips.is_empty());
    loop {
        if let Some(pod) = pod {
            // All other connections are closed.
            let known = held.drain(..).find(|(_, source)| pod.may_connect_from(source.ip()));
            if let Some((stream, _)) = known {
                return TcpEvent::Accepted(stream);
            }
        }
        match listener.accept().await {
            Ok(connection) if held.len() < HELD => held.push(connection),
            Ok(_) => {}
            Err(error) => return TcpEvent::Failed(format!("Error accepting: {error}")),
        }
    }
}

async fn send(path: PathBuf, mut to: OwnedWriteHalf) -> Result<(), String> {
    let opened = File::open(path).await;
    let mut payload = opened.map_err(|error| format!("Error opening stdin file: {error}"))?;
    let sent = async {
        copy(&mut payload, &mut to).await?;
        to.shutdown().await
    };
    sent.await.map_err(|error| format!("Error sending stdin to pod: {error}"))
}

impl PodDriver {
    pub(super) fn on_tcp(&mut self, event: TcpEvent) {
        let now = now();
        match event {
            TcpEvent::Accepted(stream) => {
                let (from, to) = stream.into_split();
                let (permit, payload) = (self.unit.may_send(), self.unit.dir().join("stdin"));
                let sending = tokio::spawn(async move {
                    permit.await;
                    send(payload, to).await
                });
                self.tcp = Some(PodTcpPeer::Connected(from, Some(sending)));
                self.machine.handle_tcp(now, TcpNews::Connected);
            }
            TcpEvent::Sent(Ok(())) => self.machine.handle_tcp(now, TcpNews::Sent),
            TcpEvent::Sent(Err(detail)) | TcpEvent::Failed(detail) => {
                self.tcp = Some(PodTcpPeer::Ended);
                self.machine.handle_tcp(now, TcpNews::Failed(detail));
            }
            TcpEvent::Output(mut bytes) => {
                let at = self.stdout.size();
                self.machine.handle_output(now, at, &mut bytes);
                self.storing = Some(self.stdout.store(at, bytes, self.machine.cursor()));
            }
            TcpEvent::Ended => {
                self.tcp = Some(PodTcpPeer::Ended);
                self.machine.handle_tcp(now, TcpNews::Ended);
            }
        }
    }
}
