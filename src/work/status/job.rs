//! ExtraData of units that are jobs of a controller. Owns only the shape: `jobs` and the controller decide what is
//! noted in it, and when.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The work type whose units are jobs.
pub const CONTROLLER: &str = "controller";

/// ExtraData of a job's unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]
pub struct JobExtra {
    #[serde(rename = "JobID", skip_serializing_if = "Option::is_none")]
    pub job_id: Option<i64>,
    pub kind: String,
    pub name: String,
    pub controller_node: String,
    pub execution_node: String,
    pub instance_group: String,
    #[serde(rename = "ChildUnitID")]
    pub child_unit_id: String,
    pub child_work_type: String,
    pub attempt: u32,
    pub impact: u32,
    pub event_count: u64,
    pub last_status: String,
    pub explanation: String,
    pub exit_code: Option<i32>,
    pub created: Option<String>,
    pub started: Option<String>,
    pub finished: Option<String>,
    pub cancel_requested: bool,
    /// The attempt whose output was begun last, and the byte at which it begins.
    pub output_attempt: u32,
    pub output_from: u64,
    /// Where the output of each of the latest attempts begins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_starts: BTreeMap<u32, u64>,
    /// The children that wrote the output of those attempts. A store that lost its last commits gives the same numbers
    /// to attempts of other children.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_children: BTreeMap<u32, String>,
    /// The nodes that those children were sent to, because a child that the store has forgotten has to be ended there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_nodes: BTreeMap<u32, String>,
    /// Children that the store has forgotten, with the nodes that they were sent to, until they have ended there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub forgotten: BTreeMap<String, String>,
    /// The IDs that nodes have given to those children: a receptor node knows them only by these.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub far_units: BTreeMap<String, String>,
    /// Who submitted it, and whether as an administrator. Both are needed to enter a unit again that has lost its row.
    pub launched_by: String,
    pub is_admin: bool,
    /// The job whose payload it repeats. Until the unit has a job of its own, a restart removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<i64>,
    /// The unit is to be released once its job has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub release_requested: bool,
    /// The header, if it came as a parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

impl JobExtra {
    /// Takes over what another unit says of the output.
    pub(in crate::work) fn take_output_of(&mut self, other: &Self) {
        (self.output_attempt, self.output_from) = (other.output_attempt, other.output_from);
        self.output_starts.clone_from(&other.output_starts);
        self.output_children.clone_from(&other.output_children);
        self.output_nodes.clone_from(&other.output_nodes);
        self.forgotten.clone_from(&other.forgotten);
        self.far_units.clone_from(&other.far_units);
    }
}
