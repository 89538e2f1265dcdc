//! Strangers: a second daemon under a node's name, with files of its own, and a peer that lies.

use std::path::Path;
use std::time::Duration;

use meshd_machine::{self as machine, Host};
use tokio::time::{sleep, timeout};

use super::hostile;
use super::node::Node;
use super::world::{WORK_TYPE, World, host};

/// Strangers' hosts have numbers from here on.
const FIRST: u32 = 5000;

fn next(world: &World) -> u32 {
    world.strangers.replace(world.strangers.get() + 1)
}

/// Runs a daemon with this node's name on another machine, linked to the hop, for this time. Then
/// that machine loses its power for good.
pub(super) async fn twin(world: &World, node: usize, hop: usize, takes_jobs: bool, span: Duration) {
    let number = next(world);
    let mut config = format!("- tcp-peer: {{address: '{}:7000'}}\n", machine::address_of(host(hop)));
    if takes_jobs {
        config += WORK_TYPE;
    }
    let name = &world.names[node];
    let files = Path::new(&world.place).join(format!("twin-{number}"));
    let mut twin = Node::new(&files, Host(FIRST + number), name, &config);
    twin.boot(&world.log);
    sleep(span).await;
    if let Some(crash) = twin.begin_crash(true) {
        crash.finish().await;
    }
}

/// A stranger to the mesh sends lies to this hop for this time.
pub(super) async fn liar(world: &World, hop: usize, span: Duration) {
    let from = Host(FIRST + next(world));
    let _over = timeout(span.max(hostile::STAYS), hostile::attack(world, hop, from)).await;
}
