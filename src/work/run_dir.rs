//! Private directories of units. The node that runs a unit makes its directory where nobody else can reach it, and
//! removes it when the unit has ended. Owns their names, their place next to the units' own directories, who may pass
//! through that place, and how they are removed: each is renamed at once, and one task empties them, however much a job
//! has put there. Of units it knows only the IDs.

mod logins;
mod remove;

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Gid, Uid};
use tokio::sync::Notify;

pub(crate) use self::remove::remove;

/// The variable by which a unit's processes find the directory.
pub(crate) const VARIABLE: &str = "MESHD_RUN_DIR";
/// The placeholder for the directory in the parameters of a unit, and the placeholder for a directory that is kept
/// until the unit is released.
pub(crate) const PLACEHOLDER: &str = "${MESHD_RUN_DIR}";
pub(crate) const KEPT_PLACEHOLDER: &str = "${MESHD_KEPT_DIR}";
/// The parameter of a submission that names the directory to use on a node that makes no private directories.
pub(crate) const FALLBACK: &str = "rundir";

/// Where they are in the node's directory.
const RUN: &str = ".run";
const KEPT: &str = ".kept";
/// How the name of a directory begins that nobody needs any more. No unit has such a name.
const GONE: &str = ".gone-";
/// How long one directory is emptied before the next one has its turn, and the pause after a round in which some could
/// not be removed.
const TURN: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(600);

/// The name of the private data directory of a job's child on its node, or its beginning.
pub fn private_dir(unit: &str) -> String {
    format!("meshd_{unit}")
}

/// Replaces the placeholders by a directory.
pub(crate) fn fill_in(text: &str, directory: &str) -> String {
    text.replace(PLACEHOLDER, directory).replace(KEPT_PLACEHOLDER, directory)
}

/// Whether a text contains a placeholder.
pub(crate) fn is_asked_for(text: &str) -> bool {
    text.contains(PLACEHOLDER) || text.contains(KEPT_PLACEHOLDER)
}

/// Makes a private directory for that user alone. Removes one that is there already, because it belonged to a unit that
/// is gone.
pub(crate) fn make(path: &Path, owner: Option<(Uid, Gid)>) -> io::Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(path, std::time::Instant::now() + TURN)?;
            DirBuilder::new().mode(0o700).create(path)?;
        }
        made => made?,
    }
    if let Some((user, group)) = owner.filter(|_| rustix::process::geteuid().is_root()) {
        rustix::fs::chown(path, Some(user), Some(group))?;
    }
    Ok(())
}

/// Whether users other than its owner may write to a directory, or to the place where it would be made.
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    let found = path.ancestors().find_map(|path| fs::metadata(path).ok());
    found.is_some_and(|found| found.permissions().mode() & 0o022 != 0)
}

/// The private directories of a node's units.
#[derive(Debug)]
pub(crate) struct RunDirs {
    root: PathBuf,
    wake: Arc<Wake>,
}

#[derive(Debug, Default)]
struct Wake {
    /// Notified when there is something to remove, and when [`RunDirs`] is dropped.
    changed: Notify,
    is_over: AtomicBool,
}

impl RunDirs {
    /// Opens the places for them below a node's directory.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let wake = Arc::<Wake>::default();
        let places = [RUN, KEPT].map(|name| root.join(name));
        for place in &places {
            match DirBuilder::new().mode(0o700).create(place) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        tokio::spawn(sweep(places, wake.clone()));
        Ok(Self { root: root.to_owned(), wake })
    }

    /// The path of the directory for a unit with these parameters.
    pub(crate) fn of(&self, unit: &str, params: &str) -> PathBuf {
        let place = if params.contains(KEPT_PLACEHOLDER) { KEPT } else { RUN };
        self.root.join(place).join(unit)
    }

    /// Whether a directory is kept until its unit is released.
    pub(crate) fn is_kept(path: &Path) -> bool {
        path.parent().is_some_and(|place| place.ends_with(KEPT))
    }

    /// Sets whether other users may pass through to their directories.
    pub(crate) fn set_passable(&self, passable: bool) {
        let set = |path: &Path, mode: u32| {
            if let Err(error) = fs::set_permissions(path, Permissions::from_mode(mode)) {
                tracing::warn!(path = %path.display(), %error, "cannot set who may enter the private directories");
            }
        };
        let mode = if passable { 0o711 } else { 0o700 };
        [RUN, KEPT].iter().for_each(|place| set(&self.root.join(place), mode));
        let above = self.root.ancestors().take(2).filter(|_| passable);
        for path in above {
            let found = fs::metadata(path).map_or(0o700, |found| found.permissions().mode() & 0o7777);
            if found & 0o011 != 0o011 {
                set(path, found | 0o011);
            }
        }
    }

    /// Removes the directory of a unit that has ended, unless it is kept.
    pub(crate) fn unit_ended(&self, unit: &str) {
        self.discard(RUN, unit);
    }

    /// Removes all directories of a unit that is released.
    pub(crate) fn unit_released(&self, unit: &str) {
        self.discard(RUN, unit);
        self.discard(KEPT, unit);
    }

    /// Discards directories of units that are gone, and those of ended units that are not kept.
    pub(crate) fn discard_old(&self, is_there: impl Fn(&str) -> bool, has_ended: impl Fn(&str) -> bool) {
        for place in [RUN, KEPT] {
            for found in fs::read_dir(self.root.join(place)).into_iter().flatten().flatten() {
                let name = found.file_name();
                let name = name.to_string_lossy();
                if !name.starts_with(GONE) && (!is_there(&name) || place == RUN && has_ended(&name)) {
                    self.discard(place, &name);
                }
            }
        }
        self.wake.changed.notify_one();
    }

    /// Renames a directory for removal, so that its name is free for another unit at once.
    fn discard(&self, place: &str, unit: &str) {
        let place = self.root.join(place);
        let gone = place.join(format!("{GONE}{:016x}", rand::random::<u64>()));
        match fs::rename(place.join(unit), gone) {
            Ok(()) => self.wake.changed.notify_one(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(unit, %error, "cannot remove a unit's private directory"),
        }
    }
}

impl Drop for RunDirs {
    fn drop(&mut self) {
        self.wake.is_over.store(true, Ordering::Relaxed);
        self.wake.changed.notify_one();
    }
}

/// Empties discarded directories, one at a time and each for a while, so that this never takes more than one thread.
async fn sweep(places: [PathBuf; 2], wake: Arc<Wake>) {
    loop {
        // One more round sees what was discarded just before the end.
        let is_last = wake.is_over.load(Ordering::Relaxed);
        let places = places.clone();
        let round = tokio::task::spawn_blocking(move || sweep_once(&places));
        match round.await.unwrap_or(Swept::Stuck) {
            _ if is_last => return,
            // Pauses, because a process may go on writing there, and others need the processor too.
            Swept::Unfinished => drop(tokio::time::timeout(TURN, wake.changed.notified()).await),
            Swept::Clean => wake.changed.notified().await,
            Swept::Stuck => drop(tokio::time::timeout(AGAIN, wake.changed.notified()).await),
        }
    }
}

/// What is left after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swept {
    Clean,
    Unfinished,
    /// Only directories that cannot be removed.
    Stuck,
}

fn sweep_once(places: &[PathBuf]) -> Swept {
    let mut swept = Swept::Clean;
    let found = places.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    let gone = found.filter(|found| found.file_name().to_string_lossy().starts_with(GONE));
    let mut is_unfinished = false;
    for path in gone.map(|found| found.path()) {
        match remove(&path, std::time::Instant::now() + TURN) {
            Ok(true) => {}
            Ok(false) => is_unfinished = true,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot remove what a unit left in its private directory");
                swept = Swept::Stuck;
            }
        }
    }
    if is_unfinished { Swept::Unfinished } else { swept }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let found =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = found.collect();
        names.sort_unstable();
        names
    }

    async fn emptied(path: &Path) {
        let empty = async {
            while !names(path).is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(20), empty).await.is_ok(), "{:?}", names(path));
    }

    #[tokio::test]
    async fn a_directory_goes_with_its_unit_and_a_kept_one_with_the_release() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = RunDirs::open(temp.path()).unwrap();
        let (one, kept) = (dirs.of("a", "--x=${MESHD_RUN_DIR}/y"), dirs.of("b", "--x=${MESHD_KEPT_DIR}/y"));
        assert!(!RunDirs::is_kept(&one) && RunDirs::is_kept(&kept));
        for path in [&one, &kept] {
            make(path, None).unwrap();
            fs::write(path.join("secret"), "x").unwrap();
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o700);
        }
        ["a", "b"].iter().for_each(|unit| dirs.unit_ended(unit));
        assert!(!one.exists() && kept.exists());
        emptied(&temp.path().join(RUN)).await;
        dirs.unit_released("b");
        emptied(&temp.path().join(KEPT)).await;
    }

    #[tokio::test]
    async fn what_ended_while_nobody_looked_goes_at_the_start() {
        let temp = tempfile::tempdir().unwrap();
        {
            let dirs = RunDirs::open(temp.path()).unwrap();
            for unit in ["runs", "ended", "unknown"] {
                make(&dirs.of(unit, PLACEHOLDER), None).unwrap();
                make(&dirs.of(unit, KEPT_PLACEHOLDER), None).unwrap();
            }
        }
        fs::create_dir(temp.path().join(RUN).join(".gone-1")).unwrap();
        let dirs = RunDirs::open(temp.path()).unwrap();
        dirs.discard_old(|unit| unit != "unknown", |unit| unit == "ended");
        let left = async {
            while names(&temp.path().join(RUN)) != ["runs"] {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            while names(&temp.path().join(KEPT)) != ["ended", "runs"] {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(20), left).await.is_ok());
    }

    #[tokio::test]
    async fn others_may_pass_only_where_work_has_another_user() {
        let temp = tempfile::tempdir().unwrap();
        let node = temp.path().join("data").join("n1");
        DirBuilder::new().recursive(true).mode(0o700).create(&node).unwrap();
        let dirs = RunDirs::open(&node).unwrap();
        let modes = || {
            let paths = [temp.path().join("data"), node.clone(), node.join(RUN), node.join(KEPT)];
            paths.map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777)
        };
        dirs.set_passable(false);
        assert_eq!(modes(), [0o700; 4]);
        dirs.set_passable(true);
        assert_eq!(modes(), [0o711; 4]);
        dirs.set_passable(false);
        assert_eq!(modes()[2..], [0o700; 2]);
    }

    #[test]
    fn a_directory_is_put_in_place_of_its_name() {
        assert_eq!(
            fill_in("--a=${MESHD_RUN_DIR}/b ${MESHD_KEPT_DIR} $MESHD_RUN_DIR", "/d"),
            "--a=/d/b /d $MESHD_RUN_DIR"
        );
        assert!(is_asked_for("x${MESHD_KEPT_DIR}") && !is_asked_for("$MESHD_RUN_DIR"));
    }

    #[test]
    fn a_directory_is_open_if_others_can_put_something_there() {
        let temp = tempfile::tempdir().unwrap();
        assert!(!is_open_to_others(temp.path()) && !is_open_to_others(&temp.path().join("a/b")));
        fs::set_permissions(temp.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(is_open_to_others(temp.path()) && is_open_to_others(&temp.path().join("a/b")));
    }
}
