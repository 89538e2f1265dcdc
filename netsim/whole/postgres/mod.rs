//! What stands for PostgreSQL: a server on a host of its own that speaks the protocol on the simulated TCP, and what can happen
//! to it. `wire`: the protocol's messages; `session`: a connection; `tables`: transactions and what a standby has of them, on
//! SQLite. It answers to what the product asks, and to nothing else.
//!
//! As with PostgreSQL at READ COMMITTED, each statement sees all that was committed before it. Locks are coarser: whoever
//! writes, or locks a row, keeps all others from doing so until the end of its transaction.

mod session;
mod tables;
mod wire;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use meshd_machine::{self as machine, Host};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use tables::Tables;

const PORT: u16 = 5432;
/// So many transactions a standby may be behind.
pub(super) const BEHIND: usize = 64;

/// A server, which lives until it is dropped.
pub(super) struct Postgres {
    host: Host,
    dir: PathBuf,
    orders: RefCell<Option<mpsc::UnboundedSender<Order>>>,
    thread: RefCell<Option<JoinHandle<()>>>,
}

/// What happens to it.
enum Order {
    /// All connections break, and nobody listens for so long. What was committed stays.
    Restart(Duration),
    /// The same; and a standby takes over that has not got so many of the last transactions. Answers since when they were lost.
    FailOver(Duration, usize, oneshot::Sender<Option<Duration>>),
}

impl Postgres {
    /// Starts one whose files are in this directory.
    pub(super) fn start(host: Host, dir: PathBuf) -> Self {
        let (orders, given) = mpsc::unbounded_channel();
        let files = dir.clone();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, serve(files, given));
        };
        let builder = std::thread::Builder::new().name("postgres".to_owned());
        let thread = machine::on_host(host, || builder.spawn(serve)).unwrap();
        Self { host, dir, orders: RefCell::new(Some(orders)), thread: RefCell::new(Some(thread)) }
    }

    /// What a controller has as its store.
    pub(super) fn url(host: Host) -> String {
        format!("postgresql://meshd@{}:{PORT}/meshd?sslmode=disable", machine::address_of(host))
    }

    pub(super) fn restart(&self, away: Duration) {
        self.order(Order::Restart(away));
    }

    /// Returns since when transactions were lost, if any were, once the standby has taken over.
    pub(super) async fn fail_over(&self, away: Duration, lost: usize) -> Option<Duration> {
        let (answer, answered) = oneshot::channel();
        self.order(Order::FailOver(away, lost, answer));
        answered.await.unwrap()
    }

    fn order(&self, order: Order) {
        let _gone = self.orders.borrow().as_ref().map(|orders| orders.send(order));
    }

    /// The file of what it has committed.
    pub(super) fn file(&self) -> PathBuf {
        Tables::newest(&self.dir)
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn end(&self) {
        self.orders.take();
        while machine::threads_of(self.host) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let thread = self.thread.take();
        if let Some(thread) = thread {
            thread.join().unwrap();
        }
    }
}

async fn serve(dir: PathBuf, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut tables = Rc::new(Tables::new(&dir));
    loop {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let listener = TcpListener::bind(address).await.unwrap();
        let mut sessions = JoinSet::new();
        let order = loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _from) = accepted.unwrap();
                    sessions.spawn_local(session::serve(stream, tables.clone()));
                }
                _ended = sessions.join_next(), if !sessions.is_empty() => {}
                order = orders.recv() => break order,
            }
        };
        drop(listener);
        sessions.shutdown().await;
        match order {
            None => return,
            Some(Order::Restart(away)) => tokio::time::sleep(away).await,
            Some(Order::FailOver(away, lost, answer)) => {
                let standby = Rc::into_inner(tables).expect("all sessions have ended");
                let (standby, lost) = standby.fail_over(lost);
                tables = Rc::new(standby);
                let _gone = answer.send(lost);
                tokio::time::sleep(away).await;
            }
        }
    }
}
