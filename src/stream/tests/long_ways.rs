//! Streams over links that are long, or narrow behind a relay, in virtual time.

use super::*;
use crate::backend::wan::Wan;
use crate::node::tests::Way;

/// The delay of one direction.
const DELAY: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn a_long_way_is_filled() {
    const BYTES: usize = 200_000_000;
    let mut lab = Lab::new();
    let (near, far) = (lab.start("near").await, lab.start("far").await);
    lab.join_by(&near, &far, Way::of(DELAY)).await;
    eventually("a route", || async { near.status().await.routing_table.len() == 1 }).await;
    let mut listener = Streams::new(far.clone()).listen(service("sink"), None).await.unwrap();
    let mut stream = Streams::new(near.clone()).dial(far.id(), service("sink")).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let writing = async {
        let part = vec![7; 1 << 20];
        while stream.write_all(&part).await.is_ok() {}
    };
    // Measures only the second half, when the congestion window has grown.
    let reading = async {
        let mut part = vec![0; 1 << 20];
        let mut begun = Instant::now();
        for mebibyte in 0..(2 * BYTES) >> 20 {
            if mebibyte == BYTES >> 20 {
                begun = Instant::now();
            }
            accepted.read_exact(&mut part).await.unwrap();
        }
        drop(accepted);
        begun.elapsed()
    };
    let ((), took) = timeout(LIMIT * 10, async { tokio::join!(writing, reading) }).await.unwrap();
    // With more than 12 MB in flight, each 12 MB take less than a round trip of 100 ms.
    assert!(took < Duration::from_millis(100) * (BYTES / 12_000_000) as u32, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_narrow_link_behind_a_relay_is_filled_and_pings_pass() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["near", "hop"]).await;
    let far = lab.start("far").await;
    lab.join_by(&nodes[1], &far, Way { rate: NARROW, ..Way::of(DELAY) }).await;
    fill_and_ping(&nodes[0], &far).await;
    let dropped: u64 = nodes[1].links().await.iter().map(|link| link.dropped).sum();
    assert_eq!(dropped, 0, "the relay has room for what waits");
}

#[tokio::test(start_paused = true)]
async fn a_narrow_quic_link_is_filled_and_pings_pass() {
    for hops in [0, 1] {
        let mut lab = Lab::new();
        let nodes = lab.line(&["near", "hop"][..=hops]).await;
        let far = lab.start("far").await;
        let wan = Wan { delay: DELAY, rate: NARROW, buffer: Duration::from_millis(100), loss: 0.0 };
        join_over(&mut lab, &nodes[hops], &far, wan).await;
        fill_and_ping(&nodes[0], &far).await;
    }
}

/// 20 Mbit/s.
const NARROW: u32 = 2_500_000;

/// Fills the narrow route from one node to another, and checks that pings still pass.
async fn fill_and_ping(near: &NodeHandle, far: &NodeHandle) {
    eventually("a route", || async { near.way(far.id().hash()).is_some() }).await;
    let mut listener = Streams::new(far.clone()).listen(service("sink"), None).await.unwrap();
    let mut stream = Streams::new(near.clone()).dial(far.id(), service("sink")).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let writing = async {
        let part = vec![7; 1 << 16];
        while stream.write_all(&part).await.is_ok() {}
    };
    let (seconds, mut count) = (10_u32, 0);
    let reading = async {
        let mut part = vec![0; 1 << 16];
        let mut begun = Instant::now();
        let mut warm = false;
        while begun.elapsed() < LIMIT / 60 * seconds {
            count += accepted.read(&mut part).await.unwrap() as u64;
            if !warm && begun.elapsed() > Duration::from_secs(3) {
                (warm, begun, count) = (true, Instant::now(), 0);
            }
        }
        drop(accepted);
    };
    let pinging = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let reply = near.ping(far.id(), 30).await;
            assert_eq!(reply.error, None);
            slowest = slowest.max(reply.elapsed);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        slowest
    };
    let ((), (), slowest) = timeout(LIMIT, async { tokio::join!(writing, reading, pinging) }).await.unwrap();
    let used = count as f64 / f64::from(seconds) / f64::from(NARROW);
    println!("{used} of the rate, the slowest ping {slowest:?}");
    assert!(used > 0.85, "{used} of the rate");
    assert!(slowest < Duration::from_millis(250), "a ping took {slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_warm_stream_carries_32_kib_within_two_round_trips() {
    let mut lab = Lab::new();
    let (near, far) = (lab.start("near").await, lab.start("far").await);
    lab.join_by(&near, &far, Way::of(DELAY)).await;
    eventually("a route", || async { near.status().await.routing_table.len() == 1 }).await;
    let mut listener = Streams::new(far.clone()).listen(service("echo"), None).await.unwrap();
    let streams = Streams::new(near.clone());
    for shared in [false, true] {
        let dialed = match shared {
            true => streams.dial_shared(far.id(), service("echo"), None).await,
            false => streams.dial(far.id(), service("echo")).await,
        };
        let (mut stream, mut accepted) = (dialed.unwrap(), listener.accept().await.unwrap());
        for round in 0..4 {
            let (sent, mut received) = ([7; 32 << 10], [0; 32 << 10]);
            let begun = Instant::now();
            let (wrote, read) = tokio::join!(stream.write_all(&sent), accepted.read_exact(&mut received));
            wrote.unwrap();
            read.unwrap();
            let took = begun.elapsed();
            assert!(took < DELAY * 4, "round {round}, shared: {shared}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_come_again_soon_after_a_way_was_silent() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["near", "far"]).await;
    let mut listener = Streams::new(nodes[1].clone()).listen(service("sink"), None).await.unwrap();
    let mut stream = Streams::new(nodes[0].clone()).dial(nodes[1].id(), service("sink")).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let writing = async {
        while stream.write_all(&[7; 10_000]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reading = async {
        let mut part = vec![0; 1 << 16];
        for silence in [2, 5] {
            accepted.read_exact(&mut part).await.unwrap();
            lab.silence("near", "far", true);
            let until = Instant::now() + Duration::from_secs(silence);
            while timeout(until - Instant::now(), accepted.read(&mut part)).await.is_ok() {}
            lab.silence("near", "far", false);
            timeout(LIMIT, accepted.read(&mut part)).await.expect("never").unwrap();
            assert!(until.elapsed() < Duration::from_secs(2), "{silence} s: {:?} later", until.elapsed());
        }
        drop(accepted);
    };
    tokio::join!(writing, reading);
}

/// Links of a limited rate: two that only pace packets, one on which acknowledgements are late, and one that loses
/// packets.
#[tokio::test(start_paused = true)]
async fn a_long_link_is_filled_whatever_it_does_to_packets() {
    let slow = Way { rate: 1_000_000, ..Way::of(DELAY) };
    let paced = Way { rate: 10_000_000, ..slow };
    let late = Way { gathered: Duration::from_millis(25), ..paced };
    let lossy = Way { loss: 0.005, ..paced };
    for (name, way) in [("slow", slow), ("paced", paced), ("late", late), ("lossy", lossy)] {
        let mut lab = Lab::new();
        let (near, far) = (lab.start("near").await, lab.start("far").await);
        lab.join_by(&near, &far, way).await;
        fill(name, &near, &far, 0.85 * f64::from(way.rate)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_quic_link_is_filled_whatever_its_path_loses() {
    // CUBIC would carry a hundredth at 2 %.
    for (name, loss, share) in [("no loss", 0.0, 0.8), ("0.5 %", 0.005, 0.3), ("2 %", 0.02, 0.15)] {
        let mut lab = Lab::new();
        let (near, far) = (lab.start("near").await, lab.start("far").await);
        let wan = Wan { delay: DELAY, rate: 10_000_000, buffer: Duration::from_millis(100), loss };
        join_over(&mut lab, &near, &far, wan).await;
        fill(name, &near, &far, share * f64::from(wan.rate)).await;
    }
}

/// Checks that a stream reaches the rate `least`.
async fn fill(name: &str, near: &NodeHandle, far: &NodeHandle, least: f64) {
    eventually("a route", || async { near.status().await.routing_table.len() == 1 }).await;
    let mut listener = Streams::new(far.clone()).listen(service("sink"), None).await.unwrap();
    let stream = Streams::new(near.clone()).dial(far.id(), service("sink")).await.unwrap();
    let reached = rate_of(stream, listener.accept().await.unwrap(), least as usize * 5).await;
    println!("{name}: {reached} bytes a second");
    assert!(reached > least, "{name}: {reached} bytes a second");
}

/// Joins two nodes by a QUIC link.
async fn join_over(lab: &mut Lab, near: &NodeHandle, far: &NodeHandle, wan: Wan) {
    let joined = wan.join().await;
    lab.join_with([(near, joined.dialed), (far, joined.accepted)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_fills_its_way_beside_a_thousand_that_nobody_reads() {
    const BUDGET: u64 = 256 << 20;
    let mut lab = Lab::new();
    let (near, far) = (lab.start("near").await, lab.start("far").await);
    lab.join_by(&near, &far, Way::of(DELAY)).await;
    eventually("a route", || async { near.status().await.routing_table.len() == 1 }).await;
    let (dialing, listening) = (Streams::new(near.clone()), Streams::new(far.clone()));
    let mut listener = listening.listen(service("sink"), None).await.unwrap();
    for streams in [&dialing, &listening] {
        streams.set_buffers(BUDGET);
    }
    let mut unread = Vec::new();
    for _ in 0..1000 {
        let mut stream = dialing.dial(far.id(), service("sink")).await.unwrap();
        unread.push(listener.accept().await.unwrap());
        tokio::spawn(async move { while stream.write_all(&[7; 16 << 10]).await.is_ok() {} });
    }
    let stream = dialing.dial(far.id(), service("sink")).await.unwrap();
    let rate = rate_of(stream, listener.accept().await.unwrap(), 60_000_000).await;
    // The first window of 32 KiB would carry 330 KB a second.
    assert!(rate > 60e6, "{rate} bytes a second");
    for streams in [&dialing, &listening] {
        let sum = streams.budget().sum();
        assert!(sum <= BUDGET, "{sum} bytes of buffers");
        // Each of the others still has its first windows.
        assert!(sum < 1001 * 2 * u64::from(windows::FIRST_WINDOW) + 2 * (16 << 20), "{sum} bytes of buffers");
    }
}

#[tokio::test(start_paused = true)]
async fn windows_stay_small_while_nobody_waits_for_room() {
    let mut lab = Lab::new();
    let (near, far) = (lab.start("near").await, lab.start("far").await);
    lab.join_by(&near, &far, Way::of(DELAY)).await;
    eventually("a route", || async { near.way(far.id().hash()).is_some() }).await;
    let (dialing, listening) = (Streams::new(near.clone()), Streams::new(far.clone()));
    let mut listener = listening.listen(service("echo"), None).await.unwrap();
    let mut stream = dialing.dial(far.id(), service("echo")).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let (sent, mut received) = ([7; 8 << 10], [0; 8 << 10]);
    // More than a megabyte in all, read as it comes.
    for _ in 0..200 {
        stream.write_all(&sent).await.unwrap();
        accepted.read_exact(&mut received).await.unwrap();
    }
    for streams in [&dialing, &listening] {
        assert_eq!(streams.budget().sum(), 2 * u64::from(windows::FIRST_WINDOW));
    }
}

/// The rate at which the second `bytes` bytes arrive.
async fn rate_of(mut stream: MeshStream, mut accepted: MeshStream, bytes: usize) -> f64 {
    let writing = async {
        let part = vec![7; 1 << 16];
        while stream.write_all(&part).await.is_ok() {}
    };
    let reading = async {
        let mut part = vec![0; 1 << 16];
        let (mut count, mut begun) = (0, Instant::now());
        while count < 2 * bytes {
            let was_warm = count >= bytes;
            count += accepted.read(&mut part).await.unwrap();
            if !was_warm && count >= bytes {
                begun = Instant::now();
            }
        }
        drop(accepted);
        bytes as f64 / begun.elapsed().as_secs_f64()
    };
    timeout(LIMIT * 10, async { tokio::join!(writing, reading) }).await.unwrap().1
}

#[tokio::test(start_paused = true)]
async fn a_small_stream_gets_a_word_in_beside_one_that_always_writes() {
    let mut lab = Lab::new();
    let (near, far) = (lab.start("near").await, lab.start("far").await);
    lab.join_by(&near, &far, Way { rate: NARROW, ..Way::of(DELAY) }).await;
    eventually("a route", || async { near.status().await.routing_table.len() == 1 }).await;
    let mut listener = Streams::new(far.clone()).listen(service("both"), None).await.unwrap();
    let streams = Streams::new(near.clone());
    let dial = || streams.dial_shared(far.id(), service("both"), None);
    let (mut bulk, mut small) = (dial().await.unwrap(), dial().await.unwrap());
    bulk.write_all(b"b").await.unwrap();
    small.write_all(b"s").await.unwrap();
    let (mut sink, mut echo) = (listener.accept().await.unwrap(), listener.accept().await.unwrap());
    if sink.read_u8().await.unwrap() == b's' {
        std::mem::swap(&mut sink, &mut echo);
        sink.read_u8().await.unwrap();
    } else {
        echo.read_u8().await.unwrap();
    }
    let writing = async {
        let part = vec![7; 1 << 16];
        while bulk.write_all(&part).await.is_ok() {}
    };
    let reading = async {
        let mut part = vec![0; 1 << 16];
        while sink.read(&mut part).await.is_ok_and(|count| count > 0) {}
    };
    let asking = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let begun = Instant::now();
            small.write_all(&[7; 3_000]).await.unwrap();
            echo.read_exact(&mut [0; 3_000]).await.unwrap();
            slowest = slowest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(70)).await;
        }
        slowest
    };
    let slowest = tokio::select! {
        slowest = timeout(LIMIT, asking) => slowest.unwrap(),
        ((), ()) = async { tokio::join!(writing, reading) } => panic!("the bulk has ended"),
    };
    assert!(slowest < Duration::from_millis(250), "one way took {slowest:?}");
}
