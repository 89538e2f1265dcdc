//! The contract of stream proxies, for TCP and Unix sockets alike.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Barrier;
use tokio::time::timeout;

use super::super::{TcpClient, TcpServer, UnixSocketClient, UnixSocketServer};
use super::{LIMIT, Rig, pattern, service};

/// Either kind of socket.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Socket for T {}
type Stream = Box<dyn Socket>;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Tcp,
    Unix,
}

/// A pair of proxies: the address of the entrance, and the target at the other end.
struct Pair {
    rig: Rig,
    kind: Kind,
    entrance: String,
    target: Option<Target>,
}

enum Target {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Target {
    async fn accept(&self) -> Stream {
        match self {
            Self::Tcp(listener) => Box::new(listener.accept().await.unwrap().0),
            Self::Unix(listener) => Box::new(listener.accept().await.unwrap().0),
        }
    }
}

impl Pair {
    async fn new(kind: Kind) -> Self {
        let rig = Rig::new().await;
        let (near, far) = rig.ends();
        let (node, name) = (far.node().id().clone(), service("behind"));
        let stop = || rig.stop.clone();
        let (entrance, target) = match kind {
            Kind::Tcp => {
                let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = target.local_addr().unwrap().to_string();
                rig.tasks
                    .spawn(TcpClient::listen(&far, name, address, None, None).await.unwrap().run(stop()));
                let entrance = TcpServer::bind("127.0.0.1:0", near, node, name).await.unwrap();
                let address = entrance.local_addr().unwrap().to_string();
                rig.tasks.spawn(entrance.run(stop()));
                (address, Target::Tcp(target))
            }
            Kind::Unix => {
                let path = |name: &str| -> PathBuf { rig.directory.path().join(name) };
                let target = UnixListener::bind(path("target")).unwrap();
                rig.tasks.spawn(
                    UnixSocketClient::listen(&far, name, path("target"), None).await.unwrap().run(stop()),
                );
                let entrance = UnixSocketServer::bind(&path("in"), 0o600, near, node, name).unwrap();
                rig.tasks.spawn(entrance.run(stop()));
                (path("in").to_str().unwrap().to_owned(), Target::Unix(target))
            }
        };
        Self { rig, kind, entrance, target: Some(target) }
    }

    async fn connect(&self) -> Stream {
        self.try_connect().await.unwrap()
    }

    async fn try_connect(&self) -> io::Result<Stream> {
        Ok(match self.kind {
            Kind::Tcp => Box::new(TcpStream::connect(&self.entrance).await?),
            Kind::Unix => Box::new(UnixStream::connect(&self.entrance).await?),
        })
    }

    /// Both ends of one connection.
    async fn joined(&self) -> (Stream, Stream) {
        let target = self.target.as_ref().unwrap();
        tokio::join!(self.connect(), target.accept())
    }
}

/// Runs a test for both kinds.
async fn both<F: Future<Output = ()>>(test: impl Fn(Pair) -> F) {
    for kind in [Kind::Tcp, Kind::Unix] {
        timeout(LIMIT, test(Pair::new(kind).await)).await.expect("the test ends");
    }
}

async fn read_all(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_direction_ends_by_itself() {
    both(|pair| async move {
        let (mut client, mut target) = pair.joined().await;
        let (question, answer) = (pattern(300_000, 1), pattern(5_000_000, 2));
        client.write_all(&question).await.unwrap();
        client.shutdown().await.unwrap();
        assert!(read_all(&mut target).await == question);
        let answering = async {
            target.write_all(&answer).await.unwrap();
            target.shutdown().await.unwrap();
        };
        let ((), received) = tokio::join!(answering, read_all(&mut client));
        assert!(received == answer, "{} bytes", received.len());
        pair.rig.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_before_a_close_arrives() {
    both(|pair| async move {
        let answer = pattern(3_000_000, 3);
        let (mut client, mut target) = pair.joined().await;
        let sent = answer.clone();
        let sending = tokio::spawn(async move {
            target.write_all(&sent).await.unwrap();
            drop(target);
        });
        assert!(read_all(&mut client).await == answer, "from the target");
        sending.await.unwrap();

        let (mut client, mut target) = pair.joined().await;
        let sent = answer.clone();
        let sending = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            drop(client);
        });
        assert!(read_all(&mut target).await == answer, "from the client");
        sending.await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_reads_no_more_is_still_heard() {
    both(|pair| async move {
        let (mut client, mut target) = pair.joined().await;
        target.write_all(b"no, thank you").await.unwrap();
        let mut answer = [0; 13];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"no, thank you");
        drop(target);
        // However the connection ends, a client that goes on writing must not hang.
        while client.write_all(&[0; 65_536]).await.is_ok() {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_not_there_ends_the_connection_and_may_come_back() {
    both(|mut pair| async move {
        drop(pair.target.take());
        // The reset may already come during the connect.
        let end = async { pair.try_connect().await?.read(&mut [0; 1]).await }.await;
        match pair.kind {
            Kind::Tcp => assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset),
            // A Unix socket has no reset.
            Kind::Unix => assert_eq!(end.unwrap(), 0),
        }
        if pair.kind == Kind::Unix {
            let path = pair.rig.directory.path().join("target");
            std::fs::remove_file(&path).unwrap();
            pair.target = Some(Target::Unix(UnixListener::bind(path).unwrap()));
            let (mut client, mut target) = pair.joined().await;
            client.write_all(b"again").await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(read_all(&mut target).await, b"again");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_nobody_offers_ends_the_connection() {
    let rig = Rig::new().await;
    let (near, far) = rig.ends();
    let entrance =
        TcpServer::bind("127.0.0.1:0", near, far.node().id().clone(), service("nobody")).await.unwrap();
    let address = entrance.local_addr().unwrap();
    rig.tasks.spawn(entrance.run(rig.stop.clone()));
    // The reset may already come during the connect.
    let end = async { TcpStream::connect(address).await?.read(&mut [0; 1]).await };
    let end = timeout(LIMIT, end).await.unwrap();
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_do_not_mix() {
    const MANY: usize = 200;
    both(|mut pair| async move {
        let target = pair.target.take().unwrap();
        let echo = tokio::spawn(async move {
            for _ in 0..MANY {
                let mut stream = target.accept().await;
                tokio::spawn(async move {
                    let all = read_all(&mut stream).await;
                    stream.write_all(&all).await.unwrap();
                });
            }
        });
        let (pair, together) = (Arc::new(pair), Arc::new(Barrier::new(MANY)));
        let clients: Vec<_> = (0..MANY)
            .map(|number| {
                let (pair, together) = (pair.clone(), together.clone());
                tokio::spawn(async move {
                    let mut client = pair.connect().await;
                    together.wait().await;
                    let sent = pattern(20_000, number as u32 * 7919);
                    client.write_all(&sent).await.unwrap();
                    client.shutdown().await.unwrap();
                    assert!(read_all(&mut client).await == sent, "connection {number}");
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        echo.await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_its_writer_back_and_misses_nothing() {
    both(|pair| async move {
        let (mut client, mut target) = pair.joined().await;
        let chunk = pattern(65_536, 4);
        let mut written = 0;
        // A write that does not succeed within this time finds no room anywhere on the way.
        while let Ok(wrote) = timeout(std::time::Duration::from_millis(700), client.write(&chunk)).await {
            written += wrote.unwrap();
            assert!(written < 256 << 20, "somebody keeps all of it");
        }
        drop(client);
        let mut received = 0;
        let mut buffer = vec![0; 65_536];
        loop {
            match target.read(&mut buffer).await.unwrap() {
                0 => break,
                read => received += read,
            }
        }
        assert_eq!(received, written);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_ends_cuts_its_connections_and_frees_its_names() {
    both(|pair| async move {
        let (mut client, mut target) = pair.joined().await;
        pair.rig.end().await;
        let _either = client.read(&mut [0; 1]).await;
        let _either = target.read(&mut [0; 1]).await;
        let (_, far) = pair.rig.ends();
        far.listen(service("behind"), None).await.expect("the service is free");
        match pair.kind {
            Kind::Tcp => drop(TcpListener::bind(&pair.entrance).await.expect("the port is free")),
            Kind::Unix => assert!(!std::path::Path::new(&pair.entrance).exists(), "the socket is gone"),
        }
    })
    .await;
}

#[tokio::test]
async fn a_service_says_what_is_behind_it() {
    let rig = Rig::new().await;
    let (near, far) = rig.ends();
    let _tcp = TcpClient::listen(&far, service("t"), "127.0.0.1:9".to_owned(), None, None).await.unwrap();
    let _unix = UnixSocketClient::listen(&far, service("u"), "/run/x".into(), None).await.unwrap();
    crate::node::tests::eventually("both are known", || async {
        let mut tags: Vec<String> = Vec::new();
        for advertisement in near.node().status().await.advertisements.iter() {
            tags.push(format!("{:?}", advertisement.tags.clone().unwrap_or_default()));
        }
        tags.sort();
        tags == [
            r#"{"address": "127.0.0.1:9", "type": "TCP Proxy"}"#,
            r#"{"filename": "/run/x", "type": "Unix Proxy"}"#,
        ]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_is_stopped_half_way_does_not_look_complete() {
    both(|pair| async move {
        let (mut client, mut target) = pair.joined().await;
        client.write_all(b"half").await.unwrap();
        target.write_all(b"half").await.unwrap();
        let mut half = [0; 4];
        target.read_exact(&mut half).await.unwrap();
        client.read_exact(&mut half).await.unwrap();
        let kind = pair.kind;
        pair.rig.end().await;
        let ends = [client.read(&mut half).await, target.read(&mut half).await];
        // A Unix socket has no reset.
        let told = ends.iter().all(Result::is_err) || kind == Kind::Unix;
        assert!(told, "{ends:?}");
    })
    .await;
}
