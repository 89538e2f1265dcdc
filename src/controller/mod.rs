//! The controller: places jobs on instances, and keeps them running when a node is lost.
//!
//! It is a service inside control nodes. A client submits a **job**. An **instance** is the record of a node
//! that may run jobs. An **attempt** is one try to run a job, as one unit of work on one instance. The
//! **owner** is the control node that drives a job. [`core`] decides, from plain state and a given time.
//! [`store`] keeps that state in SQLite or PostgreSQL. This room knows nothing of routing.
//!
//! - [`service`]: submissions become jobs; [`operations`]: what operators ask; `answers`: the JSON of both.
//! - [`peer`]: what control nodes ask of each other. [`output`]: what this one has of a job's output.
//! - [`driver`]: what one control node does for its jobs; [`children`]: their attempts as units; [`store`]: what is kept.
//! - `housekeeping`: what is deleted in time, and what belongs to nothing.
//! - [`header`] and [`stream`]: what a client submits, and what its runner answers; [`refusal`]: why a
//!   submission is refused.
//! - [`options`]: its settings; [`credentials`], [`projects`], [`pod`], [`health`]: what a child is given, and what a
//!   health check says. `clusters`: what becomes of a container group's settings.

mod answers;
pub mod children;
pub mod clusters;
pub mod core;
pub mod credentials;
pub mod driver;
pub mod header;
pub mod health;
mod housekeeping;
pub mod operations;
pub mod options;
pub mod output;
pub mod peer;
pub mod pod;
pub mod projects;
pub mod refusal;
pub mod service;
pub mod store;
pub mod stream;
