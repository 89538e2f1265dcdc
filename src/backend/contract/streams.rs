//! Bytes below the frames: in small pieces, cut off, or nonsense.

use tokio::io::AsyncWriteExt;

use super::*;

async fn raw_pair<H: StreamHarness>(harness: &H) -> (Listener, H::Raw, Session) {
    let mut listener = Listener::bind(&harness.anywhere()).await.expect("bind");
    let raw = harness.raw(&listener).await;
    let accepted = listener.accept().await.expect("accept");
    (listener, raw, accepted)
}

pub(super) async fn bytes_that_come_one_by_one_make_packets(harness: impl StreamHarness) {
    let (_listener, mut raw, mut accepted) = raw_pair(&harness).await;
    let sent = [packet(0, 5), packet(1, 0), packet(2, 300)];
    let mut received = Vec::new();
    for byte in sent.iter().flat_map(|packet| [&(packet.len() as u16).to_le_bytes()[..], packet].concat()) {
        raw.write_all(&[byte]).await.expect("write");
        // Each byte is read (or not) by a future of its own, which is then dropped.
        let read = try_once(accepted.reader.read_batch(&mut received)).await;
        assert!(matches!(read, None | Some(Ok(()))), "{read:?}");
    }
    while received.len() < sent.len() {
        accepted.reader.read_batch(&mut received).await.expect("more packets");
    }
    assert_same(&received, &sent);
}

pub(super) async fn half_a_frame_then_the_end_is_an_end(harness: impl StreamHarness) {
    for half in [&[7][..], &[7, 0], &[7, 0, 1, 2, 3], &[0xff, 0xff, 9]] {
        let (_listener, mut raw, mut accepted) = raw_pair(&harness).await;
        raw.write_all(&[2, 0, 0xaa, 0xbb]).await.expect("write");
        raw.write_all(half).await.expect("write");
        raw.shutdown().await.expect("shutdown");
        let (packets, end) = read_to_end(&mut accepted.reader).await;
        assert_eq!(packets, [&[0xaa, 0xbb][..]]);
        assert!(matches!(end, SessionEnd::Truncated { received } if received == half.len()), "{end}");
    }
}

pub(super) async fn garbage_gives_packets_and_an_end(harness: impl StreamHarness) {
    for seed in 1..=8_u64 {
        let (_listener, mut raw, mut accepted) = raw_pair(&harness).await;
        let garbage = garbage(seed, 500_000);
        let writing = async {
            raw.write_all(&garbage).await.expect("write");
            raw.shutdown().await.expect("shutdown");
        };
        let ((), (packets, end)) = tokio::join!(writing, read_to_end(&mut accepted.reader));
        let rest = match end {
            SessionEnd::Closed => 0,
            SessionEnd::Truncated { received } => received,
            other => panic!("seed {seed}: {other}"),
        };
        let framed: usize = packets.iter().map(|packet| packet.len() + 2).sum();
        assert!(!packets.is_empty(), "seed {seed}");
        assert_eq!(framed + rest, garbage.len(), "seed {seed}");
    }
}

fn garbage(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
