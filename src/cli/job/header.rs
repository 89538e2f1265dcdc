//! The header in front of a job's stream, from the flags. The node checks its values.

use serde_json::{Map, Value, json};

use super::flags::Placing;

impl Placing {
    /// The header of a job that runs a playbook, or a module. `title` is the name of one that nobody has named.
    pub(super) fn header(&self, is_module: bool, title: Option<String>) -> Value {
        let mut header = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            header.extend(value.map(|value| (key.to_owned(), value)));
        };
        let given = |list: &[String]| (!list.is_empty()).then(|| json!(list));
        put("controller", Some(json!(1)));
        put("kind", is_module.then(|| json!("ad_hoc")));
        put("name", self.name.clone().or(title).map(|name| json!(name)));
        put("key", self.job_key.as_ref().map(|key| json!(key)));
        let labels: Map<String, Value> =
            self.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        put("labels", (!labels.is_empty()).then(|| json!(labels)));
        put("hosts", self.hosts.map(|hosts| json!(hosts)));
        put("groups", given(&self.group).map(|groups| json!({"launch": groups})));
        put("priority", self.priority.map(|priority| json!(priority)));
        let job = |text: &String| text.parse::<u64>().map_or_else(|_| json!({"key": text}), |id| json!(id));
        let jobs: Vec<Value> = self.depends_on.iter().map(job).collect();
        put("depends_on", (!jobs.is_empty()).then(|| json!(jobs)));
        put("exclusive", given(&self.exclusive));
        put("pending_timeout", self.pending_timeout.as_ref().map(|span| json!(span)));
        put("timeout", self.job_timeout.as_ref().map(|span| json!(span)));
        put("lost_after", self.lost_after.as_ref().map(|span| json!(span)));
        put("retry", self.retry.map(|max| json!({"max": max, "unconfirmed": self.retry_unconfirmed})));
        let runner = self.image.is_some() || self.pull.is_some() || self.registry.is_some();
        put(
            "runner",
            runner.then(|| json!({"image": self.image, "pull": self.pull, "registry": self.registry})),
        );
        put(
            "sync",
            self.project_url.as_ref().map(
                |url| json!({"url": url, "revision": self.revision, "credential": self.project_credential}),
            ),
        );
        Value::Object(header)
    }
}
