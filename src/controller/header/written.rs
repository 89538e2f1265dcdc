//! A header as JSON again: what differs from the defaults, so that a stored header stays short.

use serde_json::{Map, Value, json};

use super::{Dependency, Header, ProjectSync, RunnerWords};
use crate::controller::core::{GroupName, LaunchGroups, Level, Retry, Slice, Word};
use crate::duration;

impl From<Header> for Value {
    fn from(header: Header) -> Self {
        let Header {
            kind,
            name,
            key,
            labels,
            forks,
            hosts,
            slice,
            impact,
            groups,
            priority,
            depends_on,
            exclusive,
            pending_timeout,
            timeout,
            output_limit,
            lost_after,
            retry,
            runner,
            sync,
            rerun,
            cleanup,
        } = header;
        let usual = Header::default();
        let mut map = Map::new();
        let mut put = |key: &str, value: Value, is_usual: bool| {
            if !is_usual {
                map.insert(key.to_owned(), value);
            }
        };
        put("controller", json!(1), false);
        put("kind", kind.name().into(), kind == usual.kind);
        put("name", json!(name), name.is_none());
        put("key", json!(key), key.is_none());
        put("labels", json!(labels), labels.is_empty());
        put("forks", json!(forks), forks.is_none());
        put("hosts", json!(hosts), hosts.is_none());
        let slice = slice.map(|Slice { number, count }| [number, count]);
        put("slice", json!(slice), slice.is_none());
        put("impact", json!(impact), impact.is_none());
        put("groups", self::groups(&groups), groups == usual.groups);
        put("priority", json!(priority), priority == usual.priority);
        let dependencies: Value = depends_on.iter().map(dependency).collect();
        put("depends_on", dependencies, depends_on.is_empty());
        let words: Vec<_> = exclusive.iter().map(Word::as_str).collect();
        put("exclusive", json!(words), words.is_empty());
        for (key, span) in
            [("pending_timeout", pending_timeout), ("timeout", timeout), ("lost_after", lost_after)]
        {
            put(key, json!(span.map(duration::print)), span.is_none());
        }
        put("output_limit", json!(output_limit), output_limit.is_none());
        put("retry", self::retry(&retry), retry == usual.retry);
        put("runner", json!(runner.as_ref().map(self::runner)), runner.is_none());
        put("sync", json!(sync.as_ref().map(self::sync)), sync.is_none());
        put("rerun", json!(rerun), rerun == usual.rerun);
        put("cleanup", json!(cleanup), cleanup == usual.cleanup);
        Self::Object(map)
    }
}

fn groups(groups: &LaunchGroups) -> Value {
    let names = |names: &[GroupName]| json!(names.iter().map(GroupName::as_str).collect::<Vec<_>>());
    json!({
        "launch": names(&groups.launch),
        "template": names(&groups.template),
        "inventory": names(&groups.inventory),
        "organization": names(&groups.organization),
        "prevent_fallback": groups.prevent_fallback.iter().map(|level| Level::name(*level)).collect::<Vec<_>>(),
    })
}

fn dependency(dependency: &Dependency) -> Value {
    match dependency {
        Dependency::Job(id) => json!(id.0),
        Dependency::Key(key) => json!({"key": key}),
    }
}

fn retry(retry: &Retry) -> Value {
    let on = [("lost", retry.on_lost), ("error", retry.on_error), ("failed", retry.on_failed)];
    let on: Vec<_> = on.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect();
    json!({"max": retry.max, "on": on, "unconfirmed": retry.unconfirmed})
}

fn runner(words: &RunnerWords) -> Value {
    json!({
        "image": words.image,
        "pull": words.pull.map(super::Pull::name),
        "isolation": words.isolation,
        "options": words.options,
        "registry": words.registry.as_ref().map(super::CredentialName::as_str),
        "keepalive": words.keepalive,
    })
}

fn sync(sync: &ProjectSync) -> Value {
    json!({
        "url": sync.url.as_str(),
        "revision": sync.revision,
        "credential": sync.credential.as_ref().map(super::CredentialName::as_str),
        "submodules": sync.submodules,
        "requirements": sync.requirements,
    })
}
