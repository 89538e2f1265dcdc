//! The pod that a unit asks for, built from image, command and arguments, or from a pod definition, whose
//! other fields reach the API server unchanged. This module sets the pod's name, namespace and labels, turns
//! on stdin of container `worker` and turns off restarts. It sends nothing.

use serde_json::{Map, Value, json};

use super::extra::KubeExtra;
use super::name::{Owner, prefix};

/// The container that gets stdin and whose log is stdout.
pub const WORKER: &str = "worker";

/// Why no pod can be built. Completes "Error creating pod: ...".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// No container is named `worker`.
    #[error("at least one container must be named worker")]
    NoWorker,
    /// Pod, submission, directive and credential all lack a namespace.
    #[error("pod namespace is empty for pod {0}")]
    NoNamespace(String),
    /// There is neither an image nor a pod definition.
    #[error("must specify a container image to run")]
    NoImage,
    /// The definition is not a pod.
    #[error(
        "the pod definition must have apiVersion v1 and kind Pod, but it has apiVersion {version} and kind {kind}"
    )]
    NotAPod {
        /// Its `apiVersion`.
        version: String,
        /// Its `kind`.
        kind: String,
    },
    /// A field that we have to change has the wrong type.
    #[error("{0} must be {1}")]
    BadField(&'static str, &'static str),
    /// Command or arguments cannot be split into words.
    #[error("{0} does not split into words as in a shell: close its quotes")]
    BadQuoting(&'static str),
}

/// A complete pod except for its name.
#[derive(Clone, PartialEq)]
pub struct Template {
    pod: Value,
    prefix: String,
    namespace: String,
}

impl Template {
    /// Builds the pod of a unit. `definition` is the parsed content of [`KubeExtra::kube_pod`], if any.
    ///
    /// # Errors
    /// [`PodError`] says what is missing or wrong.
    pub fn new(
        work_type: &str,
        extra: &KubeExtra,
        definition: Option<Value>,
        owner: &Owner,
    ) -> Result<Self, PodError> {
        let mut pod = match definition {
            Some(definition) => from_definition(definition)?,
            None => simple(extra)?,
        };
        let metadata = object(&mut pod, "metadata", "metadata")?;
        let prefix = match taken_text(metadata, "name") {
            Some(name) => format!("{name}-"),
            None => prefix(work_type),
        };
        let namespace = taken_text(metadata, "namespace").unwrap_or_else(|| extra.kube_namespace.clone());
        if namespace.is_empty() {
            return Err(PodError::NoNamespace(prefix));
        }
        metadata.insert("generateName".into(), prefix.clone().into());
        metadata.insert("namespace".into(), namespace.clone().into());
        let labels = object_in(metadata, "labels", "metadata.labels")?;
        for (name, value) in owner.labels() {
            labels.insert(name.into(), value.into());
        }
        Ok(Self { pod, prefix, namespace })
    }

    /// Makes the pod connect to `host` and `port`, instead of being attached to.
    ///
    /// # Errors
    /// [`PodError::BadField`] if the container's environment is not a list.
    pub fn connects_to(&mut self, host: &str, port: u16) -> Result<(), PodError> {
        let worker = worker_of(&mut self.pod)?;
        let env = worker.entry("env").or_insert(Value::Null);
        if env.is_null() {
            *env = json!([]);
        }
        let Value::Array(env) = env else {
            return Err(PodError::BadField("env of container worker", "a list"));
        };
        env.push(json!({"name": "RECEPTOR_HOST", "value": host}));
        env.push(json!({"name": "RECEPTOR_PORT", "value": port.to_string()}));
        Ok(())
    }

    /// The prefix of the pod's name.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The pod's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pod, with a name.
    pub fn named(&self, name: &str) -> Value {
        let mut pod = self.pod.clone();
        pod["metadata"]["name"] = name.into();
        pod
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Template({}/{})", self.namespace, self.prefix)
    }
}

fn simple(extra: &KubeExtra) -> Result<Value, PodError> {
    if extra.image.is_empty() {
        return Err(PodError::NoImage);
    }
    let mut worker = json!({
        "name": WORKER,
        "image": extra.image,
        "stdin": true,
        "stdinOnce": true,
        "tty": false,
    });
    for (field, what, text) in
        [("command", "kube_command", &extra.command), ("args", "kube_params", &extra.params)]
    {
        let words = words(what, text)?;
        if !words.is_empty() {
            worker[field] = words.into();
        }
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {},
        "spec": {"containers": [worker], "restartPolicy": "Never"},
    }))
}

fn words(what: &'static str, text: &str) -> Result<Vec<String>, PodError> {
    shlex::split(text).filter(|_| !text.contains('\0')).ok_or(PodError::BadQuoting(what))
}

fn from_definition(mut pod: Value) -> Result<Value, PodError> {
    if pod["apiVersion"] != "v1" || pod["kind"] != "Pod" {
        let shown = |key: &str| pod[key].as_str().unwrap_or("none").to_owned();
        return Err(PodError::NotAPod { version: shown("apiVersion"), kind: shown("kind") });
    }
    if let Value::Object(fields) = &mut pod {
        fields.shift_remove("status");
    }
    let worker = worker_of(&mut pod)?;
    worker.insert("stdin".into(), true.into());
    worker.insert("stdinOnce".into(), true.into());
    pod["spec"]["restartPolicy"] = "Never".into();
    Ok(pod)
}

fn worker_of(pod: &mut Value) -> Result<&mut Map<String, Value>, PodError> {
    let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    let workers = containers.into_iter().flatten().filter_map(Value::as_object_mut);
    workers
        .into_iter()
        .find(|container| container.get("name").is_some_and(|name| name == WORKER))
        .ok_or(PodError::NoWorker)
}

fn object<'a>(
    parent: &'a mut Value,
    key: &str,
    path: &'static str,
) -> Result<&'a mut Map<String, Value>, PodError> {
    let parent = parent.as_object_mut().ok_or(PodError::BadField("the pod definition", "a mapping"))?;
    object_in(parent, key, path)
}

fn object_in<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
    path: &'static str,
) -> Result<&'a mut Map<String, Value>, PodError> {
    let child = parent.entry(key).or_insert(Value::Null);
    if child.is_null() {
        *child = json!({});
    }
    child.as_object_mut().ok_or(PodError::BadField(path, "a mapping"))
}

/// Takes a text out of a mapping; an empty one counts as absent.
fn taken_text(fields: &mut Map<String, Value>, key: &str) -> Option<String> {
    match fields.shift_remove(key) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        // YAML reads some names as numbers.
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::new("node:1", "abcd1234", "store")
    }

    fn extra() -> KubeExtra {
        KubeExtra {
            image: "quay.io/x:1".into(),
            command: "sh -c".into(),
            params: "'echo hi; sleep 1' a\\ b".into(),
            kube_namespace: "ns".into(),
            ..KubeExtra::default()
        }
    }

    fn awx_pod() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "automation-job-7",
                "namespace": "awx",
                "generateName": "replaced-",
                "labels": {"ansible_job": "", "ansible-awx": "1-2-3", "ansible-awx-job-id": "7"},
                "annotations": {"a": "b"},
            },
            "spec": {
                "serviceAccountName": "default",
                "automountServiceAccountToken": false,
                "restartPolicy": "Always",
                "fieldOfNextYear": {"deep": [1, 2.5, null]},
                "containers": [
                    {"name": "sidecar", "image": "s", "env": [{"name": "A", "value": "1"}]},
                    {"name": "worker", "image": "ee", "args": ["ansible-runner", "worker"], "resizePolicy": [1]},
                ],
            },
            "status": {"phase": "Running"},
        })
    }

    fn template(definition: Value) -> Result<Template, PodError> {
        Template::new("Kube", &extra(), Some(definition), &owner())
    }

    #[test]
    fn the_simple_pod_is_receptors_with_our_name_and_labels() {
        let made = Template::new("Kube", &extra(), None, &owner()).unwrap();
        assert_eq!((made.prefix(), made.namespace()), ("kube-", "ns"));
        let node = &owner().node;
        assert_eq!(
            made.named("kube-bcdfg"),
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "generateName": "kube-",
                    "namespace": "ns",
                    "labels": {"meshd/node": node, "meshd/unit": "abcd1234", "meshd/store": "store"},
                    "name": "kube-bcdfg",
                },
                "spec": {
                    "containers": [{
                        "name": "worker", "image": "quay.io/x:1", "stdin": true, "stdinOnce": true, "tty": false,
                        "command": ["sh", "-c"], "args": ["echo hi; sleep 1", "a b"],
                    }],
                    "restartPolicy": "Never",
                },
            })
        );
        let bare = KubeExtra { command: String::new(), params: String::new(), ..extra() };
        let bare = Template::new("kube", &bare, None, &owner()).unwrap().named("n");
        assert!(bare["spec"]["containers"][0].get("command").is_none(), "the image's own");
    }

    #[test]
    fn what_we_do_not_know_of_a_pod_reaches_the_server_untouched() {
        let made = template(awx_pod()).unwrap();
        let pod = made.named("automation-job-7-bcdfg");
        let mut expected = awx_pod();
        expected.as_object_mut().unwrap().shift_remove("status");
        expected["metadata"]["name"] = "automation-job-7-bcdfg".into();
        expected["metadata"]["generateName"] = "automation-job-7-".into();
        for (name, value) in owner().labels() {
            expected["metadata"]["labels"][name] = value.into();
        }
        expected["spec"]["restartPolicy"] = "Never".into();
        expected["spec"]["containers"][1]["stdin"] = true.into();
        expected["spec"]["containers"][1]["stdinOnce"] = true.into();
        assert_eq!(pod, expected);
        assert_eq!(made.namespace(), "awx", "the pod's namespace wins");
    }

    #[test]
    fn without_a_name_the_work_type_is_the_prefix() {
        let mut pod = awx_pod();
        pod["metadata"] = json!({"generateName": "x-"});
        let made = template(pod.clone()).unwrap();
        assert_eq!((made.prefix(), made.namespace()), ("kube-", "ns"));
        pod["metadata"] = Value::Null;
        assert_eq!(template(pod.clone()).unwrap().prefix(), "kube-");
        pod.as_object_mut().unwrap().remove("metadata");
        assert_eq!(template(pod).unwrap().prefix(), "kube-");
    }

    #[test]
    fn what_cannot_become_a_pod_is_refused_by_name() {
        let error = |pod| template(pod).unwrap_err().to_string();
        let changed = |pointer: &str, value: Value| {
            let mut pod = awx_pod();
            *pod.pointer_mut(pointer).unwrap() = value;
            pod
        };
        assert_eq!(
            error(changed("/spec/containers/1/name", "w".into())),
            "at least one container must be named worker"
        );
        assert_eq!(error(changed("/spec", Value::Null)), "at least one container must be named worker");
        assert_eq!(
            error(changed("/kind", "Job".into())),
            "the pod definition must have apiVersion v1 and kind Pod, but it has apiVersion v1 and kind Job"
        );
        assert_eq!(error(changed("/metadata", "x".into())), "metadata must be a mapping");
        assert_eq!(error(changed("/metadata/labels", 3.into())), "metadata.labels must be a mapping");
        for not_even_a_mapping in [Value::Null, json!([1]), json!("x")] {
            assert!(error(not_even_a_mapping).contains("it has apiVersion none and kind none"));
        }
        let nowhere = KubeExtra { kube_namespace: String::new(), ..extra() };
        assert_eq!(
            Template::new("kube", &nowhere, None, &owner()).unwrap_err().to_string(),
            "pod namespace is empty for pod kube-"
        );
        let open = KubeExtra { params: "'x".into(), ..extra() };
        assert_eq!(
            Template::new("kube", &open, None, &owner()).unwrap_err(),
            PodError::BadQuoting("kube_params")
        );
        let none = KubeExtra { image: String::new(), ..extra() };
        assert_eq!(Template::new("kube", &none, None, &owner()).unwrap_err(), PodError::NoImage);
    }

    #[test]
    fn with_tcp_the_worker_learns_where_to_connect_and_keeps_its_environment() {
        let mut pod = awx_pod();
        pod["spec"]["containers"][1]["env"] = json!([{"name": "B", "value": "2"}]);
        let mut made = template(pod).unwrap();
        made.connects_to("10.1.2.3", 4567).unwrap();
        let pod = made.named("n");
        assert_eq!(pod["spec"]["containers"][0]["env"], awx_pod()["spec"]["containers"][0]["env"]);
        assert_eq!(
            pod["spec"]["containers"][1]["env"],
            json!([
                {"name": "B", "value": "2"},
                {"name": "RECEPTOR_HOST", "value": "10.1.2.3"},
                {"name": "RECEPTOR_PORT", "value": "4567"},
            ])
        );
    }

    #[test]
    fn a_pods_definition_is_not_in_logs() {
        let mut pod = awx_pod();
        pod["spec"]["containers"][1]["env"] = json!([{"name": "B", "value": "hunter2"}]);
        assert_eq!(format!("{:?}", template(pod).unwrap()), "Template(awx/automation-job-7-)");
    }
}
