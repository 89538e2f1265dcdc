//! A simulated Kubernetes cluster: an API server on a host of its own that speaks HTTP over the simulated TCP, and its
//! pods. `api`: requests and streams; `pods`: the pods and their workers. It answers only the requests that the product
//! makes.

mod api;
mod pods;

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use meshd_machine::{self as machine, Host};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::history::History;
use super::stand_in::StandIn;
use pods::Pods;

const PORT: u16 = 6443;
/// The token of its clients.
const TOKEN: &str = "hunter2";

/// A cluster, which runs until it is ended.
pub(super) struct Cluster {
    thread: StandIn<Order>,
}

/// What the test makes happen to the cluster.
enum Order {
    /// All connections break, and nobody listens for this time. The server then knows no earlier events; its pods keep
    /// running.
    Restart(Duration),
    /// Somebody else deletes a pod.
    Evict,
    /// Returns the names of all pods.
    Look(oneshot::Sender<Vec<String>>),
}

impl Cluster {
    /// Starts a cluster, whose choices come from this seed.
    pub(super) fn start(host: Host, seed: u64, history: &History) -> Self {
        let history = history.clone();
        let serve = move |orders| serve(Pods::new(host, seed, history), orders);
        Self { thread: StandIn::start("cluster", host, serve) }
    }

    /// The credential for the cluster.
    pub(super) fn credential(host: Host) -> String {
        let server = format!("http://{}:{PORT}", machine::address_of(host));
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x", "namespace": "jobs"}}],
        });
        json!({"kind": "kubernetes", "kubeconfig": kubeconfig.to_string()}).to_string()
    }

    pub(super) fn restart(&self, away: Duration) {
        self.thread.order(Order::Restart(away));
    }

    pub(super) fn evict(&self) {
        self.thread.order(Order::Evict);
    }

    /// The names of all pods.
    pub(super) async fn pods(&self) -> Vec<String> {
        self.thread.ask(Order::Look).await
    }

    /// Ends the cluster, and waits until it has ended.
    pub(super) async fn end(&self) {
        self.thread.end().await;
    }
}

async fn serve(pods: Rc<Pods>, mut orders: mpsc::UnboundedReceiver<Order>) {
    loop {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let listener = TcpListener::bind(address).await.unwrap();
        let mut clients = JoinSet::new();
        let away = loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _from) = accepted.unwrap();
                    clients.spawn_local(api::serve(stream, pods.clone()));
                }
                _ended = clients.join_next(), if !clients.is_empty() => {}
                order = orders.recv() => match order {
                    Some(Order::Restart(away)) => break away,
                    Some(Order::Evict) => pods.evict(),
                    Some(Order::Look(answer)) => drop(answer.send(pods.names())),
                    None => return,
                },
            }
        };
        drop(listener);
        clients.shutdown().await;
        tokio::time::sleep(away).await;
        pods.forget_moments();
    }
}
