//! Settings of ansible that travel with a job besides its files: variables of the caller from a list, and settings of
//! the project's ansible.cfg that the runner would overrule. They become `env/envvars`; values already in that file
//! stay. Settings of the caller's home and machine do not travel, because the node has its own.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::RunnerPaths;

/// The variables of the caller that travel, if they are set; none holds a path of the caller's machine.
pub(super) const TRAVELLING: [&str; 44] = [
    "ANSIBLE_ANY_ERRORS_FATAL",
    "ANSIBLE_BECOME",
    "ANSIBLE_BECOME_ALLOW_SAME_USER",
    "ANSIBLE_BECOME_EXE",
    "ANSIBLE_BECOME_FLAGS",
    "ANSIBLE_BECOME_METHOD",
    "ANSIBLE_BECOME_USER",
    "ANSIBLE_CALLBACK_FORMAT_PRETTY",
    "ANSIBLE_CALLBACK_RESULT_FORMAT",
    "ANSIBLE_CHECK_MODE_MARKERS",
    "ANSIBLE_DEPRECATION_WARNINGS",
    "ANSIBLE_DIFF_ALWAYS",
    "ANSIBLE_DIFF_CONTEXT",
    "ANSIBLE_DISPLAY_ARGS_TO_STDOUT",
    "ANSIBLE_DISPLAY_FAILED_STDERR",
    "ANSIBLE_DISPLAY_OK_HOSTS",
    "ANSIBLE_DISPLAY_SKIPPED_HOSTS",
    "ANSIBLE_ERROR_ON_MISSING_HANDLER",
    "ANSIBLE_ERROR_ON_UNDEFINED_VARS",
    "ANSIBLE_FORCE_HANDLERS",
    "ANSIBLE_GATHERING",
    "ANSIBLE_HASH_BEHAVIOUR",
    "ANSIBLE_HOST_KEY_CHECKING",
    "ANSIBLE_HOST_PATTERN_MISMATCH",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED",
    "ANSIBLE_INVENTORY_UNPARSED_WARNING",
    "ANSIBLE_LOCALHOST_WARNING",
    "ANSIBLE_MAX_DIFF_SIZE",
    "ANSIBLE_NO_LOG",
    "ANSIBLE_PIPELINING",
    "ANSIBLE_PYTHON_INTERPRETER",
    "ANSIBLE_REMOTE_PORT",
    "ANSIBLE_REMOTE_USER",
    "ANSIBLE_RUN_TAGS",
    "ANSIBLE_SHOW_CUSTOM_STATS",
    "ANSIBLE_SKIP_TAGS",
    "ANSIBLE_SSH_ARGS",
    "ANSIBLE_SSH_COMMON_ARGS",
    "ANSIBLE_SSH_EXTRA_ARGS",
    "ANSIBLE_SSH_HOST_KEY_CHECKING",
    "ANSIBLE_SSH_RETRIES",
    "ANSIBLE_STRATEGY",
    "ANSIBLE_SYSTEM_WARNINGS",
    "ANSIBLE_TIMEOUT",
];
/// Callbacks that travel: those of ansible-core, which every node has. If a node lacks a callback, the runner does not
/// even start. `oneline` is not here, because the runner cannot wrap it.
const CALLBACKS: [&str; 2] = ["default", "minimal"];
const CONFIG: &str = "ansible.cfg";
/// What ansible takes for yes.
const TRUE: [&str; 6] = ["1", "true", "yes", "y", "on", "t"];

/// Settings of a job's caller and project.
pub(super) struct AnsibleSettings<'a> {
    /// The caller's variables.
    pub caller: &'a dyn Fn(&str) -> Option<String>,
    /// Where the project is, if it is here.
    pub project: Option<&'a Path>,
    pub place: RunnerPaths,
    pub is_module: bool,
}

impl AnsibleSettings<'_> {
    /// The variables of the job.
    pub(super) fn variables(&self) -> Map<String, Value> {
        let mut variables = Map::new();
        let mut put = |name: &str, value: Option<String>| {
            variables.extend(value.map(|value| (name.to_owned(), json!(value))));
        };
        let ours = self.config().unwrap_or_default();
        let of_project = |section, key| setting(&ours, section, key);
        let caller = |name| (self.caller)(name);
        // The runner sets it to false if nobody sets it.
        let checks = of_project("ssh_connection", "host_key_checking")
            .or_else(|| of_project("defaults", "host_key_checking"));
        put("ANSIBLE_HOST_KEY_CHECKING", checks);
        let shown = caller("ANSIBLE_STDOUT_CALLBACK").or_else(|| of_project("defaults", "stdout_callback"));
        // With a module, ansible runs the callbacks of its settings only if told to, but the runner always runs them.
        let loads = caller("ANSIBLE_LOAD_CALLBACK_PLUGINS")
            .or_else(|| of_project("defaults", "bin_ansible_callbacks"))
            .is_some_and(|value| TRUE.contains(&value.to_lowercase().as_str()));
        if self.is_module && !loads && of_project("defaults", "callbacks_enabled").is_some() {
            // An empty list is not possible, so this names one that runs in any case.
            put("ANSIBLE_CALLBACKS_ENABLED", Some("minimal".to_owned()));
        }
        let shown = shown.filter(|name| !self.is_module || (loads && name != "default"));
        let name = shown.as_deref().map(|name| name.strip_prefix("ansible.builtin.").unwrap_or(name));
        put("ANSIBLE_STDOUT_CALLBACK", name.filter(|name| CALLBACKS.contains(name)).map(str::to_owned));
        for name in TRAVELLING {
            put(name, caller(name));
        }
        if let Some(path) = self.named_config() {
            put("ANSIBLE_CONFIG", Some(format!("{}{path}", self.place.project)));
        } else if self.is_module {
            // A module does not run in the project, where ansible would find the file.
            put("ANSIBLE_CONFIG", Some(format!("{}{CONFIG}", self.place.project)));
        }
        if !self.is_module {
            let theirs = of_project("defaults", "callback_plugins");
            let ours = format!("{}{STDIN_DIRECTORY}", self.place.top);
            let all = theirs.into_iter().chain([ours]).collect::<Vec<_>>().join(":");
            put("ANSIBLE_CALLBACK_PLUGINS", Some(all));
        }
        variables
    }

    /// Hosts at a time, if the project sets them: the job's size depends on that number.
    pub(super) fn forks(&self) -> Option<u32> {
        setting(&self.config()?, "defaults", "forks")?.parse().ok().filter(|forks| *forks > 0)
    }

    /// The word that makes a module find variables of groups and hosts, and relative paths. It is needed without an
    /// image, because the runner then starts ansible beside the project, not in it.
    pub(super) fn playbook_dir(&self) -> Option<String> {
        let config = self.config().unwrap_or_default();
        let is_beside = self.is_module && self.place.top.is_empty();
        let is_needed = is_beside && setting(&config, "defaults", "playbook_dir").is_none();
        is_needed.then(|| format!("--playbook-dir={}", self.place.project))
    }

    /// The file with a vault's password that ansible would read without a flag, unless it travels with the project.
    pub(super) fn vault_password_file(&self) -> Option<PathBuf> {
        if let Some(path) = (self.caller)("ANSIBLE_VAULT_PASSWORD_FILE").filter(|path| !path.is_empty()) {
            return Some(path.into());
        }
        let project = self.project?;
        let path = setting(&self.config()?, "defaults", "vault_password_file")?;
        let path = match (path.strip_prefix("~/"), std::env::home_dir()) {
            (Some(rest), Some(home)) => home.join(rest),
            (Some(_) | None, _) => project.join(path),
        };
        let is_inside = path
            .canonicalize()
            .is_ok_and(|path| project.canonicalize().is_ok_and(|project| path.starts_with(project)));
        (!is_inside).then_some(path)
    }

    /// The file that ANSIBLE_CONFIG of the caller names, as a path within the project.
    fn named_config(&self) -> Option<String> {
        let path = PathBuf::from((self.caller)("ANSIBLE_CONFIG")?).canonicalize().ok()?;
        let within = path.strip_prefix(self.project?.canonicalize().ok()?).ok()?;
        within.to_str().map(str::to_owned)
    }

    fn config(&self) -> Option<String> {
        let name = self.named_config().unwrap_or_else(|| CONFIG.to_owned());
        std::fs::read_to_string(self.project?.join(name)).ok()
    }
}

/// Directory of the plugin that makes standard input empty.
pub(super) const STDIN_DIRECTORY: &str = "env/callback";
pub(super) const STDIN_FILE: &str = "no_terminal.py";
/// The runner gives ansible a terminal, and nobody is there to answer: a playbook that asks a question would never end.
pub(super) const STDIN_PLUGIN: &str = include_str!("no_terminal.py");

/// A setting of an ansible.cfg; the last one counts.
fn setting(text: &str, section: &str, key: &str) -> Option<String> {
    let (mut is_here, mut found) = (false, None);
    for line in text.lines().map(str::trim) {
        if let Some((name, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            is_here = name.trim() == section;
        } else if let Some((_, value)) =
            line.split_once(['=', ':']).filter(|(name, _)| is_here && name.trim() == key)
        {
            found = Some(value.split(" ;").next().unwrap_or_default().trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(config: &str, caller: &[(&str, &str)], is_module: bool) -> Map<String, Value> {
        let project = tempfile::tempdir().unwrap();
        std::fs::write(project.path().join(CONFIG), config).unwrap();
        let caller =
            |name: &str| caller.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let place = RunnerPaths::of(is_module, false);
        let settings = AnsibleSettings { caller: &caller, project: Some(project.path()), place, is_module };
        settings.variables()
    }

    #[test]
    fn what_the_runner_would_overrule_travels() {
        let config = "[defaults]\n# host_key_checking = false\nhost_key_checking = True ; yes\nstdout_callback=minimal\n\
            callback_plugins = plugins\n[other]\nhost_key_checking = no\n";
        let found = variables(
            config,
            &[("ANSIBLE_SSH_ARGS", "-C"), ("ANSIBLE_LOG_PATH", "/x"), ("HOME", "/h")],
            false,
        );
        let expected = json!({"ANSIBLE_HOST_KEY_CHECKING": "True", "ANSIBLE_STDOUT_CALLBACK": "minimal",
            "ANSIBLE_SSH_ARGS": "-C", "ANSIBLE_CALLBACK_PLUGINS": "plugins:../env/callback"});
        assert_eq!(json!(found), expected);
    }

    #[test]
    fn the_caller_counts_before_the_project() {
        let caller =
            [("ANSIBLE_HOST_KEY_CHECKING", "False"), ("ANSIBLE_STDOUT_CALLBACK", "community.general.yaml")];
        let found =
            variables("[defaults]\nhost_key_checking = True\nstdout_callback = minimal\n", &caller, true);
        let expected = json!({"ANSIBLE_HOST_KEY_CHECKING": "False", "ANSIBLE_CONFIG": "project/ansible.cfg"});
        assert_eq!(json!(found), expected);
    }

    #[test]
    fn a_module_has_another_callback_than_a_playbook() {
        let shown = |config: &str, is_module| {
            variables(config, &[], is_module).get("ANSIBLE_STDOUT_CALLBACK").cloned().unwrap_or_default()
        };
        for (config, of_playbook, of_module) in [
            ("[defaults]\nstdout_callback = default\n", json!("default"), json!(null)),
            ("[defaults]\nstdout_callback = minimal\n", json!("minimal"), json!(null)),
            (
                "[defaults]\nstdout_callback = oneline\nbin_ansible_callbacks = True\n",
                json!(null),
                json!(null),
            ),
            (
                "[defaults]\nstdout_callback = default\nbin_ansible_callbacks = yes\n",
                json!("default"),
                json!(null),
            ),
            (
                "[defaults]\nstdout_callback = ansible.builtin.default\nbin_ansible_callbacks = 1\n",
                json!("default"),
                json!("default"),
            ),
        ] {
            assert_eq!((shown(config, false), shown(config, true)), (of_playbook, of_module), "{config}");
        }
    }
}
