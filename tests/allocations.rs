//! A relay under full load makes no allocation per frame. An allocator that counts the requests of a node's
//! own threads replaces the system's, so this is a test program of its own.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meshd::backend::{ListenSpec, TcpListenOptions};
use meshd::mesh::LinkPolicy;
use meshd::node::{LinkSpec, NodeHandle, NodeOptions};
use meshd::wire::{Cost, DataHeader, MAX_HOPS, NodeId, RoutingUpdate, ServiceName, frame};

/// Bytes of a frame's payload, and frames per round: as much as a link's queue holds without copying.
const PAYLOAD: usize = 1_364;
const ROUND: usize = 250;
const ROUNDS: usize = 400;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

fn count() {
    if COUNTED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's duties are the same.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&frame::prefix(message.len()).unwrap()[..], message].concat()
}

/// A link to the relay on which this test acts as the node `name`.
fn neighbour(address: &str, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    for sequence in [1, 2] {
        let update = RoutingUpdate {
            node_id: Some(node(name)),
            update_id: format!("{name:.>7}{sequence}"),
            epoch: 1 << 24,
            sequence,
            connections: Arc::new([(node("relay"), Cost::DEFAULT)].into()),
            forwarding_node: node(name),
            suspected_duplicate: 0,
        };
        stream.write_all(&framed(&update.message().unwrap())).unwrap();
    }
    stream
}

/// Frames from one neighbour to the other.
fn frames() -> Vec<u8> {
    let service = ServiceName::new("bulk").unwrap();
    let header = DataHeader {
        hops: MAX_HOPS,
        from_node: node("source").hash(),
        to_node: node("sink").hash(),
        from_service: service,
        to_service: service,
    };
    framed(&header.message(&[0xda; PAYLOAD])).repeat(ROUND)
}

/// Reads until `wanted` data frames have arrived; `rest` keeps the bytes after them.
fn receive(sink: &mut TcpStream, rest: &mut Vec<u8>, mut wanted: usize) {
    let mut buffer = [0; 1 << 16];
    while wanted > 0 {
        let got = sink.read(&mut buffer).expect("frames come through");
        assert!(got > 0, "the relay has closed the link");
        rest.extend_from_slice(&buffer[..got]);
        let mut at = 0;
        while let Some(prefix) = rest[at..].first_chunk::<2>() {
            let end = at + 2 + usize::from(u16::from_le_bytes(*prefix));
            let Some(message) = rest.get(at + 2..end) else { break };
            wanted -= usize::from(message.first() == Some(&0) && message.len() > PAYLOAD);
            at = end;
        }
        rest.drain(..at);
    }
}

#[test]
fn a_relayed_frame_costs_no_allocation() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(|| COUNTED.set(true))
        .build()
        .unwrap();
    let (relay, link) = runtime
        .block_on(runtime.spawn(async {
            let (relay, _stopped) = NodeHandle::start(NodeOptions::new(node("relay")));
            let spec = ListenSpec::Tcp(TcpListenOptions::new("127.0.0.1", 0));
            let link = LinkSpec::Listen { spec, policy: LinkPolicy::default() };
            let link = relay.add_link(link).await.unwrap();
            (relay, link)
        }))
        .unwrap();
    let address = link.local_addr().unwrap().to_owned();
    let (mut source, mut sink) = (neighbour(&address, "source"), neighbour(&address, "sink"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while runtime.block_on(relay.status()).routing_table.len() < 2 {
        assert!(Instant::now() < deadline, "the neighbours are not known");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (frames, mut rest) = (frames(), Vec::new());
    let mut play = |rounds: usize| {
        for _ in 0..rounds {
            source.write_all(&frames).unwrap();
            receive(&mut sink, &mut rest, ROUND);
        }
    };
    // Buffers grow to their final size once.
    play(50);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    play(ROUNDS);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(before > 0, "nothing is counted");
    println!("{allocations} allocations for {} frames", ROUNDS * ROUND);
    // If a read's buffer is still queued elsewhere, a fresh one is allocated, which holds many frames.
    assert!(allocations < (ROUNDS * ROUND / 25) as u64, "{allocations}");
    relay.stop();
}
