//! Stdin over a WebSocket, version 5 of the Kubernetes protocol: a channel number before each message, and a message
//! that half-closes a channel. Owns these messages.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::sync::oneshot;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use super::attach::{AttachConnection, outcome};
use super::{AttachError, PING_EVERY, PayloadSending, StdinStream};

const STDIN: u8 = 0;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;
/// Bytes of a message.
const PIECE: usize = 64 * 1024;

/// Bytes read at once. The server sends little.
const READ: usize = 4096;

/// The stream, just opened.
pub(super) struct WebSocketStdin(AttachConnection);

impl WebSocketStdin {
    pub(super) fn new(connection: AttachConnection) -> Self {
        Self(connection)
    }
}

impl StdinStream for WebSocketStdin {
    fn send(self: Box<Self>, payload: File, sent: oneshot::Sender<()>) -> PayloadSending {
        Box::pin(async move {
            // Each message is written at once, because a buffer would only hold it twice.
            let config = WebSocketConfig::default().write_buffer_size(0).read_buffer_size(READ);
            let config = config.max_message_size(Some(1 << 20));
            let socket = WebSocketStream::from_raw_socket(self.0, Role::Client, Some(config)).await;
            let (mut to, mut from) = socket.split();
            let (half_closed, mut is_half_closed) = oneshot::channel();
            let send = async move {
                send_all(&mut to, payload).await?;
                // The receivers are gone if the stream was given up.
                let _ = (sent.send(()), half_closed.send(()));
                loop {
                    tokio::time::sleep(PING_EVERY).await;
                    to.send(Message::Ping(Default::default())).await.map_err(broken)?;
                }
            };
            let read = async {
                loop {
                    match from.next().await {
                        // The server opens each channel with an empty message.
                        Some(Ok(Message::Binary(message)))
                            if message.len() > 1 && message.first() == Some(&STATUS) =>
                        {
                            return outcome(&message[1..]);
                        }
                        Some(Ok(Message::Close(_))) | None => {
                            return Err(AttachError::Broken(match is_half_closed.try_recv() {
                                Ok(()) => {
                                    "the server closed the stream without saying whether stdin arrived".into()
                                }
                                Err(_) => "the server closed the stream before all of stdin was sent".into(),
                            }));
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(broken(error)),
                    }
                }
            };
            tokio::pin!(read);
            let cut: Result<(), AttachError> = tokio::select! {
                biased;
                said = &mut read => return said,
                cut = send => cut,
            };
            // The reason that the server gives says more than a broken pipe.
            match tokio::time::timeout(super::LAST_WORD_WITHIN, read).await {
                Ok(Err(AttachError::NeverAttached(message))) => Err(AttachError::NeverAttached(message)),
                Ok(Ok(())) | Ok(Err(AttachError::Broken(_))) | Err(_) => cut,
            }
        })
    }
}

async fn send_all<S>(to: &mut S, mut payload: File) -> Result<(), AttachError>
where
    S: futures_util::Sink<Message, Error = tungstenite::Error> + Unpin,
{
    loop {
        let mut piece = Vec::with_capacity(PIECE + 1);
        piece.push(STDIN);
        while piece.len() <= PIECE {
            let room = PIECE + 1 - piece.len();
            let read = (&mut payload).take(room as u64).read_buf(&mut piece).await;
            if read.map_err(|error| AttachError::Broken(format!("Error reading stdin: {error}")))? == 0 {
                break;
            }
        }
        let is_last = piece.len() <= PIECE;
        if piece.len() > 1 {
            to.send(Message::binary(piece)).await.map_err(broken)?;
        }
        if is_last {
            return to.send(Message::binary(vec![CLOSE, STDIN])).await.map_err(broken);
        }
    }
}

fn broken(error: tungstenite::Error) -> AttachError {
    AttachError::Broken(error.to_string())
}
