//! The bytes of one session that have been read but not yet taken as packets.
//!
//! It owns how much memory a session may hold for reading: a small buffer while little comes, a large one while
//! reads fill it. It does no I/O and reads no clock.
//!
//! Packets are split off the buffer without a copy, so a packet keeps the whole buffer it came in alive: at most
//! [`LARGE`] and one unfinished frame. The waste is small, because a buffer grows only while reads fill it with
//! packets that live and die together; a trickle of packets brings it back to [`SMALL`].

use bytes::BytesMut;

use crate::wire::frame;

/// Room for the first read of a session. A client that connects and stays silent costs no more.
const FIRST: usize = 256;

/// Room for reading in a session that is idle or carries only routing traffic.
pub(super) const SMALL: usize = 4 * 1024;

/// Room for reading in a session that carries bulk data.
pub(super) const LARGE: usize = 256 * 1024;

/// The factor by which the size changes between the two.
const STEP: usize = 4;

/// The number of reads in a row, each using less than 1/16 of the buffer, after which it shrinks.
const SMALL_READS: u32 = 32;

/// The read buffer of one session.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// The size of the next allocation: [`FIRST`], then [`SMALL`] to [`LARGE`].
    size: usize,
    small_reads: u32,
}

impl ReadBuffer {
    /// An empty buffer; nothing is allocated before the first read.
    pub(super) fn new() -> Self {
        Self { bytes: BytesMut::new(), size: FIRST, small_reads: 0 }
    }

    /// The next whole packet.
    pub(super) fn next_packet(&mut self) -> Option<BytesMut> {
        frame::next_message(&mut self.bytes)
    }

    /// Bytes of the unfinished frame, once [`Self::next_packet`] gives nothing.
    pub(super) fn unfinished(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that can be read without an allocation.
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// Whether the buffer is larger than an idle session should hold.
    pub(super) fn is_grown(&self) -> bool {
        self.size > SMALL
    }

    /// The buffer to read into; it always has room.
    pub(super) fn for_reading(&mut self) -> &mut BytesMut {
        let enough = self.room() >= self.size / 4;
        if !enough && !self.bytes.try_reclaim(self.size / 2) {
            self.reallocate();
        }
        &mut self.bytes
    }

    /// Adapts the size after a read of `count` bytes into a buffer with `room`.
    pub(super) fn on_read(&mut self, room: usize, count: usize) {
        if count >= room {
            self.size = (self.size * STEP).clamp(SMALL, LARGE);
            self.small_reads = 0;
        } else if count >= self.size / 16 {
            self.small_reads = 0;
        } else {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS {
                self.shrink_to((self.size / STEP).max(SMALL));
            }
        }
    }

    /// Gives memory back after a silence; the bytes of an unfinished frame are kept.
    pub(super) fn on_silence(&mut self) {
        self.shrink_to(SMALL);
    }

    /// Gives all memory back, because nothing more will be read.
    pub(super) fn on_end(&mut self) {
        *self = Self::new();
    }

    fn shrink_to(&mut self, size: usize) {
        self.small_reads = 0;
        if size < self.size {
            self.size = size;
            self.reallocate();
        }
    }

    /// Moves the unfinished frame to a fresh buffer. `BytesMut::reserve` would not do: it remembers how large the
    /// buffer once was and never allocates less.
    fn reallocate(&mut self) {
        let mut fresh = BytesMut::with_capacity(self.bytes.len() + self.size);
        fresh.extend_from_slice(&self.bytes);
        self.bytes = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the buffer as one read would: with as many bytes as fit.
    fn read(buffer: &mut ReadBuffer, bytes: &mut &[u8]) {
        buffer.for_reading();
        let room = buffer.room();
        assert!(room > 0, "a read without room looks like the end of the stream");
        let (now, later) = bytes.split_at(room.min(bytes.len()));
        buffer.for_reading().extend_from_slice(now);
        assert_eq!(buffer.room(), room - now.len(), "reading moved the buffer");
        buffer.on_read(room, now.len());
        *bytes = later;
    }

    fn frames(count: usize, len: usize) -> Vec<u8> {
        let frame = [&u16::try_from(len).unwrap().to_le_bytes()[..], &vec![0xab; len]].concat();
        frame.repeat(count)
    }

    fn taken(buffer: &mut ReadBuffer) -> Vec<BytesMut> {
        std::iter::from_fn(|| buffer.next_packet()).collect()
    }

    /// A buffer that has carried bulk data.
    fn grown() -> ReadBuffer {
        let mut buffer = ReadBuffer::new();
        let bulk = frames(600, 4_000);
        let mut rest = &bulk[..];
        let mut count = 0;
        while !rest.is_empty() {
            read(&mut buffer, &mut rest);
            count += taken(&mut buffer).len();
        }
        assert_eq!(count, 600);
        buffer
    }

    #[test]
    fn a_silent_session_holds_little() {
        let mut buffer = ReadBuffer::new();
        assert_eq!(buffer.room(), 0);
        assert_eq!(buffer.for_reading().capacity(), FIRST);
    }

    #[test]
    fn bulk_makes_the_buffer_large_and_no_larger() {
        let mut buffer = grown();
        assert_eq!(buffer.size, LARGE);
        assert!(buffer.for_reading().capacity() <= LARGE + frame::PREFIX_LEN + 4_000);
    }

    #[test]
    fn silence_gives_memory_back_and_keeps_half_a_frame() {
        let mut buffer = grown();
        read(&mut buffer, &mut &[200, 0, 7, 7][..]);
        assert!(taken(&mut buffer).is_empty());
        buffer.on_silence();
        assert!(!buffer.is_grown());
        assert!(buffer.for_reading().capacity() <= SMALL + 4);
        read(&mut buffer, &mut &[7; 198][..]);
        assert_eq!(taken(&mut buffer), [&[7; 200][..]]);
    }

    #[test]
    fn a_trickle_gives_memory_back() {
        let mut buffer = grown();
        for _ in 0..4 * SMALL_READS {
            read(&mut buffer, &mut &frames(1, 36)[..]);
            assert_eq!(taken(&mut buffer).len(), 1);
        }
        assert!(!buffer.is_grown());
        assert!(buffer.for_reading().capacity() <= SMALL);
    }

    #[test]
    fn packets_that_are_let_go_cost_no_allocation() {
        let mut buffer = grown();
        let batch = frames(50, 1_452);
        let mut home = None;
        for _ in 0..1_000 {
            read(&mut buffer, &mut &batch[..]);
            for packet in taken(&mut buffer) {
                // All packets of all reads lie in the same allocation.
                let at = packet.as_ptr() as usize;
                let (low, high) = *home.get_or_insert((at, at));
                home = Some((low.min(at), high.max(at)));
            }
        }
        let (low, high) = home.unwrap();
        assert!(high - low < LARGE, "packets came from {} bytes", high - low);
    }

    #[test]
    fn packets_that_are_kept_are_not_overwritten() {
        let mut buffer = ReadBuffer::new();
        let mut kept = Vec::new();
        for number in 0..2_000_usize {
            read(&mut buffer, &mut &[&[9, 0][..], &[(number % 256) as u8; 9]].concat()[..]);
            kept.extend(taken(&mut buffer));
        }
        assert_eq!(kept.len(), 2_000);
        assert!(kept.iter().enumerate().all(|(number, packet)| packet[..] == [(number % 256) as u8; 9]));
    }
}
