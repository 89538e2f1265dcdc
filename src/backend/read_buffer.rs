//! The bytes of one session that have been read and not yet been taken as packets.
//!
//! It owns how much memory a session may hold for reading: a small buffer while little comes, a large one
//! while reads fill it. It does no I/O and never asks for the time.
//!
//! Packets are split off the buffer without a copy, so a packet keeps the whole buffer it came in alive: at
//! most [`LARGE`] and one unfinished frame. A buffer grows only while reads fill it, and then it is full of
//! packets that live and die together; a trickle of packets brings it back to [`SMALL`].

use bytes::BytesMut;

use crate::wire::frame;

/// Room for reading in a session that is idle or carries only routing traffic.
pub(super) const SMALL: usize = 4 * 1024;

/// Room for reading in a session that carries bulk data.
pub(super) const LARGE: usize = 256 * 1024;

/// Between the two, sizes change by this factor.
const STEP: usize = 4;

/// So many reads in a row that use less than 1/16 of the buffer make it smaller.
const SMALL_READS: u32 = 32;

/// The read buffer of one session.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// What the next allocation has room for, [`SMALL`] to [`LARGE`].
    size: usize,
    small_reads: u32,
}

impl ReadBuffer {
    /// An empty buffer; nothing is allocated before the first read.
    pub(super) fn new() -> Self {
        Self { bytes: BytesMut::new(), size: SMALL, small_reads: 0 }
    }

    /// The next whole packet.
    pub(super) fn next_packet(&mut self) -> Option<BytesMut> {
        frame::next_message(&mut self.bytes)
    }

    /// Bytes of a frame whose rest has not come yet, once [`Self::next_packet`] gives nothing.
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

    /// The place to read into: never without room.
    pub(super) fn for_reading(&mut self) -> &mut BytesMut {
        let enough = self.room() >= self.size / 4;
        if !enough && !self.bytes.try_reclaim(self.size / 2) {
            self.reallocate();
        }
        &mut self.bytes
    }

    /// Notes that a read into a buffer with `room` brought `count` bytes, and adapts the size to it.
    pub(super) fn on_read(&mut self, room: usize, count: usize) {
        if count >= room {
            self.size = (self.size * STEP).min(LARGE);
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

    /// Gives all memory back: nothing more will be read.
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

    /// Moves the unfinished frame to a fresh buffer. `BytesMut::reserve` will not do: it remembers how large
    /// a buffer once was and never allocates less.
    fn reallocate(&mut self) {
        let mut fresh = BytesMut::with_capacity(self.bytes.len() + self.size);
        fresh.extend_from_slice(&self.bytes);
        self.bytes = fresh;
    }
}
