//! Memory for packets that arrive in a buffer which is needed again.
//!
//! It owns one chunk at a time and copies packets to it, so that a packet costs a copy and no allocation. It
//! knows no transport. A kept packet keeps its chunk alive; code that bounds the packets it keeps in bytes has
//! bounded the chunks as well, because the packets of a chunk are neighbours.

use bytes::BytesMut;

/// Bytes allocated at once.
const CHUNK: usize = 32 * 1024;

/// And for the first packet: many a session has no second one. Each further chunk is twice as large.
const FIRST_CHUNK: usize = 512;

/// Gives packets memory.
#[derive(Debug, Default)]
pub(crate) struct PacketPool {
    chunk: BytesMut,
    /// Of the last chunk.
    size: usize,
}

impl PacketPool {
    /// A packet of these bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> BytesMut {
        if self.chunk.capacity() < bytes.len() {
            // This takes the old chunk again if all of its packets are gone.
            self.size = (self.size * 2).clamp(FIRST_CHUNK, CHUNK);
            self.chunk.reserve(self.size.max(bytes.len()));
        }
        self.chunk.extend_from_slice(bytes);
        self.chunk.split()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_whole_and_do_not_touch() {
        let mut pool = PacketPool::default();
        let lens = [0, 1, 1_500, CHUNK, CHUNK + 1, 65_535, 7];
        let packets: Vec<BytesMut> =
            lens.iter().enumerate().map(|(n, &len)| pool.copy(&vec![n as u8; len])).collect();
        for (n, (packet, len)) in packets.iter().zip(lens).enumerate() {
            assert!(packet.len() == len && packet.iter().all(|&byte| byte == n as u8), "packet {n}");
        }
    }

    #[test]
    fn packets_that_are_let_go_cost_no_allocation() {
        let mut pool = PacketPool::default();
        let grown: Vec<_> = (0..100).map(|_| pool.copy(&[0; 1_000])).collect();
        drop(grown);
        let home = pool.copy(&[0; 1_000]).as_ptr() as usize;
        for _ in 0..1_000 {
            let at = pool.copy(&[1; 1_000]).as_ptr() as usize;
            assert!(at.abs_diff(home) < CHUNK, "another chunk");
        }
    }
}
