//! The units of this node in memory: one entry each, its one writer, and what is remembered of units and their callers.

pub(crate) mod entry;
pub(crate) mod id_locks;
pub(crate) mod quota;
pub(crate) mod released;
pub(crate) mod writer;
