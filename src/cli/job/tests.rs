//! Compares what is packed with a stream that ansible-runner 2.4.3 made of the same directory
//! (`tests/vectors/runner/tree.in`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::{Map, Value, json};

use super::artifacts::Artifacts;
use super::flags::RunFlags;
use super::secrets::Typed;
use crate::cli::exit::Failure;
use crate::controller::header::Header;
use crate::rpc::report::controller::SilentNode;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    flags: RunFlags,
}

fn flags(dir: &Path, words: &[&str]) -> RunFlags {
    let dir = dir.to_str().unwrap();
    let words = ["run", dir].into_iter().chain(words.iter().copied());
    let matches = Line::command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{error}"));
    Line::from_arg_matches(&matches).unwrap().flags
}

/// A node that is out of reach; if `lost`, with what runs there.
pub(super) fn silent_node(lost: bool) -> SilentNode {
    let (node, since) = ("e1".to_owned(), Some("2026-11-25T12:04:00Z".to_owned()));
    SilentNode { node, attempt: 1, since, lost_at: "2026-11-25T12:07:00Z".to_owned(), lost }
}

/// By name: kind and mode, then content.
type Files = BTreeMap<String, (u32, Vec<u8>)>;

/// The kwargs, and the files as a worker unpacks them.
fn read(stream: &[u8]) -> (Map<String, Value>, Files) {
    let mut rest = stream;
    let mut line = || {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let value: Value = serde_json::from_slice(&rest[..end]).unwrap();
        rest = &rest[end + 1..];
        value
    };
    let kwargs = line();
    let size = line()["zipfile"].as_u64().unwrap();
    let body = size.div_ceil(3) as usize * 4;
    assert!([b"{\"eof\":true}\n".as_slice(), b"{\"eof\": true}\n"].contains(&&rest[body..]));
    let zip = STANDARD.decode(&rest[..body]).unwrap();
    assert_eq!(zip.len() as u64, size);
    let mut zip = zip::ZipArchive::new(Cursor::new(zip)).unwrap();
    let mut files = Files::new();
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        let name = file.name().unwrap().trim_start_matches("./").trim_end_matches('/').to_owned();
        assert_eq!(files.insert(name, (file.unix_mode().unwrap(), content)), None);
    }
    (kwargs["kwargs"].as_object().unwrap().clone(), files)
}

fn pack(flags: &RunFlags, typed: &Typed) -> Result<(Value, Map<String, Value>, Files), Failure> {
    let mut stream = flags.pack(typed, "ident", &|_| None)?.stream().unwrap();
    let mut bytes = Vec::new();
    let length = stream.length();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, length);
    let (kwargs, files) = read(&bytes);
    let header = flags.header().to_string();
    // A control node accepts the header.
    Header::parse(header.as_bytes()).unwrap();
    Ok((serde_json::from_str(&header).unwrap(), kwargs, files))
}

fn write(root: &Path, file: &str, mode: u32, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The directory from which `tree.in` was made.
fn runners_directory() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - debug: msg=hello\n";
    write(root, "project/site.yml", 0o644, playbook);
    write(root, "project/roles/a/tasks/main.yml", 0o644, "[]\n");
    write(root, "project/secret.txt", 0o600, "s");
    write(root, "project/script.sh", 0o755, "#!/bin/sh\n");
    write(root, "project/empty", 0o644, "");
    write(root, "inventory/hosts", 0o644, "a ansible_connection=local\n");
    write(root, "inventory/dynamic.py", 0o750, "#!/usr/bin/python3\nprint(\"{}\")\n");
    write(root, "env/settings", 0o600, "job_timeout: 60\n");
    write(root, "env/extravars", 0o600, "{\"x\": 1}\n");
    fs::create_dir(root.join("project/none")).unwrap();
    let mode =
        |path: &str, mode| fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    for path in ["project", "project/roles", "project/roles/a", "project/roles/a/tasks", "inventory", "env"] {
        mode(path, 0o755);
    }
    mode("project/none", 0o700);
    symlink("site.yml", root.join("project/link.yml")).unwrap();
    symlink("roles", root.join("project/more")).unwrap();
    symlink("../nowhere", root.join("project/dangling")).unwrap();
    symlink("project/site.yml", root.join("top")).unwrap();
    let fifo = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("project/fifo"), rustix::fs::FileType::Fifo, fifo, 0)
        .unwrap();
    folder
}

#[test]
fn what_cannot_be_sent_is_named() {
    let folder = runners_directory();
    let told = |args: &[&str]| {
        let flags = flags(folder.path(), args);
        flags.pack(&Typed::default(), "i", &|_| None).unwrap().warnings
    };
    let warnings = told(&["-p", "site.yml"]);
    assert!(warnings.iter().any(|text| text.contains("1 left out: project/fifo")), "{warnings:?}");
    let env = folder.path().join("env");
    let fifo = rustix::fs::Mode::from_raw_mode(0o600);
    for number in 0..7 {
        let path = env.join(format!("f{number}"));
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, fifo, 0).unwrap();
    }
    let warnings = told(&["-p", "site.yml"]);
    assert!(warnings.iter().any(|text| text.contains("8 left out: env/f0, env/f1")), "{warnings:?}");
}

#[test]
fn a_runners_directory_is_packed_as_the_runner_does() {
    let folder = runners_directory();
    let (header, mut kwargs, mut files) =
        pack(&flags(folder.path(), &["-p", "site.yml"]), &Typed::default()).unwrap();
    let ours = ["env/callback", "env/callback/no_terminal.py", "env/envvars"]
        .map(|name| files.remove(name).unwrap());
    assert_eq!(ours[2].1, b"{\"ANSIBLE_CALLBACK_PLUGINS\":\"../env/callback\"}");
    let vector = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/runner/tree.in");
    let (mut theirs, their_files) = read(&fs::read(vector).unwrap());
    assert_eq!(header, json!({"controller": 1, "name": "site.yml"}));
    // The runner's own command line also sends arguments that have their defaults.
    theirs.retain(|_, value| ![json!(null), json!(false), json!(0)].contains(value));
    assert!(kwargs.remove("ident").is_some() && theirs.remove("ident").is_some());
    assert_eq!(kwargs, theirs);
    assert_eq!(files.keys().collect::<Vec<_>>(), their_files.keys().collect::<Vec<_>>());
    assert!(files.len() > 15 && !files.contains_key("project/fifo"));
    assert_eq!(files["project/link.yml"], (0o120_777, b"site.yml".to_vec()));
    assert_eq!(files, their_files);
}

/// Needs the ansible-runner of tests/requirements.txt, which tests/run installs; without it nothing is compared.
#[test]
fn the_runner_unpacks_and_runs_it() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin");
    if !programs.join("ansible-runner").exists() {
        eprintln!("skipped: there is no ansible-runner in {}", programs.display());
        return;
    }
    let folder = runners_directory();
    let flags = flags(folder.path(), &["-p", "site.yml", "-e", "y=2"]);
    let job = flags.pack(&Typed::default(), "ident", &|_| None).unwrap();
    let mut stream = Vec::new();
    job.stream().unwrap().read_to_end(&mut stream).unwrap();
    let run = tempfile::tempdir().unwrap();
    let (input, there) = (run.path().join("in"), run.path().join("there"));
    fs::write(&input, &stream).unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let ran = std::process::Command::new(programs.join("ansible-runner"))
        .args(["worker", "--private-data-dir", there.to_str().unwrap()])
        .env("PATH", path)
        .env("HOME", run.path())
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(output.contains("{\"status\": \"successful\""), "{output}");
    let (_, files) = read(&stream);
    assert!(files.len() > 15);
    for (name, (mode, content)) in files {
        let (here, there) = (folder.path().join(&name), there.join(&name));
        let facts = fs::symlink_metadata(&there).unwrap_or_else(|error| panic!("{name}: {error}"));
        if facts.is_symlink() {
            assert_eq!(fs::read_link(&here).unwrap(), fs::read_link(&there).unwrap(), "{name}");
            continue;
        }
        assert_eq!(facts.permissions().mode() & 0o777, mode & 0o777, "{name}");
        if facts.is_file() {
            assert_eq!(fs::read(&there).unwrap(), content, "{name}");
            let age = |path: &Path| {
                fs::metadata(path).and_then(|facts| facts.modified()).unwrap_or(std::time::UNIX_EPOCH)
            };
            // Zips round times to two seconds; a file that a flag made is new.
            let apart = age(&here).duration_since(age(&there)).unwrap_or_default();
            assert!(name == "env/extravars" || apart.as_secs() <= 2, "{name}");
        }
    }
}

#[test]
fn another_directory_is_a_project_without_its_history() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "site.yml", 0o644, "[]");
    write(folder.path(), ".git/config", 0o644, "x");
    write(folder.path(), "sub/.git", 0o644, "gitdir: x");
    write(folder.path(), "sub/a", 0o644, "x");
    let (_, _, files) = pack(&flags(folder.path(), &["-p", "site.yml"]), &Typed::default()).unwrap();
    assert_eq!(
        files.keys().collect::<Vec<_>>(),
        [
            "env",
            "env/callback",
            "env/callback/no_terminal.py",
            "env/envvars",
            "project",
            "project/site.yml",
            "project/sub",
            "project/sub/a"
        ]
    );
    for playbook in ["none.yml", "../site.yml", "/etc/passwd", ""] {
        let failure = pack(&flags(folder.path(), &["-p", playbook]), &Typed::default()).unwrap_err();
        assert!(failure.message.starts_with("there is no playbook"), "{}", failure.message);
    }
}

#[test]
fn inventories_take_the_place_of_the_directorys_own() {
    let folder = runners_directory();
    let other = tempfile::tempdir().unwrap();
    write(other.path(), "prod", 0o755, "#!/bin/sh\n");
    write(other.path(), "group_vars/all.yml", 0o644, "x: 1\n");
    write(other.path(), "more/extra", 0o644, "b\n");
    let prod = other.path().join("prod").display().to_string();
    let more = other.path().join("more").display().to_string();
    let words = ["-p", "site.yml", "-i", &prod, "-i", "c,d,", "-i", &more];
    let (_, kwargs, files) = pack(&flags(folder.path(), &words), &Typed::default()).unwrap();
    let names: Vec<_> = files.keys().filter(|name| name.starts_with("inventory")).collect();
    assert_eq!(
        names,
        [
            "inventory",
            "inventory/extra",
            "inventory/group_vars",
            "inventory/group_vars/all.yml",
            "inventory/hosts-of-command-line",
            "inventory/prod"
        ]
    );
    assert_eq!(files["inventory/prod"].0, 0o100_755);
    assert_eq!(files["inventory/hosts-of-command-line"].1, b"c\nd\n");
    assert!(!kwargs.contains_key("inventory"));
    let twice = flags(folder.path(), &["-p", "site.yml", "-i", &prod, "-i", &prod]);
    assert!(pack(&twice, &Typed::default()).unwrap_err().message.contains("another inventory/prod already"));
}

#[test]
fn variables_and_secrets_are_files_that_only_the_owner_reads() {
    let folder = runners_directory();
    let other = tempfile::tempdir().unwrap();
    write(other.path(), "vars.yml", 0o644, "y: [1, 2]\nz: canary\n");
    write(other.path(), "key", 0o600, "KEY canary\n");
    write(other.path(), "vault", 0o600, "canary vault\n");
    let path = |file: &str| other.path().join(file).display().to_string();
    write(other.path(), "dev-client", 0o755, "#!/bin/sh\necho canary of ${0##*/} \"$@\"\n");
    let script = format!("dev@{}", path("dev-client"));
    let (vars, key, vault) = (format!("@{}", path("vars.yml")), path("key"), path("vault"));
    let words = [
        "-p",
        "site.yml",
        "-e",
        "a=1 b='x y'",
        "-e",
        &vars,
        "-e",
        "{\"a\": {\"n\": null}}",
        "--private-key",
        &key,
        "-k",
        "-K",
        "--vault-id",
        "lab@prompt",
        "--vault-id",
        &script,
        "--vault-password-file",
        &vault,
        "-C",
        "-D",
        "-b",
        "--become-user",
        "it's me",
        "-vv",
        "-l",
        "web",
        "-f",
        "7",
        "-t",
        "x",
        "-t",
        "w,v",
        "--skip-tags",
        "y",
    ];
    let typed = Typed {
        connection: Some("canary c".to_owned()),
        become_user: Some("canary b".to_owned()),
        vaults: vec!["canary typed".into()],
    };
    let (header, mut kwargs, files) = pack(&flags(folder.path(), &words), &typed).unwrap();
    let cmdline = shlex::split(kwargs.remove("cmdline").unwrap().as_str().unwrap()).unwrap();
    assert_eq!(
        cmdline,
        [
            "--check",
            "--diff",
            "--become",
            "--become-user=it's me",
            "--connection-password-file=../env/connection_password",
            "--become-password-file=../env/become_password",
            "--vault-id=lab@../env/vault_0",
            "--vault-id=dev@../env/vault_1",
            "--vault-id=default@../env/vault_2",
        ]
    );
    let text = |name: &str| {
        assert_eq!(files[name].0, 0o100_600, "{name}");
        String::from_utf8(files[name].1.clone()).unwrap()
    };
    let variables: Value = serde_json::from_str(&text("env/extravars")).unwrap();
    assert_eq!(variables, json!({"x": 1, "a": {"n": null}, "b": "x y", "y": [1, 2], "z": "canary"}));
    assert_eq!(text("env/ssh_key"), "KEY canary\n");
    let passwords = ["connection_password", "become_password", "vault_0", "vault_1", "vault_2"];
    let expected =
        ["canary c", "canary b", "canary typed", "canary of dev-client --vault-id dev\n", "canary vault\n"];
    assert_eq!(passwords.map(|name| text(&format!("env/{name}"))), expected);
    let wanted = json!({
        "ident": "ident", "playbook": "site.yml", "limit": "web", "forks": 7, "tags": "x,w,v", "skip_tags": "y",
        "verbosity": 2,
    });
    assert_eq!(Value::Object(kwargs), wanted);
    assert!(!header.to_string().contains("canary"));
    for (words, text) in [
        (["-e", "canary"], "-e: write KEY=VALUE (several with blanks between), a JSON object, or @FILE"),
        (["-e", "a='canary"], "-e: a quote is not closed"),
        (["-e", "{canary"], "-e: it is not a JSON or YAML object"),
    ] {
        let words = [&["-p", "site.yml"], &words[..]].concat();
        assert_eq!(pack(&flags(folder.path(), &words), &Typed::default()).unwrap_err().message, text);
    }
}

#[test]
fn flags_become_the_header() {
    let folder = runners_directory();
    let words = [
        "-m",
        "ping",
        "--pattern",
        "web",
        "--hosts",
        "20",
        "--job-timeout",
        "1h",
        "--pending-timeout",
        "2h",
        "--lost-after",
        "3m",
        "--retry",
        "2",
        "--retry-unconfirmed",
        "--group",
        "east",
        "--group",
        "west",
        "--name",
        "n",
        "--job-key",
        "k",
        "--priority",
        "-5",
        "--label",
        "a=b=c",
        "--depends-on",
        "41",
        "--depends-on",
        "build",
        "--exclusive",
        "site",
        "--image",
        "i",
        "--pull",
        "never",
        "--registry",
        "quay",
    ];
    let (header, kwargs, _) = pack(&flags(folder.path(), &words), &Typed::default()).unwrap();
    assert_eq!(Value::Object(kwargs), json!({"ident": "ident", "module": "ping", "host_pattern": "web"}));
    let wanted = json!({
        "controller": 1, "kind": "ad_hoc", "name": "n", "key": "k", "labels": {"a": "b=c"}, "hosts": 20,
        "priority": -5,
        "groups": {"launch": ["east", "west"], "template": [], "inventory": [], "organization": [], "prevent_fallback": []}, "depends_on": [41, {"key": "build"}],
        "exclusive": ["site"], "pending_timeout": "2h0m0s", "timeout": "1h0m0s", "lost_after": "3m0s",
        "retry": {"max": 2, "on": ["lost"], "unconfirmed": true}, "runner": {"image": "i", "pull": "never", "isolation": null,
            "options": null, "registry": "quay", "keepalive": null},
    });
    assert_eq!(header, wanted);
}

#[test]
fn a_project_from_a_repository_needs_no_directory() {
    let plain = tempfile::tempdir().unwrap();
    let runners = runners_directory();
    let url = [
        "-p",
        "any.yml",
        "--project-url",
        "https://h/a",
        "--revision",
        "main",
        "--project-credential",
        "git",
    ];
    for folder in [&plain, &runners] {
        assert!(pack(&flags(folder.path(), &url), &Typed::default()).is_err());
    }
    fs::remove_dir_all(runners.path().join("project")).unwrap();
    let (header, _, files) = pack(&flags(runners.path(), &url), &Typed::default()).unwrap();
    let wanted = json!({"url": "https://h/a", "revision": "main", "credential": "git", "submodules": true, "requirements": true});
    assert_eq!(header["sync"], wanted);
    assert!(files.contains_key("env/settings") && !files.keys().any(|name| name.starts_with("project")));
}

#[test]
fn artifacts_take_no_more_room_than_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("fact_cache/host", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(&vec![0; 8 << 20]).unwrap();
    let honest = zip.finish().unwrap().into_inner();
    // The zip's own directory says that the file is empty.
    let mut lying = honest.clone();
    let at = honest.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    lying[at + 24..at + 28].fill(0);
    for (zip, most, told) in [
        (&honest, 9 << 20, None),
        (&honest, 1 << 20, Some("--artifacts-limit")),
        (&lying, 1 << 20, Some("cannot keep")),
    ] {
        let directory = folder.path().join(format!("{most}{}", zip == &lying));
        let mut artifacts = Artifacts::create(&directory, most).unwrap();
        artifacts.begin_zip(zip.len() as u64).unwrap();
        artifacts.zip(STANDARD.encode(zip).as_bytes()).unwrap();
        let failure = artifacts.end_zip().err().map(|failure| format!("{failure:?}"));
        assert_eq!(directory.join("fact_cache/host").exists(), told.is_none());
        assert_eq!(failure.is_some(), told.is_some(), "{failure:?}");
        assert!(failure.as_deref().unwrap_or_default().contains(told.unwrap_or_default()), "{failure:?}");
    }
}
