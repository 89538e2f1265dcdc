//! A simulated server: a thread on a host of its own, which takes orders from the test.

use std::cell::RefCell;
use std::thread::JoinHandle;
use std::time::Duration;

use meshd_machine::{self as machine, Host};
use tokio::sync::{mpsc, oneshot};

/// Runs until it is ended.
pub(super) struct StandIn<O> {
    host: Host,
    running: RefCell<Option<(mpsc::UnboundedSender<O>, JoinHandle<()>)>>,
}

impl<O: Send + 'static> StandIn<O> {
    /// Starts the server. `serve` returns when there are no more orders.
    pub(super) fn start<F: Future<Output = ()>>(
        name: &str,
        host: Host,
        serve: impl FnOnce(mpsc::UnboundedReceiver<O>) -> F + Send + 'static,
    ) -> Self {
        let (orders, given) = mpsc::unbounded_channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async { serve(given).await });
        };
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = machine::on_host(host, || builder.spawn(run)).unwrap();
        Self { host, running: RefCell::new(Some((orders, thread))) }
    }

    pub(super) fn order(&self, order: O) {
        let running = self.running.borrow();
        let (orders, _) = running.as_ref().expect("it has not been ended");
        let _gone = orders.send(order);
    }

    /// Gives an order, and waits for its answer.
    pub(super) async fn ask<A>(&self, order: impl FnOnce(oneshot::Sender<A>) -> O) -> A {
        let (answer, answered) = oneshot::channel();
        self.order(order(answer));
        answered.await.unwrap()
    }

    /// Ends the server, and waits until its thread has ended.
    pub(super) async fn end(&self) {
        let Some((orders, thread)) = self.running.take() else { return };
        drop(orders);
        while machine::threads_of(self.host) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        thread.join().unwrap();
    }
}
