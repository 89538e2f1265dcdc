//! The promises of every backend, as one suite that runs over each of them.
//!
//! A backend joins with a [`Harness`] and a line of `contract!`. A backend that carries frames in a byte stream
//! also has a [`StreamHarness`] and a line of `stream_contract!`. Bare datagrams promise less, so they have
//! `datagram_contract!`. The suite uses only the public API.

mod datagrams;
mod families;
mod harness;
mod listening;
mod packets;
mod streams;

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use self::harness::{
    Harness, MemoryHarness, QuicHarness, StreamHarness, TcpHarness, TlsHarness, UdpHarness, WsHarness,
    WssHarness,
};
use super::{Direction, Listener, Reader, Session, SessionEnd, dial};

/// The longest wait for anything that a test expects.
const DEADLINE: Duration = Duration::from_secs(30);

macro_rules! tests_over {
    ($harness:ty, $room:ident: $($test:ident)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                let test = super::$room::$test(<$harness>::default());
                tokio::time::timeout(super::DEADLINE, test).await.expect("the test hangs");
            }
        )+
    };
}

macro_rules! contract {
    ($backend:ident, $harness:ty) => {
        mod $backend {
            use super::*;
            tests_over!($harness, listening:
                an_address_is_bound_once
                a_dropped_listener_frees_its_address
                dialing_nobody_fails_at_once_and_names_the_address
                a_client_that_leaves_does_not_disturb_the_next
                sessions_say_where_they_came_from);
            tests_over!($harness, packets:
                packets_of_every_size_arrive_whole_and_in_order
                large_batches_arrive_whole_and_in_order
                a_dropped_read_loses_nothing
                a_dropped_write_is_resumed
                an_oversized_packet_is_dropped_alone
                a_reader_that_does_not_read_stops_the_writer
                both_directions_at_once_never_block_each_other
                close_delivers_everything_written_before
                close_delivers_although_nobody_reads_what_the_peer_sent
                close_is_bounded_although_the_peer_takes_nothing
                a_dropped_peer_ends_the_reader_once_and_for_good
                a_dropped_peer_ends_the_writer);
        }
    };
}

macro_rules! stream_contract {
    ($backend:ident, $harness:ty) => {
        mod $backend {
            use super::*;
            tests_over!($harness, streams:
                bytes_that_come_one_by_one_make_packets
                half_a_frame_then_the_end_is_an_end
                garbage_gives_packets_and_an_end);
        }
    };
}

/// For sessions that no message opens or closes, and that promise neither order nor arrival.
macro_rules! datagram_contract {
    ($backend:ident, $harness:ty) => {
        mod $backend {
            use super::*;
            tests_over!($harness, listening:
                an_address_is_bound_once);
            tests_over!($harness, datagrams:
                packets_of_every_size_arrive_whole
                bursts_arrive_whole_and_in_batches
                a_dropped_read_loses_nothing
                a_packet_that_no_datagram_carries_is_dropped_alone
                a_dropped_listener_frees_its_address
                sessions_say_where_they_came_from
                a_reader_that_does_not_read_stops_nobody
                a_refusal_ends_the_session_once_and_for_good);
        }
    };
}

contract!(tcp, TcpHarness);
datagram_contract!(udp, UdpHarness);
contract!(tls, TlsHarness);
contract!(ws, WsHarness);
contract!(wss, WssHarness);
contract!(quic, QuicHarness);
contract!(memory, MemoryHarness);
stream_contract!(tcp_stream, TcpHarness);
stream_contract!(memory_stream, MemoryHarness);

/// A listener and both ends of a session through it: first the dialer's, then the listener's.
async fn pair(harness: &impl Harness) -> (Listener, Session, Session) {
    let mut listener = Listener::bind(&harness.anywhere()).await.expect("bind");
    // Concurrently, because a session that begins with a handshake needs both sides.
    let to = harness.to(&listener);
    let (dialed, accepted) = tokio::join!(dial(&to), listener.accept());
    let (dialed, accepted) = (dialed.expect("dial"), accepted.expect("accept"));
    (listener, dialed, accepted)
}

/// A packet whose bytes depend on its number, so that a shifted or swapped packet shows. None has the type of a
/// data packet, because a transport may let data packets overtake others.
fn packet(number: usize, len: usize) -> Bytes {
    (0..len).map(|at| (number.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)) % 251 + 1) as u8).collect()
}

async fn read_exactly(reader: &mut Reader, count: usize) -> Vec<BytesMut> {
    let mut packets = Vec::new();
    while packets.len() < count {
        reader.read_batch(&mut packets).await.expect("more packets");
    }
    packets
}

async fn read_to_end(reader: &mut Reader) -> (Vec<BytesMut>, SessionEnd) {
    let mut packets = Vec::new();
    loop {
        if let Err(end) = reader.read_batch(&mut packets).await {
            return (packets, end);
        }
    }
}

/// Gives the future one chance to progress, then drops it if it is not done.
async fn try_once<F: Future>(future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = tokio::task::yield_now() => None,
    }
}

#[track_caller]
fn assert_same(received: &[BytesMut], sent: &[Bytes]) {
    assert!(!sent.is_empty(), "the test sent nothing");
    for (number, (received, sent)) in received.iter().zip(sent).enumerate() {
        assert!(received == sent, "packet {number}: {} bytes came of {}", received.len(), sent.len());
    }
    assert_eq!(received.len(), sent.len());
}
