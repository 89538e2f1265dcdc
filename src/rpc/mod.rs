//! The control protocol: one line asks, one line answers, and raw bytes follow where a command says so.
//!
//! Owns the grammar of requests in both directions, the reports in the answers, the meaning of `ERROR:` lines, and the
//! client's half of a connection. `work` (towards other nodes) and `cli` are its clients, `control` its server. It does
//! not know what a command does, nor how a connection is made, which a [`ControlDialer`] does. `post` is no part of it: POSTs to
//! servers of the web.

mod call_error;
mod client;
mod connection;
mod error_line;
pub mod follow;
pub mod operation;
mod output_bound;
pub(crate) mod post;
pub mod report;
pub mod request;
mod results;
pub mod strict;
mod submission;

pub use call_error::CallError;
pub use client::{Client, ControlDialer, Deadlines, Dialing};
pub use connection::{Answers, CallLimits, ControlConnection, Duplex, Tunnel};
pub use error_line::{ErrorCode, ErrorLine};
pub use output_bound::OutputBound;
pub use report::unit::{UnitReport, UnitState};
pub use results::{FollowEvent, FollowedOutput};
pub use submission::{PendingUnit, SubmitEnd};
