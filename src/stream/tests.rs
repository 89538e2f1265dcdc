//! Streams over small meshes of real nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::*;
use crate::node::NodeHandle;
use crate::node::tests::{Lab, announce_restart, announce_unknown, eventually, node_id};
use crate::wire::ServiceName;

mod bounds;
mod long_ways;

const LIMIT: Duration = Duration::from_secs(60);

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

/// Two neighbours, a listener for a service of the second, and streams from the first.
async fn pair(name: &str) -> (Lab, Vec<NodeHandle>, StreamListener, Streams) {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    let listener = Streams::new(nodes[1].clone()).listen(service(name), None).await.unwrap();
    let streams = Streams::new(nodes[0].clone());
    (lab, nodes, listener, streams)
}

/// Sends back all that it has read, once its input has ended.
fn serve_echo(mut listener: StreamListener) {
    tokio::spawn(async move {
        while let Some(mut stream) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).await.is_ok() {
                    stream.write_all(&all).await.unwrap();
                    stream.shutdown().await.unwrap();
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_arrive_both_ways_and_half_close_works() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    serve_echo(Streams::new(nodes[2].clone()).listen(service("echo"), None).await.unwrap());
    let streams = Streams::new(nodes[0].clone());
    for size in [0, 1, 5_000_000] {
        let sent: Vec<u8> = (0..size).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut stream = streams.dial(nodes[2].id(), service("echo")).await.unwrap();
        let mut received = Vec::new();
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let exchange = async {
            tokio::join!(
                async {
                    write.write_all(&sent).await.unwrap();
                    write.shutdown().await.unwrap();
                },
                async { read.read_to_end(&mut received).await.unwrap() }
            )
        };
        timeout(LIMIT, exchange).await.expect("the echo comes back in time");
        assert!(received == sent, "{} of {size} bytes came back", received.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_goes_in_large_packets_and_none_is_lost_in_our_own_queue() {
    const BYTES: usize = 40_000_000;
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    let mut listener = Streams::new(nodes[1].clone()).listen(service("sink"), None).await.unwrap();
    let mut stream = Streams::new(nodes[0].clone()).dial(nodes[1].id(), service("sink")).await.unwrap();
    let sending = async {
        for _ in 0..BYTES / 100_000 {
            stream.write_all(&[7; 100_000]).await.unwrap();
        }
        stream.shutdown().await.unwrap();
    };
    let receiving = async {
        let mut accepted = listener.accept().await.unwrap();
        tokio::io::copy(&mut accepted, &mut tokio::io::sink()).await.unwrap()
    };
    let ((), received) = timeout(LIMIT, async { tokio::join!(sending, receiving) }).await.unwrap();
    assert_eq!(received, BYTES as u64);
    let link = &nodes[0].links().await[0];
    let mean = link.bytes_out / link.packets_out;
    assert!(mean > 8_000, "{mean} bytes a packet, while the mesh carries 16,384");
    assert_eq!(link.dropped, 0, "a full queue makes its own sender wait");
}

#[tokio::test]
async fn what_was_written_arrives_though_the_stream_is_dropped() {
    let (_lab, nodes, mut listener, streams) = pair("sink").await;
    let mut stream = streams.dial(nodes[1].id(), service("sink")).await.unwrap();
    stream.write_all(&[7; 30_000]).await.unwrap();
    drop(stream);
    let mut accepted = listener.accept().await.unwrap();
    let mut received = Vec::new();
    timeout(LIMIT, accepted.read_to_end(&mut received)).await.unwrap().unwrap();
    assert_eq!(received.len(), 30_000);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_arrives_over_a_slow_link_too() {
    const BYTES: usize = 8 << 20;
    let mut lab = Lab::new();
    let (near, far) = (lab.start("near").await, lab.start("far").await);
    lab.join_slowly(&near, &far, 64 << 10).await;
    eventually("a route", || async { near.status().await.routing_table.len() == 1 }).await;
    let mut listener = Streams::new(far.clone()).listen(service("sink"), None).await.unwrap();
    let streams = Streams::new(near.clone());
    for shared in [false, true] {
        let dialed = match shared {
            true => streams.dial_shared(far.id(), service("sink"), None).await,
            false => streams.dial(far.id(), service("sink")).await,
        };
        let mut stream = dialed.unwrap();
        let mut accepted = listener.accept().await.unwrap();
        let writing = async {
            stream.write_all(&vec![7; BYTES]).await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
            Instant::now()
        };
        let mut received = Vec::new();
        let both = async { tokio::join!(writing, accepted.read_to_end(&mut received)) };
        let (dropped, end) = timeout(LIMIT * 10, both).await.unwrap();
        assert_eq!((end.map_err(|e| e.kind()), received.len()), (Ok(BYTES), BYTES), "shared: {shared}");
        // It was dropped while its last bytes were still at this end.
        assert!(
            dropped.elapsed() > Duration::from_millis(200),
            "{:?}: the link was not slow",
            dropped.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dialer_that_never_closes_is_left_in_the_end() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    let mut listener = Streams::new(nodes[1].clone()).listen(service("brief"), None).await.unwrap();
    let stream = Streams::new(nodes[0].clone()).dial(nodes[1].id(), service("brief")).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    accepted.write_all(b"the end").await.unwrap();
    drop(accepted);
    timeout(LIMIT * 5, stream.closed()).await.expect("its keep-alives are no progress");
}

#[tokio::test]
async fn a_service_that_is_not_there_fails_a_dial_at_once() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    let streams = Streams::new(nodes[0].clone());
    let start = Instant::now();
    let error = streams.dial(nodes[2].id(), service("nobody")).await.unwrap_err();
    assert!(matches!(error, DialError::ServiceUnknown { .. }), "{error}");
    let error = streams.dial(nodes[0].id(), service("nobody")).await.unwrap_err();
    assert!(matches!(error, DialError::ServiceUnknown { .. }), "{error}");
    let error = streams.dial(&node_id("nowhere"), service("x")).await.unwrap_err();
    assert!(matches!(error, DialError::NoRoute(_)), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "the handshake's limit is far longer");
}

#[tokio::test]
async fn a_closed_service_ends_its_streams() {
    let (_lab, nodes, mut listener, streams) = pair("brief").await;
    let mut stream = streams.dial(nodes[1].id(), service("brief")).await.unwrap();
    let _accepted = listener.accept().await.unwrap();
    drop(listener);
    let end = timeout(LIMIT, stream.read(&mut [0; 8])).await.expect("the end is noticed");
    assert!(end.is_err(), "{end:?}");
}

#[tokio::test]
async fn our_own_nodes_share_a_connection_and_each_stream_ends_by_itself() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    let mut listener = Streams::new(nodes[2].clone()).listen(service("many"), None).await.unwrap();
    let streams = Streams::new(nodes[0].clone());
    let dial = || streams.dial_shared(nodes[2].id(), service("many"), None);
    let (one, two, three) = tokio::join!(dial(), dial(), dial());
    assert_eq!(streams.connections(), 1, "all of them wait for the first one's");
    let mut there = Vec::new();
    for _ in 0..3 {
        there.push(timeout(LIMIT, listener.accept()).await.unwrap().unwrap());
    }
    let mut here = Vec::new();
    for (number, stream) in [one, two, three].into_iter().enumerate() {
        let mut stream = stream.unwrap();
        stream.write_all(&[number as u8; 4]).await.unwrap();
        stream.shutdown().await.unwrap();
        here.push(stream);
    }
    let mut seen = Vec::new();
    for stream in &mut there {
        let mut received = Vec::new();
        timeout(LIMIT, stream.read_to_end(&mut received)).await.unwrap().unwrap();
        assert_eq!(received.len(), 4);
        seen.push(received[0]);
        stream.write_all(&received).await.unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    for (number, stream) in here.iter_mut().enumerate() {
        assert_eq!(usize::from(timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap()), number);
    }
    // A stream that is aborted does not end the others.
    drop(here);
    there.pop().unwrap().abort("for no reason");
    let mut fourth = dial().await.unwrap();
    let mut accepted = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    accepted.write_all(b"x").await.unwrap();
    assert_eq!(timeout(LIMIT, fourth.read_u8()).await.unwrap().unwrap(), b'x');
    accepted.abort("for no reason");
    assert!(
        timeout(LIMIT, fourth.read_u8()).await.unwrap().is_err(),
        "a stream given up does not look complete"
    );
    // A stream that is not shared opens another connection.
    let _own = streams.dial(nodes[2].id(), service("many")).await.unwrap();
    assert_eq!(streams.connections(), 2);
}

#[tokio::test]
async fn a_shared_stream_that_is_dropped_half_way_does_not_look_complete() {
    let (_lab, nodes, mut listener, streams) = pair("sink").await;
    for whole in [true, false] {
        let mut stream = streams.dial_shared(nodes[1].id(), service("sink"), None).await.unwrap();
        stream.write_all(b"some").await.unwrap();
        let mut accepted = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
        let mut received = [0; 4];
        timeout(LIMIT, accepted.read_exact(&mut received)).await.unwrap().unwrap();
        if whole {
            stream.shutdown().await.unwrap();
        }
        drop(stream);
        let end = timeout(LIMIT, accepted.read(&mut received)).await.unwrap();
        assert_eq!(end.is_ok(), whole, "{end:?}");
    }
}

#[tokio::test]
async fn a_writer_that_waits_for_room_hears_that_nobody_reads_any_more() {
    let (_lab, nodes, mut listener, streams) = pair("deaf").await;
    for shared in [false, true] {
        let (node, deaf) = (nodes[1].id(), service("deaf"));
        let mut stream = match shared {
            true => streams.dial_shared(node, deaf, None).await.unwrap(),
            false => streams.dial(node, deaf).await.unwrap(),
        };
        drop(timeout(LIMIT, listener.accept()).await.unwrap().unwrap());
        // Writes more than there is room for, so that the writer waits before it can hear of the stop.
        let writing = stream.write_all(&[7; 9 << 20]);
        let begun = Instant::now();
        let error = timeout(LIMIT, writing).await.expect("the news comes").unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5), "{shared}: {error:?} after {:?}", begun.elapsed());
        assert!(error.to_string().contains("stopped by peer"), "{error}");
        assert!(timeout(LIMIT, stream.write_all(&[7])).await.unwrap().is_err(), "and hears it again");
    }
}

#[tokio::test]
async fn a_shared_connection_on_which_nothing_came_back_is_not_used_again() {
    let (_lab, nodes, mut listener, streams) = pair("mute").await;
    let unheard = streams.dial_shared(nodes[1].id(), service("mute"), None).await.unwrap();
    drop((timeout(LIMIT, listener.accept()).await.unwrap().unwrap(), unheard));
    let mut stream = streams.dial_shared(nodes[1].id(), service("mute"), None).await.unwrap();
    let mut accepted = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    accepted.write_all(b"y").await.unwrap();
    assert_eq!(timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap(), b'y');
    eventually("the first connection is closed", || async { streams.connections() == 1 }).await;
    let _third = streams.dial_shared(nodes[1].id(), service("mute"), None).await.unwrap();
    assert_eq!(streams.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_lets_no_more_streams_begin_is_left_for_another() {
    let (_lab, nodes, mut listener, streams) = pair("full").await;
    let dial = || streams.dial_shared(nodes[1].id(), service("full"), None);
    let (mut kept_here, mut kept_there) = (None, Vec::new());
    let begun = Instant::now();
    // One stream more than a connection allows: streams dropped at this end stay open at the other.
    for _ in 0..=mux::MOST_STREAMS {
        let mut here = timeout(LIMIT, dial()).await.unwrap().unwrap();
        let mut there = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
        there.write_all(b"x").await.unwrap();
        assert_eq!(timeout(LIMIT, here.read_u8()).await.unwrap().unwrap(), b'x');
        kept_there.push(there);
        // One stream in use keeps the full connection open.
        kept_here.get_or_insert(here);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "a handshake's limit is longer");
    assert_eq!(streams.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn word_of_a_restart_spares_who_answers_and_ends_who_does_not() {
    let (lab, nodes, mut listener, streams) = pair("echo").await;
    let mut streams_here = [
        streams.dial(nodes[1].id(), service("echo")).await.unwrap(),
        streams.dial_shared(nodes[1].id(), service("echo"), None).await.unwrap(),
    ];
    let mut streams_there = Vec::new();
    for _ in &streams_here {
        streams_there.push(timeout(LIMIT, listener.accept()).await.unwrap().unwrap());
    }
    // Old, silent streams survive repeated news of a restart.
    tokio::time::sleep(LIMIT).await;
    for _ in 0..10 {
        announce_restart(&nodes[1], nodes[0].id());
        announce_restart(&nodes[0], nodes[1].id());
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    for (here, there) in streams_here.iter_mut().zip(&mut streams_there) {
        here.write_all(b"x").await.unwrap();
        assert_eq!(timeout(LIMIT, there.read_u8()).await.unwrap().unwrap(), b'x');
        there.write_all(b"y").await.unwrap();
        assert_eq!(timeout(LIMIT, here.read_u8()).await.unwrap().unwrap(), b'y');
    }
    // After news of a restart, a new stream does not use the old connection.
    let _third = streams.dial_shared(nodes[1].id(), service("echo"), None).await.unwrap();
    assert_eq!(streams.connections(), 3);
    // The node no longer answers.
    assert!(lab.cut("b", "a") > 0);
    nodes[1].stop();
    let told = Instant::now();
    announce_restart(&nodes[0], nodes[1].id());
    for here in &mut streams_here {
        assert!(timeout(LIMIT, here.read_u8()).await.unwrap().is_err());
    }
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}: their silence takes 30 s", told.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_notice_spares_who_answers_and_ends_who_does_not() {
    let (lab, nodes, mut listener, streams) = pair("echo").await;
    let mut streams_here = [
        streams.dial(nodes[1].id(), service("echo")).await.unwrap(),
        streams.dial_shared(nodes[1].id(), service("echo"), None).await.unwrap(),
    ];
    let mut streams_there = Vec::new();
    for _ in &streams_here {
        streams_there.push(timeout(LIMIT, listener.accept()).await.unwrap().unwrap());
    }
    let (_, dials) = streams_there[0].remote().unwrap();
    let echo = (nodes[1].id(), service("echo"));
    for _ in 0..10 {
        announce_unknown(&nodes[0], dials, echo, nodes[1].id());
        announce_unknown(&nodes[0], dials, echo, &node_id("evil"));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    for (here, there) in streams_here.iter_mut().zip(&mut streams_there) {
        there.write_all(b"y").await.unwrap();
        assert_eq!(timeout(LIMIT, here.read_u8()).await.unwrap().unwrap(), b'y');
    }
    // After the last question, the node no longer answers. Only a notice from the node itself counts.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(lab.cut("b", "a") > 0);
    nodes[1].stop();
    let told = Instant::now();
    announce_unknown(&nodes[0], dials, echo, &node_id("evil"));
    let [alone, _] = &mut streams_here;
    assert!(timeout(Duration::from_secs(5), alone.read_u8()).await.is_err(), "{:?}", told.elapsed());
    announce_unknown(&nodes[0], dials, echo, nodes[1].id());
    let told = Instant::now();
    for here in &mut streams_here {
        assert!(timeout(LIMIT, here.read_u8()).await.unwrap().is_err());
    }
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}: their silence takes 30 s", told.elapsed());
}

#[tokio::test]
async fn a_service_that_closes_lets_shared_streams_end_and_begins_no_more() {
    let (_lab, nodes, mut listener, streams) = pair("brief").await;
    let mut stream = streams.dial_shared(nodes[1].id(), service("brief"), None).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let begun = Instant::now();
    drop(listener);
    accepted.write_all(b"the end").await.unwrap();
    accepted.shutdown().await.unwrap();
    drop(accepted);
    let mut received = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    assert_eq!(received, b"the end");
    eventually("the connection is closed", || async { streams.connections() == 0 }).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "nobody has to wait for its end");
    let error = streams.dial_shared(nodes[1].id(), service("brief"), None).await.unwrap_err();
    assert!(matches!(error, DialError::ServiceUnknown { .. }), "{error}");
}

#[tokio::test]
async fn a_stream_survives_the_loss_of_a_link() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    serve_echo(Streams::new(nodes[2].clone()).listen(service("echo"), None).await.unwrap());
    let mut stream = Streams::new(nodes[0].clone()).dial(nodes[2].id(), service("echo")).await.unwrap();
    stream.write_all(b"before ").await.unwrap();
    assert!(lab.cut("b", "a") > 0);
    stream.write_all(b"after").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    assert_eq!(received, b"before after");
}

#[tokio::test]
async fn an_advertised_service_is_seen_everywhere_until_it_is_closed() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    let tags = BTreeMap::from([("type".to_owned(), "test".to_owned())]);
    let listener = Streams::new(nodes[2].clone()).listen(service("seen"), Some(tags)).await.unwrap();
    eventually("the offer is known", || async {
        nodes[0].status().await.advertisements.iter().any(|ad| ad.service == service("seen"))
    })
    .await;
    drop(listener);
    eventually("the offer is withdrawn", || async { nodes[0].status().await.advertisements.is_empty() })
        .await;
}
