//! Collects a job from a directory and the flags: the keyword arguments of the runner, and its files.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use serde_json::{Map, Value, json};

use super::ansible::RunnerPaths;
use super::asks::Asks;
use super::flags::RunFlags;
use super::settings::{AnsibleSettings, STDIN_DIRECTORY, STDIN_FILE, STDIN_PLUGIN};
use super::tree::{Content, Tree, unreadable};
use super::vault::{self, PasswordSource};
use crate::cli::exit::{Exit, Failure};

/// What the runner's arguments call a project, and its files.
const PROJECT: &str = "project";
const INVENTORY: &str = "inventory";
const ENV: &str = "env";
/// The mode of a directory in which all users may write, and remove only what is theirs.
const SHARED: u32 = 0o1002;

/// Passwords that the user typed.
#[derive(Default)]
pub(super) struct Typed {
    /// For `-k`.
    pub connection: Option<String>,
    /// For `-K`.
    pub become_user: Option<String>,
    /// For vaults, in the order of their flags.
    pub vaults: Vec<String>,
}

/// A job, ready to be written as a stream.
pub(super) struct Bundle {
    /// The runner's keyword arguments.
    pub kwargs: Map<String, Value>,
    /// Its files.
    pub tree: Tree,
    /// What to say before it is sent.
    pub warnings: Vec<String>,
}

impl Bundle {
    /// Collects it. `ident` is the runner's name for this run, `caller` gives the variables of the environment.
    ///
    /// # Errors
    /// A file that cannot be read, flags that contradict it, or a playbook that asks for what nobody can answer.
    pub(super) fn collect(
        flags: &RunFlags,
        typed: &Typed,
        ident: &str,
        caller: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let mut tree = Tree::default();
        let is_synced = flags.placing.project_url.is_some();
        if flags.dir.is_some() || !is_synced {
            check_dir(flags, caller("HOME"))?;
        }
        match &flags.dir {
            Some(dir) => add_dir(&mut tree, dir, is_synced, flags.is_project)?,
            None if is_synced => {}
            None => add_dir(&mut tree, Path::new("."), is_synced, false)?,
        }
        if let Some(playbook) = flags.playbook.as_ref().filter(|_| !is_synced) {
            check_playbook(&tree, playbook)?;
        }
        add_inventories(&mut tree, &flags.inventory)?;
        let top = flags.dir.as_deref().unwrap_or(Path::new("."));
        let dir = top.join(ENV);
        let packed = |tree: &Tree, name| tree.has(&format!("{ENV}/{name}")).then(|| dir.join(name));
        let mut variables = packed(&tree, "extravars").map_or(Ok(Map::new()), |path| read_map(&path))?;
        if !flags.extra_vars.is_empty() {
            for text in &flags.extra_vars {
                variables.extend(extra_vars(text)?);
            }
            tree.make_file(ENV, "extravars", json!(variables).to_string().into_bytes());
        }
        let mut warnings = ask_nobody(&tree, flags, &variables)?;
        warnings.extend(tree.omission().into_iter().chain(tree.bulk()));
        if let Some(path) = &flags.private_key {
            let key = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
            tree.make_file(ENV, "ssh_key", key);
        }
        let is_module = flags.module.is_some();
        let place = RunnerPaths::of(is_module, flags.placing.image.is_some());
        let project = top.join(PROJECT);
        let project = if project.is_dir() && !flags.is_project { &project } else { top };
        let project = (!is_synced).then_some(project);
        let settings = AnsibleSettings { caller, project, place, is_module };
        let mut environment = settings.variables();
        let mut words = flags.ansible.words(place)?;
        words.extend(settings.playbook_dir());
        words.extend(passwords(&mut tree, flags, typed, place)?);
        if let Some(path) = settings.vault_password_file() {
            let name = "vault_of_settings";
            tree.make_file(ENV, name, vault::password(&path, "default")?);
            environment
                .insert("ANSIBLE_VAULT_PASSWORD_FILE".into(), json!(format!("{}{ENV}/{name}", place.top)));
        }
        if !is_module {
            tree.make_directory(ENV);
            tree.make_file(STDIN_DIRECTORY, STDIN_FILE, STDIN_PLUGIN.into());
        }
        if !environment.is_empty() {
            environment.extend(packed(&tree, "envvars").map_or(Ok(Map::new()), |path| read_map(&path))?);
            tree.make_file(ENV, "envvars", json!(environment).to_string().into_bytes());
        }
        let before = match packed(&tree, "cmdline") {
            Some(path) => Some(std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?),
            None => None,
        };
        let mut kwargs = kwargs(flags, ident, flags.forks.or(settings.forks()));
        if !words.is_empty() {
            let words = shlex::try_join(words.iter().map(String::as_str))
                .map_err(|_| Failure::usage("an argument has a byte that no argument can have"))?;
            // The argument takes the place of env/cmdline.
            let before = before.as_deref().map(str::trim);
            let cmdline = before.into_iter().chain([words.as_str()]).collect::<Vec<_>>().join(" ");
            kwargs.insert("cmdline".to_owned(), json!(cmdline));
        }
        Ok(Self { kwargs, tree, warnings })
    }
}

/// What the playbook, and the tasks beside it, would ask. A variable without any value is refused, the rest warned of.
fn ask_nobody(tree: &Tree, flags: &RunFlags, given: &Map<String, Value>) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    let Some(playbook) = &flags.playbook else { return Ok(warnings) };
    let is_nothing_run = flags.ansible.syntax_check || flags.ansible.list_tasks || flags.ansible.list_tags;
    for (name, entry) in tree.entries().filter(|_| !is_nothing_run && !flags.ansible.list_hosts) {
        let Some(name) = name.strip_prefix("project/") else { continue };
        let is_tasks = name.contains("tasks/") && (name.ends_with(".yml") || name.ends_with(".yaml"));
        let Content::File(path, size) = &entry.content else { continue };
        if (name != playbook && !is_tasks) || !Asks::is_small(*size) {
            continue;
        }
        let asks = Asks::of(&std::fs::read_to_string(path).unwrap_or_default(), given);
        if let [first, ..] = asks.variables.as_slice() {
            let names = asks.variables.join(", ");
            let text = format!(
                "{name} asks for {names} (vars_prompt), and nobody can answer a job: give -e {first}=VALUE"
            );
            return Err(Failure::usage(text));
        }
        if !asks.defaults.is_empty() {
            let names = asks.defaults.join(", ");
            warnings.push(format!(
                "{name} asks for {names} (vars_prompt), and nobody can answer a job: its default counts"
            ));
        }
        if asks.pauses {
            warnings.push(format!("{name} pauses until somebody answers: in a job it goes on at once"));
        }
    }
    Ok(warnings)
}

/// All that is in a directory is sent: none whose secrets belong to the host or the user as a whole, and none that users
/// share, as /tmp.
fn check_dir(flags: &RunFlags, home: Option<String>) -> Result<(), Failure> {
    let Ok(dir) = flags.dir.as_deref().unwrap_or(Path::new(".")).canonicalize() else { return Ok(()) };
    let guarded = ["/etc".to_owned()].into_iter().chain(home);
    let mut guarded = guarded.filter_map(|path| Path::new(&path).canonicalize().ok());
    let is_shared = dir.metadata().is_ok_and(|facts| facts.mode() & SHARED == SHARED);
    if !is_shared && !guarded.any(|path| path.starts_with(&dir)) {
        return Ok(());
    }
    let below = flags.playbook.as_ref().and_then(|playbook| playbook.split_once('/'));
    let rest = match below {
        Some((sub, rest)) => {
            format!("go to the playbook's: `cd {} && meshctl job run {rest}`", dir.join(sub).display())
        }
        None => {
            let what = if flags.module.is_some() { "what the module needs" } else { "the playbook" };
            format!("put {what} into a directory of its own, and run it from there")
        }
    };
    Err(Failure::usage(format!("{} is no project: {rest}", dir.display())))
}

/// A runner's directory as it is, any other as a project.
fn add_dir(tree: &mut Tree, dir: &Path, synced: bool, is_project: bool) -> Result<(), Failure> {
    let mut is_runners = [PROJECT, INVENTORY, ENV].map(|name| dir.join(name).is_dir());
    is_runners[0] &= !is_project;
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

fn kwargs(flags: &RunFlags, ident: &str, forks: Option<u32>) -> Map<String, Value> {
    let mut kwargs = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        kwargs.extend(value.map(|value| (key.to_owned(), value)));
    };
    let joined = |list: &[String]| (!list.is_empty()).then(|| json!(list.join(",")));
    put("ident", Some(json!(ident)));
    put("playbook", flags.playbook.as_ref().map(|it| json!(it)));
    put("module", flags.module.as_ref().map(|it| json!(it)));
    put("module_args", flags.module_args.as_ref().map(|it| json!(it)));
    let pattern = flags.pattern.as_deref().unwrap_or("all");
    put("host_pattern", flags.module.as_ref().map(|_| json!(pattern)));
    put("limit", flags.limit.as_ref().map(|it| json!(it)));
    put("forks", forks.map(|it| json!(it)));
    put("tags", joined(&flags.tags));
    put("skip_tags", joined(&flags.skip_tags));
    put("verbosity", (flags.verbose > 0).then(|| json!(flags.verbose)));
    kwargs
}

/// Makes a file of each password, and returns the words that name them. A prompt of ansible would be a line of the job's
/// output.
fn passwords(
    tree: &mut Tree,
    flags: &RunFlags,
    typed: &Typed,
    place: RunnerPaths,
) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    let mut put = |name: &str, word: &str, password: Vec<u8>| {
        tree.make_file(ENV, name, password);
        words.push(format!("{word}{}{ENV}/{name}", place.top));
    };
    let typed_ones = [
        ("connection_password", "--connection-password-file=", &typed.connection),
        ("become_password", "--become-password-file=", &typed.become_user),
    ];
    for (name, word, password) in typed_ones {
        password.iter().for_each(|password| put(name, word, password.clone().into_bytes()));
    }
    let mut vaults = typed.vaults.iter();
    for (number, (label, source)) in flags.ansible.vault.sources().into_iter().enumerate() {
        let password = match source {
            PasswordSource::Typed => vaults.next().cloned().unwrap_or_default().into_bytes(),
            PasswordSource::File(path) => vault::password(&path, &label)?,
        };
        put(&format!("vault_{number}"), &format!("--vault-id={label}@"), password);
    }
    Ok(words)
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
