//! The processes of this machine as /proc shows them: which there are, which descend from which, what they were started
//! as. Owns the rule which of a unit's processes belong to others as well. Signals nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;

use super::identity::Stat;

/// A process and its start time, which no later process of that number has.
pub(super) type Process = (u32, u64);

/// How many of those that do not end are named.
const MOST_NAMED: usize = 5;

/// All processes there are.
pub(super) fn all() -> BTreeMap<u32, Stat> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect()
}

/// Adds to some processes all that descend from them.
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

/// Those of some processes that live and are nobody else's.
pub(super) fn living(all: &BTreeMap<u32, Stat>, found: &BTreeSet<u32>) -> Vec<Process> {
    let ours = all.iter().filter(|(pid, stat)| found.contains(pid) && !stat.dead);
    ours.filter(|(pid, _)| !is_shared(**pid)).map(|(&pid, stat)| (pid, stat.start)).collect()
}

/// The processes below this one that live.
pub(super) fn below_this() -> Vec<Process> {
    let (all, this) = (all(), std::process::id());
    let mut found = BTreeSet::from([this]);
    add_descendants(&all, &mut found);
    found.remove(&this);
    living(&all, &found)
}

/// Whether it keeps the user namespace of all containers of its user. The first rootless podman starts it, and every
/// container would end with it.
fn is_shared(pid: u32) -> bool {
    let is_pause = match name(pid).as_str() {
        "podman pause" => true,
        "catatonit" => words(pid, "cmdline").is_ok_and(|words| words.iter().any(|word| word == "-P")),
        _ => false,
    };
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    is_pause && namespace(&pid.to_string()) != namespace("self")
}

/// The words of a file in a process's directory that ends each with NUL.
pub(super) fn words(pid: u32, file: &str) -> io::Result<Vec<OsString>> {
    let text = fs::read(format!("/proc/{pid}/{file}"))?;
    let words = text.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// What is said of processes that have not ended although they were killed; nothing if there are none.
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
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

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
        let pause = temp.path().join("podman pause");
        fs::copy("/bin/sleep", &pause).unwrap();
        let named = Ends(Command::new(&pause).arg("1000").spawn().unwrap());
        let mut command = Command::new("unshare");
        let apart = Ends(command.args(["--user", "--"]).arg(&pause).arg("1000").spawn().unwrap());
        let init = temp.path().join("catatonit");
        fs::copy("/bin/sleep", &init).unwrap();
        let mut command = Command::new("unshare");
        let other = Ends(command.args(["--user", "--"]).arg(&init).arg0(&init).arg("1000").spawn().unwrap());
        let is_seen = |child: &Ends| below_this().iter().any(|(pid, _)| *pid == child.0.id());
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while is_seen(&apart) || name(other.0.id()) != "catatonit" {
            assert!(std::time::Instant::now() < by, "{:?}", below_this());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(is_seen(&named), "the name alone spares nothing");
        assert!(is_seen(&other), "only the one that pauses is spared");
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
