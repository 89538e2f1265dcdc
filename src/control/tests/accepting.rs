//! Accept loops: which errors they survive, and how many clients they admit.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::rig::{Client, Service, connect, context, until};
use crate::control::ServerLimits;
use crate::control::channel::ClientStream;
use crate::control::listen::{Accept, ClientArrival as Accepted};
use crate::control::peer::ClientPeer;
use crate::control::server::{ClientSessions, accept};
use crate::wire::NameHash;
use crate::work::{Caller, CallerName, Origin};

/// Fails a few times because no descriptors are left, then yields one client, then ends.
struct Exhausted {
    failures: u32,
    client: Option<tokio::io::DuplexStream>,
}

impl Accept for Exhausted {
    async fn accept(&mut self) -> io::Result<Option<Accepted>> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()));
        }
        let peer = ClientPeer {
            caller: Caller::new(Origin::Tcp, false, CallerName::Unknown),
            host: None,
            name: "test".to_owned(),
        };
        Ok(self.client.take().map(|client| (Box::new(client) as Box<dyn ClientStream>, peer)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_without_descriptors_rests_and_tries_on() {
    let (near, far) = tokio::io::duplex(1024);
    let sessions =
        Arc::new(ClientSessions::new(context().await, ServerLimits::default(), CancellationToken::new()));
    let start = tokio::time::Instant::now();
    accept(Exhausted { failures: 5, client: Some(far) }, sessions).await;
    assert!(start.elapsed().as_millis() >= 1000, "it does not spin");
    let mut client = Client::greeted(near).await;
    assert_eq!(client.ask("work list").await, "{}");
}

/// A client, if there is room for one.
async fn admitted(path: &Path) -> Option<Client<UnixStream>> {
    let mut client = Client(BufReader::new(connect(path).await));
    client.line().await.starts_with("Receptor Control").then_some(client)
}

#[tokio::test]
async fn one_client_too_many_is_told_and_room_is_given_back() {
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let service = Service::start(&context().await, limits);
    let first = service.connect().await;
    let mut second = service.connect().await;
    let mut text = String::new();
    connect(&service.path).await.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "ERROR: all 2 control connections are in use\n");
    assert_eq!(second.ask("reload").await, r#"{"Success":true}"#);
    drop(first);
    let path = service.path.clone();
    let mut third = until("room for a third client", || admitted(&path)).await;
    assert_eq!(third.ask("reload").await, r#"{"Success":true}"#);
    drop((second, third));
    service.stop().await;
}

/// Clients that come one after the other.
struct Comers(VecDeque<Accepted>);

impl Accept for Comers {
    async fn accept(&mut self) -> io::Result<Option<Accepted>> {
        Ok(self.0.pop_front())
    }
}

fn tcp(host: &str, trusted: bool) -> ClientPeer {
    let host = Some(host.parse().unwrap());
    ClientPeer {
        caller: Caller::new(Origin::Tcp, trusted, CallerName::Unknown),
        host,
        name: "tcp".to_owned(),
    }
}

fn mesh(name: &str, certified: bool) -> ClientPeer {
    let origin = Origin::Mesh { node: NameHash::of(name), certified };
    ClientPeer { caller: Caller::new(origin, false, CallerName::Unknown), host: None, name: name.to_owned() }
}

fn unix() -> ClientPeer {
    let caller = Caller::new(Origin::Unix, true, CallerName::Unknown);
    ClientPeer { caller, host: None, name: "unix".to_owned() }
}

/// Admits these clients one after the other where a neighbour may have two places; `+` for each that was admitted.
async fn let_in(peers: impl IntoIterator<Item = ClientPeer>) -> String {
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let sessions = Arc::new(ClientSessions::new(context().await, limits, CancellationToken::new()));
    let (mut comers, mut clients) = (VecDeque::new(), Vec::new());
    for peer in peers {
        let (near, far) = tokio::io::duplex(1024);
        comers.push_back((Box::new(far) as Box<dyn ClientStream>, peer));
        clients.push(Client(BufReader::new(near)));
    }
    accept(Comers(comers), sessions).await;
    let mut admitted = String::new();
    for client in &mut clients {
        admitted.push(if client.line().await.starts_with("Receptor Control") { '+' } else { '-' });
    }
    admitted
}

#[tokio::test]
async fn a_stranger_takes_no_place_of_others_whatever_names_and_addresses_it_invents() {
    let hosts = ["10.0.0.7"; 5].map(|host| tcp(host, false));
    assert_eq!(
        let_in(hosts.into_iter().chain([tcp("10.0.0.8", false), tcp("10.0.0.7", true)])).await,
        "++---++"
    );
    let hosts = [1, 2, 3, 4, 5].map(|host| tcp(&format!("2001:db8::{host}"), false));
    assert_eq!(let_in(hosts.into_iter().chain([tcp("2001:db8:0:1::1", false)])).await, "++---+");
    let nodes = ["a", "b", "c", "d", "e"].map(|name| mesh(name, false));
    assert_eq!(let_in(nodes.into_iter().chain([mesh("e", true)])).await, "++---+");
    let trusted = ["127.0.0.1"; 5].map(|host| tcp(host, true));
    assert_eq!(let_in(trusted.into_iter().chain([unix(), unix(), unix()])).await, "++---++-");
}

#[tokio::test]
async fn a_follower_that_leaves_gives_its_room_back_though_the_unit_is_silent() {
    let context = context().await;
    let service = Service::start(&context, ServerLimits { connections: 1, ..ServerLimits::default() });
    let (id, _) = super::rig::session(&context).await.submit("work submit alpha hold", b"").await;
    let path = service.path.clone();
    for half_closed in [true, false] {
        let mut follower = until("room for the follower", || admitted(&path)).await;
        follower.ask(&format!("work results {id}")).await;
        if half_closed {
            follower.shut().await;
        }
        let mut refused = String::new();
        connect(&path).await.read_to_string(&mut refused).await.unwrap();
        assert!(refused.starts_with("ERROR: all 1"), "half a close is not a leave: {refused}");
    }
    let mut last = until("room after the followers", || admitted(&path)).await;
    assert_eq!(last.ask_json(&format!("work status {id}")).await["StateName"], "Running");
    drop(last);
    service.stop().await;
}
