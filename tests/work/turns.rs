//! Round trips between two nodes, counted instead of timed, and compared with the table in docs/performance.md.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use meshd::controller::children::RegistryChildren;
use meshd::controller::core::ChildEnd;
use meshd::controller::driver::world::{ChildInput, ChildNews, ChildRequest, Children as _};
use meshd::rpc::request::SubmitRequest;
use meshd::work::{Leftovers, Outcome, Started, State, UnitReport};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::at_once::signing;
use crate::harness::*;
use crate::inherited_pods::end_of;
use crate::remote::{Pair, child, sh, starts};

/// Counts the turns that a dialer waits for, one after the other, on all of its connections. An answer on a connection
/// takes one turn more than had been taken when the last byte was sent on it. Can hold back answers that take more
/// turns than it allows.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<TurnsTaken>,
    held: Notify,
}

#[derive(Default)]
struct TurnsTaken {
    taken: u32,
    most: Option<u32>,
    waiting: Vec<Waker>,
}

impl Turns {
    /// Allows so many turns from here on.
    pub(crate) fn allow(&self, more: u32) {
        let mut state = self.state.lock().unwrap();
        state.most = Some(state.taken + more);
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Allows any number of turns.
    pub(crate) fn allow_all(&self) {
        let mut state = self.state.lock().unwrap();
        state.most = None;
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Completes once an answer waits for a turn that is not allowed.
    pub(crate) async fn held(&self) {
        self.held.notified().await;
    }

    fn taken(&self) -> u32 {
        self.state.lock().unwrap().taken
    }

    fn is_allowed(&self, turn: u32, cx: &Context<'_>) -> bool {
        let mut state = self.state.lock().unwrap();
        let is_allowed = state.most.is_none_or(|most| turn <= most);
        if !is_allowed {
            state.waiting.push(cx.waker().clone());
            self.held.notify_one();
        }
        is_allowed
    }

    fn take(&self, turn: u32) {
        let mut state = self.state.lock().unwrap();
        state.taken = state.taken.max(turn);
    }
}

/// The near end of a connection. Dropping it without a shutdown breaks the connection, as with a stream over
/// the mesh: the far end must not take the data for complete.
pub(crate) struct Strict {
    stream: DuplexStream,
    shut: bool,
    far: AbortHandle,
    turns: Arc<Turns>,
    /// The turns that had been taken when something was sent last.
    sent_at: u32,
}

impl Strict {
    pub(crate) fn new(stream: DuplexStream, far: AbortHandle, turns: Arc<Turns>) -> Self {
        let sent_at = turns.taken();
        Self { stream, shut: false, far, turns, sent_at }
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        if !self.shut {
            self.far.abort();
        }
    }
}

impl AsyncRead for Strict {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let turn = self.sent_at + 1;
        if !self.turns.is_allowed(turn, cx) {
            return Poll::Pending;
        }
        let before = to.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, to);
        if to.filled().len() > before {
            self.turns.take(turn);
        }
        read
    }
}

impl AsyncWrite for Strict {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.sent_at = self.turns.taken();
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (self.shut, self.sent_at) = (true, self.turns.taken());
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The number of turns in a row of the table in docs/performance.md.
fn row(name: &str) -> u32 {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
    let page = std::fs::read_to_string(page).unwrap();
    let row = page.lines().find_map(|line| line.strip_prefix(&format!("| {name} | "))).expect(name);
    row.trim_end_matches(" |").parse().unwrap()
}

/// Checks that a future takes exactly so many turns.
async fn takes<T: Send + 'static>(
    pair: &Pair,
    turns: u32,
    what: impl Future<Output = T> + Send + 'static,
) -> T {
    let counted = pair.mesh.turns();
    counted.allow(turns - 1);
    let done = tokio::spawn(what);
    within(counted.held()).await;
    // Waits until everything that is sent at first has arrived. If the greeting came in the middle, bytes sent after it
    // would be answered a turn later.
    let is_sent = |report: &UnitReport| report.state != State::Pending;
    within(async {
        while turns == 1 && !pair.far.list(None).await.unwrap().values().any(is_sent) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!done.is_finished(), "fewer than {turns} turns are enough");
    counted.allow(1);
    let done = within(done).await.unwrap();
    counted.allow_all();
    done
}

#[tokio::test]
async fn a_start_takes_as_many_turns_as_the_table_says() {
    let pair = signing().await;
    let near = pair.near.clone();
    let turns = row("`work submit`, until `Job Started`");
    let (_, started) = takes(&pair, turns, async move { starts(&near, sh("echo x")).await }).await;
    assert_eq!(started, Started::Started);
    let pair = signing().await;
    let near = pair.near.clone();
    let echo = async move {
        let id = run_as(&near, request("n2", "cat", ""), &bytes(60_000)).await;
        collect(&near, &id, 0).await
    };
    let turns = row("`work submit`, until the end of its output");
    assert_eq!(takes(&pair, turns, echo).await, bytes(60_000));
}

#[tokio::test]
async fn a_large_payload_is_there_before_anything_has_come_back() {
    let pair = signing().await;
    let (near, payload) = (pair.near.clone(), bytes(3_000_000));
    pair.mesh.turns().allow(0);
    let asked = SubmitRequest { unit_id: Some("large123".into()), ..request("n2", "cat", "") };
    let sent = payload.clone();
    let id = tokio::spawn(async move { run_as(&near, asked, &sent).await });
    within(async {
        while pair.far.status("large123").await.map_or(true, |report| report.stdout_size < 3_000_000) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!id.is_finished());
    pair.mesh.turns().allow(1);
    let id = within(id).await.unwrap();
    assert!(collect(&pair.near, &id, 0).await == payload);
}

#[tokio::test]
async fn fifty_at_once_wait_for_nothing_but_one_turn() {
    let pair = signing().await;
    pair.mesh.turns().allow(0);
    let payload = bytes(60_000);
    let jobs: Vec<_> = (0..50)
        .map(|_| {
            let (near, payload) = (pair.near.clone(), payload.clone());
            tokio::spawn(async move {
                let id = run_as(&near, request("n2", "cat", ""), &payload).await;
                collect(&near, &id, 0).await
            })
        })
        .collect();
    // All units are on the far node and have run before any answer has come back.
    within(async {
        let has_run = |report: &UnitReport| report.stdout_size == 60_000;
        while pair.far.list(None).await.unwrap().values().filter(|report| has_run(report)).count() < 50 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert!(jobs.iter().all(|job| !job.is_finished()));
    pair.mesh.turns().allow(1);
    for job in jobs {
        assert!(within(job).await.unwrap() == payload);
    }
}

#[tokio::test]
async fn other_requests_take_as_many_turns_as_the_table_says() {
    let pair = signing().await;
    let fifo = pair.temp.path().join("fifo");
    let id = pair
        .run(&format!("mkfifo {0}; echo one; read x <{0}; echo two; exec sleep 1000", fifo.display()))
        .await;
    until(&pair.near, &id, |report| report.stdout_size == 4).await;
    pair.mesh.cut();
    let (near, unit) = (pair.near.clone(), id.clone());
    let more = async move {
        tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap()).await.unwrap();
        until(&near, &unit, |report| report.stdout_size == 8).await
    };
    takes(&pair, row("following a unit again, after its connection broke"), more).await;
    let (near, unit) = (pair.near.clone(), id.clone());
    let cancel = async move { near.cancel(&unit, &me()).await };
    assert_eq!(takes(&pair, row("`work cancel`"), cancel).await.unwrap(), Outcome::Done);
    finished(&pair.near, &id).await;
    let near = pair.near.clone();
    let release = async move { near.release(&id, false, &me()).await };
    assert_eq!(takes(&pair, row("`work release`"), release).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_promise_takes_as_many_turns_as_the_table_says() {
    let pair = signing().await;
    let children = RegistryChildren(pair.near.clone());
    let unit = "c000000abn1a1r00000001";
    let end = async move {
        children.adopt(child(unit)).await.unwrap();
        let mut stream = children.follow(unit.to_owned(), 0).await;
        stream.next().await
    };
    let turns = row("`work adopt` of a unit that is not there, until its promise");
    assert!(matches!(takes(&pair, turns, end).await, ChildNews::Ended { end: ChildEnd::Unknown, .. }));
}

/// The commands of AWX for a job, over control sockets and with signatures.
const AWX: &str = "AWX's `status`, `work submit`, `work results`, `work status`, `work release`";
const MESHCTL: &str = "`meshctl work submit --follow --rm`";

#[tokio::test]
async fn awx_and_a_shell_take_as_many_turns_as_the_table_says() {
    let (job, release) = (row("`work submit`, until the end of its output"), row("`work release`"));
    for (name, sign_work) in [(AWX, true), (MESHCTL, false)] {
        let pair = signing().await;
        // This node answers the questions before and between the commands itself, without a turn.
        pair.mesh.turns().allow(0);
        within(pair.near.list(None)).await.unwrap();
        let near = pair.near.clone();
        let asked =
            SubmitRequest { sign_work, ..request("n2", if sign_work { "signed" } else { "cat" }, "") };
        let run = async move {
            let id = run_as(&near, asked, &bytes(60_000)).await;
            let output = collect(&near, &id, 0).await;
            (id, output)
        };
        let (id, output) = takes(&pair, job, run).await;
        assert!(output == bytes(60_000), "{name}");
        pair.mesh.turns().allow(0);
        assert!(within(pair.near.status(&id)).await.unwrap().state.is_final());
        let near = pair.near.clone();
        let released = takes(&pair, release, async move { near.release(&id, false, &me()).await });
        assert_eq!(released.await.unwrap(), Outcome::Done, "{name}");
        assert_eq!(job + release, row(name), "{name}");
    }
}

#[tokio::test]
async fn a_job_of_the_controller_takes_as_many_turns_as_the_table_says() {
    let pair = signing().await;
    let unit = "c000000abn1a1r00000001";
    let children = Arc::new(RegistryChildren(pair.near.clone()));
    let placing = children.clone();
    let place = async move {
        let asked = ChildRequest { params: "'echo x; exec sleep 1000'".to_owned(), ..child(unit) };
        let input = ChildInput { head: bytes(60_000), files: Vec::new() };
        assert!(placing.send(asked, input).await.unwrap());
        let mut stream = placing.follow(unit.to_owned(), 0).await;
        (stream.next().await, stream)
    };
    let turns = row("a job of the controller, until its node has accepted it");
    let (first, _reads) = takes(&pair, turns, place).await;
    assert!(matches!(first, ChildNews::Accepted));
    eventually("it runs", || children.detail(unit).is_some_and(|now| now.starts_with("Running"))).await;
    // This node answers for the state itself, without a turn.
    pair.mesh.turns().allow(0);
    assert!(children.detail(unit).is_some_and(|detail| detail.starts_with("Running")));
    let cancelling = children.clone();
    let cancel = async move { cancelling.cancel(unit.to_owned()).await };
    assert!(takes(&pair, row("`work cancel`"), cancel).await);
    assert_eq!(end_of(&children, unit).await.0, ChildEnd::Canceled);
    let release = async move { children.release(unit.to_owned(), Leftovers::End).await };
    assert!(takes(&pair, row("`work release`"), release).await);
    assert!(pair.far.list(None).await.unwrap().is_empty());
}
