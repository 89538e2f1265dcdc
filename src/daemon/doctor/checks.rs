//! The checks of a host: each turns facts into findings. Owns what counts as a fault, and the remedies. Looks at
//! nothing but the facts.

use std::collections::BTreeSet;
use std::path::Path;

use super::facts::{FileSystem, HostFacts};
use crate::rpc::report::finding::Finding;
use crate::work::reserve;

/// Open files that are enough for a node with some hundred jobs and links.
const FEWEST_FILES: u64 = 1024;
/// Watched directories that are enough: each running unit needs one.
const FEWEST_WATCHES: u64 = 8192;
/// Bytes that have to be free in /tmp for a job's files.
const LEAST_TMP: u64 = 16 << 20;
/// A file system is short of inodes if less than one part in so many is free.
const INODES_PART: u64 = 100;
/// The first ansible-runner with `worker`.
const OLDEST_RUNNER: (u32, u32) = (2, 0);
/// How old a denial may be to be shown.
const RECENT_SECONDS: i64 = 24 * 3600;
/// The most denials that are shown.
const DENIALS: usize = 3;
/// Programs below these come with packages, which fapolicyd trusts.
const PACKAGED: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"];

/// Each check of a host.
const CHECKS: [fn(&HostFacts, &mut Vec<Finding>); 12] = [
    certificates,
    keys,
    disk,
    tmp,
    open_files,
    inotify,
    runners,
    units,
    selinux,
    fapolicyd,
    firewalld,
    users,
];

/// What all checks find.
pub(super) fn all(facts: &HostFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    CHECKS.iter().for_each(|check| check(facts, &mut found));
    found
}

fn certificates(facts: &HostFacts, found: &mut Vec<Finding>) {
    let renew = format!(
        "on the control node: meshctl node renew {}; or by hand: meshctl cert makereq and signreq. It is reloaded without a \
         restart",
        facts.node
    );
    found.extend(facts.ends.iter().map(|(file, end)| {
        let left = end.duration_since(facts.now);
        if left.is_negative() {
            let what = format!("the certificate has expired on {end}: other nodes refuse it");
            return Finding::fault(file.display(), what, &renew);
        }
        let what = format!("the certificate expires on {end}, in {} days", left.as_hours() / 24);
        Finding::advice(file.display(), what, &renew)
    }));
}

fn keys(facts: &HostFacts, found: &mut Vec<Finding>) {
    found.extend(facts.open_keys.iter().map(|key| {
        let key = key.display();
        let remedy = format!("chmod 600 {key}; or 640, where the daemon reads it by its group");
        Finding::advice(key, "this private key can be read by others", remedy)
    }));
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn disk(facts: &HostFacts, found: &mut Vec<Finding>) {
    let Some(data) = &facts.data else { return };
    let place = format!("datadir {}", data.path.display());
    let room = "delete what is not needed: meshctl work list shows units, meshctl work release deletes them; du -x -d 2 \
                shows what else is there";
    let reserve = reserve::Space { free: data.free, size: data.size }.reserve(facts.reserve);
    if data.free < reserve {
        let [free, size, reserve] = [data.free, data.size, reserve].map(size);
        let what = format!(
            "only {free} of {size} are free, less than the reserve of {reserve}: new work is refused"
        );
        found.push(Finding::fault(&place, what, room));
    }
    if is_short_of_inodes(data) {
        let what = format!(
            "only {} of {} inodes are free: soon no file can be created",
            data.free_inodes, data.inodes
        );
        found.push(Finding::fault(&place, what, room));
    }
}

/// Whether few inodes are free. File systems without a fixed number report 0 inodes.
fn is_short_of_inodes(space: &FileSystem) -> bool {
    space.inodes > 0 && space.free_inodes < space.inodes / INODES_PART
}

fn tmp(facts: &HostFacts, found: &mut Vec<Finding>) {
    let Some(tmp) = facts.tmp.as_ref().filter(|_| facts.runs_jobs) else { return };
    let place = tmp.path.display();
    if tmp.free < LEAST_TMP || is_short_of_inodes(tmp) || tmp.is_read_only {
        let what = match tmp.is_read_only {
            true => "it is read-only: jobs cannot create their files".to_owned(),
            false => format!("it is full, {} are left: jobs cannot create their files", size(tmp.free)),
        };
        let remedy =
            format!("delete what is old there: find {place} -xdev -mtime +7 -delete; or make it larger");
        found.push(Finding::fault(&place, what, remedy));
    }
    if tmp.is_noexec {
        let what = "it is mounted noexec: programs that a job puts there do not start";
        let remedy = format!(
            "mount -o remount,exec {place}; or name another directory: remote_tmp in ansible.cfg, TMPDIR in `env` of the \
             work type"
        );
        found.push(Finding::advice(&place, what, remedy));
    }
}

fn open_files(facts: &HostFacts, found: &mut Vec<Finding>) {
    if let Some(files) = facts.files.filter(|files| *files < FEWEST_FILES) {
        let what = format!("the daemon may open {files} files: each link, unit and client needs some");
        let remedy = "LimitNOFILE=524288 in the unit: systemctl edit meshd; or ulimit -Hn";
        found.push(Finding::fault("limit of open files", what, remedy));
    }
}

fn inotify(facts: &HostFacts, found: &mut Vec<Finding>) {
    let raise = |limit| format!("sysctl -w fs.inotify.{limit}, and in /etc/sysctl.d");
    if let Some(error) = &facts.no_inotify {
        let what =
            format!("no inotify instance is available ({error}): changes are noticed late, by polling");
        found.push(Finding::advice("inotify", what, raise("max_user_instances=1024")));
    }
    if let Some(watches) = facts.watches.filter(|watches| *watches < FEWEST_WATCHES) {
        let what =
            format!("only {watches} directories can be watched: with more running units, output comes late");
        found.push(Finding::advice("inotify", what, raise("max_user_watches=65536")));
    }
}

fn runners(facts: &HostFacts, found: &mut Vec<Finding>) {
    let (major, minor) = OLDEST_RUNNER;
    for (place, said) in &facts.runners {
        found.push(match said.as_ref().map(|version| (version, numbers(version))) {
            Ok((_, Some(numbers))) if numbers >= OLDEST_RUNNER => continue,
            Ok((version, Some(_))) => Finding::fault(
                place,
                format_args!("it is version {version}: `ansible-runner worker` needs {major}.{minor}"),
                format_args!("pip install --upgrade 'ansible-runner>={major}.{minor}'"),
            ),
            Ok((version, None)) => {
                let what = format!("cannot understand its version: {version:?}");
                Finding::advice(place, what, "check that it is ansible-runner")
            }
            Err(why) => Finding::fault(
                place,
                format_args!("it does not print its version: {why}"),
                "run it by hand with --version as the daemon's user; reinstall it: pip install --force-reinstall ansible-runner",
            ),
        });
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split_whitespace().last()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn units(facts: &HostFacts, found: &mut Vec<Finding>) {
    found.extend(facts.hidden_units.iter().map(|(path, is_masked)| {
        let unit = path.file_name().unwrap_or_default().display();
        if *is_masked {
            let remedy = format!("systemctl unmask {unit} && systemctl enable --now {unit}");
            return Finding::fault(path.display(), "the unit is masked: it does not start", remedy);
        }
        let what = "it hides the unit of the package: upgrades do not change it";
        let remedy =
            format!("move its changes to a drop-in (systemctl edit {unit}), then: systemctl revert {unit}");
        Finding::advice(path.display(), what, remedy)
    }));
}

/// A record of the audit log.
#[derive(Clone, Copy)]
struct AuditRecord<'a>(&'a str);

impl<'a> AuditRecord<'a> {
    /// The recent records of a type.
    fn recent(facts: &'a HostFacts, kind: &str) -> impl Iterator<Item = Self> {
        let since = facts.now.as_second() - RECENT_SECONDS;
        let lines = facts.audit.as_deref().unwrap_or_default().lines();
        lines.filter(move |line| line.starts_with(kind)).map(AuditRecord).filter(move |record| {
            let seconds = record.event().and_then(|id| id.split(['.', ':']).next()?.parse::<i64>().ok());
            seconds.is_some_and(|at| at >= since)
        })
    }

    /// The time and the number of the event. Other records of the same event have the same.
    fn event(self) -> Option<&'a str> {
        Some(self.0.split_once("msg=audit(")?.1.split_once(')')?.0)
    }

    fn field(self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.split_whitespace().filter_map(|word| word.split_once('='));
        fields.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'))
    }

    /// The name of the process, if it is the daemon, one of its threads, or the command of a work type.
    fn ours(self, facts: &HostFacts) -> Option<&'a str> {
        let name = self.field("comm")?;
        let is_of = |path: &Path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.chars().take(15).eq(name.chars())
        };
        let is_ours = ["meshd", "tokio-rt-worker"].contains(&name)
            || facts.programs.iter().any(|(_, path)| is_of(path));
        is_ours.then_some(name)
    }

    /// What SELinux denied to one of our processes.
    fn denial(self, facts: &HostFacts) -> Option<String> {
        let (name, class) = (self.ours(facts)?, self.field("tclass").unwrap_or("object"));
        let what = self.0.split_once("denied ")?.1.split_once("{ ")?.1.split_once(" }")?.0;
        let on = ["name", "path", "src"].iter().find_map(|field| self.field(field)).unwrap_or_default();
        Some(format!("{name} may not {what} {class} {on}").trim_end().to_owned())
    }
}

fn unread_log(place: &str) -> Finding {
    let what = "what was denied: /var/log/audit/audit.log cannot be read by this user";
    Finding::not_asked(place, what, "as root: ausearch -m AVC,FANOTIFY -ts today")
}

fn selinux(facts: &HostFacts, found: &mut Vec<Finding>) {
    if !facts.selinux_enforces {
        return;
    }
    let denials = AuditRecord::recent(facts, "type=AVC").filter_map(|record| record.denial(facts));
    let denials: BTreeSet<String> = denials.collect();
    let remedy = "restorecon -Rv /usr/bin/meshd /var/lib/meshd /run/meshd; if it stays so: ausearch -m AVC -ts today | \
                  audit2allow -M meshd-local, read it, semodule -i meshd-local.pp";
    let told = denials.iter().take(DENIALS).map(|what| Finding::fault("SELinux", what, remedy));
    found.extend(told.chain(facts.audit.is_none().then(|| unread_log("SELinux"))));
}

fn fapolicyd(facts: &HostFacts, found: &mut Vec<Finding>) {
    if !facts.fapolicyd_enforces {
        return;
    }
    let is_trusted = |path: &Path| {
        let mut files = facts.trusted.lines().filter_map(|line| line.split_whitespace().next());
        PACKAGED.iter().any(|place| path.starts_with(place)) || files.any(|file| Path::new(file) == path)
    };
    for (place, path) in facts.programs.iter().filter(|(_, path)| !is_trusted(path)) {
        let path = path.display();
        let what = format!("fapolicyd does not know {path}, which is from no package: it may not start");
        let remedy = format!("fapolicyd-cli --file add {path} && fapolicyd-cli --update");
        found.push(Finding::advice(place, what, remedy));
    }
    // One remark about the log is enough, and `selinux` makes it first.
    found.extend((facts.audit.is_none() && !facts.selinux_enforces).then(|| unread_log("fapolicyd")));
    let denied =
        AuditRecord::recent(facts, "type=FANOTIFY").filter(|record| record.field("resp") == Some("2"));
    let denied: BTreeSet<_> = denied.map(AuditRecord::event).collect();
    let calls = AuditRecord::recent(facts, "type=SYSCALL").filter(|record| denied.contains(&record.event()));
    let programs: BTreeSet<&str> = calls.filter_map(|record| record.ours(facts)).collect();
    let remedy = "fapolicyd-cli --file add FILE && fapolicyd-cli --update; fapolicyd --debug-deny says which file it is";
    let told =
        |name| Finding::fault("fapolicyd", format_args!("{name} was denied a file or a program"), remedy);
    found.extend(programs.into_iter().map(told));
}

fn firewalld(facts: &HostFacts, found: &mut Vec<Finding>) {
    let Some(firewall) = facts.firewall.as_ref().filter(|firewall| !firewall.accepts_all) else { return };
    for (place, port, protocol) in &facts.ports {
        let mut open = firewall.open.iter();
        if !open.any(|(first, last, kind)| (*first..=*last).contains(port) && kind == protocol) {
            let what =
                format!("firewalld's files do not let in {protocol} port {port}: other hosts cannot dial it");
            let remedy =
                format!("firewall-cmd --permanent --add-port={port}/{protocol} && firewall-cmd --reload");
            found.push(Finding::advice(place, what, remedy));
        }
    }
}

fn users(facts: &HostFacts, found: &mut Vec<Finding>) {
    for user in &facts.users {
        let (name, place) = (&user.name, format!("user {}", user.name));
        if !user.has_subordinates {
            let what = "it has no range in /etc/subuid and /etc/subgid: rootless podman does not start containers for it";
            let remedy = format!(
                "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}; then, as {name}: podman system migrate"
            );
            found.push(Finding::advice(&place, what, remedy));
        }
        if user.lingers == Some(false) {
            let what = "it does not linger: it has no /run/user directory, which rootless podman needs";
            found.push(Finding::advice(&place, what, format_args!("loginctl enable-linger {name}")));
        }
    }
}

#[cfg(test)]
mod tests;
