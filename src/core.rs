//! The protocol: the messages between nodes, and how nodes react to them. Pure: bytes, time and random numbers are
//! arguments, and nothing here waits, opens files or spawns tasks. So it is a crate of its own, which compiles without
//! a runtime. The simulator, `netsim`, is in the same crate.

pub mod counters;
pub mod mesh;
pub mod wire;
