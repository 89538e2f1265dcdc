//! How much memory streams that nobody reads, and connections that nobody ends, may take.

use super::*;

/// Writes until the stream accepts no more, and returns how many bytes it accepted.
async fn fill(stream: &mut MeshStream) -> usize {
    let mut taken = 0;
    while let Ok(written) = timeout(Duration::from_millis(500), stream.write(&[7; 4096])).await {
        taken += written.unwrap();
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_on_a_shared_connection_is_bounded() {
    let (_lab, nodes, mut listener, streams) = pair("mute").await;
    let mut held = Vec::new();
    for _ in 0..12 {
        let stream = streams.dial_shared(nodes[1].id(), service("mute"), None).await.unwrap();
        held.push((stream, timeout(LIMIT, listener.accept()).await.unwrap().unwrap()));
    }
    let mut taken = 0;
    for (stream, _) in &mut held {
        taken += fill(stream).await;
    }
    assert!((1_000 << 10..=1_024 << 10).contains(&taken), "{} KiB", taken >> 10);
    let (_, first) = held.first_mut().unwrap();
    timeout(LIMIT, first.read_exact(&mut vec![0; 512 << 10])).await.unwrap().unwrap();
    let (last, _) = held.last_mut().unwrap();
    timeout(LIMIT, last.write_all(&[7; 64 << 10]))
        .await
        .expect("who is read makes room for the others")
        .unwrap();
}

#[tokio::test]
async fn many_that_nobody_reads_have_no_more_than_the_budget() {
    const BUDGET: usize = 8 << 20;
    const OTHERS: usize = 3;
    let mut lab = Lab::new();
    let names: Vec<String> = (0..OTHERS).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = std::iter::once("here").chain(names.iter().map(String::as_str)).collect();
    let nodes = lab.line(&names).await;
    let here = Streams::new(nodes[0].clone());
    here.set_buffers(BUDGET as u64);
    let mut listener = here.listen(service("mute"), None).await.unwrap();
    let (mut held, mut taken, mut refused) = (Vec::new(), 0, 0);
    for node in &nodes[1..] {
        let streams = Streams::new(node.clone());
        for _ in 0..BUDGET / (64 << 10) {
            let Ok(mut stream) = streams.dial(nodes[0].id(), service("mute")).await else {
                refused += 1;
                break;
            };
            tokio::select! {
                accepted = listener.accept() => {
                    // Each stream is read for a while, so that its window grows, and then not any more.
                    let mut accepted = accepted.unwrap();
                    let (mut grown, sent) = (vec![0; 100_000], vec![7; 100_000]);
                    let both = async { tokio::join!(stream.write_all(&sent), accepted.read_exact(&mut grown)) };
                    let (written, read) = timeout(LIMIT, both).await.unwrap();
                    assert!(written.is_ok() && read.is_ok());
                    held.push((stream, accepted));
                }
                // The dialer's handshake may end before it hears of the refusal.
                _end = stream.closed() => {
                    refused += 1;
                    break;
                }
            }
        }
    }
    for (stream, _) in &mut held {
        taken += timeout(LIMIT, fill(stream)).await.unwrap();
    }
    println!("{} connections, {refused} refused, {taken} bytes", held.len());
    assert!(refused > 0, "there was no end of them");
    assert!(taken <= BUDGET, "{taken} bytes in {} connections", held.len());
    let other = lab.start("other").await;
    lab.join(&other, &nodes[0]).await;
    eventually("a route", || async { other.status().await.routing_table.len() > OTHERS }).await;
    let _stream = Streams::new(other).dial(nodes[0].id(), service("mute")).await.unwrap();
    timeout(LIMIT, listener.accept()).await.expect("another node has room").unwrap();
}

#[tokio::test]
async fn a_node_that_opens_connections_without_end_takes_nobody_elses_room() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    let listening = Streams::new(nodes[1].clone());
    // Room for six connections. Connections of one node with a single stream each may have a third of them.
    listening.set_buffers(6 * 2 * u64::from(windows::FIRST_WINDOW));
    let mut listener = listening.listen(service("few"), None).await.unwrap();
    let streams = Streams::new(nodes[0].clone());
    let dial = || streams.dial(nodes[1].id(), service("few"));
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push((dial().await.unwrap(), timeout(LIMIT, listener.accept()).await.unwrap().unwrap()));
    }
    // The dialer's handshake may end before it hears of the refusal.
    let error = match dial().await {
        Ok(mut refused) => {
            format!("{:?}", timeout(LIMIT, refused.read(&mut [0])).await.unwrap().unwrap_err())
        }
        Err(error) => format!("{error:?}"),
    };
    assert!(error.contains("too many connections"), "{error}");
    let other = Streams::new(nodes[2].clone());
    let third = other.dial(nodes[1].id(), service("few")).await.unwrap();
    let accepted = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    drop((third, accepted, held.pop()));
    let again = async {
        loop {
            let Ok(mut stream) = dial().await else { continue };
            let mut byte = [0];
            tokio::select! {
                accepted = listener.accept() => break accepted.unwrap(),
                read = stream.read(&mut byte) => assert!(read.is_err()),
            }
        }
    };
    let _room = timeout(LIMIT, again).await.expect("a connection that has ended makes room");
}
