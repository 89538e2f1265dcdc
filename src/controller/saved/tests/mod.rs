//! Files of saved jobs: what they may say, what is said of those that are wrong, and what a start makes of them.

mod schedules;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::*;
use crate::controller::header::Header;
use crate::controller::pack::{PackError, PackedJob};

const WHOLE: &str = r#"
description: Rolls out a version of the site
project: {url: "https://git.example/team/site.git", revision: main, credential: git}
playbook: deploy/site.yml
inventory:
- inventories/prod
- web1, web2,
- |
  [db]
  db1 ansible_user=root
limit: web
tags: [deploy, config]
skip_tags: slow
extra_vars: {colour: green, none: null}
verbose: 2
diff: true
become: true
become_user: app
forks: 20
group: [east, west]
labels: {team: web}
priority: -5
exclusive: site
retry: 2
timeout: 1h30m
pending_timeout: 2h
runner: {image: "quay.io/team/ee:1", registry: quay}
keep: false
vars:
  version: {description: the tag, pattern: 'v\d+(\.\d+)*'}
  target: {choices: [prod, test], default: test}
  count: {type: int, default: 3}
  fast: {type: bool, default: no}
  ratio: {type: number, default: 0.5}
  more: {type: json, default: [1]}
  password: {secret: true}
  plain:
"#;

fn parse(text: &str) -> SavedJob {
    SavedJob::parse(text).unwrap_or_else(|fault| panic!("{}: {}\n{text}", fault.line, fault.text))
}

const HASH: &str = "00112233445566ff";

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn given(text: &str, vars: Value) -> Result<Value, String> {
    parse(text).variables(object(vars)).map(Value::Object)
}

/// The files of a stream.
fn files(packed: &PackedJob) -> BTreeMap<String, String> {
    let mut stream = String::new();
    packed.stream().unwrap().read_to_string(&mut stream).unwrap();
    let zip = stream.splitn(3, '\n').nth(2).unwrap().strip_suffix("{\"eof\":true}\n").unwrap();
    let mut zip = zip::ZipArchive::new(Cursor::new(STANDARD.decode(zip).unwrap())).unwrap();
    let mut files = BTreeMap::new();
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        files.insert(file.name().unwrap().to_string(), text);
    }
    files
}

#[test]
fn a_file_becomes_the_header_of_a_job() {
    let header = parse(WHOLE).header("site", HASH);
    let line: Value = serde_json::from_str(&header.to_string()).unwrap();
    let wanted = json!({
        "controller": 1, "name": "site", "priority": -5, "exclusive": ["site"], "timeout": "1h30m0s",
        "labels": {"team": "web", "meshd/saved": "site", "meshd/saved-hash": "00112233445566ff"},
        "pending_timeout": "2h0m0s", "retry": {"max": 2, "on": ["lost"], "unconfirmed": false}, "rerun": false,
        "groups": {"launch": ["east", "west"], "template": [], "inventory": [], "organization": [],
                   "prevent_fallback": []},
        "runner": line["runner"],
        "sync": {"url": "https://git.example/team/site.git", "revision": "main", "credential": "git",
                 "submodules": true, "requirements": true},
    });
    assert_eq!(line, wanted);
    assert_eq!(
        (&line["runner"]["image"], &line["runner"]["registry"]),
        (&json!("quay.io/team/ee:1"), &json!("quay"))
    );
    assert_eq!(Header::parse(header.to_string().as_bytes()).unwrap(), header, "the door takes it");
    for (notify, label) in [
        ("chat", "chat"),
        ("[chat, ops]", "chat,ops"),
        ("{ops: [failed, lost], chat: []}", "chat,ops:failed+lost"),
    ] {
        let header = parse(&format!("module: ping\nnotify: {notify}\n")).header("probe", HASH);
        assert_eq!(header.labels["meshd/notify"], label);
    }
    let module = parse("module: ping\nname: all hosts\n").header("probe", HASH);
    assert_eq!((module.kind.name(), module.name.as_deref()), ("ad_hoc", Some("all hosts")));
}

#[test]
fn a_file_and_given_values_become_a_stream() {
    let job = parse(WHOLE);
    let vars = json!({"version": "v1.2", "password": "canary", "count": "7", "fast": "yes", "plain": 1.5});
    let variables = job.variables(object(vars)).unwrap();
    let parts = job.parts(variables, NodeGuards { guarded: vec![], most_bytes: 1 << 20 }).unwrap();
    let packed = PackedJob::collect(&parts, "ident", &|_| None).unwrap();
    let cmdline = "--diff --become '--become-user=app' '--inventory=inventories/prod'";
    let words = |text: &str| shlex::split(text).unwrap();
    assert_eq!(words(packed.kwargs["cmdline"].as_str().unwrap()), words(cmdline));
    let mut kwargs = packed.kwargs.clone();
    kwargs.remove("cmdline");
    let wanted = json!({
        "ident": "ident", "playbook": "deploy/site.yml", "limit": "web", "tags": "deploy,config", "skip_tags": "slow",
        "forks": 20, "verbosity": 2,
    });
    assert_eq!(Value::Object(kwargs), wanted);
    let files = files(&packed);
    let variables: Value = serde_json::from_str(&files["env/extravars"]).unwrap();
    let wanted = json!({
        "colour": "green", "none": null, "version": "v1.2", "target": "test", "count": 7, "fast": true, "ratio": 0.5,
        "more": [1], "password": "canary", "plain": "1.5",
    });
    assert_eq!(variables, wanted);
    assert_eq!(files["inventory/hosts"], "[db]\ndb1 ansible_user=root\n");
    assert_eq!(files["inventory/hosts-of-command-line"], "web1\nweb2\n");
    assert!(files["env/callback/no_terminal.py"].contains("no_terminal"));
    assert!(
        !files.keys().any(|name| name.starts_with("project") || name.contains("vault")),
        "{:?}",
        files.keys()
    );
}

#[test]
fn what_is_wrong_has_its_line_and_what_is_allowed() {
    let base = "project: {url: 'https://git.example/a'}\nplaybook: site.yml\n";
    for (text, line, told) in [
        ("limt: web\n", 3, "unknown key `limt`: did you mean `limit`?"),
        ("skip-tags: a\n", 3, "unknown key `skip-tags`: did you mean `skip_tags`?"),
        ("retry: {maximum: 2}\n", 3, "retry: unknown key `maximum`: the keys are max, on, unconfirmed"),
        ("retry: 11\n", 3, "retry: it must be a whole number from 0 to 10"),
        ("\n\npriority: 101\n", 5, "priority: it must be a whole number from -100 to 100"),
        ("timeout: 5\n", 3, "timeout: it must be a duration above zero, as in 1.5h, 30m or 30m10s"),
        ("check: maybe\n", 3, "check: it is not a boolean"),
        ("playbook: b.yml\n", 3, "`playbook` is given more than once"),
        ("directory: site\n", 3, "directory: it is not an absolute path"),
        (
            "inventory: ../hosts\n",
            3,
            "inventory: it must be a path within the project, hosts with a comma after each, or \
                                      the lines of an inventory",
        ),
        ("labels: {meshd/saved: x}\n", 3, "labels: names that begin with meshd/ are the controller's own"),
        (
            "notify: Chat\n",
            3,
            "notify: it must be names of targets, or a map of them to events, 500 bytes together",
        ),
        ("group: ''\n", 3, "group: each must be a text of 1 to 512 characters without control characters"),
        ("extra_vars: [a]\n", 3, "extra_vars: it is not a map"),
        ("module: ping\n", 3, "module: it excludes `playbook`"),
        ("args: x\n", 3, "args: it needs `module`"),
        ("vars:\n  a:\n    typ: int\n", 5, "unknown key `vars.a.typ`: did you mean `type`?"),
        (
            "vars:\n  a:\n    type: integer\n",
            5,
            "vars.a.type: it must be one of text, int, number, bool, json",
        ),
        ("vars:\n  a: 5\n", 4, "vars.a: it is not a map, such as {type: int, default: 5}"),
        ("vars:\n  a: {pattern: '('}\n", 4, "vars.a.pattern: it is not a regular expression"),
        (
            "vars:\n  a: {type: int, pattern: 'x'}\n",
            4,
            "vars.a.pattern: it is for texts, and this is of type int",
        ),
        ("vars:\n  a: {type: int, default: '5'}\n", 4, "vars.a.default: it is not a whole number"),
        ("vars:\n  a: {default: 1.10}\n", 4, "vars.a.default: it is not a text: put it in quotes"),
        ("vars:\n  a: {choices: [one, two], default: z}\n", 4, "vars.a.default: it must be one of one, two"),
        ("vars:\n  a: {type: int, choices: [1, x]}\n", 4, "vars.a.choices: number 2 is not a whole number"),
        (
            "vars:\n  a: {secret: true, default: x}\n",
            4,
            "vars.a.default: a secret has none: whoever starts the job gives it",
        ),
        (
            "vars:\n  a-b: {}\n",
            4,
            "vars.a-b: it is not the name of a variable: letters, digits and _, and no digit first",
        ),
        (
            "extra_vars: {a: 1}\nvars:\n  a:\n",
            5,
            "vars.a: it is in `extra_vars` too: leave it out there, and give it a default here",
        ),
    ] {
        let fault = SavedJob::parse(&format!("{base}{text}")).unwrap_err();
        assert_eq!((fault.line, fault.text.as_str()), (line, told), "{text}");
    }
    for (text, told) in [
        ("", "playbook: it is missing: say what to run, a `playbook` or a `module`"),
        ("- a\n", "it must be a map, not a list"),
        (
            "playbook: a.yml\n",
            "project: it is missing: say where the playbook is, in a `project` of git or a `directory` of this node",
        ),
        (
            "project: {ref: main}\n",
            "unknown key `project.ref`: the keys are url, revision, credential, submodules, requirements",
        ),
    ] {
        assert_eq!(SavedJob::parse(text).unwrap_err().text, told, "{text}");
    }
    assert!(SavedJob::parse("a: [").unwrap_err().text.starts_with("not valid YAML"));
    for (key, value, why) in [
        ("group", json!(vec!["g"; 101]), "group: each must be a list of at most 100"),
        (
            "labels",
            json!({"a": "x".repeat(500), "b": "x".repeat(500), "c": "x".repeat(500), "d": "x".repeat(500),
            "e": "x".repeat(500), "f": "x".repeat(500), "g": "x".repeat(500), "h": "x".repeat(500)}),
            "labels: there may be at most 28, of 3400 bytes together",
        ),
        ("exclusive", json!(vec!["w"; 17]), "exclusive: it must be a list of at most 16"),
    ] {
        let fault = SavedJob::parse(&json!({"module": "ping", key: value}).to_string()).unwrap_err();
        assert_eq!(fault.text, why, "a header would be refused for it at each start");
    }
}

#[test]
fn only_declared_variables_that_fit_are_taken() {
    let text = "module: ping\nextra_vars: {own: 1}\nvars:\n  text: {pattern: 'v\\d+'}\n  kind: {choices: [a, b], default: a}\n  \
                number: {type: int, default: 1}\n  secret: {secret: true, choices: [canary1, canary2]}\n";
    let with = |more: Value| {
        let mut vars = object(json!({"text": "v1", "secret": "canary1"}));
        vars.extend(object(more));
        given(text, Value::Object(vars))
    };
    assert_eq!(
        with(json!({})).unwrap(),
        json!({"own": 1, "text": "v1", "kind": "a", "number": 1, "secret": "canary1"})
    );
    for (vars, why) in [
        (json!({"text": "xv1"}), "text: it does not match v\\d+"),
        (json!({"text": "v1\nv2"}), "text: it does not match v\\d+"),
        (json!({"text": ["v1"]}), "text: it is not a text"),
        (json!({"kind": "c"}), "kind: it must be one of a, b"),
        (json!({"number": "1.5"}), "number: it is not a whole number"),
        (json!({"secret": "canary3"}), "secret: it is none of its choices"),
        (json!({"numbr": 1}), "there is no variable numbr: did you mean number?"),
        (json!({"own": 2}), "there is no variable own: there are kind, number, secret, text"),
    ] {
        let told = with(vars.clone()).unwrap_err();
        assert_eq!(told, why, "{vars}");
        assert!(!told.contains("canary"));
    }
    assert_eq!(given(text, json!({"kind": "b"})).unwrap_err(), "missing: secret, text");
    assert_eq!(
        given("module: ping\n", json!({"a": 1})).unwrap_err(),
        "there is no variable a: none may be given"
    );
}

#[test]
fn what_lies_on_this_nodes_disk_needs_all_rights_and_holds_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    };
    file("site/site.yml", "[]");
    file("site/hosts", "a\n");
    let (key, vault) = (file("key", "KEY canary"), file("vault", "VAULT canary"));
    let site = folder.path().join("site");
    let text = format!(
        "directory: {}\nplaybook: site.yml\ninventory: hosts\nprivate_key: {}\nvault_password_file: {}\n",
        site.display(),
        key.display(),
        vault.display()
    );
    let job = parse(&text);
    let pack = |job: &SavedJob, guarded: &[&Path], most_bytes| {
        let guarded = guarded.iter().map(|path| PathBuf::from(*path)).collect();
        let parts = job.parts(Map::new(), NodeGuards { guarded, most_bytes })?;
        PackedJob::collect(&parts, "ident", &|_| None)
    };
    let packed = pack(&job, &[], 1 << 20).unwrap();
    assert_eq!(packed.kwargs["cmdline"], "'--inventory=hosts' '--vault-id=default@../env/vault_0'");
    let made = files(&packed);
    assert_eq!((&*made["env/ssh_key"], &*made["env/vault_0"]), ("KEY canary", "VAULT canary"));
    assert!(made.contains_key("project/site.yml") && !made.contains_key("inventory/hosts"));
    assert!(job.needs_admin().is_some() && parse(WHOLE).needs_admin().is_none());
    assert!(parse("module: ping\nprivate_key: /k\n").needs_admin().is_some());
    assert!(parse("playbook: a.yml\ndirectory: /d\n").needs_admin().is_some());
    let alone = pack(&parse("module: ping\ninventory: 'a,'\n"), &[], 1 << 20).unwrap();
    assert!(files(&alone).contains_key("project/"), "a module without a project needs an empty one");
    let below = site.join("credentials");
    fs::create_dir(&below).unwrap();
    let refused = |job: &SavedJob, guarded: &[&Path], most| {
        pack(job, guarded, most).err().map(|error| error.to_string())
    };
    assert!(refused(&job, &[&below], 1 << 20).unwrap().ends_with("is not a project"));
    assert!(refused(&job, &[], 2).unwrap().contains("more than 2 bytes"));
    let elsewhere = parse(&text.replace("inventory: hosts", "inventory: none"));
    assert!(refused(&elsewhere, &[], 1 << 20).unwrap().contains("no inventory none"));
    let packed = pack(&job, &[], 1 << 20).unwrap();
    fs::rename(site.join("site.yml"), site.join("other.yml")).unwrap();
    symlink(&key, site.join("site.yml")).unwrap();
    assert!(packed.stream().is_err(), "what was a file when it was judged is no link when it is read");
    fs::remove_file(site.join("site.yml")).unwrap();
    fs::rename(site.join("other.yml"), site.join("site.yml")).unwrap();
    file("site/ansible.cfg", &format!("[defaults]\nvault_password_file = {}\n", vault.display()));
    assert!(refused(&job, &[], 1 << 20).unwrap().contains("ansible.cfg of the project names it"));
    fs::remove_file(site.join("ansible.cfg")).unwrap();
    let secret = file("secret.yml", "password: canary\n");
    fs::create_dir_all(site.join("env")).unwrap();
    symlink(&secret, site.join("env/extravars")).unwrap();
    let link = parse(&format!("module: ping\ndirectory: {}\n", site.display()));
    assert!(refused(&link, &[], 1 << 20).is_none(), "env/ of a project is no env/ of a job");
    fs::create_dir(site.join("project")).unwrap();
    assert!(
        refused(&link, &[], 1 << 20).unwrap().contains("env/extravars"),
        "a link leads to what others may not read"
    );
    fs::set_permissions(&vault, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(
        matches!(pack(&job, &[], 1 << 20), Err(PackError::Password { .. })),
        "the node runs no program for it"
    );
}

#[test]
fn a_broken_file_keeps_its_last_good_version_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let load = |former: &Arc<SavedJobs>| SavedJobs::load(folder.path(), former.clone(), |_| ());
    write("a.yml", "module: ping\n");
    write("b.yml", "module: ping\nlimt: x\n");
    write("README.md", "x");
    write(".c.yml.swp", "x");
    let first = load(&Arc::default());
    let names: Vec<&str> = first.entries().keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "b"]);
    let b = &first.entries()["b"];
    let place = folder.path().join("b.yml").display().to_string();
    let told = format!("{place}:2: unknown key `limt`: did you mean `limit`?");
    assert_eq!((b.job.is_none(), b.fault.as_ref().unwrap().to_string()), (true, told));
    let hash = first.entries()["a"].job.as_ref().unwrap().hash();
    assert_eq!((hash.len(), first.counts()), (16, (2, 1)));

    write("a.yml", "module: [ping\n");
    write("b.yml", "module: setup\n");
    let second = load(&first);
    let a = &second.entries()["a"];
    assert_eq!(a.job.as_ref().unwrap().hash(), hash, "the last good version stays");
    assert!(a.fault.as_ref().unwrap().to_string().contains("not valid YAML"));
    assert!(second.entries()["b"].fault.is_none());

    write("a.yml", "module: setup\n");
    let third = load(&second);
    assert!(
        third.entries()["a"].fault.is_none() && third.entries()["a"].job.as_ref().unwrap().hash() != hash
    );
    fs::remove_file(folder.path().join("a.yml")).unwrap();
    assert_eq!(load(&third).counts(), (1, 0), "a file that is gone is gone");

    let gone = folder.path().join("none");
    let kept = SavedJobs::load(&gone, third.clone(), |_| ());
    assert_eq!(
        (kept.entries(), kept.faults().len()),
        (third.entries(), 1),
        "an unreadable directory takes nothing away"
    );
}

#[test]
fn a_reload_of_many_never_has_all_of_them_in_two_versions() {
    const MANY: usize = 700;
    let folder = tempfile::tempdir().unwrap();
    let write = |module: &str| {
        (0..MANY).for_each(|n| {
            fs::write(folder.path().join(format!("j{n:03}.yml")), format!("module: {module}\n")).unwrap();
        });
    };
    write("ping");
    let mut shelf = SavedJobs::load(folder.path(), Arc::default(), |_| ());
    let former: Vec<_> =
        shelf.entries().values().filter_map(|entry| entry.job.as_ref().map(Arc::downgrade)).collect();
    assert_eq!(former.len(), MANY);
    write("setup");
    let mut left = Vec::new();
    let after = SavedJobs::load(folder.path(), std::mem::take(&mut shelf), |some| {
        assert_eq!(some.counts(), (MANY as u64, 0), "what was not read yet is there");
        shelf = some;
        left.push(former.iter().filter(|job| job.strong_count() > 0).count());
    });
    assert!(left.is_sorted_by(|one, next| one > next) && left.last() == Some(&0), "{left:?}");
    assert!(left.len() > 1 && after == shelf);
    let again = SavedJobs::load(folder.path(), after.clone(), |_| panic!("nothing has changed"));
    assert!(Arc::ptr_eq(&after, &again));
}

#[test]
fn a_file_that_others_could_have_written_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["open.yml", "target", "Upper.yml", "old.yaml"] {
        fs::write(path(name), "module: ping\n").unwrap();
    }
    fs::set_permissions(path("open.yml"), fs::Permissions::from_mode(0o664)).unwrap();
    symlink(path("target"), path("link.yml")).unwrap();
    regular_file_pipe(&path("pipe.yml"));
    fs::create_dir(path("dir.yml")).unwrap();
    fs::write(path("long.yml"), "#".repeat((256 << 10) + 1)).unwrap();
    let found = SavedJobs::load(folder.path(), Arc::default(), |_| ());
    let told: Vec<String> = found
        .all_faults()
        .map(|fault| fault.to_string().replace(&folder.path().display().to_string(), ""))
        .collect();
    for (name, why) in [
        ("/open.yml", "others can write to it: chmod go-w"),
        ("/link.yml", "it cannot be read"),
        ("/pipe.yml", "not a regular file"),
        ("/dir.yml", "not a regular file"),
        ("/long.yml", "longer than"),
        ("/Upper.yml", "its name is none"),
        ("/old.yaml", "its name must end with .yml"),
    ] {
        assert!(told.iter().any(|one| one.starts_with(name) && one.contains(why)), "{name}: {told:?}");
    }
    assert_eq!((told.len(), found.entries().values().filter(|entry| entry.job.is_some()).count()), (7, 0));
}

fn regular_file_pipe(path: &Path) {
    crate::os::regular_file::pipe(path);
}
