//! Tests of what only WebSockets have: upgrades, paths, headers, kinds of messages, proxies.

use futures_util::{SinkExt, StreamExt};
use hyper_util::client::proxy::matcher::Matcher;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::*;
use crate::backend::{DialSpec, Direction, ListenSpec, Listener, SessionEnd, dial as dial_spec};
use crate::wire::MAX_MESSAGE;

async fn listener(path: &str) -> Listener {
    Listener::bind(&ListenSpec::WebSocket(WsListenOptions::new("127.0.0.1", 0, path, None))).await.unwrap()
}

fn options(listener: &Listener, path: &str) -> WsDialOptions {
    let address: SocketAddr = listener.local_addr().parse().unwrap();
    WsDialOptions {
        host: address.ip().to_string(),
        port: address.port(),
        path: path.to_owned(),
        extra_header: None,
        tls: None,
        proxy: None,
    }
}

type Foreign = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A client that uses the library directly and can misbehave.
async fn foreign(listener: &mut Listener) -> (Foreign, Session) {
    let (client, _response) = connect_async(format!("ws://{}/", listener.local_addr())).await.unwrap();
    (client, listener.accept().await.unwrap())
}

async fn read_to_end(session: &mut Session) -> (Vec<bytes::BytesMut>, SessionEnd) {
    let mut packets = Vec::new();
    loop {
        let read = timeout(Duration::from_secs(20), session.reader.read_batch(&mut packets)).await;
        if let Err(end) = read.expect("no end") {
            return (packets, end);
        }
    }
}

#[tokio::test]
async fn only_the_path_and_what_is_below_it_is_served() {
    for (served, asked, found) in [
        ("/", "/", true),
        ("/", "/anything?x=1", true),
        ("/mesh", "/mesh", true),
        ("/mesh", "/mesh?token=1", true),
        ("/mesh", "/mesh/x", false),
        ("/mesh", "/", false),
        ("/mesh/", "/mesh/x", true),
        ("/mesh/", "/mess", false),
    ] {
        let listener = listener(served).await;
        match dial(&options(&listener, asked)).await {
            Ok(_session) => assert!(found, "{served} answers {asked}"),
            Err(failure) => {
                assert!(!found, "{served} does not answer {asked}: {failure}");
                let text = failure.to_string();
                assert!(text.contains("404") && text.contains(asked), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn pages_of_other_hosts_may_not_lead_browsers_here() {
    let listener = listener("/").await;
    let own = format!("http://{}", listener.local_addr());
    for (origin, further, allowed) in [
        (own.as_str(), None, true),
        (&own, Some(("User-Agent", "Go-http-client/1.1")), true),
        // What a page sends whose own host name resolves to this node.
        (&own, Some(("Accept-Language", "en")), false),
        (&own, Some(("Sec-Fetch-Mode", "websocket")), false),
        ("http://evil.example", None, false),
        ("null", None, false),
    ] {
        let mut request = format!("ws://{}/", listener.local_addr()).into_client_request().unwrap();
        request.headers_mut().insert("Origin", HeaderValue::from_str(origin).unwrap());
        if let Some((name, value)) = further {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        match connect_async(request).await {
            Ok(_upgraded) => assert!(allowed, "{origin}"),
            Err(tungstenite::Error::Http(response)) => {
                assert!(!allowed && response.status() == 403, "{origin}: {}", response.status());
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// The listener's answer to a request, up to the end of the connection.
async fn answer(listener: &Listener, request: &str) -> String {
    let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _reset = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.expect("no end");
    String::from_utf8(answer).unwrap()
}

const UPGRADE: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test]
async fn requests_for_something_else_are_answered() {
    let listener = listener("/mesh").await;
    let many = "X-Token: y\r\n".repeat(1_100);
    let wrong_key = UPGRADE.replace("=", "");
    for (request, status, body) in [
        ("GET /mesh HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request", "WebSocket"),
        ("GET /mesh HTTP/1.0\r\n\r\n", "400 Bad Request", "WebSocket"),
        ("GET /mesh HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\n\r\n", "400 Bad Request", "WebSocket"),
        (
            &format!("GET /mesh HTTP/1.1\r\nHost: x\r\n{wrong_key}\r\n"),
            "400 Bad Request",
            "Sec-WebSocket-Key",
        ),
        ("POST /mesh HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", "400 Bad Request", "WebSocket"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found", "no mesh"),
        (&format!("GET / HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n"), "404 Not Found", "no mesh"),
        (&format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n"), "404 Not Found", "no mesh"),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", "ok"),
        ("GET http://x/healthz HTTP/1.1\nHost: x\n\n", "200 OK", "ok"),
        ("HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", ""),
        ("POST /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found", "no mesh"),
        ("PRI * HTTP/2.0\r\n\r\n", "505 HTTP Version Not Supported", "version"),
        ("\x16\x03\x01 garbage", "400 Bad Request", "set tls at both ends"),
        (
            &format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(70_000)),
            "431 Request Header Fields Too Large",
            "large",
        ),
        (&format!("GET / HTTP/1.1\r\n{many}\r\n"), "431 Request Header Fields Too Large", "large"),
    ] {
        let answer = answer(&listener, request).await;
        let (head, found) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request:.90}: {answer:?}"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request:.90}: {head}");
        assert!(found.contains(body) && found.is_empty() == body.is_empty(), "{request:.90}: {found:?}");
        let has_version = head.to_ascii_lowercase().contains("\r\nsec-websocket-version: 13");
        assert_eq!(has_version, body == "WebSocket" || body == "Sec-WebSocket-Key", "{request:.90}: {head}");
    }
}

#[tokio::test]
async fn old_versions_and_many_headers_are_upgraded() {
    let mut listener = listener("/mesh").await;
    let many = "X-Token: y\r\n".repeat(150);
    for (version, more) in [("1.0", ""), ("1.1", many.as_str())] {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        let request = format!("GET /mesh HTTP/{version}\r\nHost: x\r\n{more}{UPGRADE}\r\n");
        // In pieces, as a slow network would deliver it.
        let (first, rest) = request.as_bytes().split_at(request.len() - 2);
        stream.write_all(first).await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(rest).await.unwrap();
        let _session = listener.accept().await.unwrap_or_else(|error| panic!("{version}: {error}"));
        let mut answer = [0; 33];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 101 Switching Protocols\r");
    }
}

#[tokio::test]
async fn a_neighbour_behind_a_proxy_that_changes_host_learns_why() {
    let mut listener = listener("/mesh").await;
    let request =
        format!("GET /mesh HTTP/1.1\r\nHost: backend\r\nOrigin: http://mesh.example\r\n{UPGRADE}\r\n");
    let answer = answer(&listener, &request).await;
    for part in [
        "403 Forbidden",
        "Origin header (http://mesh.example)",
        "Host header (backend)",
        "proxy_set_header Host",
    ] {
        assert!(answer.contains(part), "{part:?} is not in {answer}");
    }
    let error = listener.accept().await.expect_err("refused");
    assert!(matches!(&error, AcceptError::Upgrade { answer, .. } if answer.contains("403")), "{error}");
}

/// A server that gives one client this answer.
async fn server(answer: String) -> SocketAddr {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut client, _peer) = socket.accept().await.unwrap();
        let _request = client.read(&mut [0; 4096]).await.unwrap();
        client.write_all(answer.as_bytes()).await.unwrap();
    });
    address
}

#[tokio::test]
async fn the_first_line_of_a_refusal_is_shown() {
    let plain = "Content-Type: text/plain; charset=utf-8\r\n";
    for (status, kind, body, shown) in [
        ("403 Forbidden", plain, "set Host\nmore", "403 Forbidden instead of a WebSocket: set Host"),
        ("403 Forbidden", plain, "a\x1b[2Jb", "WebSocket: a?[2Jb"),
        (
            "403 Forbidden",
            plain,
            "Forbidden\n",
            "403 Forbidden instead of a WebSocket; does it want an extraheader?",
        ),
        ("403 Forbidden", "Content-Type: text/html\r\n", "<html>", "WebSocket; does it want an extraheader?"),
        ("404 Not Found", plain, "no mesh", "WebSocket: no mesh; is /mesh the path of its ws-listener?"),
        ("503 Service Unavailable", "", "x", "503 Service Unavailable instead of a WebSocket"),
    ] {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\n{kind}Content-Length: {length}\r\n\r\n{body}");
        let address = server(answer).await;
        let options = WsDialOptions {
            host: address.ip().to_string(),
            port: address.port(),
            path: "/mesh".to_owned(),
            extra_header: None,
            tls: None,
            proxy: None,
        };
        let failure = dial(&options).await.expect_err("refused").to_string();
        assert!(failure.ends_with(shown), "{failure}");
    }
}

/// What a dialer sends before it gets an answer.
async fn first_words(change: impl FnOnce(&mut WsDialOptions)) -> String {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut options = WsDialOptions {
        host: address.ip().to_string(),
        port: address.port(),
        path: "/a?b=c".to_owned(),
        extra_header: Some(("X-Token".to_owned(), "s3cret".to_owned())),
        tls: None,
        proxy: None,
    };
    change(&mut options);
    let listening = async {
        let (mut stream, _peer) = server.accept().await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0);
        }
        (String::from_utf8(text).unwrap(), address)
    };
    let (dialed, (text, address)) = tokio::join!(dial(&options), listening);
    let failure = dialed.expect_err("nobody answered").to_string();
    assert!(!failure.contains("s3cret"), "{failure}");
    text.replace(&address.to_string(), "SERVER")
}

#[tokio::test]
async fn the_request_has_origin_host_path_and_the_extra_header() {
    let text = first_words(|_options| {}).await.to_ascii_lowercase();
    for line in ["get /a?b=c http/1.1\r\n", "\r\nhost: server\r\n", "\r\norigin: http://server\r\n"] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert!(text.contains("\r\nx-token: s3cret\r\n"), "{text}");
}

#[tokio::test]
async fn garbage_instead_of_an_upgrade_disturbs_nobody() {
    let mut listener = listener("/").await;
    let endless = [b"GET / HTTP/1.1\r\n".to_vec(), b"X: y\r\n".repeat(100_000)].concat();
    for garbage in [
        &b"\x00\xff\xfe garbage"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        &endless,
    ] {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        let _may_be_cut_short = stream.write_all(garbage).await;
        let _shut = stream.shutdown().await;
        let mut answer = Vec::new();
        let _reset = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.expect("no end");
        assert!(!answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    }
    let (_foreign, session) = foreign(&mut listener).await;
    assert_eq!(session.info.direction, Direction::Inbound);
}

#[tokio::test(start_paused = true)]
async fn silent_clients_are_cut_and_keep_nobody_waiting() {
    let mut listener = listener("/").await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(listener.local_addr()).await.unwrap());
    }
    let (_foreign, _session) = foreign(&mut listener).await;
    for stream in &mut silent {
        // The paused clock moves only while all tasks wait, so this waits for the limit and nothing else.
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0, "a silent client was not cut");
    }
}

#[tokio::test]
async fn text_ends_the_session_and_what_came_before_is_kept() {
    let mut listener = listener("/").await;
    let (mut client, mut session) = foreign(&mut listener).await;
    client.send(Message::Binary("packet".into())).await.unwrap();
    client.send(Message::Text("words".into())).await.unwrap();
    let (packets, end) = read_to_end(&mut session).await;
    assert_eq!(packets, [&b"packet"[..]]);
    assert!(end.to_string().contains("text"), "{end}");
}

#[tokio::test]
async fn fragments_make_one_packet_and_pings_are_answered_between_them() {
    let mut listener = listener("/").await;
    let (mut client, mut session) = foreign(&mut listener).await;
    let part =
        |text: &'static str, code, last| Message::Frame(Frame::message(text, OpCode::Data(code), last));
    client.send(part("one ", Data::Binary, false)).await.unwrap();
    client.send(Message::Ping("there?".into())).await.unwrap();
    client.send(part("packet", Data::Continue, true)).await.unwrap();
    let mut packets = Vec::new();
    session.reader.read_batch(&mut packets).await.unwrap();
    assert_eq!(packets, [&b"one packet"[..]]);
    // The pong leaves with the next read or write.
    session.writer.write_batch(&mut [bytes::Bytes::from_static(b"x")].into()).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong("there?".into()));
}

#[tokio::test]
async fn messages_beyond_a_packet_end_the_session() {
    let whole = vec![Message::Binary(vec![0; MAX_MESSAGE + 1].into())];
    let halves = [(Data::Binary, false), (Data::Continue, true)]
        .map(|(code, last)| Message::Frame(Frame::message(vec![0; 40_000], OpCode::Data(code), last)));
    for messages in [whole, halves.into()] {
        let mut listener = listener("/").await;
        let (mut client, mut session) = foreign(&mut listener).await;
        for message in messages {
            let _may_be_cut_short = client.send(message).await;
        }
        let (packets, end) = read_to_end(&mut session).await;
        assert!(packets.is_empty() && matches!(end, SessionEnd::Broken(_)), "{end}");
    }
}

/// A proxy that gives one client this answer, and carries bytes to `target` if it answered with a tunnel.
async fn proxy(answer: &'static str, target: String) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut client, _peer) = socket.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut request).await.unwrap(), 0);
        }
        client.write_all(answer.as_bytes()).await.unwrap();
        if answer.contains(" 200 ") {
            let mut server = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
        String::from_utf8(request).unwrap()
    });
    (address, task)
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel() {
    let mut listener = listener("/mesh").await;
    let (address, asked) = proxy("HTTP/1.1 200 OK\r\nVia: x\r\n\r\n", listener.local_addr()).await;
    let rules = Matcher::builder().http(format!("http://user:pass@{address}")).build();
    let chosen = Proxy::choose(&rules, false, "hop.example", 8080).unwrap();
    assert!(!format!("{chosen:?}").contains("dXNlcjpwYXNz"), "{chosen:?}");
    let options = WsDialOptions {
        host: "hop.example".to_owned(),
        port: 8080,
        path: "/mesh".to_owned(),
        extra_header: None,
        tls: None,
        proxy: chosen,
    };
    let dialed = dial_spec(&DialSpec::WebSocket(options)).await.unwrap();
    assert_eq!(dialed.info.peer, "hop.example:8080");
    listener.accept().await.unwrap();
    let request = asked.await.unwrap();
    assert!(
        request.starts_with("CONNECT hop.example:8080 HTTP/1.1\r\nHost: hop.example:8080\r\n"),
        "{request}"
    );
    assert!(request.contains("\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{request}");
}

#[tokio::test]
async fn a_proxy_that_refuses_is_quoted() {
    for answer in ["HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "nonsense\r\n\r\n"] {
        let (address, _asked) = proxy(answer, String::new()).await;
        let rules = Matcher::builder().http(format!("http://{address}")).build();
        let mut options = options(&listener("/").await, "/");
        options.proxy = Proxy::choose(&rules, false, "hop.example", 1).unwrap();
        let failure = dial(&options).await.expect_err("refused").to_string();
        assert!(failure.contains(answer.trim()) && failure.contains(&address.to_string()), "{failure}");
    }
}

#[test]
fn the_environment_decides_who_is_reached_through_a_proxy() {
    let rules = Matcher::builder()
        .http("http://plain.example:3128")
        .https("http://secure.example")
        .no("direct.example,10.0.0.0/8")
        .build();
    let choose = |secure, host| {
        Proxy::choose(&rules, secure, host, 443).unwrap().map(|proxy| proxy.address().to_owned())
    };
    assert_eq!(choose(false, "hop.example").as_deref(), Some("plain.example:3128"));
    assert_eq!(choose(true, "hop.example").as_deref(), Some("secure.example:80"));
    for host in ["direct.example", "sub.direct.example", "10.1.2.3", "localhost", "127.0.0.1", "::1"] {
        assert_eq!(choose(false, host), None, "{host}");
    }
    let socks = Matcher::builder().all("socks5://x:1").build();
    let error = Proxy::choose(&socks, false, "hop.example", 1).expect_err("not supported").to_string();
    assert!(error.contains("socks5") && error.contains("NO_PROXY=hop.example"), "{error}");
}
