//! The faults of the switchboard.

use super::*;
use crate::backend::{DialSpec, ListenSpec, Listener, dial as dial_spec};

struct World {
    net: MemoryNet,
    listener: Listener,
}

impl World {
    async fn new() -> Self {
        let net = MemoryNet::new();
        let options = MemoryListenOptions { net: net.clone(), name: "hop".into() };
        Self { net, listener: Listener::bind(&ListenSpec::Memory(options)).await.unwrap() }
    }

    /// Both ends of a new link: first the dialer's, then the hop's.
    async fn link(&mut self, from: &str) -> (Session, Session) {
        let options = MemoryDialOptions { net: self.net.clone(), from: from.into(), to: "hop".into() };
        let dialed = dial_spec(&DialSpec::Memory(options)).await.unwrap();
        (dialed, self.listener.accept().await.unwrap())
    }
}

async fn send(session: &mut Session, numbers: impl IntoIterator<Item = u8>) {
    let mut batch = numbers.into_iter().map(|number| Bytes::from(vec![number])).collect();
    session.writer.write_batch(&mut batch).await.unwrap();
}

async fn receive(session: &mut Session) -> Vec<u8> {
    let mut packets = Vec::new();
    session.reader.read_batch(&mut packets).await.unwrap();
    packets.iter().map(|packet| packet[0]).collect()
}

#[tokio::test]
async fn a_cut_breaks_both_ends_and_no_other_link() {
    let mut world = World::new().await;
    let (mut edge, mut hop) = world.link("edge").await;
    let (mut other, mut hop_of_other) = world.link("other").await;
    send(&mut edge, [1]).await;
    assert_eq!(world.net.cut("hop", "edge"), 1);
    for session in [&mut edge, &mut hop] {
        let end = session.reader.read_batch(&mut Vec::new()).await;
        assert!(matches!(end, Err(SessionEnd::Broken(_))), "{end:?}");
        let end = session.writer.write_batch(&mut [Bytes::from_static(b"x")].into()).await;
        assert!(matches!(end, Err(SessionEnd::Broken(_))), "{end:?}");
    }
    assert_eq!(world.net.cut("hop", "edge"), 0, "the link is cut already");
    send(&mut other, [2]).await;
    assert_eq!(receive(&mut hop_of_other).await, [2]);
    let (mut again, mut hop) = world.link("edge").await;
    send(&mut again, [3]).await;
    assert_eq!(receive(&mut hop).await, [3]);
}

#[tokio::test]
async fn a_cut_wakes_those_who_wait() {
    let mut world = World::new().await;
    let (mut edge, mut hop) = world.link("edge").await;
    let mut endless = vec![Bytes::from(vec![0; 60_000]); 100].into();
    let (mut none, net) = (Vec::new(), world.net.clone());
    let waiting = async {
        tokio::join!(edge.writer.write_batch(&mut endless), edge.reader.read_batch(&mut none), async {
            net.cut("edge", "hop")
        })
    };
    let deadline = std::time::Duration::from_secs(10);
    let (written, read, _) = tokio::time::timeout(deadline, waiting).await.expect("nobody was woken");
    assert!(matches!((written, read), (Err(SessionEnd::Broken(_)), Err(SessionEnd::Broken(_)))));
    assert!(hop.reader.read_batch(&mut none).await.is_err());
}

#[tokio::test]
async fn a_black_hole_has_one_direction_and_an_end() {
    let mut world = World::new().await;
    let (mut edge, mut hop) = world.link("edge").await;
    world.net.black_hole("edge", "hop", true);
    send(&mut edge, [1, 2]).await;
    send(&mut hop, [3]).await;
    assert_eq!(receive(&mut edge).await, [3]);
    let (mut later_edge, mut later_hop) = world.link("edge").await;
    send(&mut later_edge, [4]).await;
    world.net.black_hole("edge", "hop", false);
    send(&mut edge, [5]).await;
    send(&mut later_edge, [6]).await;
    assert_eq!(receive(&mut hop).await, [5]);
    assert_eq!(receive(&mut later_hop).await, [6]);
}

#[tokio::test]
async fn dropped_packets_leave_the_others_whole() {
    let mut world = World::new().await;
    let (mut edge, mut hop) = world.link("edge").await;
    world.net.drop_next("edge", "hop", 2);
    send(&mut edge, 1..=5).await;
    assert_eq!(receive(&mut hop).await, [3, 4, 5]);
}

#[tokio::test]
async fn switchboards_are_told_apart() {
    let (one, other) = (MemoryNet::new(), MemoryNet::new());
    assert_eq!(one, one.clone());
    assert_ne!(one, other);
}
