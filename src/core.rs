//! The protocol itself: what nodes say, and what they make of it. It is pure: bytes, clocks and random numbers are
//! arguments, nothing here waits, opens or spawns, and so it is a crate of its own, which compiles without a runtime. Its
//! crate also has the simulator, `netsim`.

pub mod counters;
pub mod mesh;
pub mod wire;
