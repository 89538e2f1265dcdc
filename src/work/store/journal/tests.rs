//! The journal on the real disk, with its threads: what comes back after a power loss, and what does not stay.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;

use super::*;
use crate::work::store::RULES;
use crate::work::store::disk::{Disk, Durability, replace_status};

const LIMIT: Duration = Duration::from_secs(30);

fn line(state: u8) -> Vec<u8> {
    format!(r#"{{"State":{state},"Detail":"x","StdoutSize":0,"WorkType":"t","ExtraData":null}}"#).into_bytes()
}

fn open(root: &Path) -> Journal {
    Journal::start(root, RULES, recover(root, &RULES).unwrap()).unwrap()
}

/// Has a change made, and waits for it.
fn commit(journal: &Journal, unit: &UnitDir, change: Change) -> io::Result<()> {
    block_on(journal.commit(unit, change))
}

fn status(state: u8, output: u64) -> Change {
    Change::Status(NewStatus { line: line(state), output, from_exit_record: false })
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, work).await.unwrap() })
}

fn contents(unit: &UnitDir, name: &str) -> String {
    fs::read_to_string(unit.file(name)).unwrap()
}

/// Waits until all that an earlier daemon or this one has written to logs is durable elsewhere.
fn settled(root: &Path) {
    let begun = std::time::Instant::now();
    let is_empty = |path: &PathBuf| fs::read(path).is_ok_and(|log| log.iter().all(|byte| *byte == 0));
    while !logs(root).unwrap().iter().all(is_empty) {
        assert!(begun.elapsed() < LIMIT, "the logs do not settle");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn after_a_power_loss_units_are_where_the_journal_says() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let unit = |name: &str| UnitDir::at(&root.join(name));
    let journal = open(root);
    let (lost, torn, ended, removed) =
        (unit("lost0000"), unit("torn0000"), unit("ended000"), unit("gone0000"));
    for made in [&lost, &torn, &ended, &removed] {
        commit(&journal, made, Change::Make(line(0))).unwrap();
        commit(&journal, made, Change::File("stdin", b"payload".to_vec())).unwrap();
    }
    assert!(commit(&journal, &lost, Change::Make(line(0))).is_err(), "there is one already");
    fs::write(lost.file("stdout"), "out").unwrap();
    commit(&journal, &lost, status(2, 3)).unwrap();
    commit(&journal, &torn, status(1, 0)).unwrap();
    // A runner's own last word, which is in no log.
    let lock = System.lock(&ended.path()).unwrap();
    replace_status(&System, &lock, &ended.path(), &line(3), Durability::Deferred).unwrap();
    fs::rename(removed.path(), root.join(".trash-gone0000")).unwrap();
    commit(&journal, &removed, Change::Gone).unwrap();
    commit(&journal, &torn, Change::File("queued", b"7".to_vec())).unwrap();
    drop(journal);
    let before = fs::metadata(root).unwrap().modified().unwrap();
    // The power goes, and with it what was not synced; what had another name has its old one.
    fs::remove_dir_all(lost.path()).unwrap();
    fs::write(torn.file("status"), &line(0)[..9]).unwrap();
    fs::write(torn.file("stdin"), "").unwrap();
    fs::rename(root.join(".trash-gone0000"), removed.path()).unwrap();
    fs::File::open(root).unwrap().set_modified(before).unwrap();
    drop(open(root));
    assert_eq!(
        ["status", "stdin", "stdout"].map(|name| contents(&lost, name)),
        [String::from_utf8(line(2)).unwrap(), "payload".into(), "out".into()]
    );
    assert_eq!(fs::metadata(lost.path()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(contents(&torn, "status").as_bytes(), line(1));
    assert_eq!((contents(&torn, "stdin"), contents(&torn, "queued")), ("payload".into(), "7".into()));
    assert_eq!(contents(&ended, "status").as_bytes(), line(3), "a runner's word is later");
    assert!(!removed.path().exists() && !root.join(".trash-gone0000").exists());
    assert!(logs(root).unwrap().is_empty());
}

#[test]
fn a_payload_that_was_read_does_not_come_back() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let [read, unread, lost] = ["read0000", "unread00", "lost0000"].map(|name| UnitDir::at(&root.join(name)));
    let journal = open(root);
    for unit in [&read, &unread, &lost] {
        commit(&journal, unit, Change::Make(line(0))).unwrap();
        commit(&journal, unit, Change::File("stdin", b"secret".to_vec())).unwrap();
    }
    drop(journal);
    // A runner removes it once it was read. Without a runner it was not there yet when the power went.
    for unit in [&read, &unread] {
        fs::write(unit.file("runner"), "{}").unwrap();
    }
    for unit in [&read, &lost] {
        fs::remove_file(unit.file("stdin")).unwrap();
    }
    drop(open(root));
    assert_eq!([&read, &unread, &lost].map(|unit| contents(unit, "stdin")), ["", "secret", "secret"]);
}

#[test]
fn a_daemon_that_starts_again_leaves_the_files_alone_and_lets_the_logs_settle() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let unit = UnitDir::at(&root.join("abcd1234"));
    let journal = open(root);
    commit(&journal, &unit, Change::Make(line(0))).unwrap();
    drop(journal);
    fs::write(unit.file("status"), line(1)).unwrap();
    let journal = open(root);
    assert_eq!(contents(&unit, "status").as_bytes(), line(1));
    commit(&journal, &unit, status(2, 0)).unwrap();
    settled(root);
    assert_eq!(contents(&unit, "status").as_bytes(), line(2));
}

#[test]
fn payloads_do_not_stay_in_the_journal() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let journal = open(root);
    let unit = UnitDir::at(&root.join("abcd1234"));
    commit(&journal, &unit, Change::Make(line(0))).unwrap();
    commit(&journal, &unit, Change::File("stdin", b"a secret".to_vec())).unwrap();
    let holds = |path: &PathBuf| {
        let log = fs::read(path).unwrap();
        log.windows(8).any(|bytes| bytes == b"a secret")
    };
    assert!(logs(root).unwrap().iter().any(holds));
    settled(root);
    // A log is used again.
    commit(&journal, &unit, status(1, 0)).unwrap();
    let names: Vec<_> = logs(root).unwrap();
    assert_eq!(names, [root.join(".journal-1")]);
    assert!(!names.iter().any(holds));
}

#[test]
fn a_log_that_is_always_written_to_settles_too() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let journal = Journal::with_ages(root, RULES, 0, Duration::from_secs(3600), Duration::ZERO).unwrap();
    let unit = UnitDir::at(&root.join("abcd1234"));
    commit(&journal, &unit, Change::Make(line(0))).unwrap();
    commit(&journal, &unit, Change::File("stdin", b"a secret".to_vec())).unwrap();
    settled(root);
}

#[test]
fn a_log_that_somebody_has_removed_is_not_used_again() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let journal = open(root);
    let unit = UnitDir::at(&root.join("abcd1234"));
    commit(&journal, &unit, Change::Make(line(0))).unwrap();
    settled(root);
    fs::remove_file(root.join(".journal-1")).unwrap();
    commit(&journal, &unit, status(1, 0)).unwrap();
    assert_eq!(logs(root).unwrap(), [root.join(".journal-2")]);
}

#[test]
fn many_at_once_share_one_flush_and_a_full_log_is_used_again() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let journal = open(root);
    let payload = vec![b'x'; 20_000];
    let units: Vec<_> = (0..600).map(|number| UnitDir::at(&root.join(format!("unit{number:04}")))).collect();
    let changes = units.iter().flat_map(|unit| {
        [Change::Make(line(0)), Change::File("stdin", payload.clone())]
            .map(|change| journal.commit(unit, change))
    });
    let done = block_on(join_all(changes));
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    // 12 MB went through a log of 4 MiB, which is emptied when it is full.
    let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
    assert!(logs(root).unwrap().iter().map(size).sum::<u64>() < 6 * 1024 * 1024);
    drop(journal);
    let before = fs::metadata(root).unwrap().modified().unwrap();
    fs::remove_dir_all(root.join("unit0599")).unwrap();
    fs::File::open(root).unwrap().set_modified(before).unwrap();
    drop(open(root));
    assert_eq!(fs::read(root.join("unit0599/stdin")).unwrap(), payload);
}

#[test]
fn without_a_log_each_change_is_made_durable_by_itself() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let journal = open(root);
    // Something has all the names that a log could have.
    (1..=32).for_each(|number| fs::create_dir(root.join(format!("{PREFIX}{number}"))).unwrap());
    let unit = UnitDir::at(&root.join("abcd1234"));
    commit(&journal, &unit, Change::Make(line(0))).unwrap();
    commit(&journal, &unit, Change::File("stdin", b"payload".to_vec())).unwrap();
    commit(&journal, &unit, status(1, 0)).unwrap();
    assert_eq!((contents(&unit, "status").as_bytes(), &*contents(&unit, "stdin")), (&*line(1), "payload"));
}
