//! The controller: places jobs on instances, and keeps them running when a node is lost.
//!
//! It is a service inside control nodes. A client submits a **job**. An **instance** is the record of a node
//! that may run jobs. An **attempt** is one try to run a job, as one unit of work on one instance. The
//! **owner** is the control node that drives a job. [`core`] decides, from plain state and a given time.
//! [`store`] keeps that state in SQLite or PostgreSQL. This module knows nothing of routing.
//!
//! - [`service`]: submissions become jobs; [`operations`]: what operators ask; `answers`: the reports for clients.
//! - [`peer`]: what control nodes ask of each other. [`output`]: the part of a job's output on this node.
//! - [`driver`]: what one control node does for its jobs; [`children`]: their attempts as units; [`store`]: what is kept.
//! - `housekeeping`: deletes what is too old, and what belongs to no job.
//! - [`header`] and [`stream`]: what a client submits, and what its runner answers; [`refusal`]: why a
//!   submission is refused.
//! - `saved`: the jobs that stand in files of a control node; `pack`: makes what a runner reads of a job.
//! - [`notify`]: tells programs elsewhere of jobs that have ended.
//! - [`options`]: its settings; [`credentials`], [`projects`], [`pod`], [`health`]: what a child is given, and what a
//!   health check says. `clusters`: the pods of container groups.

mod answers;
pub mod children;
pub mod clusters;
pub mod core;
pub mod credentials;
pub mod driver;
pub mod header;
pub mod health;
mod housekeeping;
pub mod notify;
pub mod operations;
pub mod options;
pub mod output;
pub(crate) mod pack;
pub mod peer;
pub mod pod;
pub mod projects;
pub mod refusal;
pub mod saved;
pub mod service;
pub mod store;
pub mod stream;
