//! Makes what a runner reads of a job: its keyword arguments, and a zip with the project, the inventory, variables and
//! secrets, as `ansible-runner transmit` would. `meshctl job run` packs so what was typed, and a control node its saved
//! jobs. Secrets and variables are files of the stream, never arguments of a process. No Ansible is needed here.
//!
//! `parts` says what a job is made of; `files` collects a directory and inventories, `tree` holds them, `settings` takes over ansible.cfg and the
//! environment, `asks` finds questions that nobody could answer, and `transmit` writes the stream. Knows nothing of
//! headers: where a job runs is not said in what it runs.

mod asks;
mod error;
mod files;
mod parts;
mod password;
mod settings;
mod transmit;
mod tree;

use std::path::Path;

use serde_json::{Map, Value, json};

use self::asks::Asks;
pub(crate) use self::error::PackError;
use self::files::PROJECT;
pub(crate) use self::parts::{InventorySource, JobParts, ModuleCall, Packer, PasswordFile, RunnerPaths};
pub(crate) use self::password::password;
use self::settings::{AnsibleSettings, STDIN_DIRECTORY, STDIN_FILE, STDIN_PLUGIN};
pub(crate) use self::transmit::{PackedStream, nameless_file};
use self::tree::{Content, Tree};

const ENV: &str = "env";
/// The variable that names the file with a vault's password.
const VAULT_VARIABLE: &str = "ANSIBLE_VAULT_PASSWORD_FILE";

/// A job, ready to be written as a stream.
pub(crate) struct PackedJob {
    /// The runner's keyword arguments.
    pub kwargs: Map<String, Value>,
    /// Its files.
    tree: Tree,
    /// Warnings to print before it is sent.
    pub warnings: Vec<String>,
}

impl PackedJob {
    /// Collects a job. `ident` is the runner's name for this run; `caller` reads the caller's environment. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, the parts contradict each other, or a playbook asks what nobody can answer.
    pub(crate) fn collect(
        parts: &JobParts,
        ident: &str,
        caller: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, PackError> {
        let mut tree = files::pack(parts)?;
        let variables = pack_variables(&mut tree, parts)?;
        let mut warnings = ask_nobody(&tree, parts, &variables)?;
        warnings.extend(tree.omission());
        if let Some(path) = &parts.private_key {
            tree.make_file(ENV, "ssh_key", std::fs::read(path).map_err(PackError::unreadable(path))?);
        }
        let place = RunnerPaths::of(parts.module.is_some(), parts.has_image);
        let inner = parts.top().map(|top| top.join(PROJECT));
        let inner = inner.as_deref().filter(|inner| inner.is_dir() && !parts.is_project);
        let project = inner.or(parts.top()).filter(|_| !parts.is_synced);
        let settings = AnsibleSettings { caller, project, place, is_module: parts.module.is_some() };
        let mut words = parts.words.clone();
        words.extend(settings.playbook_dir());
        words.extend(parts.inventory_words(place));
        for PasswordFile { name, word, password } in &parts.passwords {
            tree.make_file(ENV, name, password.clone());
            words.push(format!("{word}{}{ENV}/{name}", place.top));
        }
        pack_environment(&mut tree, parts, &settings)?;
        let mut kwargs = kwargs(parts, ident, parts.forks.or(settings.forks()));
        if let Some(cmdline) = cmdline(&tree, parts, &words)? {
            kwargs.insert("cmdline".to_owned(), json!(cmdline));
        }
        Ok(Self { kwargs, tree, warnings })
    }

    /// How many files of the directory it has, and how many bytes.
    pub(crate) fn bulk(&self) -> (u64, u64) {
        self.tree.bulk()
    }

    /// Its stream. Blocks, and needs room for a zip in the directory of temporary files.
    ///
    /// # Errors
    /// A file cannot be read, or there is no room.
    pub(crate) fn stream(&self) -> std::io::Result<PackedStream> {
        PackedStream::new(&self.kwargs, &self.tree)
    }
}

/// Packs the variables: those of `env/extravars`, and those of the job, which override them.
fn pack_variables(tree: &mut Tree, parts: &JobParts) -> Result<Map<String, Value>, PackError> {
    let mut variables = parts.packed_map(tree, "extravars")?;
    if !parts.variables.is_empty() {
        variables.extend(parts.variables.clone());
        tree.make_file(ENV, "extravars", json!(variables).to_string().into_bytes());
    }
    Ok(variables)
}

/// Packs the environment of the job's process, and the files that it names.
fn pack_environment(
    tree: &mut Tree,
    parts: &JobParts,
    settings: &AnsibleSettings<'_>,
) -> Result<(), PackError> {
    let mut environment = settings.variables();
    if let Some(path) = settings.vault_password_file() {
        if parts.packer == Packer::Node {
            let why = "ansible.cfg of the project names it: name it in vault_password_file of the saved job"
                .to_owned();
            return Err(PackError::Password { path, why });
        }
        let name = "vault_of_settings";
        tree.make_file(ENV, name, password(&path, "default", parts.packer)?);
        let there = format!("{}{ENV}/{name}", settings.place.top);
        environment.insert(VAULT_VARIABLE.to_owned(), json!(there));
    }
    if !settings.is_module {
        tree.make_directory(ENV);
        tree.make_file(STDIN_DIRECTORY, STDIN_FILE, STDIN_PLUGIN.into());
    }
    if !environment.is_empty() {
        environment.extend(parts.packed_map(tree, "envvars")?);
        tree.make_file(ENV, "envvars", json!(environment).to_string().into_bytes());
    }
    Ok(())
}

/// The words that replace `env/cmdline`: its own, then `words`. `None` if there are no `words`.
fn cmdline(tree: &Tree, parts: &JobParts, words: &[String]) -> Result<Option<String>, PackError> {
    let before = parts.packed(tree, "cmdline")?;
    if words.is_empty() {
        return Ok(None);
    }
    let words = shlex::try_join(words.iter().map(String::as_str)).map_err(|_| PackError::Argument)?;
    let before = before.as_deref().map(str::trim);
    Ok(Some(before.into_iter().chain([words.as_str()]).collect::<Vec<_>>().join(" ")))
}

/// Finds what the playbook, and tasks of its project, would ask. Refuses a variable without any value; warns of the
/// rest.
fn ask_nobody(tree: &Tree, parts: &JobParts, given: &Map<String, Value>) -> Result<Vec<String>, PackError> {
    let mut warnings = Vec::new();
    let Some(playbook) = &parts.playbook else { return Ok(warnings) };
    for (name, entry) in tree.entries().filter(|_| !parts.runs_nothing) {
        let Some(name) = name.strip_prefix("project/") else { continue };
        let is_tasks = name.contains("tasks/") && (name.ends_with(".yml") || name.ends_with(".yaml"));
        let Content::File(path, size) = &entry.content else { continue };
        if (name != playbook && !is_tasks) || !Asks::is_small(*size) {
            continue;
        }
        let asks = Asks::of(&std::fs::read_to_string(path).unwrap_or_default(), given);
        if !asks.variables.is_empty() {
            return Err(PackError::Asks { playbook: name.to_owned(), variables: asks.variables });
        }
        if !asks.defaults.is_empty() {
            let names = asks.defaults.join(", ");
            warnings.push(format!(
                "{name} asks for {names} (vars_prompt), but nobody can answer a job: the default is used"
            ));
        }
        if asks.pauses {
            warnings.push(format!("{name} pauses until somebody answers: in a job it goes on at once"));
        }
    }
    Ok(warnings)
}

fn kwargs(parts: &JobParts, ident: &str, forks: Option<u32>) -> Map<String, Value> {
    let mut kwargs = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        kwargs.extend(value.map(|value| (key.to_owned(), value)));
    };
    let joined = |list: &[String]| (!list.is_empty()).then(|| json!(list.join(",")));
    put("ident", Some(json!(ident)));
    put("playbook", parts.playbook.as_ref().map(|it| json!(it)));
    if let Some(ModuleCall { name, args, pattern }) = &parts.module {
        put("module", Some(json!(name)));
        put("module_args", args.as_ref().map(|it| json!(it)));
        put("host_pattern", Some(json!(pattern.as_deref().unwrap_or("all"))));
    }
    put("limit", parts.limit.as_ref().map(|it| json!(it)));
    put("forks", forks.map(|it| json!(it)));
    put("tags", joined(&parts.tags));
    put("skip_tags", joined(&parts.skip_tags));
    put("verbosity", (parts.verbose > 0).then(|| json!(parts.verbose)));
    kwargs
}

/// The object in a file of JSON or YAML.
///
/// # Errors
/// It cannot be read, or has something else in it.
pub(crate) fn read_map(path: &Path) -> Result<Map<String, Value>, PackError> {
    let text = std::fs::read_to_string(path).map_err(PackError::unreadable(path))?;
    map(&text).ok_or_else(|| PackError::NoMap(path.to_owned()))
}

/// The object in a text of JSON or YAML, if that is what it has.
pub(crate) fn map(text: &str) -> Option<Map<String, Value>> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Value>(text, options).ok()? {
        Value::Object(map) => Some(map),
        Value::Null => Some(Map::new()),
        _ => None,
    }
}
