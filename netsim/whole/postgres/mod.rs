//! A simulated PostgreSQL: a server on a host of its own that speaks the protocol over the simulated TCP, and its
//! faults. `wire`: the protocol's messages; `session`: a connection; `tables`: transactions and a standby's share of
//! them, on SQLite. It answers only the statements of the product.
//!
//! As with PostgreSQL at READ COMMITTED, each statement sees all that was committed before it. Locks are coarser: a
//! transaction that writes or locks a row keeps all others from doing so until it ends.

mod session;
mod tables;
mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use meshd_machine::{self as machine, Host};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::stand_in::StandIn;
use tables::Tables;

const PORT: u16 = 5432;
/// Most transactions that a standby may lack.
pub(super) const BEHIND: usize = 64;

/// A server, which lives until it is dropped.
pub(super) struct Postgres {
    dir: PathBuf,
    thread: StandIn<Order>,
}

/// What the test makes happen to the server.
enum Order {
    /// All connections break, and nobody listens for this time. Committed transactions stay.
    Restart(Duration),
    /// The same, and then a standby takes over that lacks this many of the last transactions. Answers with the time
    /// since which transactions are lost.
    FailOver(Duration, usize, oneshot::Sender<Option<Duration>>),
}

impl Postgres {
    /// Starts a server with its files in this directory.
    pub(super) fn start(host: Host, dir: PathBuf) -> Self {
        let files = dir.clone();
        let thread = StandIn::start("postgres", host, move |orders| serve(files, orders));
        Self { dir, thread }
    }

    /// The store's URL in a controller's settings.
    pub(super) fn url(host: Host) -> String {
        format!("postgresql://meshd@{}:{PORT}/meshd?sslmode=disable", machine::address_of(host))
    }

    pub(super) fn restart(&self, away: Duration) {
        self.thread.order(Order::Restart(away));
    }

    /// Returns once the standby has taken over, with the time since which transactions are lost, if any.
    pub(super) async fn fail_over(&self, away: Duration, lost: usize) -> Option<Duration> {
        self.thread.ask(|answer| Order::FailOver(away, lost, answer)).await
    }

    /// The file with all committed data.
    pub(super) fn file(&self) -> PathBuf {
        Tables::newest(&self.dir)
    }

    /// Ends the server, and waits until it has ended.
    pub(super) async fn end(&self) {
        self.thread.end().await;
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
