//! The frame of stream links: a 2-byte little-endian length, then the message.
//!
//! Pure: bytes in, whole messages out. "Not enough bytes yet" is a value, never an error.

use bytes::{Buf, BytesMut};

use super::MAX_MESSAGE;

/// Bytes that precede a message on a stream link.
pub const PREFIX_LEN: usize = 2;

/// The prefix of a message of `len` bytes; `None` if no frame can carry it.
pub fn prefix(len: usize) -> Option<[u8; PREFIX_LEN]> {
    u16::try_from(len).ok().map(u16::to_le_bytes)
}

/// Takes the next whole message off the front of `buffer`, or `None` until more bytes have arrived.
///
/// The message shares the buffer's allocation. A frame of length zero is an empty message, which has no type and
/// is dropped later.
pub fn next_message(buffer: &mut BytesMut) -> Option<BytesMut> {
    if buffer.len() < PREFIX_LEN {
        return None;
    }
    let len = usize::from(u16::from_le_bytes([buffer[0], buffer[1]]));
    if buffer.len() < PREFIX_LEN + len {
        // The 16-bit length bounds how much is buffered.
        debug_assert!(len <= MAX_MESSAGE);
        return None;
    }
    buffer.advance(PREFIX_LEN);
    Some(buffer.split_to(len))
}
