//! Addresses: bound once, freed, dialed in vain, and shared by clients of all sorts.

use std::io;

use super::*;
use crate::backend::AcceptError;

pub(super) async fn an_address_is_bound_once(harness: impl Harness) {
    let listener = Listener::bind(&harness.anywhere()).await.expect("bind");
    let error = Listener::bind(&harness.same(&listener)).await.expect_err("a second listener");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&listener.local_addr()), "{error}");
}

pub(super) async fn a_dropped_listener_frees_its_address(harness: impl Harness) {
    let (listener, dialed, accepted) = pair(&harness).await;
    let (address, to) = (harness.same(&listener), harness.to(&listener));
    // The listener's end closes first, so on TCP the port stays in TIME_WAIT.
    drop((listener, accepted));
    drop(dialed);
    let mut listener = Listener::bind(&address).await.expect("bind again");
    let (dialed, accepted) = tokio::join!(dial(&to), listener.accept());
    dialed.expect("dial again");
    accepted.expect("accept again");
}

pub(super) async fn dialing_nobody_fails_at_once_and_names_the_address(harness: impl Harness) {
    let listener = Listener::bind(&harness.anywhere()).await.expect("bind");
    let (address, to) = (listener.local_addr(), harness.to(&listener));
    drop(listener);
    let failure = dial(&to).await.expect_err("nobody is there");
    assert!(failure.to_string().contains(&address), "{failure}");
}

pub(super) async fn a_client_that_leaves_does_not_disturb_the_next(harness: impl Harness) {
    let mut listener = Listener::bind(&harness.anywhere()).await.expect("bind");
    let to = harness.to(&listener);
    let dialing = async {
        for _ in 0..20 {
            drop(dial(&to).await.expect("dial"));
        }
        let mut dialed = dial(&to).await.expect("dial");
        dialed.writer.write_batch(&mut VecDeque::from([packet(1, 9)])).await.expect("write");
        dialed
    };
    let accepting = async {
        let mut delivered = 0;
        while delivered == 0 {
            match listener.accept().await {
                Ok(mut session) => {
                    let mut packets = Vec::new();
                    // Clients that left give an end; only the last one has a packet.
                    let _ = session.reader.read_batch(&mut packets).await;
                    delivered = packets.len();
                }
                Err(
                    AcceptError::Transient { .. } | AcceptError::Tls { .. } | AcceptError::Upgrade { .. },
                ) => {}
                Err(fatal @ AcceptError::Fatal { .. }) => panic!("{fatal}"),
            }
        }
        delivered
    };
    let (_dialed, delivered) = tokio::join!(dialing, accepting);
    assert_eq!(delivered, 1);
}

pub(super) async fn sessions_say_where_they_came_from(harness: impl Harness) {
    let (listener, dialed, accepted) = pair(&harness).await;
    assert_eq!((dialed.info.direction, accepted.info.direction), (Direction::Outbound, Direction::Inbound));
    assert_eq!(dialed.info.peer, listener.local_addr());
    assert_eq!(dialed.info.transport, accepted.info.transport);
    assert!(!accepted.info.peer.is_empty());
}
