//! The sockets themselves: permissions, locks, leftovers, and the three ways in.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::net::TcpStream;

use super::rig::{Client, DEADLINE, Service, context, session as talk};
use crate::control::channel::ClientStream;
use crate::control::peer::ClientPeer;
use crate::control::session;
use crate::control::stop::Stop;
use crate::control::{ListenError, Server, ServerLimits};
use crate::os::unix_socket::UnixBindError;
use crate::wire::ServiceName;
use crate::work::Caller;
use tokio_util::sync::CancellationToken;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

async fn server() -> Server {
    Server::new(context().await, ServerLimits::default())
}

async fn bound(path: &Path) -> Result<(), ListenError> {
    server().await.listen_unix(path, 0o600)
}

#[tokio::test]
async fn a_socket_has_exactly_the_mode_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    for wanted in [0o600, 0o660, 0o666] {
        let path = directory.path().join(format!("new/deep/{wanted:o}"));
        let mut server = server().await;
        server.listen_unix(&path, wanted).unwrap();
        assert_eq!(mode(&path), wanted);
    }
}

#[tokio::test]
async fn two_daemons_never_share_a_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut first = server().await;
    first.listen_unix(&path, 0o600).unwrap();
    let error = bound(&path).await.unwrap_err();
    assert!(matches!(error, ListenError::Unix(UnixBindError::InUse(_))), "{error}");
    assert!(error.to_string().contains("s is in use by another daemon"), "{error}");
    assert!(path.exists(), "the first keeps its socket");
    drop(first);
    assert!(!path.exists());
    bound(&path).await.unwrap();
}

#[tokio::test]
async fn a_leftover_socket_is_replaced_and_other_files_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let stale = directory.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    bound(&stale).await.unwrap();

    let data = directory.path().join("data");
    std::fs::write(&data, "precious").unwrap();
    assert!(matches!(bound(&data).await, Err(ListenError::Unix(UnixBindError::NotASocket(_)))));
    assert_eq!(std::fs::read(&data).unwrap(), b"precious");
    assert!(matches!(
        bound(&directory.path().join("x".repeat(108))).await,
        Err(ListenError::Unix(UnixBindError::PathTooLong(_)))
    ));
    assert!(matches!(bound(&data.join("below")).await, Err(ListenError::Unix(UnixBindError::Step { .. }))));
}

#[tokio::test]
async fn a_socket_that_somebody_else_put_there_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut server = server().await;
    server.listen_unix(&path, 0o600).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.exists());
}

#[tokio::test]
async fn clients_come_by_tcp_and_through_the_mesh_too() {
    let context = context().await;
    let mut server = Server::new(context.clone(), ServerLimits::default());
    let address = server.listen_tcp("127.0.0.1:0", None).await.unwrap();
    server.listen_mesh(ServiceName::CONTROL, None).await.unwrap();
    assert!(matches!(server.listen_mesh(ServiceName::CONTROL, None).await, Err(ListenError::Mesh(_))));
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.run(CancellationToken::new(), stop.clone()));
    let mut tcp = Client::greeted(TcpStream::connect(address).await.unwrap()).await;
    assert_eq!(tcp.ask("reload").await, r#"{"Success":true}"#);
    let stream = context.streams.dial(context.node.id(), ServiceName::CONTROL).await.unwrap();
    let mut mesh = Client::greeted(stream).await;
    assert_eq!(mesh.ask("work list").await, "{}");
    stop.cancel();
    task.await.unwrap();
    assert_eq!(tcp.rest().await, b"");
    assert_eq!(mesh.rest().await, b"");
}

#[tokio::test]
async fn a_client_of_the_mesh_that_reads_results_and_goes_away_is_noticed() {
    let context = context().await;
    let (id, _) = talk(&context).await.submit("work submit alpha hold", b"so far\n").await;
    let mut listener = context.streams.listen(ServiceName::new("results").unwrap(), None).await.unwrap();
    let dial = context.streams.dial(context.node.id(), ServiceName::new("results").unwrap());
    let (dialled, accepted) = tokio::join!(dial, listener.accept());
    let serving = context.clone();
    let served = tokio::spawn(async move {
        let peer = ClientPeer { caller: Caller::local(), host: None, name: "test".to_owned() };
        let link: Box<dyn ClientStream> = Box::new(accepted.unwrap());
        session::run(&serving, link, &peer, &ServerLimits::default(), &Stop::default()).await;
    });
    let mut client = Client::greeted(dialled.unwrap()).await;
    client.send(format!("work results {id}\n")).await;
    // Half-closes at once, as receptorctl does.
    client.shut().await;
    assert_eq!(client.line().await, format!("Streaming results for work unit {id}"));
    assert_eq!(client.line().await, "so far");
    drop(client);
    tokio::time::timeout(DEADLINE, served).await.expect("the session ends").unwrap();
}

#[tokio::test]
async fn tcp_addresses_come_in_every_notation() {
    for address in ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::1]:0"] {
        assert!(server().await.listen_tcp(address, None).await.is_ok(), "{address}");
    }
    for address in ["127.0.0.1:65536", "", "nonsense"] {
        let error = server().await.listen_tcp(address, None).await.unwrap_err();
        assert!(matches!(error, ListenError::Tcp { .. }), "{address}: {error}");
    }
}

#[tokio::test]
async fn a_stopped_service_cuts_what_does_not_end() {
    let limits = ServerLimits { grace: std::time::Duration::ZERO, ..ServerLimits::default() };
    let context = context().await;
    let service = Service::start(&context, limits);
    let mut sender = service.connect().await;
    assert!(sender.ask("work submit alpha hold").await.contains("Send stdin data"));
    service.stop().await;
    assert_eq!(sender.rest().await, b"");
}

#[tokio::test]
async fn what_is_streamed_ends_with_the_daemon_at_once() {
    let context = context().await;
    let service = Service::start(&context, ServerLimits { grace: 2 * DEADLINE, ..ServerLimits::default() });
    let mut readers = Vec::new();
    // The server does not read the whole long line.
    for (command, payload) in [("results", 1 << 20), ("results", 1), ("follow", 1)] {
        let (id, _) = service.connect().await.submit("work submit alpha hold", &vec![b'x'; payload]).await;
        let mut reader = service.connect().await;
        reader.ask(&format!("work {command} {id}")).await;
        readers.push(reader);
    }
    service.stop().await;
    for mut reader in readers {
        reader.rest().await;
    }
}
