//! Packets: whole, in order, under back-pressure, through dropped futures, and up to the end.

use super::*;
use crate::backend::{MAX_BATCH_PACKETS, Writer};
use crate::wire::MAX_MESSAGE;

/// More bytes than any transport may take in before somebody reads.
const TOO_MUCH: usize = 64 * 1024 * 1024;

async fn send(writer: &mut Writer, packets: &[Bytes]) {
    let mut batch: VecDeque<Bytes> = packets.iter().cloned().collect();
    writer.write_batch(&mut batch).await.expect("write");
    assert!(batch.is_empty());
}

fn mixed(count: usize) -> Vec<Bytes> {
    let lens = [36, 0, 1452, 1, 300, 16_420, 7, 4096];
    (0..count).map(|number| packet(number, lens[number % lens.len()])).collect()
}

pub(super) async fn packets_of_every_size_arrive_whole_and_in_order(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    let lens = [
        0,
        1,
        2,
        3,
        127,
        128,
        255,
        256,
        257,
        1452,
        4093,
        4094,
        4095,
        4096,
        16_420,
        65_534,
        MAX_MESSAGE,
        0,
        5,
    ];
    let sent: Vec<Bytes> = lens.iter().enumerate().map(|(number, &len)| packet(number, len)).collect();
    for (from, to) in [(&mut dialed.writer, &mut accepted.reader), (&mut accepted.writer, &mut dialed.reader)]
    {
        let (_, received) = tokio::join!(send(from, &sent), read_exactly(to, sent.len()));
        assert_same(&received, &sent);
    }
}

pub(super) async fn large_batches_arrive_whole_and_in_order(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    let sent = mixed(5_000);
    let reading = async {
        let (mut received, mut largest) = (Vec::new(), 0);
        while received.len() < sent.len() {
            let before = received.len();
            accepted.reader.read_batch(&mut received).await.expect("more packets");
            let batch = received.len() - before;
            assert!((1..=MAX_BATCH_PACKETS).contains(&batch), "a batch of {batch}");
            largest = largest.max(batch);
        }
        (received, largest)
    };
    let (_, (received, largest)) = tokio::join!(send(&mut dialed.writer, &sent), reading);
    assert_same(&received, &sent);
    assert!(largest > 1, "packets at hand were not given in one batch");
}

pub(super) async fn a_dropped_read_loses_nothing(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    let sent = mixed(400);
    let writing = async {
        for burst in sent.chunks(3) {
            send(&mut dialed.writer, burst).await;
            tokio::task::yield_now().await;
        }
    };
    let reading = async {
        let (mut received, mut dropped) = (Vec::new(), 0);
        while received.len() < sent.len() {
            match try_once(accepted.reader.read_batch(&mut received)).await {
                Some(read) => read.expect("more packets"),
                None => dropped += 1,
            }
        }
        (received, dropped)
    };
    let (_, (received, dropped)) = tokio::join!(writing, reading);
    assert_same(&received, &sent);
    assert!(dropped > 0, "no read was dropped");
}

pub(super) async fn a_dropped_write_is_resumed(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    let sent: Vec<Bytes> = (0..200).map(|number| packet(number, 60_000 + number)).collect();
    let mut batch: VecDeque<Bytes> = sent.iter().cloned().collect();
    let (mut received, mut dropped) = (Vec::new(), 0);
    while !batch.is_empty() {
        tokio::select! {
            biased;
            written = dialed.writer.write_batch(&mut batch) => written.expect("write"),
            read = accepted.reader.read_batch(&mut received) => {
                read.expect("more packets");
                dropped += 1;
            }
        }
    }
    assert!(dropped > 0, "no write was dropped");
    let (_, (rest, end)) = tokio::join!(dialed.writer.close(), read_to_end(&mut accepted.reader));
    received.extend(rest);
    assert!(matches!(end, SessionEnd::Closed), "{end}");
    assert_same(&received, &sent);
}

pub(super) async fn an_oversized_packet_is_dropped_alone(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    send(&mut dialed.writer, &[packet(0, 3), packet(1, MAX_MESSAGE + 1), packet(2, 4)]).await;
    assert_same(&read_exactly(&mut accepted.reader, 2).await, &[packet(0, 3), packet(2, 4)]);
}

pub(super) async fn a_reader_that_does_not_read_stops_the_writer(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    let large = packet(0, 64 * 1024 - 64);
    let mut batch: VecDeque<Bytes> = vec![large.clone(); TOO_MUCH / large.len()].into();
    let mut received = Vec::new();
    tokio::select! {
        biased;
        _ = dialed.writer.write_batch(&mut batch) => panic!("{TOO_MUCH} bytes went nowhere"),
        read = accepted.reader.read_batch(&mut received) => read.expect("a packet"),
    }
    let waiting: usize = batch.iter().map(Bytes::len).sum();
    assert!(waiting > TOO_MUCH / 2, "only {waiting} bytes wait");
}

pub(super) async fn both_directions_at_once_never_block_each_other(harness: impl Harness) {
    async fn slowly(reader: &mut Reader, count: usize) -> Vec<BytesMut> {
        let mut packets = Vec::new();
        while packets.len() < count {
            reader.read_batch(&mut packets).await.expect("more packets");
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        packets
    }
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    let sent = mixed(4_000);
    let (_, _, there, back) = tokio::join!(
        send(&mut dialed.writer, &sent),
        send(&mut accepted.writer, &sent),
        slowly(&mut accepted.reader, sent.len()),
        slowly(&mut dialed.reader, sent.len()),
    );
    assert_same(&there, &sent);
    assert_same(&back, &sent);
}

pub(super) async fn close_delivers_everything_written_before(harness: impl Harness) {
    let (_listener, dialed, mut accepted) = pair(&harness).await;
    let sent = mixed(1_000);
    let writing = async {
        let mut writer = dialed.writer;
        send(&mut writer, &sent).await;
        writer.close().await;
    };
    let (_, (received, end)) = tokio::join!(writing, read_to_end(&mut accepted.reader));
    assert!(matches!(end, SessionEnd::Closed), "{end}");
    assert_same(&received, &sent);
}

pub(super) async fn close_delivers_although_nobody_reads_what_the_peer_sent(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    send(&mut accepted.writer, &mixed(8)).await;
    read_exactly(&mut dialed.reader, 1).await;
    send(&mut accepted.writer, &[packet(9, 30_000)]).await;
    // Fills the transport while nobody reads, so that its last bytes are still to be sent at the close.
    let mut sent = mixed(TOO_MUCH / 2_048);
    let mut batch: VecDeque<Bytes> = sent.iter().cloned().collect();
    while try_once(dialed.writer.write_batch(&mut batch)).await.is_some() {}
    assert!(!batch.is_empty(), "the transport is not full");
    sent.truncate(sent.len() - batch.len());
    let writing = async {
        drop(dialed.reader);
        dialed.writer.close().await;
    };
    let reading = async move {
        let read = read_to_end(&mut accepted.reader).await;
        drop(accepted);
        read
    };
    let (_, (received, end)) = tokio::join!(writing, reading);
    assert!(matches!(end, SessionEnd::Closed), "{end}");
    assert_same(&received, &sent);
}

pub(super) async fn close_is_bounded_although_the_peer_takes_nothing(harness: impl Harness) {
    let (_listener, mut dialed, _accepted) = pair(&harness).await;
    let large = packet(0, MAX_MESSAGE);
    let mut batch: VecDeque<Bytes> = vec![large.clone(); TOO_MUCH / large.len()].into();
    while try_once(dialed.writer.write_batch(&mut batch)).await.is_some() {}
    assert!(!batch.is_empty(), "the transport is not full");
    // From here on, time passes only while every task waits, so the limit costs the test nothing.
    tokio::time::pause();
    dialed.writer.close().await;
}

pub(super) async fn a_dropped_peer_ends_the_reader_once_and_for_good(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = pair(&harness).await;
    send(&mut dialed.writer, &[packet(0, 77)]).await;
    assert_same(&read_exactly(&mut accepted.reader, 1).await, &[packet(0, 77)]);
    let mut none = Vec::new();
    assert!(try_once(accepted.reader.read_batch(&mut none)).await.is_none(), "an end before the end");
    // The reader waits already when the peer goes, so it must be woken.
    let (first, ()) = tokio::join!(accepted.reader.read_batch(&mut none), async { drop(dialed) });
    assert!(matches!(first, Err(SessionEnd::Closed | SessionEnd::Broken(_))), "{first:?}");
    for _ in 0..3 {
        let later = accepted.reader.read_batch(&mut none).await;
        assert!(matches!(later, Err(SessionEnd::AlreadyOver)), "{later:?}");
    }
    assert!(none.is_empty());
}

pub(super) async fn a_dropped_peer_ends_the_writer(harness: impl Harness) {
    let (_listener, mut dialed, accepted) = pair(&harness).await;
    drop(accepted);
    let end = loop {
        // The first packets may still be taken, because the end takes time to arrive.
        if let Err(end) = dialed.writer.write_batch(&mut mixed(8).into()).await {
            break end;
        }
    };
    assert!(matches!(end, SessionEnd::Broken(_)), "{end}");
    let later = dialed.writer.write_batch(&mut mixed(8).into()).await;
    assert!(matches!(later, Err(SessionEnd::AlreadyOver)), "{later:?}");
}
