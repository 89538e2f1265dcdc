//! Clients that send garbage, vanish, or never read, on real sockets, while an honest client is still served.

use std::io::{self, ErrorKind};
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::rig::{Client, DEADLINE, Service, connect, context, session, until};
use crate::control::{Server, ServerLimits};
use crate::wire::ServiceName;

async fn serves(client: &mut Client<UnixStream>) {
    assert_eq!(client.ask("reload").await, r#"{"Success":true}"#);
}

#[tokio::test]
async fn garbage_is_answered_with_errors() {
    let service = Service::start(&context().await, ServerLimits::default());
    let mut honest = service.connect().await;
    let mut runner = TestRunner::deterministic();
    for _ in 0..50 {
        let garbage = proptest::collection::vec(0_u8..=255, 1..4000).new_tree(&mut runner).unwrap().current();
        let mut client = service.connect().await;
        client.send(&garbage).await;
        client.shut().await;
        let answers = client.rest().await;
        assert!(answers.split(|&b| b == b'\n').all(|line| line.is_empty() || line.starts_with(b"ERROR: ")));
    }
    serves(&mut honest).await;
    service.stop().await;
}

#[tokio::test]
async fn nothing_that_a_web_page_sends_is_a_command() {
    let context = context().await;
    let mut server = Server::new(context.clone(), ServerLimits::default());
    let address = server.listen_tcp("127.0.0.1:0", None).await.unwrap();
    server.listen_mesh(ServiceName::CONTROL, None).await.unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.run(CancellationToken::new(), stop.clone()));
    for first in [
        "POST / HTTP/1.1",
        "GET / HTTP/1.0",
        "OPTIONS /a b HTTP/1.1",
        "PRI * HTTP/2.0",
        "\u{16}\u{3}\u{1}",
        "ping",
    ] {
        let request = format!("{first}\r\nHost: localhost\r\n\r\nwork submit alpha echo\nreload\n");
        let mut page = Client::greeted(TcpStream::connect(address).await.unwrap()).await;
        page.send(&request).await;
        let answer = String::from_utf8(page.rest().await).unwrap();
        assert!(answer.starts_with("ERROR: ") && answer.lines().count() == 1, "{first}: {answer}");
        assert_eq!(answer.contains("neither HTTP nor TLS"), first != "ping", "{first}: {answer}");
        // Through one of our proxies.
        let stream = context.streams.dial(context.node.id(), ServiceName::CONTROL).await.unwrap();
        let mut page = Client::greeted(stream).await;
        page.send(&request).await;
        page.shut().await;
        let is_alone = String::from_utf8(page.rest().await).unwrap().lines().count() == 1;
        assert_eq!(is_alone, first != "ping", "{first}");
    }
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn two_hundred_megabytes_without_a_newline_are_cut() {
    let service = Service::start(
        &context().await,
        ServerLimits { linger: Duration::from_millis(50), ..ServerLimits::default() },
    );
    let mut honest = service.connect().await;
    let (mut answers, mut line) = connect(&service.path).await.into_split();
    let writer = tokio::spawn(async move {
        let chunk = vec![b'x'; 1024 * 1024];
        for _ in 0..200 {
            // The write may fail, because the server may have closed the connection already.
            if line.write_all(&chunk).await.is_err() {
                return;
            }
        }
    });
    let mut text = Vec::new();
    // A reset after the text is possible, as the client goes on sending.
    let _ = timeout(DEADLINE, answers.read_to_end(&mut text)).await.expect("an end");
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.lines().nth(1), Some("ERROR: control line exceeds 1048576 bytes"));
    timeout(DEADLINE, writer).await.expect("the writer is not held").unwrap();
    serves(&mut honest).await;
    service.stop().await;
}

#[tokio::test]
async fn half_a_line_and_away() {
    let service = Service::start(&context().await, ServerLimits::default());
    let mut honest = service.connect().await;
    for half in ["", "work stat", r#"{"command":"work","#, "work submit alpha echo"] {
        let mut client = service.connect().await;
        client.send(half).await;
        drop(client);
    }
    serves(&mut honest).await;
    drop(honest);
    service.stop().await;
}

#[tokio::test]
async fn a_client_reset_amid_its_payload_fails_the_unit() {
    let context = context().await;
    let mut server = Server::new(context.clone(), ServerLimits::default());
    let address = server.listen_tcp("127.0.0.1:0", None).await.unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.run(CancellationToken::new(), stop.clone()));
    let mut client = Client::greeted(TcpStream::connect(address).await.unwrap()).await;
    let created = client.ask("work submit alpha echo").await;
    let id = created.split(' ').nth(5).unwrap().trim_end_matches('.').to_owned();
    client.send("half of").await;
    // With no time to linger, the close resets the connection.
    socket2::SockRef::from(client.0.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let status = until("the unit fails", || async {
        let status = session(&context).await.ask_json(&format!("work status {id}")).await;
        (status["StateName"] == "Failed").then_some(status)
    })
    .await;
    let detail = status["Detail"].as_str().unwrap();
    assert!(detail.starts_with("Error reading input data: the client went away after 7 bytes"), "{detail}");
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_client_that_never_reads_is_let_go_in_the_end() {
    let service = Service::start(
        &context().await,
        ServerLimits { idle: Duration::from_millis(100), ..ServerLimits::default() },
    );
    let deaf = connect(&service.path).await;
    let asking = async {
        loop {
            deaf.writable().await?;
            match deaf.try_write(b"status\nstatus\nstatus\nstatus\n") {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return io::Result::<()>::Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    };
    let end = timeout(DEADLINE, asking).await.expect("the server hangs up");
    assert!(end.is_err());
    serves(&mut service.connect().await).await;
    service.stop().await;
}

#[tokio::test]
async fn a_slow_reader_of_results_holds_nobody_up() {
    let context = context().await;
    let service = Service::start(&context, ServerLimits::default());
    let payload = vec![b'z'; 4_000_000];
    let (id, _) = service.connect().await.submit("work submit alpha echo", &payload).await;
    let mut slow = service.connect().await;
    slow.ask(&format!("work results {id}")).await;
    let mut quick = service.connect().await;
    quick.ask(&format!("work results {id}")).await;
    assert_eq!(quick.rest().await.len(), payload.len());
    assert_eq!(slow.rest().await.len(), payload.len(), "and it gets everything when it reads");
    service.stop().await;
}
