//! The store on the real disk: modes, names, locks, and directories that cannot be trusted.

use std::os::unix::fs::PermissionsExt;

use rustix::fs::FlockOperation;

use super::disk::{Lock, lock_status};
use super::*;
use crate::work::status::{CommandExtra, Extra};

fn store(dir: &Path) -> UnitStore {
    UnitStore::open(dir, &NodeId::new("n1").unwrap()).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_unit_has_private_files_and_vanishes_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let store = store(&temp.path().join("deep/data"));
    assert_eq!(mode(&temp.path().join("deep/data/n1")), 0o700);
    let (id, other) =
        (UnitId::made_by(&NodeId::new("n1").unwrap()), UnitId::made_by(&NodeId::new("n1").unwrap()));
    let mut status = Status::new("echo", Extra::Command(CommandExtra::default()));
    store.create(&id, &status, Durability::Durable).await.unwrap();
    assert!(store.create(&id, &status, Durability::Durable).await.is_err());
    let unit = store.unit(&id);
    assert_eq!(mode(&unit.path()), 0o700);
    for name in ["status", "status.lock", "stdin"] {
        assert_eq!(mode(&unit.file(name)), 0o600, "{name}");
    }
    status.life.detail = "changed".into();
    unit.write_status(&status, Durability::Durable).unwrap();
    assert_eq!(unit.read_status().unwrap(), status);
    assert_eq!(mode(&unit.file("status")), 0o600);
    assert_eq!(unit.stdout_size(), 0);
    fs::create_dir(temp.path().join(format!("deep/data/n1/{TRASH}{other}"))).unwrap();
    assert_eq!(store.scan().unwrap(), (vec![id.clone()], vec![]));
    std::os::unix::fs::symlink(unit.path(), temp.path().join("deep/data/n1/linked00")).unwrap();
    assert_eq!(store.scan().unwrap().0, std::slice::from_ref(&id));
    fs::remove_file(temp.path().join("deep/data/n1/linked00")).unwrap();
    let hidden = store.hide(&id, &status).await.unwrap();
    assert_eq!(store.scan().unwrap(), (vec![], vec![id.clone()]));
    assert_eq!((hidden.read_status().unwrap(), hidden.is_hidden()), (status, true));
    assert!(!hidden.file("stdin").exists() && hidden == store.hidden(&id));
    store.remove(&hidden).await.unwrap();
    store.remove(&hidden).await.unwrap();
    fs::create_dir(temp.path().join(format!("deep/data/n1/{TRASH}{id}"))).unwrap();
    store.remove(&unit).await.unwrap();
    assert_eq!(fs::read_dir(temp.path().join("deep/data/n1")).unwrap().count(), 0);
}

#[tokio::test]
async fn units_that_wait_for_their_turn_are_told_apart_however_fast_they_came() {
    let temp = tempfile::tempdir().unwrap();
    let store = store(&temp.path().join("d"));
    let units: Vec<UnitDir> =
        (0..20).map(|_| store.unit(&UnitId::made_by(&NodeId::new("n1").unwrap()))).collect();
    let status = Status::new("t", Extra::Command(CommandExtra::default()));
    for unit in &units {
        fs::create_dir(unit.path()).unwrap();
        unit.write_status(&status, Durability::Volatile).unwrap();
        store.mark_queued(unit).await.unwrap();
    }
    let times: Vec<_> = units.iter().map(UnitDir::queued_at).collect();
    assert!(times.is_sorted_by(|earlier, later| earlier.is_some() && earlier < later), "{times:?}");
    // As if a power loss had taken the file's contents.
    fs::write(units[0].file("queued"), "").unwrap();
    assert_eq!(units[0].queued_at(), units[0].status_time());
}

#[test]
fn a_directory_that_others_control_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let node = NodeId::new("n1").unwrap();
    let open = |dir: &Path| UnitStore::open(dir, &node).map(drop);
    let dir = temp.path().join("d");
    open(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(matches!(open(&dir), Err(OpenError::WritableByOthers { mode: 0o770, .. })));
    let link = temp.path().join("l");
    std::os::unix::fs::symlink(temp.path(), &link).unwrap();
    assert!(matches!(open(&link), Err(OpenError::Symlink(_))));
    let file = temp.path().join("f");
    fs::write(&file, "").unwrap();
    assert!(matches!(open(&file), Err(OpenError::NotADirectory(_))));
    let bad = NodeId::new("../x").unwrap();
    assert!(matches!(UnitStore::open(temp.path(), &bad), Err(OpenError::NodeId(_))));
}

#[tokio::test]
async fn what_a_power_loss_leaves_of_a_unit_that_nobody_was_told_of_goes_and_no_other_damaged_unit() {
    let temp = tempfile::tempdir().unwrap();
    let store = store(&temp.path().join("d"));
    let status = Status::new("t", Extra::Command(CommandExtra::default()));
    let damaged = async |durability, more: &[&str]| {
        let id = UnitId::made_by(&NodeId::new("n1").unwrap());
        store.create(&id, &status, durability).await.unwrap();
        let unit = store.unit(&id);
        ["status"].iter().chain(more).for_each(|name| fs::write(unit.file(name), "").unwrap());
        fs::write(unit.file("stdin"), "half").unwrap();
        store.clear_half_made(&unit) && !unit.path().exists()
    };
    assert!(damaged(Durability::Deferred, &[]).await);
    assert!(!damaged(Durability::Durable, &[]).await, "a client may know it");
    assert!(!damaged(Durability::Deferred, &["runner"]).await, "it has run");
}

#[tokio::test]
async fn the_lock_is_the_one_that_go_nodes_take() {
    let temp = tempfile::tempdir().unwrap();
    let store = store(&temp.path().join("d"));
    let id = UnitId::made_by(&NodeId::new("n1").unwrap());
    store.create(&id, &Status::new("echo", Extra::None), Durability::Durable).await.unwrap();
    let unit = store.unit(&id);
    let held = fs::File::open(unit.file("status.lock")).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    assert!(lock_status(&unit.path(), Lock::Shared).unwrap().is_none(), "it is not waited for without end");
    drop(held);
    assert!(lock_status(&unit.path(), Lock::Shared).unwrap().is_some());
}

#[tokio::test]
async fn a_shared_payload_outlives_the_unit_that_drops_it() {
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let [one, other] = ["aaaaaaaa", "bbbbbbbb"].map(|id| id.parse::<UnitId>().unwrap());
    for id in [&one, &other] {
        let status = Status::new("controller", Extra::Command(CommandExtra::default()));
        store.create(id, &status, Durability::Durable).await.unwrap();
    }
    let (first, second) = (store.unit(&one), store.unit(&other));
    UnitStore::add_payload(&mut first.append_stdin().unwrap(), b"the payload", true).unwrap();
    store.link_payload(first.file("stdin"), &second).await.unwrap();
    let inode =
        |dir: &UnitDir| std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.file("stdin")).unwrap());
    assert_eq!(inode(&first), inode(&second), "it is on disk once");
    store.drop_payload(&first).await.unwrap();
    let read = |dir: &UnitDir| fs::read_to_string(dir.file("stdin")).unwrap();
    assert_eq!((read(&first).as_str(), read(&second).as_str()), ("", "the payload"));
}
