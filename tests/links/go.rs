//! One meshd node among Go nodes: each kind of link, dialled from either side, in each role.

use std::path::Path;

use super::mesh::{Kind, Node, Plan, megabytes};
use super::port::free_port;
use super::receptor;

const LINE: [&str; 3] = ["control", "hop", "execution"];

receptor::beside_go_nodes!(tcp, udp, websocket);

fn run(kind: Kind, go: &Path) {
    let size = megabytes(2) << 20;
    for (role, name) in LINE.into_iter().enumerate() {
        for we_dial in [true, false] {
            let took = cell(kind, role, we_dial, go, size);
            let dialer = if we_dial { "meshd" } else { "receptor" };
            println!("{kind:?}: we are {name:9}, {dialer:8} dials: {size} bytes each way in {took:.1?}");
        }
    }
}

fn cell(kind: Kind, role: usize, we_dial: bool, go: &Path, size: usize) -> std::time::Duration {
    let root = tempfile::tempdir().unwrap();
    let mut directives = [vec![], vec![], vec![]];
    for left in 0..LINE.len() - 1 {
        let right = left + 1;
        // Where neither end is ours, the left one dials.
        let left_dials = if left == role { we_dial } else { right != role || !we_dial };
        let (dialer, listener) = if left_dials { (left, right) } else { (right, left) };
        let port = free_port();
        directives[listener].push(kind.listener(port));
        directives[dialer].push(kind.peer(port));
    }
    let ours = Path::new(env!("CARGO_BIN_EXE_meshd"));
    // Listeners first if possible: a refused peer waits, a Go node for 5 s.
    let mut plans: Vec<_> = LINE.into_iter().zip(directives).enumerate().collect();
    plans.sort_by_key(|(_, (_, directives))| !directives.iter().any(|d| d.to_string().contains("listener")));
    let mut nodes: Vec<(usize, Node)> = plans
        .into_iter()
        .map(|(at, (id, directives))| {
            let program = if at == role { ours } else { go };
            (at, Node::start(root.path(), Plan { program, id, directives }))
        })
        .collect();
    nodes.sort_by_key(|(at, _)| *at);
    let control = &nodes[0].1;
    control.wait_for("execution");
    nodes[2].1.wait_for("control");
    control.echo("execution", size)
}

fn tcp(go: &Path) {
    run(Kind::Tcp, go);
}

fn udp(go: &Path) {
    run(Kind::Udp, go);
}

fn websocket(go: &Path) {
    run(Kind::Ws, go);
}
