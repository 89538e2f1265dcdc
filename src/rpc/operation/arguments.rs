//! The arguments of operations. An argument at its default is not sent, so that a controller that does not know it yet
//! still answers. docs/controller-reference.md specifies the keys.

#![expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::rpc::report::enrolment::NodeAct;
use crate::rpc::report::names::names;
use crate::rpc::report::{JobKind, JobState};

/// The longest name of anything, in bytes.
const LONGEST_NAME: usize = 255;

names! {
    /// What a host becomes that is approved.
    enum HostRole {
        Execution = "execution",
        Hop = "hop",
        Hybrid = "hybrid",
    }
}

/// Declares arguments: the required ones, then after a semicolon the optional ones.
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
                /// The first required argument.
                pub(super) fn target(&self) -> String {
                    let needed: &[&dyn ToString] = &[$(&self.$key),*];
                    needed.first().map(|key| key.to_string()).unwrap_or_default()
                }
            }
        )*
    };
}

arguments! {
    /// No arguments.
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
        /// Lists those after this number instead of the latest, the first of them first.
        after: Option<i64>,
    }

    /// Which instances are listed.
    struct InstanceFilter {
        ;
        /// Lists the nodes that could become instances instead.
        found: bool,
    }

    /// The instance to register.
    struct NewInstance {
        #[serde(deserialize_with = "name")]
        name: String;
        node_type: Option<String>,
        enabled: Option<bool>,
    }

    /// The settings of an instance to change.
    struct InstanceSettings {
        #[serde(deserialize_with = "name")]
        name: String;
        capacity_adjustment: Option<f64>,
        managed_by_policy: Option<bool>,
    }

    /// Which instance is checked, and whether the result is saved.
    struct HealthCheck {
        #[serde(deserialize_with = "name")]
        name: String;
        store: Option<bool>,
    }

    /// How an instance is removed.
    struct InstanceRemoval {
        #[serde(deserialize_with = "name")]
        name: String;
        /// The instance is gone for good: what ran there has ended or never will. Otherwise it is removed once its jobs
        /// have ended.
        dead: bool,
    }

    /// The settings of a group. Settings that are not given stay.
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

    /// A host that asks to become a node, and that it may.
    struct HostApproval {
        #[serde(deserialize_with = "name")]
        node: String,
        /// As the host shows it.
        #[serde(deserialize_with = "name")]
        fingerprint: String;
        /// `execution` if none is given.
        role: Option<HostRole>,
    }

    /// A host that asks to become a node, and that it may not.
    struct HostRejection {
        #[serde(deserialize_with = "name")]
        node: String,
        #[serde(deserialize_with = "name")]
        fingerprint: String;
    }

    /// Which saved jobs are listed.
    struct SavedFilter {
        ;
        /// Those behind this name.
        after: Option<String>,
        limit: Option<u32>,
    }

    /// Which saved job is started, and with which values of its variables.
    struct SavedStart {
        #[serde(deserialize_with = "name")]
        name: String;
        vars: GivenVars,
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
        /// The saved job that they were started of.
        saved: Option<String>,
        /// Stands in the name, the playbook, the module, the limit, a label, a host or the explanation.
        #[serde(deserialize_with = "word")]
        search: Option<String>,
        #[serde(deserialize_with = "time")]
        since: Option<Timestamp>,
        #[serde(deserialize_with = "time")]
        until: Option<Timestamp>,
        before: Option<i64>,
        limit: Option<u32>,
        /// Leaves out all that came with a submission except the name.
        brief: bool,
    }

    /// Which hosts of a job are listed.
    struct HostPage {
        id: i64;
        from: u64,
        limit: Option<u32>,
    }

    /// From where on jobs that have ended are listed.
    struct ExportFrom {
        ;
        /// Those behind this cursor.
        since: i64,
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

/// Values of variables. Nothing shows them, because some are secret.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GivenVars(pub Map<String, Value>);

impl std::fmt::Debug for GivenVars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} variables", self.0.len())
    }
}

/// What was done about a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeNote {
    #[serde(deserialize_with = "name")]
    pub node: String,
    pub act: NodeAct,
}

impl NodeNote {
    pub(super) fn target(&self) -> String {
        self.node.clone()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn name<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let name = String::deserialize(d)?;
    let is_name = !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control);
    if is_name { Ok(name) } else { Err(serde::de::Error::custom("it is not a name")) }
}

/// Accepts a text of the length of a name, since each look compares it with thousands of jobs. No store has a NUL.
fn word<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    let word = String::deserialize(d)?.replace('\0', "");
    match word.chars().count() {
        0 => Ok(None),
        letters if letters <= LONGEST_NAME => Ok(Some(word)),
        _ => Err(serde::de::Error::custom(format!("it has more than {LONGEST_NAME} letters"))),
    }
}

/// Has its own error text, because the parser's would show the value.
fn time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
    let time = String::deserialize(d)?.parse::<Timestamp>();
    time.map(Some).map_err(|_| serde::de::Error::custom("it is not a time, as in 2026-01-31T12:00:00Z"))
}
