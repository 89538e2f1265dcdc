//! JSON messages: a type byte, then the body. Parses and prints whole messages; knows nothing of their fields.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MAX_MESSAGE, MessageType, WireError};

/// Reads the JSON body after the type byte of `message`.
pub(super) fn parse<T: DeserializeOwned>(what: &'static str, message: &[u8]) -> Result<T, WireError> {
    let body = message.get(1..).ok_or(WireError::Empty)?;
    serde_json::from_slice(body).map_err(|source| WireError::Json { what, source })
}

/// Prints the type byte, then `body`.
pub(super) fn message<T: Serialize>(
    what: &'static str,
    kind: MessageType,
    body: &T,
) -> Result<Bytes, WireError> {
    let mut out = BytesMut::with_capacity(256);
    out.put_u8(kind.byte());
    let mut writer = out.writer();
    serde_json::to_writer(&mut writer, body).map_err(|source| WireError::Json { what, source })?;
    let out = writer.into_inner();
    if out.len() > MAX_MESSAGE {
        return Err(WireError::TooLarge { what, len: out.len() });
    }
    Ok(out.freeze())
}
