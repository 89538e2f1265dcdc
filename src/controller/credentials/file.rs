//! The content of a credential's file. Errors name keys and lines and never show a value: otherwise a misplaced secret
//! would get into the log.

use serde_json::{Map, Value};

use super::{Credential, CredentialKind, KubernetesLogin, RegistryLogin, ScmLogin, ScmProof, Secret, Url};

/// What is wrong with a credential's file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    /// It is not valid YAML.
    #[error("its file is not valid YAML: see line {0}")]
    Yaml(u64),
    /// It is not a map.
    #[error("its file is not a map of keys and values")]
    NotAMap,
    /// A needed key is missing.
    #[error("{0} is needed: {1}")]
    Needed(&'static str, &'static str),
    /// A key has a value of the wrong type.
    #[error("{0} is {1}")]
    Type(&'static str, &'static str),
    /// A key that its kind does not have.
    #[error("unknown key {key}: a credential of kind {kind} has {known}")]
    Unknown {
        /// The key, unless it may be a misplaced secret.
        key: String,
        /// Its kind.
        kind: &'static str,
        /// The keys of this kind.
        known: String,
    },
    /// An address in `urls` is not valid.
    #[error("urls, entry {0}: {1}")]
    Url(usize, super::UrlError),
    /// It has both kinds of proof.
    #[error("password and ssh_key exclude each other")]
    TwoProofs,
}

type Read<T> = Result<T, FileFault>;

/// Parses the text of a file.
pub(super) fn parse(text: &str) -> Read<Credential> {
    let options = serde_saphyr::options! { with_snippet: false };
    let value: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| FileFault::Yaml(error.location().map_or(0, |location| location.line())))?;
    let Value::Object(left) = value else { return Err(FileFault::NotAMap) };
    let mut keys = Keys { left, known: Vec::new() };
    let kind = keys.needed("kind", "registry, scm or kubernetes")?;
    let kind = match kind.as_str() {
        "registry" => registry(&mut keys)?,
        "scm" => scm(&mut keys)?,
        "kubernetes" => kubernetes(&mut keys)?,
        _ => return Err(FileFault::Needed("kind", "registry, scm or kubernetes")),
    };
    let urls = keys.urls()?;
    if let (CredentialKind::Scm(_), []) = (&kind, &urls[..]) {
        return Err(FileFault::Needed("urls", "the prefixes of the addresses that it may be sent to"));
    }
    let mesh = keys.flag("mesh")?.unwrap_or(false);
    keys.end(kind.name())?;
    Ok(Credential { kind, urls, mesh })
}

fn registry(keys: &mut Keys) -> Read<CredentialKind> {
    let host = keys.needed("host", "the registry, as in quay.io")?;
    // It becomes part of an address and of podman's file.
    if host.contains('/') || Url::parse(&format!("https://{host}")).is_err() {
        return Err(FileFault::Type("host", "a host, or host:port"));
    }
    Ok(CredentialKind::Registry(RegistryLogin {
        host,
        username: keys.needed("username", "a user of the registry")?,
        password: keys.needed("password", "the user's password or token")?.into(),
        verify_ssl: keys.flag("verify_ssl")?.unwrap_or(true),
    }))
}

fn scm(keys: &mut Keys) -> Read<CredentialKind> {
    let username = keys.text("username")?;
    let proof = match (keys.text("password")?, keys.text("ssh_key")?) {
        (Some(password), None) => ScmProof::Password(password.into()),
        (None, Some(key)) => ScmProof::SshKey(key.into()),
        (Some(_), Some(_)) => return Err(FileFault::TwoProofs),
        (None, None) => return Err(FileFault::Needed("password or ssh_key", "what proves the user")),
    };
    Ok(CredentialKind::Scm(ScmLogin { username, proof }))
}

fn kubernetes(keys: &mut Keys) -> Read<CredentialKind> {
    let kubeconfig: Secret = keys.needed("kubeconfig", "the text of a kubeconfig file")?.into();
    Ok(CredentialKind::Kubernetes(KubernetesLogin { kubeconfig, namespace: keys.text("namespace")? }))
}

/// The keys that are not read yet, and the names of all keys that were asked for.
struct Keys {
    left: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Keys {
    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.left.remove(key).filter(|value| !value.is_null())
    }

    fn text(&mut self, key: &'static str) -> Read<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            // A password of digits alone is a number in YAML.
            Some(Value::Number(number)) if number.is_u64() => Ok(Some(number.to_string())),
            Some(_) => Err(FileFault::Type(key, "a text that is not empty: put it in quotes")),
        }
    }

    fn needed(&mut self, key: &'static str, what: &'static str) -> Read<String> {
        self.text(key)?.ok_or(FileFault::Needed(key, what))
    }

    fn flag(&mut self, key: &'static str) -> Read<Option<bool>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(FileFault::Type(key, "true or false")),
        }
    }

    fn urls(&mut self) -> Read<Vec<Url>> {
        let Some(value) = self.take("urls") else { return Ok(Vec::new()) };
        let Value::Array(items) = value else { return Err(FileFault::Type("urls", "a list of prefixes")) };
        let parse = |(at, item): (usize, &Value)| {
            Url::parse(item.as_str().unwrap_or_default()).map_err(|error| FileFault::Url(at + 1, error))
        };
        items.iter().enumerate().map(parse).collect()
    }

    fn end(self, kind: &'static str) -> Read<()> {
        let Some(key) = self.left.keys().next() else { return Ok(()) };
        let plain = key.len() <= 32 && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let key = if plain { key.clone() } else { "(not shown)".to_owned() };
        Err(FileFault::Unknown { key, kind, known: self.known.join(", ") })
    }
}
