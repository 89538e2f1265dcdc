//! The command service: terminals, the ends of streams, and no process left behind.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::super::CommandService;
use super::{LIMIT, Rig, service};
use crate::node::tests::eventually;
use crate::stream::MeshStream;

async fn terminal(rig: &Rig, command: &str) -> MeshStream {
    let (near, far) = rig.ends();
    let out = CommandService::listen(&far, service("term"), command, None).await.unwrap();
    rig.tasks.spawn(out.run(rig.stop.clone()));
    near.dial(far.node().id(), service("term")).await.unwrap()
}

async fn rest(stream: &mut MeshStream) -> String {
    let mut all = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut all)).await.expect("the end").unwrap();
    String::from_utf8(all).unwrap()
}

fn lives(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

/// Reads up to a `!` and returns the text before it.
async fn word(stream: &mut MeshStream) -> String {
    let mut word = String::new();
    loop {
        match timeout(LIMIT, stream.read_u8()).await.expect("a word").unwrap() {
            b'!' => return word.trim().to_owned(),
            byte => word.push(byte.into()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_a_terminal_and_all_it_says_arrives() {
    let rig = Rig::new().await;
    let script = "tty >/dev/null && stty size && ps -o tty= -p $$ | grep -c pts; seq 100000; sleep 600 &";
    let mut stream = terminal(&rig, &format!("sh -c {}", shlex::try_quote(script).unwrap())).await;
    let all = rest(&mut stream).await;
    let mut lines = all.lines();
    assert_eq!((lines.next(), lines.next()), (Some("24 80"), Some("1")), "a terminal of its own");
    let numbers: Vec<&str> = lines.collect();
    assert_eq!((numbers.len(), numbers[99_999]), (100_000, "100000"));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_input_is_typed() {
    let rig = Rig::new().await;
    let mut stream = terminal(&rig, "sh -c 'stty -echo; printf ready!; cat; echo done'").await;
    assert_eq!(word(&mut stream).await, "ready");
    stream.write_all(b"a line\n").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, "a line\r\ndone\r\n");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_when_the_stream_ends() {
    let rig = Rig::new().await;
    // Two processes that ignore the hang-up, one of them in the background.
    let script = r#"trap "" HUP; sleep 600 & echo $$ $!!; wait"#;
    let mut stream = terminal(&rig, &format!("bash -c {}", shlex::try_quote(script).unwrap())).await;
    let both = word(&mut stream).await;
    let pids: Vec<&str> = both.split(' ').collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| lives(pid)), "{both}");
    drop(stream);
    eventually("both end", || async { !pids.iter().any(|pid| lives(pid)) }).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_when_the_service_ends() {
    let rig = Rig::new().await;
    let mut stream = terminal(&rig, r#"sh -c 'trap "" HUP; printf %s! $$; sleep 600; sleep 600'"#).await;
    let pid = word(&mut stream).await;
    assert!(lives(&pid), "{pid}");
    rig.stop.cancel();
    let end = timeout(LIMIT, stream.read_u8()).await.expect("the end");
    assert!(
        end.is_err_and(|error| error.kind() != std::io::ErrorKind::UnexpectedEof),
        "it does not look complete"
    );
    rig.end().await;
    assert!(!lives(&pid));
}

#[tokio::test]
async fn a_program_that_is_not_there_ends_the_stream() {
    let rig = Rig::new().await;
    let mut stream = terminal(&rig, "/nonexistent/program").await;
    let end = timeout(LIMIT, stream.read(&mut [0; 1])).await.expect("the end");
    assert!(end.is_err(), "{end:?}");
    let (_, far) = rig.ends();
    assert!(CommandService::listen(&far, service("x"), "an 'open quote", None).await.is_err());
    rig.end().await;
}
