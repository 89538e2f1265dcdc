//! HTTP as far as the scripted API server speaks it: requests, and answers whole or in chunks.

use serde_json::Value;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};

pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

pub(crate) type Connection = BufReader<Box<dyn Socket>>;

pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) token: String,
    pub(crate) body: Value,
}

pub(crate) async fn read(connection: &mut Connection) -> Option<(Asked, bool)> {
    let (mut first, mut token, mut length, mut is_upgrade) = (String::new(), String::new(), 0, false);
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let lower = line.trim().to_lowercase();
        if first.is_empty() {
            first = line.trim().to_owned();
        } else if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        } else if lower.starts_with("upgrade:") {
            is_upgrade = true;
        } else if lower.starts_with("authorization:") {
            token = line.trim().split(' ').next_back().unwrap_or_default().to_owned();
        } else if lower.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await.ok()?;
    let (method, rest) = first.split_once(' ')?;
    let target = rest.split(' ').next()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some((Asked { method: method.into(), path: path.into(), query: query.into(), token, body }, is_upgrade))
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let is_there = digit <= three.len();
            let at = (bits >> (18 - 6 * digit)) as usize % 64;
            text.push(if is_there { char::from(DIGITS[at]) } else { '=' });
        }
    }
    text
}

pub(crate) fn parameter<'a>(query: &'a str, name: &str) -> &'a str {
    let given = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    given.unwrap_or_default()
}

pub(crate) async fn answer(connection: &mut Connection, code: u16, body: &Value) -> bool {
    let body = body.to_string();
    let text = format!("HTTP/1.1 {code} x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    connection.get_mut().write_all(text.as_bytes()).await.is_ok()
}

pub(crate) async fn head(connection: &mut Connection) -> bool {
    connection.get_mut().write_all(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n").await.is_ok()
}

/// Writes a chunk; an empty chunk ends the body.
pub(crate) async fn chunk(connection: &mut Connection, bytes: &[u8]) -> bool {
    let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    connection.get_mut().write_all(&chunk).await.is_ok()
}

pub(crate) async fn stream(connection: &mut Connection, bytes: &[u8], ends: bool) -> bool {
    head(connection).await
        && (bytes.is_empty() || chunk(connection, bytes).await)
        && (!ends || chunk(connection, b"").await)
}
