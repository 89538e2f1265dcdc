//! The files of pieces: what is found again, what is not believed, and what is left alone.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::*;
use crate::wire::NameHash;

const CERTIFIED: Submitter = Submitter::Node { node: NameHash(7), certified: true };
const CLAIMED: Submitter = Submitter::Node { node: NameHash(7), certified: false };
const MIB: u64 = 1 << 20;

fn opened(root: &Path, most: u64) -> Arc<PieceStore> {
    let store = PieceStore::open(root.to_owned(), Some(most));
    store.load();
    store
}

/// A piece of 64 KiB.
fn content(number: u8) -> Vec<u8> {
    vec![number; 65536]
}

fn put(store: &PieceStore, number: u8) -> PieceId {
    let id = PieceId::of(&content(number));
    store.put(CERTIFIED, id, &content(number)).unwrap();
    id
}

fn file(root: &Path, id: PieceId) -> PathBuf {
    root.join(DIRECTORY).join(CERTIFIED.to_string()).join(hex::print(&id.hash))
}

fn has(store: &PieceStore, id: PieceId) -> bool {
    store.has(CERTIFIED, &[id]) == [true]
}

#[test]
fn a_piece_is_there_for_the_caller_who_sent_it_and_nobody_else() {
    let temp = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), MIB);
    assert!(!temp.path().join(DIRECTORY).exists(), "nothing is made before it is needed");
    let id = put(&store, 1);
    let shorter = PieceId { length: 1, ..id };
    assert_eq!(store.has(CERTIFIED, &[id, shorter, PieceId::of(b"x")]), [true, false, false]);
    assert_eq!(store.read(CERTIFIED, id), Some(content(1)));
    for other in [CLAIMED, Submitter::Node { node: NameHash(8), certified: true }, Submitter::Operator] {
        assert_eq!(
            (store.knows(other), store.has(other, &[id]), store.read(other, id)),
            (false, vec![false], None)
        );
    }
    for nobody in [Submitter::Operator, Submitter::Stranger] {
        assert!(store.put(nobody, id, &content(1)).is_err());
    }
    assert_eq!(store.figures(), [CallerPieces { caller: CERTIFIED, pieces: 1, bytes: 65536 }]);
    // Others cannot look, whatever the umask is.
    let file = file(temp.path(), id);
    let modes = file.ancestors().take(3).map(|path| path.metadata().unwrap().mode() & 0o777);
    assert_eq!(modes.collect::<Vec<_>>(), [0o600, 0o700, 0o700]);
    let inode = file.metadata().unwrap().ino();
    put(&store, 1);
    assert_eq!(file.metadata().unwrap().ino(), inode, "what is known is not written again");
}

type Change<'a> = &'a dyn Fn(&Path);

#[test]
fn a_file_that_is_not_what_it_was_is_removed_and_counts_as_absent() {
    let temp = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), 8 * MIB);
    let secret = temp.path().join("secret");
    fs::write(&secret, content(1)).unwrap();
    let changes: [(&str, Change<'_>); 6] = [
        ("changed", &|path| fs::write(path, content(2)).unwrap()),
        ("cut", &|path| OpenOptions::new().write(true).open(path).unwrap().set_len(10).unwrap()),
        ("longer", &|path| fs::write(path, [content(1), content(1)].concat()).unwrap()),
        ("a link", &|path| {
            fs::remove_file(path).unwrap();
            symlink(&secret, path).unwrap();
        }),
        ("a pipe", &|path| {
            fs::remove_file(path).unwrap();
            crate::os::regular_file::pipe(path);
        }),
        ("gone", &|path| fs::remove_file(path).unwrap()),
    ];
    for (what, change) in changes {
        let id = put(&store, 1);
        change(&file(temp.path(), id));
        assert_eq!(store.read(CERTIFIED, id), None, "{what}");
        assert!(!has(&store, id) && !store.knows(CERTIFIED), "{what}");
        assert!(fs::symlink_metadata(file(temp.path(), id)).is_err(), "{what}");
        let id = put(&store, 1);
        assert_eq!(store.read(CERTIFIED, id), Some(content(1)), "{what}");
    }
    assert_eq!(fs::read(&secret).unwrap(), content(1), "what a link leads to is left alone");
    // One that is known, but whose file is gone, is written again.
    let id = put(&store, 1);
    fs::remove_file(file(temp.path(), id)).unwrap();
    put(&store, 1);
    assert_eq!((store.read(CERTIFIED, id), store.total()), (Some(content(1)), (1, 65536)));
}

#[test]
fn a_directory_that_is_a_link_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), MIB);
    let id = put(&store, 1);
    let own = file(temp.path(), id).parent().unwrap().to_owned();
    for path in [own, temp.path().join(DIRECTORY)] {
        fs::rename(&path, elsewhere.path().join("real")).unwrap();
        symlink(elsewhere.path().join("real"), &path).unwrap();
        assert!(!opened(temp.path(), MIB).knows(CERTIFIED));
        assert!(opened(temp.path(), MIB).put(CERTIFIED, PieceId::of(b"x"), b"x").is_err());
        assert_eq!(fs::read_dir(elsewhere.path().join("real")).unwrap().count(), 1);
        // Nothing behind the link is removed.
        opened(temp.path(), 0);
        assert_eq!(fs::read_dir(elsewhere.path().join("real")).unwrap().count(), 1);
        fs::remove_dir_all(elsewhere.path().join("real")).unwrap();
        put(&opened(temp.path(), MIB), 1);
    }
}

#[test]
fn a_restart_finds_the_pieces_and_when_they_were_used_and_clears_what_was_being_written() {
    let temp = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), MIB);
    let ids: Vec<_> = (0..8).map(|number| put(&store, number)).collect();
    let used = |id: PieceId, ago: u64| {
        let then = SystemTime::now() - Duration::from_secs(ago);
        File::options().write(true).open(file(temp.path(), id)).unwrap().set_modified(then).unwrap();
    };
    for (id, ago) in ids.iter().zip([31 * 24 * 3600, 7200, 7300, 100, 90, 80, 70, 60]) {
        used(*id, ago);
    }
    assert_eq!(store.read(CERTIFIED, ids[1]), Some(content(1)), "its time is noted");
    let own = file(temp.path(), ids[0]).parent().unwrap().to_owned();
    let name = hex::print(&PieceId::of(b"x").hash);
    let (half, long) = (own.join(format!("{name}.0000abcd.new")), own.join(&name));
    fs::write(&half, "x").unwrap();
    fs::write(&long, vec![0; MOST_OF_PIECE as usize + 1]).unwrap();
    // Whatever else is there is not ours.
    let foreign = ["README", "é".repeat(40).as_str(), &format!("{name}.old"), &name.to_uppercase()]
        .map(|name| own.join(name));
    foreign.iter().for_each(|path| fs::write(path, "").unwrap());
    fs::create_dir(own.join(hex::print(&[1; 32]))).unwrap();
    symlink("README", own.join(hex::print(&[2; 32]))).unwrap();
    fs::create_dir(temp.path().join(DIRECTORY).join("operator")).unwrap();
    drop(store);

    let store = opened(temp.path(), MIB);
    assert_eq!(store.total(), (7, 7 * 65536));
    assert!(!has(&store, ids[0]) && !file(temp.path(), ids[0]).exists(), "nobody has used it for a month");
    assert!(!half.exists() && !long.exists() && foreign.iter().all(|path| path.exists()));
    for number in 8..10 {
        put(&store, number);
    }
    // The ninth piece takes the place of the oldest ones.
    let gone: Vec<_> = ids.iter().filter(|id| !file(temp.path(), **id).exists()).copied().collect();
    assert_eq!(gone, [ids[0], ids[2], ids[3]]);
    for id in &ids {
        assert_eq!(store.read(CERTIFIED, *id).is_some(), !gone.contains(id));
    }
    drop(store);
    // A smaller store loses the oldest ones.
    let store = opened(temp.path(), 2 * 65536);
    assert_eq!(store.total(), (2, 2 * 65536));
    drop(store);
    opened(temp.path(), 0);
    assert!(!temp.path().join(DIRECTORY).exists());
}

#[test]
fn a_store_that_is_off_keeps_nothing_and_can_be_turned_on_and_off() {
    let temp = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), 0);
    assert!(!store.is_on() && store.put(CERTIFIED, PieceId::of(b"x"), b"x").is_err());
    store.set_most(Some(MIB));
    let ids = [1, 2, 3].map(|number| put(&store, number));
    assert!(store.is_on() && store.read(CERTIFIED, ids[0]).is_some());
    assert_eq!(store.clear(), (3, 3 * 65536));
    assert_eq!((store.total(), store.most(), has(&store, ids[0])), ((0, 0), MIB, false));
    put(&store, 1);
    store.set_most(Some(0));
    assert!(!store.is_on() && !store.knows(CERTIFIED) && !temp.path().join(DIRECTORY).exists());
    store.set_most(None);
    assert!(store.is_on() && store.most() <= MOST);
}

#[test]
fn a_disk_that_is_nearly_full_gets_room_back_and_no_more_pieces() {
    let temp = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), MIB);
    let ids: Vec<_> = (0..8).map(|number| put(&store, number)).collect();
    assert!(has(&store, ids[0]));
    store.set_scarce(true);
    store.give_way();
    let left = |store: &PieceStore| ids.iter().map(|id| has(store, *id)).collect::<Vec<_>>();
    assert_eq!(left(&store), [true, false, false, true, true, true, true, true]);
    assert!(!file(temp.path(), ids[1]).exists());
    assert!(store.put(CERTIFIED, ids[1], &content(1)).is_err());
    assert!(store.put(CERTIFIED, ids[3], &content(3)).is_ok(), "it is there");
    for _ in 0..30 {
        store.give_way();
    }
    assert_eq!(store.total(), (0, 0));
    store.set_scarce(false);
    put(&store, 1);
}

#[test]
fn only_what_is_a_piece_is_kept_and_a_failed_write_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let store = opened(temp.path(), MIB);
    let long = vec![0; MOST_OF_PIECE as usize + 1];
    assert!(store.put(CERTIFIED, PieceId::of(&long), &long).is_err());
    assert!(store.put(CERTIFIED, PieceId::of(b"x"), b"xy").is_err());
    let small = opened(&temp.path().join("none"), MIB);
    assert!(small.put(CERTIFIED, PieceId::of(b"x"), b"x").is_err());
    assert_eq!((store.total(), small.total()), ((0, 0), (0, 0)));
    let id = put(&store, 1);
    let own = file(temp.path(), id).parent().unwrap().to_owned();
    // A directory has the name of the next piece.
    fs::create_dir(own.join(hex::print(&PieceId::of(b"x").hash))).unwrap();
    assert!(store.put(CERTIFIED, PieceId::of(b"x"), b"x").is_err());
    assert_eq!(fs::read_dir(&own).unwrap().count(), 2);
    // Without the right to look, nothing is known of the file, so that it stays.
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(&own, Permissions::from_mode(0o0)).unwrap();
        assert_eq!(store.read(CERTIFIED, id), None);
        fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
        assert!(has(&store, id));
    }
}
