//! Collects a job from a directory and the flags: the keyword arguments of the runner, and its files.

use std::path::{Component, Path};

use serde_json::{Map, Value, json};

use super::flags::RunFlags;
use super::tree::{Tree, unreadable};
use crate::cli::exit::{Exit, Failure};

/// What the runner's arguments call a project, and its files.
const PROJECT: &str = "project";
const INVENTORY: &str = "inventory";
const ENV: &str = "env";

/// The prompts of ansible, as the runner matches them.
const CONNECTION_PROMPT: &str = r"SSH password:\s*?$";
const BECOME_PROMPT: &str = r"BECOME password.*:\s*?$";
const VAULT_PROMPT: &str = r"Vault password:\s*?$";

/// Passwords that the user typed.
#[derive(Default)]
pub(super) struct Typed {
    /// For `-k`.
    pub connection: Option<String>,
    /// For `-K`.
    pub become_user: Option<String>,
}

/// A job, ready to be written as a stream.
pub(super) struct Bundle {
    /// The runner's keyword arguments.
    pub kwargs: Map<String, Value>,
    /// Its files.
    pub tree: Tree,
}

impl Bundle {
    /// Collects it. `ident` is the runner's name for this run.
    ///
    /// # Errors
    /// A file that cannot be read, or flags that contradict it.
    pub(super) fn collect(flags: &RunFlags, typed: &Typed, ident: &str) -> Result<Self, Failure> {
        let mut tree = Tree::default();
        let synced = flags.placing.project_url.is_some();
        match &flags.dir {
            Some(dir) => add_dir(&mut tree, dir, synced)?,
            None if synced => {}
            None => add_dir(&mut tree, Path::new("."), synced)?,
        }
        if let Some(playbook) = flags.playbook.as_ref().filter(|_| !synced) {
            check_playbook(&tree, playbook)?;
        }
        add_inventories(&mut tree, &flags.inventory)?;
        let dir = flags.dir.as_deref().unwrap_or(Path::new(".")).join(ENV);
        let packed = |tree: &Tree, name| tree.has(&format!("{ENV}/{name}")).then(|| dir.join(name));
        if !flags.extra_vars.is_empty() {
            let mut variables = packed(&tree, "extravars").map_or(Ok(Map::new()), |path| read_map(&path))?;
            for text in &flags.extra_vars {
                variables.extend(extra_vars(text)?);
            }
            tree.make_file(ENV, "extravars", json!(variables).to_string().into_bytes());
        }
        if let Some(path) = &flags.private_key {
            let key = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
            tree.make_file(ENV, "ssh_key", key);
        }
        let passwords = passwords(flags, typed)?;
        if !passwords.is_empty() {
            let mut all = packed(&tree, "passwords").map_or(Ok(Map::new()), |path| read_map(&path))?;
            all.extend(passwords.into_iter().map(|(prompt, password)| (prompt.to_owned(), json!(password))));
            tree.make_file(ENV, "passwords", json!(all).to_string().into_bytes());
        }
        let before = match packed(&tree, "cmdline") {
            Some(path) => Some(std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?),
            None => None,
        };
        let kwargs = kwargs(flags, ident, before.as_deref().map(str::trim));
        Ok(Self { kwargs, tree })
    }
}

/// A runner's directory as it is, any other as a project.
fn add_dir(tree: &mut Tree, dir: &Path, synced: bool) -> Result<(), Failure> {
    let is_runners = [PROJECT, INVENTORY, ENV].map(|name| dir.join(name).is_dir());
    match (is_runners, synced) {
        ([true, ..], false) => tree.add_directory(dir, "", &[]),
        ([true, ..], true) => {
            Err(Failure::usage(format!("{}/project: --project-url brings another project", dir.display())))
        }
        ([false, inventory, env], true) if inventory || env => tree.add_directory(dir, "", &[".git"]),
        ([false, ..], true) => {
            let text =
                "it has neither inventory/ nor env/, and --project-url brings the project: leave it out";
            Err(Failure::usage(format!("{}: {text}", dir.display())))
        }
        ([false, ..], false) => {
            tree.add(dir, PROJECT).and_then(|kind| match kind {
                Some(kind) if kind.is_file() => {
                    Err(Failure::usage(format!("{} is not a directory", dir.display())))
                }
                _ => Ok(()),
            })?;
            // A link to a directory is followed, as the shell would.
            tree.remove(PROJECT);
            tree.make_directory(PROJECT);
            tree.add_directory(dir, PROJECT, &[".git"])
        }
    }
}

fn check_playbook(tree: &Tree, playbook: &str) -> Result<(), Failure> {
    let inside = Path::new(playbook).components().all(|part| matches!(part, Component::Normal(_)));
    if inside && tree.has(&format!("{PROJECT}/{playbook}")) {
        return Ok(());
    }
    Err(Failure::usage(format!("there is no playbook {playbook} in the project: give its path within it")))
}

/// What `-i` names takes the place of the directory's own inventory.
fn add_inventories(tree: &mut Tree, sources: &[String]) -> Result<(), Failure> {
    if sources.is_empty() {
        return Ok(());
    }
    tree.remove(INVENTORY);
    tree.make_directory(INVENTORY);
    let mut listed = Vec::new();
    for source in sources {
        if source.contains(',') {
            listed.extend(source.split(',').map(str::trim).filter(|host| !host.is_empty()));
            continue;
        }
        let path = Path::new(source);
        let facts = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if facts.is_dir() {
            tree.add_directory(path, INVENTORY, &[".git"])?;
        } else {
            add_inventory_file(tree, path)?;
        }
    }
    if !listed.is_empty() {
        let text = listed.iter().map(|host| format!("{host}\n")).collect::<String>();
        tree.make_file(INVENTORY, "hosts-of-command-line", text.into_bytes());
    }
    Ok(())
}

/// The variables beside an inventory file belong to it.
fn add_inventory_file(tree: &mut Tree, path: &Path) -> Result<(), Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::usage(format!("{}: it has no name", path.display())))?;
    let real = path.canonicalize().map_err(|error| unreadable(path, &error))?;
    tree.add(&real, &format!("{INVENTORY}/{name}"))?;
    for beside in ["group_vars", "host_vars"] {
        let path = path.with_file_name(beside);
        let name = format!("{INVENTORY}/{beside}");
        if path.is_dir() && !tree.has(&name) {
            tree.make_directory(&name);
            tree.add_directory(&path, &name, &[])?;
        }
    }
    Ok(())
}

fn kwargs(flags: &RunFlags, ident: &str, before: Option<&str>) -> Map<String, Value> {
    let mut kwargs = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        kwargs.extend(value.map(|value| (key.to_owned(), value)));
    };
    put("ident", Some(json!(ident)));
    put("playbook", flags.playbook.as_ref().map(|it| json!(it)));
    put("module", flags.module.as_ref().map(|it| json!(it)));
    put("module_args", flags.module_args.as_ref().map(|it| json!(it)));
    let pattern = flags.pattern.as_deref().unwrap_or("all");
    put("host_pattern", flags.module.as_ref().map(|_| json!(pattern)));
    put("limit", flags.limit.as_ref().map(|it| json!(it)));
    put("forks", flags.forks.map(|it| json!(it)));
    put("tags", flags.tags.as_ref().map(|it| json!(it)));
    put("skip_tags", flags.skip_tags.as_ref().map(|it| json!(it)));
    put("verbosity", (flags.verbose > 0).then(|| json!(flags.verbose)));
    let words = [
        (flags.check, "--check"),
        (flags.diff, "--diff"),
        (flags.ask_pass, "--ask-pass"),
        (flags.ask_become_pass, "--ask-become-pass"),
        (flags.vault_password_file.is_some(), "--ask-vault-pass"),
    ];
    let words: Vec<&str> = words.into_iter().filter(|(given, _)| *given).map(|(_, word)| word).collect();
    // The argument takes the place of env/cmdline.
    let cmdline = before.into_iter().chain(words.iter().copied()).collect::<Vec<_>>().join(" ");
    put("cmdline", (!words.is_empty()).then(|| json!(cmdline)));
    kwargs
}

fn passwords(flags: &RunFlags, typed: &Typed) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut passwords = Vec::new();
    passwords.extend(typed.connection.clone().map(|password| (CONNECTION_PROMPT, password)));
    passwords.extend(typed.become_user.clone().map(|password| (BECOME_PROMPT, password)));
    if let Some(path) = &flags.vault_password_file {
        use std::os::unix::fs::PermissionsExt;
        let facts = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if facts.permissions().mode() & 0o111 != 0 {
            let text = "it is a program: write the password into a file that is none";
            return Err(Failure::usage(format!("{}: {text}", path.display())));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        passwords.push((VAULT_PROMPT, text.trim_end_matches(['\r', '\n']).to_owned()));
    }
    Ok(passwords)
}

/// One `-e`. The texts of errors show nothing of it, as it may be a secret.
fn extra_vars(text: &str) -> Result<Map<String, Value>, Failure> {
    if let Some(file) = text.strip_prefix('@') {
        return read_map(Path::new(file));
    }
    if text.trim_start().starts_with(['{', '[']) {
        return map(text).ok_or_else(|| Failure::usage("-e: it is not a JSON or YAML object"));
    }
    let words = shlex::split(text).ok_or_else(|| Failure::usage("-e: a quote is not closed"))?;
    let pair = |word: &String| {
        let (key, value) = word.split_once('=')?;
        (!key.is_empty()).then(|| (key.to_owned(), json!(value)))
    };
    let pairs: Option<Map<String, Value>> = words.iter().map(pair).collect();
    pairs.filter(|pairs| !pairs.is_empty()).ok_or_else(|| {
        Failure::usage("-e: write KEY=VALUE (several with blanks between), a JSON object, or @FILE")
    })
}

fn read_map(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    map(&text).ok_or_else(|| {
        Failure::new(Exit::Failed, format!("{}: it is not a JSON or YAML object", path.display()))
    })
}

fn map(text: &str) -> Option<Map<String, Value>> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Value>(text, options).ok()? {
        Value::Object(map) => Some(map),
        Value::Null => Some(Map::new()),
        _ => None,
    }
}
