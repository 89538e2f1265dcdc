//! Tests of what only TCP has: notations of addresses, the texts of errors, and peers that do not answer.

use socket2::SockRef;
use tokio::net::TcpSocket;

use super::tls::UNSENT_LIMIT;
use super::*;
use crate::backend::{ListenSpec, Listener};

async fn listener(bind: &str) -> Listener {
    Listener::bind(&ListenSpec::Tcp(TcpListenOptions { bind: bind.to_owned(), tls: None, congestion: None }))
        .await
        .expect(bind)
}

async fn bind_error(bind: &str) -> String {
    let spec = ListenSpec::Tcp(TcpListenOptions { bind: bind.to_owned(), tls: None, congestion: None });
    Listener::bind(&spec).await.expect_err(bind).to_string()
}

async fn dial_text(address: &str) -> Result<Session, DialFailure> {
    dial(&TcpDialOptions { address: address.to_owned(), tls: None, congestion: None }).await
}

#[test]
fn hosts_and_ports_are_joined() {
    for (host, joined) in [
        ("0.0.0.0", "0.0.0.0:2222"),
        ("::", "[::]:2222"),
        ("[::1]", "[::1]:2222"),
        ("::1", "[::1]:2222"),
        ("hop.example", "hop.example:2222"),
    ] {
        assert_eq!(TcpListenOptions::new(host, 2222).bind, joined);
    }
}

#[tokio::test]
async fn names_and_ipv6_work_on_both_sides() {
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        let mut listener = listener(&format!("{host}:0")).await;
        let local: SocketAddr = listener.local_addr().parse().unwrap();
        assert_ne!(local.port(), 0);
        let dialed = dial_text(&format!("{host}:{}", local.port())).await.expect(host);
        let accepted = listener.accept().await.expect(host);
        assert_eq!(dialed.info.peer, format!("{host}:{}", local.port()));
        assert_eq!(accepted.info.peer.parse::<SocketAddr>().unwrap().ip(), local.ip());
    }
}

#[tokio::test]
async fn bind_errors_name_the_address_and_the_way_out() {
    let taken = listener("127.0.0.1:0").await.local_addr();
    let _held = listener(&taken).await;
    let in_use = bind_error(&taken).await;
    assert!(in_use.contains(&taken) && in_use.contains("ss -ltunp"), "{in_use}");
    // A documentation address (RFC 5737); no host has it.
    let foreign = bind_error("192.0.2.1:0").await;
    assert!(foreign.contains("192.0.2.1:0") && foreign.contains("ip address"), "{foreign}");
    let portless = bind_error("localhost").await;
    assert!(portless.contains("localhost") && portless.contains("host:port"), "{portless}");
}

#[tokio::test]
async fn an_address_without_a_port_is_a_resolve_failure() {
    let failure = dial_text("localhost").await.expect_err("no port");
    assert!(matches!(failure, DialFailure::Resolve { .. }), "{failure}");
    assert!(failure.to_string().contains("host:port"), "{failure}");
}

/// A port whose queue of unaccepted connections is full, so the kernel ignores further connections.
async fn mute_port() -> (socket2::Socket, SocketAddr, Vec<TcpStream>) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    loop {
        tokio::select! {
            biased;
            stream = TcpStream::connect(address) => queued.push(stream.unwrap()),
            () = tokio::task::yield_now() => break,
        }
        assert!(queued.len() < 1_000, "the queue never fills");
    }
    (socket, address, queued)
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_nobody_answers_ends_at_the_limit() {
    let (_socket, address, _queued) = mute_port().await;
    let started = Instant::now();
    let failure = dial_text(&address.to_string()).await.expect_err("nobody answers");
    assert!(matches!(failure, DialFailure::TimedOut { .. }), "{failure}");
    assert!(failure.to_string().contains(&address.to_string()), "{failure}");
    assert!((14..=16).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dial_tries_the_next_address_when_the_first_is_mute() {
    let (_socket, mute, _queued) = mute_port().await;
    let answering = listener("127.0.0.1:0").await;
    let candidates = [mute, answering.local_addr().parse().unwrap()];
    let stream =
        first_that_answers(&candidates, Instant::now() + DIAL_LIMIT).await.expect("the second answers");
    assert_eq!(stream.peer_addr().unwrap(), candidates[1]);
}

#[tokio::test]
async fn a_connection_to_itself_counts_as_refused() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let own = socket.local_addr().unwrap();
    let stream = socket.connect(own).await.expect("Linux lets a socket connect to itself");
    assert_eq!(not_itself(stream).expect_err("itself").kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn sockets_send_at_once_and_notice_dead_hosts() {
    let mut listener = listener("127.0.0.1:0").await;
    let dialed = dial_text(&listener.local_addr()).await.expect("dial");
    let accepted = listener.accept().await.expect("accept");
    for session in [dialed, accepted] {
        let TransportWriter::Tcp(writer) = &session.writer.transport else {
            panic!("not TCP: {:?}", session.info)
        };
        let stream: &TcpStream = writer.frames.io().as_ref();
        assert!(stream.nodelay().unwrap());
        assert!(SockRef::from(stream).keepalive().unwrap());
        assert_eq!(SockRef::from(stream).tcp_notsent_lowat().unwrap(), UNSENT_LIMIT);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_followed_by_others() {
    for (lost, ended) in [(0, Some(Duration::ZERO)), (2, Some(Duration::from_secs(2))), (9, None)] {
        let (begun, mut attempts) = (Instant::now(), 0);
        let connected = insist(Duration::from_secs(10), || {
            attempts += 1;
            let answered = attempts > lost;
            async move { if answered { begun.elapsed() } else { std::future::pending().await } }
        });
        assert_eq!(connected.await, ended, "{lost} are lost");
        assert!(attempts <= MOST_ATTEMPTS);
    }
}

#[tokio::test]
async fn both_ends_react_to_congestion_as_configured() {
    // Every kernel has this one, and lets every user choose it.
    let congestion = Some(Congestion::Cubic);
    let options = TcpListenOptions { congestion, ..TcpListenOptions::new("127.0.0.1", 0) };
    let mut listener = Listener::bind(&ListenSpec::Tcp(options)).await.expect("bind");
    let dialed = dial(&TcpDialOptions { address: listener.local_addr(), tls: None, congestion }).await;
    for session in [dialed.expect("dial"), listener.accept().await.expect("accept")] {
        let TransportWriter::Tcp(writer) = &session.writer.transport else {
            panic!("not TCP: {:?}", session.info)
        };
        let stream: &TcpStream = writer.frames.io().as_ref();
        assert!(SockRef::from(stream).tcp_congestion().unwrap().starts_with(b"cubic"));
    }
    let socket = TcpSocket::new_v4().unwrap();
    let error = os::tcp::set_congestion(&socket, "no-such").expect_err("no kernel has it").to_string();
    assert!(error.contains("does not offer the congestion control no-such"), "{error}");
}
