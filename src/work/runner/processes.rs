//! The processes of this machine as /proc shows them: which there are, which descend from which, and their command
//! lines. Owns the rule which of a unit's processes others need as well. Signals nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt as _;

use super::identity::Stat;

/// A process and its start time, which no later process of that number has.
pub(super) type Process = (u32, u64);

/// How many processes that do not end are named.
const MOST_NAMED: usize = 5;

/// All processes there are.
pub(super) fn all() -> BTreeMap<u32, Stat> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect()
}

/// Adds to `found` all descendants of its processes.
pub(super) fn add_descendants(all: &BTreeMap<u32, Stat>, found: &mut BTreeSet<u32>) {
    loop {
        let is_new = |(pid, stat): &(&u32, &Stat)| found.contains(&stat.parent) && !found.contains(pid);
        let more: Vec<u32> = all.iter().filter(is_new).map(|(&pid, _)| pid).collect();
        if more.is_empty() {
            return;
        }
        found.extend(more);
    }
}

/// The processes in `found` that live and that nobody else needs.
pub(super) fn living(all: &BTreeMap<u32, Stat>, found: &BTreeSet<u32>) -> Vec<Process> {
    let ours = all.iter().filter(|(pid, stat)| found.contains(pid) && !stat.dead);
    ours.filter(|(pid, _)| !is_shared(**pid)).map(|(&pid, stat)| (pid, stat.start)).collect()
}

/// The living descendants of this process that nobody else needs.
pub(super) fn below_this() -> Vec<Process> {
    let (all, this) = (all(), std::process::id());
    let mut found = BTreeSet::from([this]);
    add_descendants(&all, &mut found);
    found.remove(&this);
    living(&all, &found)
}

/// Whether this is podman's pause process, which keeps the user namespace of all containers of its user. The first
/// rootless podman starts it, and every container would end with it. The program has to be one that only root can
/// install, because a process can choose its own name.
fn is_shared(pid: u32) -> bool {
    let program = format!("/proc/{pid}/exe");
    let installed = fs::metadata(&program).is_ok_and(|facts| facts.uid() == 0 && facts.mode() & 0o022 == 0);
    let program = fs::read_link(program).unwrap_or_default();
    let is_pause = match program.file_name().and_then(|name| name.to_str()) {
        Some("podman") => name(pid) == "podman pause",
        Some("catatonit") => words(pid, "cmdline").is_ok_and(|words| words.iter().any(|word| word == "-P")),
        _ => false,
    };
    is_pause && installed && !is_same(pid, "user")
}

/// Whether a process sees other users or files than this one, for example because it is in a container.
pub(super) fn is_apart(pid: u32) -> bool {
    !is_same(pid, "user") || !is_same(pid, "mnt")
}

fn is_same(pid: u32, namespace: &str) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).ok();
    of(&pid.to_string()) == of("self")
}

/// The words of a file in a process's directory. NUL ends each word.
pub(super) fn words(pid: u32, file: &str) -> io::Result<Vec<OsString>> {
    let text = fs::read(format!("/proc/{pid}/{file}"))?;
    let words = text.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The text about processes that have not ended although they were killed; `None` if there are none.
pub(super) fn told(left: &[Process]) -> Option<String> {
    if left.is_empty() {
        return None;
    }
    let names: Vec<String> =
        left.iter().take(MOST_NAMED).map(|(pid, _)| format!("{pid} {}", name(*pid))).collect();
    let more = left.len().checked_sub(MOST_NAMED).filter(|&more| more > 0);
    let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
    Some(format!("still there although killed: {}{more}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn podman_s_pause_process_is_nobody_s() {
        let temp = tempfile::tempdir().unwrap();
        let shell = fs::canonicalize("/bin/sh").unwrap();
        for program in ["catatonit", "podman pause"] {
            fs::copy(&shell, temp.path().join(program)).unwrap();
        }
        let start = |program: &str, word: &str| {
            let program = temp.path().join(program);
            let mut command = Command::new("unshare");
            command.args(["--user", "--"]).arg(&program).args(["-c", "read line", word]);
            Ends(command.stdin(Stdio::piped()).spawn().unwrap())
        };
        let (pause, init) = (start("catatonit", "-P"), start("catatonit", "--"));
        let forged = start("podman pause", "-P");
        let is_seen = |child: &Ends| below_this().iter().any(|(pid, _)| *pid == child.0.id());
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let is_root = rustix::process::geteuid().is_root();
        while is_seen(&pause) == is_root
            || name(init.0.id()) != "catatonit"
            || name(forged.0.id()) != "podman pause"
        {
            assert!(std::time::Instant::now() < by, "{:?}", below_this());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(is_seen(&init), "only the one that pauses is spared");
        assert!(is_seen(&forged), "the name alone spares nothing");
    }

    #[test]
    fn what_does_not_end_is_named() {
        assert_eq!(told(&[]), None);
        let own = std::process::id();
        let text = told(&[(own, 0)]).unwrap();
        assert_eq!(text, format!("still there although killed: {own} {}", name(own)));
        assert!(told(&[(own, 0); 7]).unwrap().ends_with(" and 2 more"));
    }
}
