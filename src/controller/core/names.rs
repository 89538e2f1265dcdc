//! Names and numbers of the controller's records.
//!
//! Distinct types keep an instance's name from being used as a group's. The edge has checked that the texts
//! are valid names.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

name! {
    /// An instance's name: the ID of its node.
    InstanceName
}

name! {
    /// The name of an instance group.
    GroupName
}

name! {
    /// A word of `exclusive`: of all jobs that name it, only one runs at a time.
    Word
}

impl GroupName {
    /// The group of the control nodes, from which owners are chosen.
    pub fn controlplane() -> Self {
        CONTROLPLANE.into()
    }

    /// The group for jobs that name none.
    pub fn default_group() -> Self {
        DEFAULT.into()
    }

    /// Whether it is one of the two groups that always exist.
    pub fn is_reserved(&self) -> bool {
        [CONTROLPLANE, DEFAULT].contains(&self.as_str())
    }
}

const CONTROLPLANE: &str = "controlplane";
const DEFAULT: &str = "default";

/// A job's number in the store. Later jobs have higher numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of an attempt within its job, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptNo(pub u32);

impl fmt::Display for AttemptNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
