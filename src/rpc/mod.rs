//! The control protocol: one line asks, one line answers, and raw bytes follow where a command says so.
//!
//! Owns the grammar of requests in both directions, the reports in the answers, the meaning of `ERROR:` lines, and the
//! client's half of a connection. `work` (towards other nodes) and `cli` are its clients, `control` its server. It does
//! not know what a command does, nor how a connection is made.

pub mod client;
pub mod request;
