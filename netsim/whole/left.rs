//! What a run leaves behind. Once all jobs are released and nothing happens any more, nodes hold no more threads, descriptors
//! and files than after a fresh start, and a controller's store no more of jobs than their rows.
//!
//! What a node holds is what its end gives back. Descriptors are of all nodes together: who has opened one is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use meshd_machine as machine;
use tokio::time::sleep;

use super::history::Note;
use super::runner::jobs_of;
use super::world::{World, host};

/// What is kept for a while is gone after this time: idle threads, payloads of ended jobs.
const QUIET: Duration = Duration::from_secs(130);

/// Of each kind how much there is.
type Counts = BTreeMap<String, usize>;

/// What outlives the units of a node for long: promises not to run what was never there (src/work/units/disclaimed.rs).
const STAYS: &str = ".disclaimed";
/// Idle threads that periodic work keeps alive in a pool, more or less by chance.
const SPARE: usize = 2;
const THREADS: &str = "threads of ";
/// Connections with PostgreSQL that a control node keeps once it has needed them (src/controller/store/postgres.rs), and the sockets
/// of one here: both ends, and those of the carrier.
const POOL: usize = 8;
const SOCKETS: usize = 4;
/// A node has one once it has been asked for an output.
const LATER: &str = "anon_inode:inotify";

/// Whatever is more than it should be; `fresh` are the files of nodes that had just started. All nodes are restarted.
pub(super) async fn check(world: &World, fresh: &BTreeSet<String>) -> Vec<String> {
    sleep(QUIET).await;
    let files = files(world);
    let left = files.difference(fresh).filter(|file| !file.ends_with(STAYS) && !is_half_made(world, file));
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
            "socket" if world.postgres.is_some() => usual + world.controls * POOL * SOCKETS,
            _ => usual,
        };
        if count > most {
            missed.push(format!("{count} are held, and {usual} after a fresh start: {kind}"));
        }
    }
    missed
}

/// Of a unit whose status was lost with a lie of its disk; the operator removes it.
fn is_half_made(world: &World, file: &str) -> bool {
    let path = Path::new(&world.place).join(file);
    let node = file.split('/').next().unwrap_or_default();
    let is_robbed = |note: &Note| matches!(note, Note::Robbed { node: robbed } if robbed == node);
    !path.with_file_name("status").exists() && world.history.notes().iter().any(|(_, note)| is_robbed(note))
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
    let before = descriptors(world);
    for node in &world.nodes {
        let crash = node.borrow_mut().begin_crash(false);
        if let Some(crash) = crash {
            crash.finish().await;
        }
    }
    // Their connections end a moment later.
    sleep(Duration::from_secs(1)).await;
    let after = descriptors(world);
    for (kind, count) in before {
        let rest = after.get(&kind).copied().unwrap_or_default();
        held.insert(kind, count.saturating_sub(rest));
    }
    held
}

/// The descriptors of this process that are not the disks', by what they are.
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

/// What a controller's store has that must be gone with the jobs. Its node does not run.
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
