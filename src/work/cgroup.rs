//! Control groups (version 2) for units whose type bounds processors, memory or processes. Owns where this node may
//! make groups, a unit's limits, what the kernel counted, and killing everything in a group. The path of a unit's group
//! stands in the private file `cgroup` of its directory, where a later daemon finds it. Under systemd, all jobs are in
//! a group apart from the daemon's (`apart`). If the system lacks such groups or their controllers, units run without
//! these limits, and one warning says so. If version 1 has the controllers, version 2 can never have them, so such
//! limits are refused.

mod apart;

pub(crate) use apart::move_apart;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::CommandType;
use super::limits::Limits;
use super::store::UnitDir;
use super::unit::UnitId;
use crate::wire::NodeId;

/// The controllers that limits need. Each has the name of its limit.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// The groups that this node makes below the daemon's own group, or below the group for jobs. `UNITS` contains the
/// units' groups. `MAIN` takes the processes of the parent group if they have to leave it. `RUNNERS` has the processes
/// that start and watch units, and the jobs without a group of their own.
const UNITS: &str = "meshd-units";
const MAIN: &str = "meshd-main";
const RUNNERS: &str = "meshd-runners";
/// Microseconds over which a share of processors is measured.
const PERIOD: u64 = 100_000;
/// The file in a unit directory that names the unit's group.
const FILE: &str = "cgroup";
/// How long a killed group may take to become empty, and the time between attempts to remove it.
const EMPTY_WITHIN: Duration = Duration::from_secs(2);
const EMPTY_EVERY: Duration = Duration::from_millis(2);

/// Where the units' groups of a node are.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    units: PathBuf,
    /// Controllers that the units' groups cannot use.
    pub(crate) missing: Vec<&'static str>,
}

impl Cgroups {
    /// Finds the group of the process that starts jobs (`spawner`), and prepares it for units' groups.
    ///
    /// # Errors
    /// Why there can be no groups, in words for people.
    pub(crate) fn find(spawner: u32) -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
        let own = own_group(&read("/proc/self/mountinfo")?, &read(&format!("/proc/{spawner}/cgroup"))?)
            .ok_or("no cgroup2 file system is mounted that has the node's processes in it")?;
        Self::prepare(&own).map_err(|e| format!("{}: {e}", own.display()))
    }

    /// Makes the directory of the units' groups below a group, with the controllers that are available.
    fn prepare(own: &Path) -> io::Result<Self> {
        let units = own.join(UNITS);
        make_dir(&units)?;
        if enable(own) == Err(Errno::BUSY) && is_delegated(own) && !is_entered_by_systemd(own) {
            make_room(own)?;
            let _ = enable(own);
        }
        let _ = enable(&units);
        let enabled = words(&units.join("cgroup.subtree_control"));
        let missing = CONTROLLERS.into_iter().filter(|name| !enabled.iter().any(|word| word == name));
        let missing = missing.collect();
        // Removes empty groups, left by units that were released while some of their processes still ran.
        for group in fs::read_dir(&units)?.flatten() {
            let _ = fs::remove_dir(group.path());
        }
        Ok(Self { units, missing })
    }

    /// The path of a unit's group.
    pub(crate) fn unit(&self, node: &NodeId, id: &UnitId) -> PathBuf {
        self.units.join(format!("{node}.{id}"))
    }
}

/// The directory of the group that a process is in, from the contents of `mountinfo` and `cgroup` in /proc.
fn own_group(mountinfo: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mountinfo.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        if file_system.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // In a container, the mount may show only a part of the tree.
        let below = Path::new(own).strip_prefix(root).ok()?;
        // The process is in a group that an earlier daemon made. The units' groups are beside it.
        let below = if below.ends_with(MAIN) || below.ends_with(RUNNERS) { below.parent()? } else { below };
        Some(Path::new(point).join(below))
    })
}

/// Enables for a group's children those controllers that the group has itself.
fn enable(group: &Path) -> Result<(), Errno> {
    let (there, enabled) =
        (words(&group.join("cgroup.controllers")), words(&group.join("cgroup.subtree_control")));
    let has = |words: &[String], name: &str| words.iter().any(|word| word == name);
    let wanted: Vec<String> = CONTROLLERS
        .into_iter()
        .filter(|name| has(&there, name) && !has(&enabled, name))
        .map(|name| format!("+{name}"))
        .collect();
    // Only the root group has no type. It belongs to the whole system and is not ours to change.
    if wanted.is_empty() || !group.join("cgroup.type").exists() {
        return Ok(());
    }
    let written = put(&group.join("cgroup.subtree_control"), &wanted.join(" "));
    written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Whether a group was given to us: systemd says so, or we are not root (then we can only write to groups that were
/// given to us).
fn is_delegated(group: &Path) -> bool {
    let says = |name: &str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(group, name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    };
    !rustix::process::geteuid().is_root() || says("trusted.delegate") || says("user.delegate")
}

/// Whether systemd puts the daemon into this group when it restarts it. That would fail if the group's children had
/// controllers.
fn is_entered_by_systemd(group: &Path) -> bool {
    group.extension().is_some_and(|kind| kind == "service") && !group.join(RUNNERS).exists()
}

/// Moves a group's processes into a child group, because a group whose children have controllers may hold no processes
/// itself.
fn make_room(own: &Path) -> io::Result<()> {
    let main = own.join(MAIN);
    make_dir(&main)?;
    for pid in words(&own.join("cgroup.procs")) {
        // This fails for a process that has just ended.
        let _ = put(&main.join("cgroup.procs"), &pid);
    }
    Ok(())
}

/// Refuses work types with limits whose controllers belong to version 1 on this system.
///
/// # Errors
/// The first such type and its limits, in words for people.
pub(crate) fn check_limits(types: &[CommandType]) -> Result<(), String> {
    let system = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let refused = types.iter().find_map(|kind| {
        let limits = kind.limits.of_group();
        let limits: Vec<_> = limits.into_iter().filter(|name| is_version_1(&system, name)).collect();
        (!limits.is_empty()).then(|| (kind, limits.join(", ")))
    });
    let Some((kind, limits)) = refused else { return Ok(()) };
    Err(format!(
        "work type {}: {limits}: this system uses cgroup v1 for these, and meshd supports only cgroup v2: remove \
         the limits, or boot the system with systemd.unified_cgroup_hierarchy=1",
        kind.name
    ))
}

/// Whether a hierarchy of version 1 has a controller, according to the contents of `/proc/cgroups`.
fn is_version_1(system: &str, controller: &str) -> bool {
    let mut fields = system.lines().map(|line| line.split_whitespace());
    let hierarchy = fields.find_map(|mut line| (line.next()? == controller).then(|| line.next()).flatten());
    hierarchy.is_some_and(|hierarchy| hierarchy != "0")
}

fn make_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path).or_else(|e| if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })
}

fn words(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Writes in a single call, as the kernel's files require.
fn put(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// The group of one unit.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a unit's group, and sets those limits for which there are controllers.
    pub(crate) fn make(path: &Path, limits: &Limits, dir: &UnitDir) -> io::Result<Self> {
        // The file is written first, so that there is never a group that no file names.
        fs::write(dir.file(FILE), path.as_os_str().as_encoded_bytes())?;
        make_dir(path)?;
        let group = Self { path: path.to_owned() };
        let cpu = limits.cpu_millis.map(|millis| format!("{} {PERIOD}", u64::from(millis) * PERIOD / 1000));
        let memory = limits.memory.map(|bytes| bytes.to_string());
        // No swap, because it would only delay the end. Kill the whole group, because half a job is worse than none.
        let (swap, whole) =
            (memory.as_ref().map(|_| "0".to_owned()), memory.as_ref().map(|_| "1".to_owned()));
        let pids = limits.pids.map(|most| most.to_string());
        for (file, value) in [
            ("cpu.max", cpu),
            ("memory.max", memory),
            ("memory.swap.max", swap),
            ("memory.oom.group", whole),
            ("pids.max", pids),
        ] {
            match value.map(|value| put(&path.join(file), &value)) {
                // There is no such controller. The daemon has warned of that.
                Some(Err(error))
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                Some(written) => written?,
                None => {}
            }
        }
        Ok(group)
    }

    /// The group that a unit was put into, if it was.
    pub(crate) fn of(dir: &UnitDir) -> Option<Self> {
        use std::os::unix::ffi::OsStringExt;
        let path = PathBuf::from(std::ffi::OsString::from_vec(dir.read(FILE).ok()?));
        path.parent().is_some_and(|units| units.ends_with(UNITS)).then_some(Self { path })
    }

    /// The file to which a process writes `0` to enter the group.
    pub(crate) fn door(&self) -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?.into())
    }

    /// The processes in the group.
    pub(crate) fn members(&self) -> Vec<u32> {
        words(&self.path.join("cgroup.procs")).iter().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// What the kernel did because of the limits, in words for the unit's Detail.
    pub(crate) fn explain(&self, limits: &Limits) -> Option<String> {
        let killed = self.count("memory.events", "oom_kill");
        if let (Some(bytes), 1..) = (limits.memory, killed) {
            return Some(format!(
                "out of memory: the kernel killed {killed} of its processes, because they used more than {bytes} bytes (memory)"
            ));
        }
        let refused = self.count("pids.events", "max");
        let most = limits.pids.filter(|_| refused > 0)?;
        Some(format!("it tried {refused} times to have more than {most} processes and threads (pids)"))
    }

    fn count(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    }

    /// Kills everything in the group at once, so that no new child process escapes.
    pub(crate) fn kill(&self) {
        let _ = put(&self.path.join("cgroup.kill"), "1");
    }

    /// Removes the group if it is empty. Says whether it is gone.
    pub(crate) fn remove_if_empty(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Kills everything in the group and removes it. Blocks, for a limited time.
    pub(crate) fn end(&self) {
        let deadline = Instant::now() + EMPTY_WITHIN;
        while !self.remove_if_empty() && Instant::now() < deadline {
            self.kill();
            std::thread::sleep(EMPTY_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_every_arrangement() {
        let unified = "24 30 0:22 / /sys rw - sysfs sysfs rw\n\
            29 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let service = "0::/system.slice/meshd.service\n";
        let wanted = Path::new("/sys/fs/cgroup/system.slice/meshd.service");
        assert_eq!(own_group(unified, service).as_deref(), Some(wanted));
        let moved = "0::/system.slice/meshd.service/meshd-main\n";
        assert_eq!(
            own_group(unified, moved).as_deref(),
            Some(wanted),
            "beside the one for the daemon itself"
        );
        let apart = "0::/system.slice/meshd-jobs.service/meshd-runners\n";
        let wanted = Path::new("/sys/fs/cgroup/system.slice/meshd-jobs.service");
        assert_eq!(own_group(unified, apart).as_deref(), Some(wanted), "beside what starts jobs");
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = "9:name=systemd:/\n4:memory:/x\n0::/\n";
        assert_eq!(own_group(hybrid, own).as_deref(), Some(Path::new("/sys/fs/cgroup/unified/")));
        let container = "41 31 0:38 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let inside = own_group(container, "0::/docker/abc/inner\n");
        assert_eq!(inside.as_deref(), Some(Path::new("/sys/fs/cgroup/inner")));
        assert_eq!(own_group(container, "0::/elsewhere\n"), None);
        assert_eq!(own_group("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", own), None);
    }

    #[test]
    fn controllers_are_handed_down_and_missing_ones_named() {
        let temp = tempfile::tempdir().unwrap();
        let own = temp.path();
        fs::write(own.join("cgroup.type"), "domain\n").unwrap();
        fs::write(own.join("cgroup.controllers"), "cpuset cpu io memory\n").unwrap();
        fs::create_dir_all(own.join(UNITS).join("old.unit")).unwrap();
        // The kernel does this when the parent enables controllers.
        fs::write(own.join(UNITS).join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(own.join(UNITS).join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        let groups = Cgroups::prepare(own).unwrap();
        assert_eq!(fs::read_to_string(own.join("cgroup.subtree_control")).unwrap(), "+cpu +memory");
        assert_eq!(groups.missing, ["pids"]);
        assert!(!own.join(UNITS).join("old.unit").exists(), "an empty group that was left is removed");
    }

    #[test]
    fn no_room_is_made_where_systemd_starts_the_daemon_again() {
        let temp = tempfile::tempdir().unwrap();
        let (main, jobs) = (temp.path().join("a.service"), temp.path().join("a-jobs.service"));
        fs::create_dir_all(jobs.join(RUNNERS)).unwrap();
        assert!(is_entered_by_systemd(&main), "219/CGROUP");
        assert!(!is_entered_by_systemd(&jobs) && !is_entered_by_systemd(temp.path()));
    }

    #[test]
    fn a_controller_that_version_1_has_is_told_from_others() {
        let system = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t4\t1\nmemory\t0\t5\t1\n";
        let found = ["cpu", "memory", "pids"].map(|name| is_version_1(system, name));
        assert_eq!(found, [true, false, false], "one that is not listed is of a later kernel");
        assert!(!is_version_1("", "cpu"));
    }

    #[test]
    fn a_unit_s_limits_are_written_and_its_end_is_explained() {
        let temp = tempfile::tempdir().unwrap();
        let dir = UnitDir::at(temp.path());
        let path = temp.path().join(UNITS).join("n1.abcd");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let limits =
            Limits { cpu_millis: Some(1500), memory: Some(1 << 20), pids: Some(7), ..Limits::default() };
        let group = Cgroup::make(&path, &limits, &dir).unwrap();
        let written = |file: &str| fs::read_to_string(path.join(file)).unwrap();
        assert_eq!(written("cpu.max"), "150000 100000");
        assert_eq!((written("memory.max"), written("memory.swap.max")), ("1048576".into(), "0".into()));
        assert_eq!((written("memory.oom.group"), written("pids.max")), ("1".into(), "7".into()));
        assert_eq!(group.explain(&limits), None);
        fs::write(path.join("pids.events"), "max 3\n").unwrap();
        assert!(group.explain(&limits).unwrap().contains("it tried 3 times to have more than 7 processes"));
        fs::write(path.join("memory.events"), "low 0\nmax 9\noom 1\noom_kill 2\n").unwrap();
        assert!(group.explain(&limits).unwrap().starts_with("out of memory: the kernel killed 2"));
        assert_eq!(Cgroup::of(&dir).unwrap().path, path);
        fs::write(dir.file(FILE), "/sys/fs/cgroup/system.slice").unwrap();
        assert!(Cgroup::of(&dir).is_none(), "only groups of units are taken for one");
    }
}
