//! Places of projects, answers of syncs, and which trees are deleted.

use std::io::Read as _;
use std::time::Duration;

use super::*;
use crate::controller::credentials::{Credential, CredentialKind, CredentialName, ScmLogin, ScmProof, Url};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn sync(url: &str, credential: Option<&str>) -> ProjectSync {
    ProjectSync {
        url: Url::parse(url).unwrap(),
        revision: None,
        credential: credential.map(|name| CredentialName::new(name).unwrap()),
        submodules: true,
        requirements: true,
    }
}

fn write_tree(place: &ProjectPlace, name: &str, size: usize, age: u64) -> PathBuf {
    place.make(7).unwrap();
    let path = place.directory.join(TREES).join(name);
    fs::write(&path, vec![0; size]).unwrap();
    let used = SystemTime::now() - Duration::from_secs(age);
    File::options().write(true).open(&path).unwrap().set_modified(used).unwrap();
    path
}

#[test]
fn what_differs_in_address_credential_or_content_is_another_tree() {
    let cache = ProjectCache::new("/projects".into());
    let plain = cache.place(&sync("https://git.example/a", None));
    assert_eq!(plain.hash.len(), 32);
    assert_eq!(plain.directory, Path::new("/projects").join(&plain.hash));
    assert_eq!(plain, cache.place(&sync("https://git.example/a", None)));
    assert_ne!(plain.hash, cache.place(&sync("https://git.example/b", None)).hash);
    assert_ne!(plain.hash, cache.place(&sync("https://git.example/a", Some("x"))).hash);
    let mut suffixes: Vec<_> = [(true, true), (true, false), (false, true), (false, false)]
        .map(|(submodules, requirements)| {
            let sync = ProjectSync { submodules, requirements, ..sync("https://git.example/a", None) };
            cache.place(&sync).suffix
        })
        .into();
    suffixes.sort_unstable();
    suffixes.dedup();
    assert_eq!(suffixes.len(), 4);
}

#[test]
fn only_a_plain_file_named_by_a_whole_commit_is_a_tree() {
    let directory = tempfile::tempdir().unwrap();
    let cache = ProjectCache::new(directory.path().to_owned());
    let place = cache.place(&sync("https://git.example/a", None));
    assert!(cache.tree(&place, COMMIT).is_none());
    let path = write_tree(&place, COMMIT, 1, 9);
    let tree = cache.tree(&place, COMMIT).unwrap();
    assert_eq!(tree.path(), path);
    assert!(fs::metadata(&path).unwrap().modified().unwrap().elapsed().unwrap() < Duration::from_secs(8));
    for name in ["", "main", "../mirror", &COMMIT[1..], &COMMIT.to_uppercase()] {
        assert!(cache.tree(&place, name).is_none(), "{name}");
    }
    let other = "f".repeat(40);
    std::os::unix::fs::symlink(&path, place.directory.join(TREES).join(&other)).unwrap();
    assert!(cache.tree(&place, &other).is_none(), "a link");
}

#[test]
fn a_link_in_the_place_of_a_sync_s_settings_leads_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let place =
        ProjectCache::new(directory.path().join("projects")).place(&sync("https://git.example/a", None));
    place.make(7).unwrap();
    let settings = place.run_directory(7).join(NO_SETTINGS);
    let other = directory.path().join("other");
    for content in [Some("x"), None] {
        if let Some(text) = content {
            fs::write(&other, text).unwrap();
        }
        fs::remove_file(&settings).unwrap();
        std::os::unix::fs::symlink(&other, &settings).unwrap();
        assert!(place.make(7).is_err());
        assert_eq!(fs::read_to_string(&other).ok().as_deref(), content);
        let _ = fs::remove_file(&other);
    }
    fs::remove_file(&settings).unwrap();
    fs::write(&settings, "[defaults]").unwrap();
    place.make(7).unwrap();
    assert_eq!(fs::read_to_string(&settings).unwrap(), "");
}

#[test]
fn trees_and_mirrors_go_least_recently_used_first_and_never_while_they_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let cache = ProjectCache::new(directory.path().join("projects"));
    cache.shrink(0).unwrap();
    let place = cache.place(&sync("https://git.example/a", None));
    let old = write_tree(&place, &"a".repeat(40), 100, 300);
    let middle = write_tree(&place, &"b".repeat(40), 100, 200);
    let new = write_tree(&place, &"c".repeat(40), 100, 100);
    let held = Held::new(middle.clone(), &cache.users);
    cache.shrink(300).unwrap();
    assert!(old.exists() && middle.exists() && new.exists());
    cache.shrink(299).unwrap();
    assert!(!old.exists() && middle.exists() && new.exists());
    cache.shrink(100).unwrap();
    assert!(middle.exists() && !new.exists(), "the older one is in use");
    drop(held);
    let mirror = place.directory.join(MIRROR);
    fs::create_dir_all(mirror.join("objects")).unwrap();
    fs::write(mirror.join("objects/x"), [0; 50]).unwrap();
    let held = cache.mirror(&place);
    cache.shrink(0).unwrap();
    assert!(!middle.exists() && mirror.exists());
    drop(held);
    cache.shrink(0).unwrap();
    assert!(!mirror.exists());
}

#[test]
fn a_mirror_too_deep_to_be_measured_goes_and_nothing_else_is_held_up() {
    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
    let directory = tempfile::tempdir().unwrap();
    let cache = ProjectCache::new(directory.path().join("projects"));
    let place = cache.place(&sync("https://git.example/a", None));
    let old = write_tree(&place, &"a".repeat(40), 100, 300);
    let new = write_tree(&place, &"b".repeat(40), 100, 200);
    let mirror = place.directory.join(MIRROR);
    fs::create_dir_all(&mirror).unwrap();
    let (flags, name) = (OFlags::DIRECTORY | OFlags::RDONLY, "d".repeat(250));
    let mut deepest = open(&mirror, flags, Mode::empty()).unwrap();
    for _ in 0..20 {
        mkdirat(&deepest, &name, Mode::RWXU).unwrap();
        deepest = openat(&deepest, &name, flags, Mode::empty()).unwrap();
    }
    let held = cache.mirror(&place);
    cache.shrink(100).unwrap();
    assert!(mirror.exists() && !old.exists() && new.exists(), "a sync uses the mirror");
    drop(held);
    cache.shrink(100).unwrap();
    assert!(!mirror.exists() && new.exists());
}

#[test]
fn an_answer_is_a_commit_or_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let place = ProjectCache::new(directory.path().to_owned()).place(&sync("https://git.example/a", None));
    place.make(7).unwrap();
    assert_eq!(place.answer(7), None);
    let answer = |text: &str| {
        fs::write(place.sync_directory(7).join(ANSWER), text).unwrap();
        place.answer(7)
    };
    assert_eq!(answer(&format!(r#"{{"commit": "{COMMIT}"}}"#)), Some(Ok(COMMIT.into())));
    assert_eq!(answer(r#"{"error": " fatal: \u0007 no "}"#), Some(Err("fatal: \u{fffd} no".into())));
    let long = "ä".repeat(3_000);
    assert_eq!(answer(&format!(r#"{{"error": "{long}"}}"#)).unwrap().unwrap_err().len(), 2_000);
    for text in ["", "{}", "[]", r#"{"commit": "../../etc"}"#, r#"{"commit": 7}"#] {
        assert_eq!(answer(text), None, "{text}");
    }
    place.forget_answer(7);
    assert_eq!(place.answer(7), None);
}

#[test]
fn a_sync_leaves_a_tree_and_the_key_of_its_own_server() {
    let directory = tempfile::tempdir().unwrap();
    let place = ProjectCache::new(directory.path().to_owned()).place(&sync("https://git.example/a", None));
    let url = Url::parse("ssh://git.example:2222/a").unwrap();
    let tree = place.directory.join(TREES).join(COMMIT);
    let harvest = |job: i64, tree: &str, keys: &str| {
        place.make(job).unwrap();
        fs::write(place.sync_directory(job).join("tree"), tree).unwrap();
        fs::write(place.sync_directory(job).join(KNOWN_HOSTS), keys).unwrap();
        place.harvest(job, &url, COMMIT)
    };
    let known = || fs::read_to_string(place.directory.join(KNOWN_HOSTS)).unwrap_or_default();
    for text in [
        "",
        "AAAA",
        "{\"zipfile\":3}",
        "{\"zipfile\":3}\nAAA",
        "{\"zipfile\":3}\nAAAAA",
        "{\"zipfile\":3,\"kwargs\":{}}\nAAAA",
        "{\"zipfile\":3}\nAA}A",
        "{\"kwargs\":{}}\nAAAA",
    ] {
        assert!(harvest(1, text, "").is_err() && !tree.exists(), "{text}");
    }
    fs::remove_file(place.sync_directory(1).join("tree")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.sync_directory(1).join("tree")).unwrap();
    assert!(place.harvest(1, &url, COMMIT).is_err() && !tree.exists());
    place.forget_answer(1);

    let keys =
        "github.com ssh-rsa a\n[git.example]:2222,[192.0.2.1]:2222 ssh-ed25519 b\ngit.example ssh-rsa c\n";
    harvest(2, "{\"zipfile\":3}\nAAAA", keys).unwrap();
    assert_eq!(fs::read_to_string(&tree).unwrap(), "{\"zipfile\":3}\nAAAA");
    assert_eq!(known(), "[git.example]:2222 ssh-ed25519 b\n");
    // A known key stays, and so does an existing tree.
    harvest(3, "AAAA", "[git.example]:2222 ssh-rsa d\n").unwrap();
    assert_eq!(known(), "[git.example]:2222 ssh-ed25519 b\n");
    place.sweep(3);
    assert!(!place.private_data_dir(3).parent().unwrap().exists() && place.sync_directory(3).exists());
}

/// The files of a sync's stream, with their modes.
fn unpack(stream: &[u8]) -> BTreeMap<String, (u32, String)> {
    use base64::Engine as _;
    let lines: Vec<_> = stream.splitn(3, |byte| *byte == b'\n').collect();
    assert!(lines[0].starts_with(b"{\"kwargs\":"));
    let body = lines[2].split(|byte| *byte == b'{').next().unwrap();
    let packed = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
    assert_eq!(lines[1], format!("{{\"zipfile\":{}}}", packed.len()).as_bytes());
    let mut archive = zip::ZipArchive::new(io::Cursor::new(packed)).unwrap();
    let mut files = BTreeMap::new();
    for at in 0..archive.len() {
        let mut file = archive.by_index(at).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        files.insert(file.name().unwrap().into_owned(), (file.unix_mode().unwrap() & 0o777, text));
    }
    files
}

#[test]
fn a_login_stands_in_a_private_file_of_the_sync_and_nowhere_else() {
    let place = ProjectCache::new("/projects".into()).place(&sync("https://git.example/a", Some("x")));
    let sync = sync("https://git.example/a", Some("x"));
    let login = |proof| Credential {
        kind: CredentialKind::Scm(ScmLogin { username: Some("user".into()), proof }),
        urls: vec![Url::parse("https://git.example").unwrap()],
        mesh: false,
    };
    let files = |login: Option<&Credential>| {
        unpack(&SyncOrder { sync: &sync, place: &place, job: 1, login }.stream().unwrap())
    };
    let secret = || "canary".to_owned().into();
    for (proof, name, content) in [
        (ScmProof::Password(secret()), "env/scm_login", "username=user\npassword=canary\n"),
        (ScmProof::SshKey(secret()), "env/scm_key", "canary\n"),
    ] {
        let files = files(Some(&login(proof)));
        assert_eq!(files[name], (0o600, content.to_owned()));
        let holders = files.values().filter(|(_, text)| text.contains("canary"));
        assert_eq!(holders.count(), 1);
        assert!(files.contains_key("project/sync.yml") && files.contains_key("project/sync.py"));
        assert!(files["project/order.json"].1.contains(r#""protocols":"https:ssh""#));
    }
    assert!(files(None).keys().all(|name| !name.starts_with("env/")));
}
