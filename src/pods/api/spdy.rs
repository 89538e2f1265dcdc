//! Stdin over SPDY/3.1, version 4 of the Kubernetes protocol, for credentials and servers that WebSockets do not work
//! with. Owns as much of SPDY as one stdin and one error stream need: headers are sent uncompressed, received headers
//! are skipped, and there is no flow control because the servers have none either.

use std::io;

use bytes::{BufMut as _, BytesMut};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, WriteHalf, split};
use tokio::sync::{mpsc, oneshot};

use super::attach::{AttachConnection, outcome};
use super::{AttachError, LAST_WORD_WITHIN, PING_EVERY, PayloadSending, StdinStream};

const ERROR_STREAM: u32 = 1;
const STDIN_STREAM: u32 = 3;

const CONTROL: u8 = 0x80;
const VERSION: u8 = 3;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// Bytes of a frame's data.
const PIECE: usize = 64 * 1024;
/// Most bytes of a received frame. A Status object is shorter.
const MOST_OF_FRAME: usize = 1 << 20;

/// The stream, just opened.
pub(super) struct SpdyStdin(AttachConnection);

impl SpdyStdin {
    pub(super) fn new(connection: AttachConnection) -> Self {
        Self(connection)
    }
}

impl StdinStream for SpdyStdin {
    fn send(self: Box<Self>, payload: File, sent: oneshot::Sender<()>) -> PayloadSending {
        Box::pin(async move {
            let (from, to) = split(self.0);
            let (pongs, to_answer) = mpsc::channel(8);
            let read = read(from, pongs);
            tokio::pin!(read);
            let cut = tokio::select! {
                biased;
                said = &mut read => return said,
                cut = write(to, payload, sent, to_answer) => cut,
            };
            match tokio::time::timeout(LAST_WORD_WITHIN, read).await {
                Ok(Err(AttachError::NeverAttached(message))) => Err(AttachError::NeverAttached(message)),
                Ok(Ok(())) | Ok(Err(AttachError::Broken(_))) | Err(_) => Err(cut),
            }
        })
    }
}

/// Sends the payload and answers pings; returns only on an error.
async fn write(
    mut to: WriteHalf<AttachConnection>,
    mut payload: File,
    sent: oneshot::Sender<()>,
    mut pings: mpsc::Receiver<u32>,
) -> AttachError {
    let mut frame = BytesMut::with_capacity(PIECE + 8);
    open(&mut frame, ERROR_STREAM, "error", true);
    open(&mut frame, STDIN_STREAM, "stdin", false);
    let mut sent = Some(sent);
    let mut own_ping = 1;
    loop {
        if let Err(error) = async {
            to.write_all(&frame).await?;
            to.flush().await
        }
        .await
        {
            return broken(&error);
        }
        frame.clear();
        if let Ok(ping) = pings.try_recv() {
            put_ping(&mut frame, ping);
            continue;
        }
        if sent.is_none() {
            tokio::select! {
                ping = pings.recv() => match ping {
                    Some(ping) => put_ping(&mut frame, ping),
                    None => return AttachError::Broken("the connection is closed".into()),
                },
                () = tokio::time::sleep(PING_EVERY) => {
                    put_ping(&mut frame, own_ping);
                    own_ping += 2;
                }
            }
            continue;
        }
        frame.put_slice(&[0; 8]);
        match (&mut payload).take(PIECE as u64).read_buf(&mut frame).await {
            Ok(0) => {
                put_data_head(&mut frame, FIN);
                let last = async {
                    to.write_all(&frame).await?;
                    to.flush().await
                }
                .await;
                if let Err(error) = last {
                    return broken(&error);
                }
                frame.clear();
                // The receiver is gone if the stream was given up.
                let _ = sent.take().map(|sent| sent.send(()));
            }
            Ok(_) => put_data_head(&mut frame, 0),
            Err(error) => return AttachError::Broken(format!("Error reading stdin: {error}")),
        }
    }
}

/// Reads frames up to the server's Status object; sends the IDs of pings that need an answer to `pongs`.
///
/// # Errors
/// [`AttachError`]: the Status object is no success, or the frames end without one.
pub async fn read(mut from: impl AsyncRead + Unpin, pongs: mpsc::Sender<u32>) -> Result<(), AttachError> {
    let mut status = Vec::new();
    loop {
        let mut head = [0; 8];
        match from.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(AttachError::Broken(
                    "the server closed the stream without saying whether stdin arrived".into(),
                ));
            }
            Err(error) => return Err(broken(&error)),
            Ok(_) => {}
        }
        let [a, b, c, d, flags, x, y, z] = head;
        let length = u32::from_be_bytes([0, x, y, z]) as usize;
        if length > MOST_OF_FRAME {
            return Err(AttachError::Broken("the server sent a SPDY frame that is too long".into()));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await.map_err(|error| broken(&error))?;
        let first = body.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0x7FFF_FFFF);
        if a & CONTROL == 0 {
            if u32::from_be_bytes([a, b, c, d]) == ERROR_STREAM {
                status.extend_from_slice(&body);
                if flags & FIN != 0 || serde_json::from_slice::<serde_json::Value>(&status).is_ok() {
                    return outcome(&status);
                }
            }
            continue;
        }
        match u16::from_be_bytes([c, d]) {
            // Odd IDs are answers to our own pings.
            PING if first % 2 == 0 => {
                // A full queue means that the server pings without end.
                let _ = pongs.try_send(first);
            }
            RST_STREAM if first == ERROR_STREAM || first == STDIN_STREAM => {
                return Err(AttachError::Broken("the server reset the stream".into()));
            }
            GOAWAY => return Err(AttachError::Broken("the server ended the connection".into())),
            _ => {}
        }
    }
}

/// Opens a stream of this kind. A connection's first stream begins the zlib stream of all headers.
fn open(frames: &mut BytesMut, stream: u32, kind: &str, is_first: bool) {
    let mut headers = BytesMut::new();
    headers.put_u32(1);
    for text in ["streamtype", kind] {
        headers.put_u32(text.len() as u32);
        headers.put_slice(text.as_bytes());
    }
    let mut block = BytesMut::new();
    if is_first {
        // Begins a zlib stream that lasts as long as the connection.
        block.put_slice(&[0x78, 0x01]);
    }
    for stored in [&headers[..], &[]] {
        // A deflate block of stored bytes. The empty block makes the reader flush them.
        block.put_u8(0);
        block.put_u16_le(stored.len() as u16);
        block.put_u16_le(!(stored.len() as u16));
        block.put_slice(stored);
    }
    put_control_head(frames, SYN_STREAM, 10 + block.len());
    frames.put_u32(stream);
    frames.put_slice(&[0; 6]);
    frames.put_slice(&block);
}

fn put_control_head(frames: &mut BytesMut, kind: u16, length: usize) {
    frames.put_slice(&[CONTROL, VERSION]);
    frames.put_u16(kind);
    frames.put_u32(length as u32);
}

fn put_ping(frames: &mut BytesMut, id: u32) {
    put_control_head(frames, PING, 4);
    frames.put_u32(id);
}

/// Fills in the head of the data frame that `frame` holds.
fn put_data_head(frame: &mut BytesMut, flags: u8) {
    let length = (frame.len() - 8) as u32;
    frame[..4].copy_from_slice(&STDIN_STREAM.to_be_bytes());
    frame[4..8].copy_from_slice(&length.to_be_bytes());
    frame[4] = flags;
}

fn broken(error: &io::Error) -> AttachError {
    AttachError::Broken(error.to_string())
}
