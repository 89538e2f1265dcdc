//! What a run leaves behind. Once all jobs are released and nothing happens any more, nodes hold no more threads,
//! descriptors, files and memory than after a fresh start, and a controller's store has only the rows of its jobs.
//!
//! What a node holds is measured by what its end gives back. Descriptors are counted for all nodes together, because it
//! is not known which node has opened them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use meshd_machine as machine;
use tokio::time::sleep;

use super::runner::jobs_of;
use super::world::{World, host};

/// After this time idle threads and payloads of ended jobs are gone, which nodes keep for a while.
const QUIET: Duration = Duration::from_secs(130);

/// The number of things of each kind.
type Counts = BTreeMap<String, usize>;

/// A file that outlives a node's units for long: promises not to run units that never existed
/// (src/work/units/disclaimed.rs).
const STAYS: &str = ".disclaimed";
/// Idle threads in a pool that periodic work may keep alive.
const SPARE: usize = 2;
const THREADS: &str = "threads of ";
const BYTES: &str = "bytes of ";
/// Bytes that a node may hold: of what it keeps for a while, and of what liars have sent.
const MEMORY: usize = 512 << 10;
const OF_LIARS: usize = 2 << 20;
/// Connections with PostgreSQL that a control node keeps once it has needed them (src/controller/store/postgres.rs),
/// and the sockets of one here: both ends, and those of the carrier.
const POOL: usize = 8;
const SOCKETS: usize = 4;
/// A descriptor that a node has once it has been asked for an output.
const LATER: &str = "anon_inode:inotify";

/// Restarts all nodes, and returns what they held too much of; `fresh` are the files of nodes that had just started.
pub(super) async fn check(world: &World, fresh: &BTreeSet<String>) -> Vec<String> {
    sleep(QUIET).await;
    let files = files(world);
    let is_half_made = |file: &str| {
        let unit = Path::new(&world.place).join(file);
        let unit = unit.parent().expect("files are in directories");
        let mut nodes = world.nodes.iter();
        nodes.any(|node| unit.starts_with(node.borrow().units()) && node.borrow().is_half_made(unit))
    };
    let left = files.difference(fresh).filter(|file| !file.ends_with(STAYS) && !is_half_made(file));
    let mut missed: Vec<String> = left.map(|file| format!("a file is left: {file}")).collect();
    let used = end_all(world).await;
    match &world.postgres {
        Some(postgres) => missed.extend(rows(world, "the store", &postgres.file())),
        None => {
            for name in &world.names[..world.controls] {
                let dir = Path::new(&world.place).join(name).join("data").join(name);
                missed.extend(rows(world, name, &dir.join(".controller/store.db")));
            }
        }
    }
    (0..world.nodes.len()).for_each(|node| world.boot(node));
    sleep(QUIET).await;
    let fresh = end_all(world).await;
    for (kind, count) in used {
        let usual = fresh.get(&kind).copied().unwrap_or_default();
        let most = match kind.as_str() {
            LATER => usual.max(world.nodes.len()),
            _ if kind.starts_with(THREADS) => usual + SPARE,
            _ if kind.starts_with("bytes of hop") => usual + OF_LIARS,
            _ if kind.starts_with(BYTES) => usual + MEMORY,
            "socket" if world.postgres.is_some() => usual + world.controls * POOL * SOCKETS,
            _ => usual,
        };
        if count > most {
            missed.push(format!("{count} are held, and {usual} after a fresh start: {kind}"));
        }
    }
    missed
}

/// The files that all nodes have.
pub(super) fn files(world: &World) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for name in &world.names[..world.nodes.len()] {
        walk(Path::new(&world.place), Path::new(name), &mut found);
    }
    found
}

fn walk(root: &Path, below: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(root.join(below)).into_iter().flatten().flatten() {
        let name = below.join(entry.file_name());
        if entry.path().is_dir() {
            walk(root, &name, found);
        } else {
            found.insert(name.display().to_string());
        }
    }
}

/// Ends all nodes. Returns what they held.
async fn end_all(world: &World) -> Counts {
    let mut held = Counts::new();
    for (node, name) in world.names.iter().enumerate().take(world.nodes.len()) {
        let hosts = [host(node), jobs_of(host(node))];
        held.insert(format!("{THREADS}{name}"), hosts.into_iter().map(machine::threads_of).sum());
    }
    let (before, memory) = (descriptors(world), memory(world));
    world.end().await;
    // The nodes' connections end a moment later.
    sleep(Duration::from_secs(1)).await;
    // What a node's end does not give back belongs to the process.
    for (kind, bytes) in self::memory(world) {
        held.insert(kind.clone(), memory[&kind].saturating_sub(bytes));
    }
    let after = descriptors(world);
    for (kind, count) in before {
        let rest = after.get(&kind).copied().unwrap_or_default();
        held.insert(kind, count.saturating_sub(rest));
    }
    held
}

/// The bytes that the threads of each node hold.
fn memory(world: &World) -> Counts {
    let names = world.names.iter().enumerate().take(world.nodes.len());
    let held = |node| usize::try_from(machine::held_by(host(node))).unwrap_or_default();
    names.map(|(node, name)| (format!("{BYTES}{name}"), held(node))).collect()
}

/// The descriptors of this process by kind, without those of the simulated disks.
fn descriptors(world: &World) -> Counts {
    let of_disks: Vec<String> = machine::disk_descriptors().iter().map(ToString::to_string).collect();
    let mut counts = Counts::new();
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let is_of_disk = of_disks.iter().any(|one| entry.file_name().to_str() == Some(one));
        let Some(target) = fs::read_link(entry.path()).ok().filter(|_| !is_of_disk) else { continue };
        let name = target.display().to_string().replace(&world.place, "");
        if name.starts_with("/store/") {
            continue;
        }
        let kind = if name.starts_with("socket:") { "socket" } else { &name };
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    counts
}

/// Rows in a controller's store that must be gone with the jobs. The store's node is stopped.
fn rows(world: &World, name: &str, file: &Path) -> Vec<String> {
    let copy = Path::new(&world.place).join(".copy");
    let _first = fs::remove_dir_all(&copy);
    fs::create_dir(&copy).unwrap();
    for end in ["", "-wal"] {
        let _closed = fs::copy(format!("{}{end}", file.display()), copy.join(format!("store.db{end}")));
    }
    let store = rusqlite::Connection::open(copy.join("store.db")).unwrap();
    let left = |what: &str| {
        let count: i64 =
            store.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap();
        (count > 0).then(|| format!("the store of {name} has {count} rows in {what}"))
    };
    ["job WHERE finished IS NULL", "attempt WHERE swept = 0 OR confirmed = 0 OR ended IS NULL", "holder"]
        .into_iter()
        .filter_map(left)
        .collect()
}
