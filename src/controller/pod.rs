//! The pod of a job in a container group, and the secret with which its image is pulled, as JSON for the API
//! server. Pure. A job's header chooses image and pulling; everything else belongs to the group.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::core::JobId;
use super::credentials::{CredentialName, RegistryLogin};
use super::header::{Pull, RunnerWords};

/// The container that runs the job.
const WORKER: &str = "worker";
const RUN_DIR: &str = "/runner";
const KEEPALIVE: &str = "ANSIBLE_RUNNER_KEEPALIVE_SECONDS";
/// The label of everything that belongs to an installation.
pub const INSTALL_LABEL: &str = "meshd/install";
/// The label of a job's pod.
pub const JOB_LABEL: &str = "meshd/job";

/// Why a group's pod cannot be built. The text completes `pod_spec_override: `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PodFault {
    /// It is not valid YAML or JSON.
    #[error("it is not valid YAML: see line {0}")]
    Yaml(u64),
    /// It is not a map.
    #[error("it is not a map")]
    NotAMap,
    /// It turns the pod into another kind of object.
    #[error("apiVersion must stay v1 and kind must stay Pod")]
    NotAPod,
    /// A field has another type.
    #[error("{0} must be {1}")]
    Field(&'static str, &'static str),
    /// No container is named `worker`.
    #[error("one of spec.containers must be named worker: a list here replaces the default list")]
    NoWorker,
    /// There is no image.
    #[error("its container has no image: name one there, or in the job's header as runner.image")]
    NoImage,
}

/// A group's changes to the default pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodOverride(Map<String, Value>);

impl PodOverride {
    /// Parses an operator's YAML or JSON; an empty text changes nothing. All that can be checked without a job is
    /// checked here.
    pub fn parse(text: &str) -> Result<Self, PodFault> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
        let value: Value = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| PodFault::Yaml(error.location().map_or(0, |location| location.line())))?;
        let Value::Object(map) = value else { return Err(PodFault::NotAMap) };
        let changes = Self(map);
        let image = RunnerWords { image: Some("image".to_owned()), ..RunnerWords::default() };
        let trial = PodRequest {
            job: JobId(1),
            install: 0,
            namespace: None,
            runner: Some(&image),
            pull_secret: None,
        };
        trial.pod(&changes).map(|_| changes)
    }
}

/// What a job's pod is built from, besides its group.
#[derive(Debug, Clone, Copy)]
pub struct PodRequest<'a> {
    /// The job.
    pub job: JobId,
    /// The first 8 hex digits of the install ID.
    pub install: u32,
    /// The namespace of its group.
    pub namespace: Option<&'a str>,
    /// The header's image, pulling and signs of life.
    pub runner: Option<&'a RunnerWords>,
    /// The credential with which its image is pulled.
    pub pull_secret: Option<&'a CredentialName>,
}

impl PodRequest<'_> {
    /// The pod: the default, the group's changes, then what the job needs.
    pub fn pod(&self, changes: &PodOverride) -> Result<Value, PodFault> {
        let mut pod = self.default_pod();
        merge(&mut pod, &Value::Object(changes.0.clone()));
        if pod["apiVersion"] != "v1" || pod["kind"] != "Pod" {
            return Err(PodFault::NotAPod);
        }
        let labels = object(&mut pod, &["metadata", "labels"], "metadata.labels")?;
        labels.insert(INSTALL_LABEL.to_owned(), self.install().into());
        labels.insert(JOB_LABEL.to_owned(), self.job.to_string().into());
        let spec = object(&mut pod, &["spec"], "spec")?;
        if let Some(name) = self.pull_secret {
            let secrets = list(spec, "imagePullSecrets", "spec.imagePullSecrets")?;
            secrets.push(json!({"name": secret_name(self.install, name)}));
        }
        self.fill_worker(list(spec, "containers", "spec.containers")?)?;
        Ok(pod)
    }

    fn default_pod(&self) -> Value {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("automation-job-{}", self.job), "labels": {}},
            "spec": {
                "serviceAccountName": "default",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": WORKER,
                    "args": ["ansible-runner", "worker", format!("--private-data-dir={RUN_DIR}")],
                    "resources": {"requests": {"cpu": "250m", "memory": "100Mi"}},
                }],
            },
        });
        if let Some(namespace) = self.namespace {
            pod["metadata"]["namespace"] = namespace.into();
        }
        pod
    }

    fn fill_worker(&self, containers: &mut [Value]) -> Result<(), PodFault> {
        let worker = containers.iter_mut().filter_map(Value::as_object_mut);
        let worker = worker.into_iter().find(|container| container.get("name") == Some(&json!(WORKER)));
        let worker = worker.ok_or(PodFault::NoWorker)?;
        if let Some(words) = self.runner {
            if let Some(image) = &words.image {
                worker.insert("image".to_owned(), image.as_str().into());
            }
            if let Some(policy) = words.pull.map(Pull::policy) {
                worker.insert("imagePullPolicy".to_owned(), policy.into());
            }
            if let Some(seconds) = words.keepalive {
                let variables = list(worker, "env", "env of container worker")?;
                variables.retain(|variable| variable["name"] != KEEPALIVE);
                variables.push(json!({"name": KEEPALIVE, "value": seconds.to_string()}));
            }
        }
        let has_image = worker.get("image").and_then(Value::as_str).is_some_and(|image| !image.is_empty());
        if has_image { Ok(()) } else { Err(PodFault::NoImage) }
    }

    fn install(&self) -> String {
        format!("{:08x}", self.install)
    }
}

/// Maps merge, null removes a key, everything else is replaced.
fn merge(base: &mut Value, changes: &Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    base.shift_remove(key);
                } else {
                    merge(base.entry(key.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (base, Value::Object(changes)) => {
            *base = json!({});
            merge(base, &Value::Object(changes.clone()));
        }
        (base, change) => *base = change.clone(),
    }
}

fn object<'a>(
    pod: &'a mut Value,
    path: &[&str],
    shown: &'static str,
) -> Result<&'a mut Map<String, Value>, PodFault> {
    let mut at = pod;
    for key in path {
        let map = at.as_object_mut().ok_or(PodFault::Field(shown, "a map"))?;
        at = map.entry(*key).or_insert_with(|| json!({}));
    }
    at.as_object_mut().ok_or(PodFault::Field(shown, "a map"))
}

fn list<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
    shown: &'static str,
) -> Result<&'a mut Vec<Value>, PodFault> {
    let entry = map.entry(key).or_insert_with(|| json!([]));
    entry.as_array_mut().ok_or(PodFault::Field(shown, "a list"))
}

/// The name of the secret that a credential becomes in a group's namespace.
pub fn secret_name(install: u32, credential: &CredentialName) -> String {
    format!("meshd-{install:08x}-{credential}")
}

/// The secret with which images are pulled. Nothing shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct PullSecret(Value);

impl PullSecret {
    /// From a credential of kind registry.
    pub fn new(install: u32, credential: &CredentialName, login: &RegistryLogin) -> Self {
        let (user, password) = (&login.username, login.password.expose());
        let auth = STANDARD.encode(format!("{user}:{password}"));
        let mut auths = Map::new();
        auths.insert(login.host.clone(), json!({"username": user, "password": password, "auth": auth}));
        let config = json!({"auths": auths}).to_string();
        Self(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/dockerconfigjson",
            "metadata": {
                "name": secret_name(install, credential),
                "labels": {INSTALL_LABEL: format!("{install:08x}")},
            },
            "data": {".dockerconfigjson": STANDARD.encode(config)},
        }))
    }

    /// The object for the API server.
    pub fn expose(&self) -> &Value {
        &self.0
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PullSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(image: &str) -> RunnerWords {
        RunnerWords { image: Some(image.to_owned()), ..RunnerWords::default() }
    }

    fn request(runner: &RunnerWords) -> PodRequest<'_> {
        PodRequest { job: JobId(42), install: 0xab, namespace: None, runner: Some(runner), pull_secret: None }
    }

    #[test]
    fn the_default_pod_runs_the_worker() {
        let pod = request(&words("quay.io/org/ee:1")).pod(&PodOverride::default()).unwrap();
        let wanted = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "automation-job-42",
                "labels": {"meshd/install": "000000ab", "meshd/job": "42"},
            },
            "spec": {
                "serviceAccountName": "default",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "worker",
                    "args": ["ansible-runner", "worker", "--private-data-dir=/runner"],
                    "resources": {"requests": {"cpu": "250m", "memory": "100Mi"}},
                    "image": "quay.io/org/ee:1",
                }],
            },
        });
        assert_eq!(pod, wanted);
    }

    #[test]
    fn a_group_merges_maps_replaces_lists_and_removes_by_null() {
        let text = "metadata: {labels: {team: a, meshd/job: forged}, annotations: {x: {y: z}}}\n\
                    spec:\n  serviceAccountName: null\n  nodeSelector: {disk: ssd, none: null}\n  \
                    containers:\n  - name: side\n    image: s\n  - {name: worker, image: group, args: [sleep]}\n";
        let changes = PodOverride::parse(text).unwrap();
        let secret = CredentialName::new("quay").unwrap();
        let runner = RunnerWords { pull: Some(Pull::Missing), keepalive: Some(15), ..RunnerWords::default() };
        let pod = PodRequest { pull_secret: Some(&secret), ..request(&runner) }.pod(&changes).unwrap();
        assert_eq!(
            pod["metadata"],
            json!({
                "name": "automation-job-42",
                "labels": {"team": "a", "meshd/job": "42", "meshd/install": "000000ab"},
                "annotations": {"x": {"y": "z"}},
            })
        );
        assert_eq!(
            pod["spec"],
            json!({
                "automountServiceAccountToken": false,
                "nodeSelector": {"disk": "ssd"},
                "imagePullSecrets": [{"name": "meshd-000000ab-quay"}],
                "containers": [
                    {"name": "side", "image": "s"},
                    {
                        "name": "worker",
                        "image": "group",
                        "args": ["sleep"],
                        "imagePullPolicy": "IfNotPresent",
                        "env": [{"name": "ANSIBLE_RUNNER_KEEPALIVE_SECONDS", "value": "15"}],
                    },
                ],
            })
        );
    }

    #[test]
    fn an_override_that_makes_no_pod_is_refused_when_it_is_set() {
        for (text, fault) in [
            ("- a", PodFault::NotAMap),
            ("a: {", PodFault::Yaml(1)),
            ("kind: Job", PodFault::NotAPod),
            ("apiVersion: null", PodFault::NotAPod),
            ("spec: 5", PodFault::Field("spec", "a map")),
            ("metadata: {labels: [a]}", PodFault::Field("metadata.labels", "a map")),
            ("metadata: 5", PodFault::Field("metadata.labels", "a map")),
            ("spec: {containers: 5}", PodFault::Field("spec.containers", "a list")),
            ("spec: {containers: [{name: other, image: i}]}", PodFault::NoWorker),
            ("spec: {containers: null}", PodFault::NoWorker),
        ] {
            assert_eq!(PodOverride::parse(text), Err(fault), "{text}");
        }
        assert_eq!(PodOverride::parse(" \n"), Ok(PodOverride::default()));
        let none = RunnerWords::default();
        assert_eq!(request(&none).pod(&PodOverride::default()), Err(PodFault::NoImage));
    }

    #[test]
    fn a_pull_secret_is_a_docker_configuration() {
        let name = CredentialName::new("quay").unwrap();
        let login = RegistryLogin {
            host: "quay.io".to_owned(),
            username: "u".to_owned(),
            password: "canary".to_owned().into(),
            verify_ssl: true,
        };
        let secret = PullSecret::new(0xab, &name, &login);
        assert_eq!(secret.expose()["metadata"]["name"], "meshd-000000ab-quay");
        let data = secret.expose()["data"][".dockerconfigjson"].as_str().unwrap();
        let config: Value = serde_json::from_slice(&STANDARD.decode(data).unwrap()).unwrap();
        let auth = STANDARD.encode("u:canary");
        assert_eq!(
            config,
            json!({"auths": {"quay.io": {"username": "u", "password": "canary", "auth": auth}}})
        );
        assert!(!format!("{secret:?}").contains("canary"));
    }
}
