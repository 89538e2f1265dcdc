//! Memory for packets that arrive in a buffer that is needed again.
//!
//! It owns one chunk at a time and copies packets to it, so that a packet costs a copy but seldom an allocation. It
//! knows no transport. A kept packet keeps its chunk alive. Code that bounds the bytes of the packets it keeps
//! bounds the chunks too, because the packets of a chunk arrive one after another.

use bytes::BytesMut;

/// Bytes of a full-sized chunk.
const CHUNK: usize = 32 * 1024;

/// Bytes of the first chunk: many sessions have only one packet. Each further chunk is twice as large, up to
/// [`CHUNK`].
const FIRST_CHUNK: usize = 512;

/// Gives packets memory.
#[derive(Debug, Default)]
pub(crate) struct PacketPool {
    chunk: BytesMut,
    /// The size of the last chunk.
    size: usize,
}

impl PacketPool {
    /// Copies these bytes into a packet.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> BytesMut {
        if self.chunk.capacity() < bytes.len() {
            // `reserve` uses the old chunk again if all of its packets are gone.
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
