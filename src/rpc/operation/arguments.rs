//! What operations take. An argument that is at its default is not sent, so that a controller which does not know it yet
//! still answers. docs/controller-reference.md specifies the keys.

#![expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use crate::rpc::report::{JobKind, JobState};

/// The longest name of anything, in bytes.
const LONGEST_NAME: usize = 255;

/// Declares arguments: those that are needed, then behind a semicolon those that are not.
macro_rules! arguments {
    ($($(#[$doc:meta])* struct $type:ident {
        $($(#[$about:meta])* $key:ident: $value:ty),*;
        $($(#[$on:meta])* $option:ident: $kind:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $type {
                $($(#[$about])* pub $key: $value,)*
                $(
                    $(#[$on])*
                    #[serde(default, skip_serializing_if = "is_default")]
                    pub $option: $kind,
                )*
            }

            impl $type {
                /// The first of those that are needed.
                pub(super) fn target(&self) -> String {
                    let needed: &[&dyn ToString] = &[$(&self.$key),*];
                    needed.first().map(|key| key.to_string()).unwrap_or_default()
                }
            }
        )*
    };
}

arguments! {
    /// There are none.
    struct Nothing {;}

    /// An instance or a group.
    struct ByName {
        #[serde(deserialize_with = "name")]
        name: String;
    }

    /// A job.
    struct ById {
        id: i64;
    }

    /// Where a backup goes.
    struct BackupPath {
        #[serde(deserialize_with = "name")]
        path: String;
    }

    /// Whether policies only say what they would change.
    struct PolicyRun {
        ;
        dry_run: bool,
    }

    /// How many requests of operators are listed.
    struct AuditPage {
        ;
        limit: Option<u32>,
    }

    /// Which instances are listed.
    struct InstanceFilter {
        ;
        /// Instead, the nodes that could become some.
        found: bool,
    }

    /// What is registered.
    struct NewInstance {
        #[serde(deserialize_with = "name")]
        name: String;
        node_type: Option<String>,
        enabled: Option<bool>,
    }

    /// What is changed of an instance.
    struct InstanceSettings {
        #[serde(deserialize_with = "name")]
        name: String;
        capacity_adjustment: Option<f64>,
        managed_by_policy: Option<bool>,
    }

    /// Which instance is checked, and whether that is saved.
    struct HealthCheck {
        #[serde(deserialize_with = "name")]
        name: String;
        store: Option<bool>,
    }

    /// How an instance is removed.
    struct InstanceRemoval {
        #[serde(deserialize_with = "name")]
        name: String;
        /// What ran there has ended, or never will. Else it is removed once its jobs have ended.
        dead: bool,
    }

    /// What is set of a group; what is not given stays.
    struct GroupSettings {
        #[serde(deserialize_with = "name")]
        name: String;
        policy_instance_percentage: Option<u32>,
        policy_instance_minimum: Option<u32>,
        policy_instance_list: Option<Vec<String>>,
        max_concurrent_jobs: Option<u32>,
        max_forks: Option<u32>,
        is_container_group: Option<bool>,
        cluster: Option<String>,
        namespace: Option<String>,
        pod_spec_override: Option<String>,
        registry: Option<String>,
    }

    /// A group and an instance.
    struct Membership {
        #[serde(deserialize_with = "name")]
        name: String,
        #[serde(deserialize_with = "name")]
        instance: String;
    }

    /// Which jobs are listed.
    struct JobFilter {
        ;
        state: Vec<JobState>,
        kind: Vec<JobKind>,
        name: Option<String>,
        group: Option<String>,
        node: Option<String>,
        label: BTreeMap<String, String>,
        #[serde(deserialize_with = "time")]
        since: Option<Timestamp>,
        #[serde(deserialize_with = "time")]
        until: Option<Timestamp>,
        before: Option<i64>,
        limit: Option<u32>,
        /// Nothing of what came with a submission but the name.
        brief: bool,
    }

    /// Which hosts of a job are listed.
    struct HostPage {
        id: i64;
        from: u64,
        limit: Option<u32>,
    }

    /// Which part of a job's output is read.
    struct OutputPart {
        id: i64;
        from: u64,
        attempt: Option<u32>,
        follow: bool,
    }

    /// Which events of a job are read.
    struct EventFilter {
        id: i64;
        from: u64,
        host: Option<String>,
        failed: bool,
        follow: bool,
    }

    /// Which attempt of a job does not run and will not.
    struct LostAttempt {
        id: i64,
        attempt: u32;
    }

    /// Which job runs again.
    struct Rerun {
        id: i64;
        failed_hosts: bool,
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn name<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let name = String::deserialize(d)?;
    let is_name = !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control);
    if is_name { Ok(name) } else { Err(serde::de::Error::custom("it is no name")) }
}

/// The parser's own words would show the value.
fn time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
    let time = String::deserialize(d)?.parse::<Timestamp>();
    time.map(Some).map_err(|_| serde::de::Error::custom("it is no time, as in 2026-01-31T12:00:00Z"))
}
