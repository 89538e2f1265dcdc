//! The checks of a host: each makes findings of facts, and asks nothing itself. Owns what counts as a fault, and the
//! remedies.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use jiff::Timestamp;
use regex::Regex;

use super::facts::{HostFacts, Space};
use crate::rpc::report::finding::{Finding, Severity};
use crate::work::reserve;

/// Open files with which a node of some hundred jobs and links comes by.
const FEWEST_FILES: u64 = 1024;
/// Directories that may be watched: each running unit has one.
const FEWEST_WATCHES: u64 = 8192;
/// What /tmp needs for a job's files.
const LEAST_TMP: u64 = 16 << 20;
/// Parts of a file system's inodes that are left.
const INODES_PART: u64 = 100;
/// The first ansible-runner with `worker`.
const OLDEST_RUNNER: (u32, u32) = (2, 0);
/// Denials before this are history.
const RECENT_SECONDS: i64 = 24 * 3600;
/// Denials that are shown.
const DENIALS: usize = 3;
/// Programs below these come with packages, which fapolicyd trusts.
const PACKAGED: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"];

/// Each check of a host.
const CHECKS: [fn(&HostFacts) -> Vec<Finding>; 12] = [
    certificates,
    disk,
    tmp,
    open_files,
    inotify,
    runner,
    units,
    selinux,
    fapolicyd,
    firewalld,
    subordinate_ids,
    linger,
];

/// What all checks find.
pub(super) fn all(facts: &HostFacts) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check(facts)).collect()
}

fn fault(place: impl Display, what: impl Display, remedy: impl Display) -> Finding {
    Finding::new(Severity::Error, place, what, remedy)
}

fn advice(place: impl Display, what: impl Display, remedy: impl Display) -> Finding {
    Finding::new(Severity::Warning, place, what, remedy)
}

fn certificates(facts: &HostFacts) -> Vec<Finding> {
    let renew = format!(
        "on the control node: meshctl node renew {}; or by hand: meshctl cert makereq and signreq. It is reloaded without a \
         restart",
        facts.node
    );
    let told = |(file, &end): (&std::path::PathBuf, &Timestamp)| {
        let left = end.duration_since(facts.now);
        match left.is_negative() {
            true => fault(
                file.display(),
                format_args!("the certificate has expired on {end}: other nodes refuse it"),
                &renew,
            ),
            false => {
                let days = left.as_hours() / 24;
                advice(
                    file.display(),
                    format_args!("the certificate expires on {end}, in {days} days"),
                    &renew,
                )
            }
        }
    };
    facts.ends.iter().map(told).collect()
}

fn size(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn disk(facts: &HostFacts) -> Vec<Finding> {
    let Some(data) = &facts.data else { return Vec::new() };
    let place = format!("datadir {}", data.path.display());
    let room = "delete what is not needed: meshctl work list shows units, meshctl work release deletes them; du -x -d 2 \
                shows what else is there";
    let reserve = reserve::Space { free: data.free, size: data.size }.reserve(facts.reserve);
    let mut found = Vec::new();
    if data.free < reserve {
        let (free, size, reserve) = (size(data.free), size(data.size), size(reserve));
        let what =
            format!("{free} of {size} are free, less than the reserve of {reserve}: new work is refused");
        found.push(fault(&place, what, room));
    }
    if is_short_of_inodes(data) {
        let what =
            format!("{} of {} inodes are free: soon no file can be made", data.free_inodes, data.inodes);
        found.push(fault(&place, what, room));
    }
    found
}

/// File systems without a fixed number say 0.
fn is_short_of_inodes(space: &Space) -> bool {
    space.inodes > 0 && space.free_inodes < space.inodes / INODES_PART
}

fn tmp(facts: &HostFacts) -> Vec<Finding> {
    let Some(tmp) = facts.tmp.as_ref().filter(|_| facts.runs_jobs) else { return Vec::new() };
    let place = &tmp.path.display();
    let mut found = Vec::new();
    if tmp.free < LEAST_TMP || is_short_of_inodes(tmp) || tmp.is_read_only {
        let what = match tmp.is_read_only {
            true => "it is read-only: jobs cannot make their files".to_owned(),
            false => format!("it is full, {} are left: jobs cannot make their files", size(tmp.free)),
        };
        let remedy =
            format!("delete what is old there: find {place} -xdev -mtime +7 -delete; or make it larger");
        found.push(fault(place, what, remedy));
    }
    if tmp.is_noexec {
        let what = "it is mounted noexec: programs that a job puts there do not start";
        let remedy = format!(
            "mount -o remount,exec {place}; or name another directory: remote_tmp in ansible.cfg, TMPDIR in `env` of the \
             work type"
        );
        found.push(advice(place, what, remedy));
    }
    found
}

fn open_files(facts: &HostFacts) -> Vec<Finding> {
    let Some(files) = facts.files.filter(|files| *files < FEWEST_FILES) else { return Vec::new() };
    let what = format!("the daemon may open {files} files: each link, unit and client needs some");
    vec![fault(
        "limit of open files",
        what,
        "LimitNOFILE=524288 in the unit: systemctl edit meshd; or ulimit -Hn",
    )]
}

fn inotify(facts: &HostFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    let place = "inotify";
    if let Some(error) = &facts.no_inotify {
        let what =
            format!("no instance can be had ({error}): changes are noticed late, by looking again and again");
        found.push(advice(place, what, "sysctl -w fs.inotify.max_user_instances=1024, and in /etc/sysctl.d"));
    }
    if let Some(watches) = facts.watches.filter(|watches| *watches < FEWEST_WATCHES) {
        let what =
            format!("{watches} directories may be watched: with more running units, output comes late");
        found.push(advice(place, what, "sysctl -w fs.inotify.max_user_watches=65536, and in /etc/sysctl.d"));
    }
    found
}

fn runner(facts: &HostFacts) -> Vec<Finding> {
    let (major, minor) = OLDEST_RUNNER;
    let told = |(place, said): &(String, Result<String, String>)| match said {
        Err(why) => Some(fault(
            place,
            format_args!("it does not say its version: {why}"),
            "run it by hand with --version as the daemon's user; reinstall it: pip install --force-reinstall ansible-runner",
        )),
        Ok(version) => match numbers(version) {
            Some(found) if found < OLDEST_RUNNER => Some(fault(
                place,
                format_args!("it is version {version}: `ansible-runner worker` needs {major}.{minor}"),
                format_args!("pip install --upgrade 'ansible-runner>={major}.{minor}'"),
            )),
            Some(_) => None,
            None => Some(advice(
                place,
                format_args!("its version is not understood: {version:?}"),
                "see that it is ansible-runner",
            )),
        },
    };
    facts.runners.iter().filter_map(told).collect()
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split_whitespace().last()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn units(facts: &HostFacts) -> Vec<Finding> {
    let told = |(path, is_masked): &(std::path::PathBuf, bool)| {
        let unit = path.file_name().unwrap_or_default().to_string_lossy();
        match is_masked {
            true => {
                let remedy = format!("systemctl unmask {unit} && systemctl enable --now {unit}");
                fault(path.display(), "the unit is masked: it does not start", remedy)
            }
            false => {
                let what = "it hides the unit of the package: upgrades do not change it";
                let remedy = format!(
                    "move its changes to a drop-in (systemctl edit {unit}), then: systemctl revert {unit}"
                );
                advice(path.display(), what, remedy)
            }
        }
    };
    facts.hidden_units.iter().map(told).collect()
}

/// What our processes are called in the audit log: the daemon, its threads, and the commands of work types.
fn names(facts: &HostFacts) -> BTreeSet<String> {
    let files = facts.programs.iter().filter_map(|(_, path)| path.file_name());
    let names = files.map(|name| name.to_string_lossy().chars().take(15).collect());
    names.chain(["meshd", "tokio-rt-worker"].map(str::to_owned)).collect()
}

/// The event's time and number in a record of the audit log.
fn event(record: &str) -> Option<(i64, &str)> {
    let id = record.split_once("msg=audit(")?.1.split_once(')')?.0;
    Some((id.split(['.', ':']).next()?.parse().ok()?, id))
}

fn field<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    let words = record.split_whitespace().filter_map(|word| word.split_once('='));
    words.filter(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"')).next()
}

fn recent<'a>(facts: &'a HostFacts, kind: &'a str) -> impl Iterator<Item = &'a str> {
    let since = facts.now.as_second() - RECENT_SECONDS;
    let records = facts.audit.as_deref().unwrap_or_default().lines();
    records.filter(move |record| record.starts_with(kind) && event(record).is_some_and(|(at, _)| at >= since))
}

fn unread_log(place: &str) -> Finding {
    Finding::new(
        Severity::NotAsked,
        place,
        "what was denied: /var/log/audit/audit.log cannot be read by this user",
        "as root: ausearch -m AVC,FANOTIFY -ts today",
    )
}

fn selinux(facts: &HostFacts) -> Vec<Finding> {
    if !facts.selinux_enforces {
        return Vec::new();
    }
    if facts.audit.is_none() {
        return vec![unread_log("SELinux")];
    }
    let names = names(facts);
    let Ok(denied) = Regex::new(r"denied\s+\{ ([^}]*) \}") else { return Vec::new() };
    let is_ours = |record: &&str| field(record, "comm").is_some_and(|name| names.contains(name));
    let told = |record: &str| {
        let what = denied.captures(record).map(|found| found[1].to_owned())?;
        let on = field(record, "name").or_else(|| field(record, "path")).or_else(|| field(record, "src"));
        let (comm, class) = (field(record, "comm")?, field(record, "tclass").unwrap_or("object"));
        Some(format!("{comm} may not {what} {class} {}", on.unwrap_or_default()).trim_end().to_owned())
    };
    let denials: BTreeSet<String> = recent(facts, "type=AVC").filter(is_ours).filter_map(told).collect();
    let remedy = "restorecon -Rv /usr/bin/meshd /var/lib/meshd /run/meshd; if it stays so: ausearch -m AVC -ts today | \
                  audit2allow -M meshd-local, read it, semodule -i meshd-local.pp";
    denials.into_iter().take(DENIALS).map(|what| fault("SELinux", what, remedy)).collect()
}

fn fapolicyd(facts: &HostFacts) -> Vec<Finding> {
    if !facts.fapolicyd_enforces {
        return Vec::new();
    }
    // One remark about the log is enough.
    let unread = (facts.audit.is_none() && !facts.selinux_enforces).then(|| unread_log("fapolicyd"));
    let is_trusted = |path: &Path| {
        PACKAGED.iter().any(|place| path.starts_with(place))
            || facts
                .trusted
                .lines()
                .any(|line| line.split_whitespace().next().is_some_and(|file| Path::new(file) == path))
    };
    let untrusted = facts.programs.iter().filter(|(_, path)| !is_trusted(path)).map(|(place, path)| {
        let path = path.display();
        let remedy = format!("fapolicyd-cli --file add {path} && fapolicyd-cli --update");
        advice(
            place,
            format_args!("fapolicyd does not know {path}, which is from no package: it may not start"),
            remedy,
        )
    });
    let mut found: Vec<Finding> = untrusted.chain(unread).collect();
    let names = names(facts);
    let denied: BTreeSet<&str> = recent(facts, "type=FANOTIFY")
        .filter(|record| field(record, "resp") == Some("2"))
        .filter_map(|record| Some(event(record)?.1))
        .collect();
    let calls = recent(facts, "type=SYSCALL")
        .filter(|record| event(record).is_some_and(|(_, id)| denied.contains(id)));
    let programs: BTreeSet<&str> =
        calls.filter_map(|record| field(record, "comm")).filter(|name| names.contains(*name)).collect();
    found.extend(programs.into_iter().map(|name| {
        let remedy = "fapolicyd-cli --file add FILE && fapolicyd-cli --update; fapolicyd --debug-deny says which file it is";
        fault("fapolicyd", format_args!("{name} was denied a file or a program"), remedy)
    }));
    found
}

fn firewalld(facts: &HostFacts) -> Vec<Finding> {
    let Some(firewall) = facts.firewall.as_ref().filter(|firewall| !firewall.accepts_all) else {
        return Vec::new();
    };
    let is_open = |port: u16, protocol: &str| {
        firewall.open.iter().any(|(first, last, kind)| (*first..=*last).contains(&port) && kind == protocol)
    };
    let closed = facts.ports.iter().filter(|(_, port, protocol)| !is_open(*port, protocol));
    let told = closed.map(|(place, port, protocol)| {
        let what =
            format!("firewalld's files do not let in {protocol} port {port}: other hosts cannot dial it");
        let remedy =
            format!("firewall-cmd --permanent --add-port={port}/{protocol} && firewall-cmd --reload");
        advice(place, what, remedy)
    });
    told.collect()
}

fn subordinate_ids(facts: &HostFacts) -> Vec<Finding> {
    let lacking = facts.users.iter().filter(|user| !user.has_subordinates);
    let told = lacking.map(|user| {
        let name = &user.name;
        let what = "it has no range in /etc/subuid and /etc/subgid: rootless podman does not start containers for it";
        let remedy = format!(
            "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}; then, as {name}: podman system migrate"
        );
        advice(format_args!("user {name}"), what, remedy)
    });
    told.collect()
}

fn linger(facts: &HostFacts) -> Vec<Finding> {
    let lacking = facts.users.iter().filter(|user| user.lingers == Some(false));
    let told = lacking.map(|user| {
        let what = "it does not linger: it has no /run/user directory, which rootless podman needs";
        advice(format_args!("user {}", user.name), what, format_args!("loginctl enable-linger {}", user.name))
    });
    told.collect()
}

#[cfg(test)]
mod tests;
