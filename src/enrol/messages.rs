//! A message of some kilobytes as packets of a session: each says which part it is and how many there are, because
//! QUIC may deliver them in another order.
//!
//! Owns this form. It refuses to know what a message says.

use std::collections::VecDeque;
use std::io;

use bytes::{BufMut, Bytes, BytesMut};

use crate::backend::{Reader, Writer};

/// The bytes of a message in one packet.
const PART: usize = 32 << 10;
/// The number of a part and that of all parts come first, as two big-endian 16-bit numbers.
const HEADER: usize = 4;

/// Sends a message.
///
/// # Errors
/// The session has ended.
pub(super) async fn send(writer: &mut Writer, message: &[u8]) -> io::Result<()> {
    let mut batch: VecDeque<Bytes> = packets(message).collect();
    writer.write_batch(&mut batch).await.map_err(io::Error::other)
}

/// Receives a message of at most this many bytes.
///
/// # Errors
/// The session has ended, or sends something else.
pub(super) async fn receive(reader: &mut Reader, most: usize) -> io::Result<Vec<u8>> {
    let (mut parts, mut batch) = (Parts::default(), Vec::new());
    loop {
        reader.read_batch(&mut batch).await.map_err(io::Error::other)?;
        for packet in batch.drain(..) {
            if let Some(message) = parts.add(&packet, most)? {
                return Ok(message);
            }
        }
    }
}

fn packets(message: &[u8]) -> impl Iterator<Item = Bytes> {
    let count = message.len().div_ceil(PART).max(1);
    (0..count).map(move |number| {
        let part = &message[number * PART..message.len().min((number + 1) * PART)];
        let mut packet = BytesMut::with_capacity(HEADER + part.len());
        packet.put_u16(number as u16);
        packet.put_u16(count as u16);
        packet.put_slice(part);
        packet.freeze()
    })
}

/// The parts of a message that have come.
#[derive(Default)]
struct Parts {
    parts: Vec<Option<Vec<u8>>>,
    bytes: usize,
}

impl Parts {
    /// Adds a packet. Returns the message once it is whole.
    fn add(&mut self, packet: &[u8], most: usize) -> io::Result<Option<Vec<u8>>> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "what came is no part of a message");
        let (&header, part) = packet.split_first_chunk::<HEADER>().ok_or_else(wrong)?;
        let [number, count] = [[header[0], header[1]], [header[2], header[3]]].map(u16::from_be_bytes);
        if self.parts.is_empty() && usize::from(count) <= most.div_ceil(PART) {
            self.parts.resize(usize::from(count), None);
        }
        self.bytes += part.len();
        let is_ours = self.parts.len() == usize::from(count) && self.bytes <= most;
        match self.parts.get_mut(usize::from(number)).filter(|_| is_ours) {
            Some(place @ None) => *place = Some(part.to_vec()),
            Some(Some(_)) | None => return Err(wrong()),
        }
        let whole = self.parts.iter().all(Option::is_some);
        Ok(whole.then(|| self.parts.iter().flatten().flatten().copied().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(packets: impl IntoIterator<Item = Bytes>, most: usize) -> io::Result<Option<Vec<u8>>> {
        let mut parts = Parts::default();
        let mut last = None;
        for packet in packets {
            last = parts.add(&packet, most)?;
        }
        Ok(last)
    }

    #[test]
    fn a_message_comes_whole_in_any_order() {
        for size in [0, 1, PART, PART + 1, 5 * PART] {
            let message: Vec<u8> = (0..size).map(|number| number as u8).collect();
            let mut all: Vec<Bytes> = packets(&message).collect();
            all.reverse();
            assert_eq!(received(all, size.max(1)).unwrap(), Some(message));
        }
    }

    #[test]
    fn nothing_else_is_taken_for_one() {
        let message = vec![7; 3 * PART];
        let all: Vec<Bytes> = packets(&message).collect();
        let other = packets(&message[..PART]).next().unwrap();
        let cases = [
            (vec![Bytes::from_static(b"\0\0\0")], 1 << 20, "too short"),
            (vec![Bytes::from_static(b"\0\0\0\0")], 1 << 20, "of no parts"),
            (vec![Bytes::from_static(b"\0\x03\0\x03x")], 1 << 20, "behind the last"),
            (vec![all[0].clone(), all[0].clone()], 1 << 20, "twice"),
            (vec![all[0].clone(), other], 1 << 20, "of another message"),
            (all.clone(), 3 * PART - 1, "too long"),
            (vec![Bytes::from_static(b"\0\0\xff\xffx")], 1 << 20, "of too many parts"),
        ];
        for (packets, most, what) in cases {
            assert!(received(packets, most).is_err(), "{what}");
        }
        assert_eq!(received(all[..2].to_vec(), 1 << 20).unwrap(), None);
    }
}
