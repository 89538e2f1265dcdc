//! Checks of a kubeconfig that comes with a submission, and its namespace. Its author may use the cluster but
//! not this host, so every key that would make the daemon open a file or start a program is rejected. Errors
//! never show a value, as most are secrets.

use serde_json::Value;

/// Why a kubeconfig is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    /// A key names a file on this host.
    #[error("secret_kube_config: {0} names a file on this node: give its content as {1}")]
    File(String, &'static str),
    /// A key starts a program on this host, or fetches a token from elsewhere.
    #[error(
        "secret_kube_config: {0} is not allowed: it would run on this node; give a token or a client certificate"
    )]
    Program(String),
    /// There is no current context, or it is not in the list.
    #[error("could not determine namespace")]
    NoNamespace,
}

/// Keys that name files: their list, their section, the key, and the key to use instead.
const FILES: [(&str, &str, &str, &str); 4] = [
    ("clusters", "cluster", "certificate-authority", "certificate-authority-data"),
    ("users", "user", "client-certificate", "client-certificate-data"),
    ("users", "user", "client-key", "client-key-data"),
    ("users", "user", "tokenFile", "token"),
];
/// Keys of a user that run something.
const PROGRAMS: [&str; 2] = ["exec", "auth-provider"];

/// Checks a submitted kubeconfig. Use this very value afterwards: parsing the text a second time might see
/// other keys.
///
/// # Errors
/// [`KubeconfigError`] names the key.
pub fn check_submitted(kubeconfig: &Value) -> Result<(), KubeconfigError> {
    for (list, entry, key, instead) in FILES {
        if let Some(path) = find(kubeconfig, list, entry, key) {
            return Err(KubeconfigError::File(path, instead));
        }
    }
    for key in PROGRAMS {
        if let Some(path) = find(kubeconfig, "users", "user", key) {
            return Err(KubeconfigError::Program(path));
        }
    }
    Ok(())
}

/// Makes the paths of a kubeconfig of this host absolute: they are relative to the directory that its file is in.
pub fn make_paths_absolute(kubeconfig: &mut Value, dir: &std::path::Path) {
    for (list, entry, key, _) in FILES {
        let entries = kubeconfig.get_mut(list).and_then(Value::as_array_mut);
        for named in entries.into_iter().flatten() {
            if let Some(Value::String(path)) = named.get_mut(entry).and_then(|fields| fields.get_mut(key))
                && !path.is_empty()
            {
                *path = dir.join(&*path).to_string_lossy().into_owned();
            }
        }
    }
}

/// The path of a key that is set in any entry of a list. Ignores the key's case.
fn find(kubeconfig: &Value, list: &str, entry: &str, key: &str) -> Option<String> {
    let entries = kubeconfig.get(list)?.as_array()?;
    entries.iter().enumerate().find_map(|(at, named)| {
        let fields = named.get(entry)?.as_object()?;
        let is_set = |value: &Value| !value.is_null() && value != "";
        let set = fields.iter().find(|(name, value)| name.eq_ignore_ascii_case(key) && is_set(value))?;
        Some(format!("{list}[{at}].{entry}.{}", set.0))
    })
}

/// The namespace of the current context; like kubectl, `default` if the context names none.
///
/// # Errors
/// [`KubeconfigError::NoNamespace`] without a current context.
pub fn namespace(kubeconfig: &Value) -> Result<&str, KubeconfigError> {
    let current = kubeconfig["current-context"].as_str().filter(|name| !name.is_empty());
    let contexts = kubeconfig["contexts"].as_array().into_iter().flatten();
    let mut contexts = contexts.filter(|context| current.is_some() && context["name"].as_str() == current);
    let context = contexts.next().ok_or(KubeconfigError::NoNamespace)?;
    let namespace = context["context"]["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    Ok(namespace.unwrap_or("default"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A kubeconfig like AWX's.
    fn awx() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "clusters": [{"name": "https://h", "cluster": {
                "server": "https://h", "certificate-authority-data": "QQ==", "insecure-skip-tls-verify": false,
            }}],
            "users": [{"name": "https://h", "user": {"token": "hunter2", "client-certificate": ""}}],
            "contexts": [
                {"name": "other", "context": {"namespace": "wrong"}},
                {"name": "https://h", "context": {"cluster": "https://h", "user": "https://h", "namespace": "awx"}},
            ],
            "current-context": "https://h",
        })
    }

    #[test]
    fn what_awx_sends_is_fine() {
        assert_eq!(check_submitted(&awx()), Ok(()));
        assert_eq!(namespace(&awx()), Ok("awx"));
    }

    #[test]
    fn files_and_programs_are_refused_by_key_and_without_their_value() {
        let cases = [
            ("clusters", "cluster", "certificate-authority"),
            ("users", "user", "client-certificate"),
            ("users", "user", "client-key"),
            ("users", "user", "tokenFile"),
            ("users", "user", "tokenfile"),
            ("users", "user", "exec"),
            ("users", "user", "auth-provider"),
        ];
        for (list, entry, key) in cases {
            for value in [json!("/etc/hunter2"), json!({"command": "hunter2"}), json!(["hunter2"])] {
                let mut config = awx();
                config[list].as_array_mut().unwrap().push(json!({"name": "n", entry: {key: value}}));
                let refused = check_submitted(&config).unwrap_err().to_string();
                assert!(refused.contains(&format!("{list}[1].{entry}.{key} ")), "{refused}");
                assert!(!refused.contains("hunter2"), "{refused}");
            }
        }
    }

    #[test]
    fn the_namespace_is_the_current_contexts() {
        let mut config = awx();
        config["contexts"][1]["context"] = json!({"cluster": "c"});
        assert_eq!(namespace(&config), Ok("default"));
        config["current-context"] = "missing".into();
        assert_eq!(namespace(&config).unwrap_err().to_string(), "could not determine namespace");
        config["contexts"] = json!([{"context": {}}]);
        for none in [Value::Null, "".into()] {
            config["current-context"] = none;
            assert_eq!(namespace(&config), Err(KubeconfigError::NoNamespace));
        }
        assert_eq!(namespace(&Value::Null), Err(KubeconfigError::NoNamespace));
    }

    #[test]
    fn odd_shapes_are_no_reason_to_panic() {
        for odd in [json!(null), json!([]), json!({"users": {"a": 1}}), json!({"users": [1, {"user": []}]})] {
            assert_eq!(check_submitted(&odd), Ok(()));
            assert!(namespace(&odd).is_err());
        }
    }
}
