//! Names in reports that clients decide by. A node of another release may send other names.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A name that is known here, or another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Lenient<T> {
    /// One of ours.
    Known(T),
    /// What a node of another age says.
    Other(String),
}

impl<T: Copy> Lenient<T> {
    /// The value, if it is known here.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Other(_) => None,
        }
    }
}

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl<T: fmt::Display> fmt::Display for Lenient<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => value.fmt(f),
            Self::Other(name) => name.fmt(f),
        }
    }
}

/// Declares an enum whose values have one name each, for the store, headers and answers.
macro_rules! names {
    ($(#[$doc:meta])* enum $type:ident { $($(#[$about:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $type {
            $($(#[$about])* #[serde(rename = $name)] $value,)*
        }

        impl $type {
            /// Every value.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// The name in headers, in the store and in answers.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|one| one.name() == name);
                found.ok_or_else(|| format!("it must be one of {}", Self::ALL.map(Self::name).join(", ")))
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use names;

names! {
    /// The state of a job.
    enum JobState {
        /// Not placed.
        Pending = "pending",
        /// Placed, but its child is not accepted yet.
        Waiting = "waiting",
        /// Its child was accepted.
        Running = "running",
        /// Its playbook succeeded.
        Successful = "successful",
        /// Its playbook failed, or its instance was lost.
        Failed = "failed",
        /// It could not be run.
        Error = "error",
        /// A cancel ended it.
        Canceled = "canceled",
    }
}

impl JobState {
    /// Whether the state is final.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Waiting | Self::Running => false,
            Self::Successful | Self::Failed | Self::Error | Self::Canceled => true,
        }
    }
}

names! {
    /// What a job does.
    enum JobKind {
        /// Runs a playbook.
        Job = "job",
        /// Runs one module on some hosts.
        AdHoc = "ad_hoc",
        /// Fills an inventory from its source.
        InventoryUpdate = "inventory_update",
        /// Brings a project's tree up to date.
        ProjectUpdate = "project_update",
        /// The same, created by the controller right before a job that needs it.
        ProjectSync = "project_sync",
        /// Housekeeping that a client requests.
        System = "system",
        /// A health check of an instance.
        Health = "health",
        /// Removes the files that jobs left on an instance.
        Cleanup = "cleanup",
    }
}
